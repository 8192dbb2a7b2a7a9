//! A measurement that is interrupted clears away what it made, as one that ends does.

use crate::exit::Failure;
use std::sync::OnceLock;
use std::sync::atomic::{AtomicU8, Ordering};
use tokio::signal::unix::{SignalKind, signal};
use tokio::sync::Notify;

/// The exit code that a signal stands for; 0 while none came.
static CODE: AtomicU8 = AtomicU8::new(0);
static TOLD: OnceLock<Notify> = OnceLock::new();

/// From now on the first signal is noted, and a second one ends the process at once.
pub(super) fn note() {
    TOLD.get_or_init(Notify::new);
    std::thread::spawn(|| {
        let Ok(runtime) = tokio::runtime::Builder::new_current_thread().enable_io().build() else { return };
        runtime.block_on(async {
            let (Ok(mut interrupt), Ok(mut terminate)) =
                (signal(SignalKind::interrupt()), signal(SignalKind::terminate()))
            else {
                return;
            };
            loop {
                let code = tokio::select! {
                    biased;
                    _ = interrupt.recv() => 128 + 2,
                    _ = terminate.recv() => 128 + 15,
                };
                if CODE.swap(code, Ordering::SeqCst) != 0 {
                    std::process::exit(code.into());
                }
                eprintln!("interrupted: clearing away what was made; a second signal ends at once");
                if let Some(told) = TOLD.get() {
                    told.notify_waiters();
                    told.notify_one();
                }
            }
        });
    });
}

/// Whether to go on.
pub(super) fn check() -> Result<(), Failure> {
    match CODE.load(Ordering::SeqCst) {
        0 => Ok(()),
        code => Err(Failure::new(code, "the measurement was interrupted", "")),
    }
}

/// Resolves when a signal came.
pub(super) async fn interrupted() -> Failure {
    loop {
        if let Err(interrupted) = check() {
            return interrupted;
        }
        match TOLD.get() {
            Some(told) => told.notified().await,
            None => std::future::pending().await,
        }
    }
}
