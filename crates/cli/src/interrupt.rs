use crate::term;
use std::io::IsTerminal;
use std::sync::mpsc::sync_channel;
use tokio::signal::unix::{SignalKind, signal};

/// When this process is asked to end, says `farewell` first. It is not for `--quiet` to leave out: whoever
/// interrupts must know that the work goes on. From the return of this on, no interruption is silent.
pub(crate) fn with(farewell: String) {
    let (listening, listens) = sync_channel::<()>(1);
    std::thread::spawn(move || {
        let Ok(runtime) = tokio::runtime::Builder::new_current_thread().enable_io().build() else { return };
        let code = runtime.block_on(async {
            let (interrupt, terminate) = (signal(SignalKind::interrupt()), signal(SignalKind::terminate()));
            drop(listening);
            let (Ok(mut interrupt), Ok(mut terminate)) = (interrupt, terminate) else {
                return std::future::pending().await;
            };
            tokio::select! {
                biased;
                _ = interrupt.recv() => 128 + 2,
                _ = terminate.recv() => 128 + 15,
            }
        });
        // On a terminal, after the ^C that it shows.
        let apart = if std::io::stderr().is_terminal() { "\n" } else { "" };
        term::warn(&format!("{apart}{farewell}"));
        std::process::exit(code);
    });
    let _it_listens_or_never_will = listens.recv();
}
