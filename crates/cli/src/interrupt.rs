use std::io::IsTerminal;
use tokio::signal::unix::{SignalKind, signal};

/// When this process is asked to end, says `farewell` first.
pub(crate) fn with(farewell: String) {
    std::thread::spawn(move || {
        let Ok(runtime) = tokio::runtime::Builder::new_current_thread().enable_io().build() else { return };
        let code = runtime.block_on(async {
            let (Ok(mut interrupt), Ok(mut terminate)) =
                (signal(SignalKind::interrupt()), signal(SignalKind::terminate()))
            else {
                return std::future::pending().await;
            };
            tokio::select! {
                biased;
                _ = interrupt.recv() => 128 + 2,
                _ = terminate.recv() => 128 + 15,
            }
        });
        if std::io::stderr().is_terminal() {
            // After the ^C that the terminal shows.
            eprintln!();
        }
        eprintln!("{farewell}");
        std::process::exit(code);
    });
}
