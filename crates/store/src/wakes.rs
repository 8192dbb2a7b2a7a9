use tokio::sync::watch;

/// Hints that there may be something to look at. They carry nothing and may be lost.
pub trait Wakes {
    /// Sends a hint to every replica, this one included. Many close together become one.
    fn wake(&self);

    fn wakes(&self) -> WakeSignal;
}

/// Resolves when a hint arrived since it was last asked.
#[derive(Clone, Debug)]
pub struct WakeSignal(watch::Receiver<u64>);

impl WakeSignal {
    pub fn new(receiver: watch::Receiver<u64>) -> WakeSignal {
        WakeSignal(receiver)
    }

    /// Waits for a hint. Cancel-safe. Waits for ever once the store is gone.
    pub async fn wait(&mut self) {
        if self.0.changed().await.is_err() {
            std::future::pending().await
        }
    }
}
