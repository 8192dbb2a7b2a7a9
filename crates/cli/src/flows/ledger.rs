use async_trait::async_trait;
use everbeat_engine::{Beat, Ctx, Stop as Stopped};
use everbeat_flows::{Counts, Ledger, Stop};
use everbeat_model::StoreTime;
use serde_json::Value;
use std::time::Duration;

/// What an attempt of a flow tells the engine.
pub(super) struct OfAttempt<'a>(pub(super) &'a Ctx);

#[async_trait]
impl Ledger for OfAttempt<'_> {
    async fn committed(&self, checkpoint: &Value, counts: &Counts) -> Result<(), Stop> {
        let beat = Beat { done: Some(counts.read), ..Beat::default() };
        self.0.heartbeat(beat).map_err(reason)?;
        self.0.checkpoint(checkpoint).await.map_err(reason)
    }

    fn check(&self) -> Result<(), Stop> {
        self.0.check().map_err(reason)
    }

    fn beat(&self, note: &str) {
        // Whether to stop is asked where the attempt can.
        let _asked_elsewhere = self.0.heartbeat(Beat { note: Some(note.to_string()), ..Beat::default() });
    }

    async fn sleep(&self, span: Duration) -> Result<(), Stop> {
        tokio::select! {
            biased;
            stop = self.0.stopped() => Err(reason(stop)),
            slept = self.0.sleep(span) => slept.map_err(reason),
        }
    }

    fn now(&self) -> StoreTime {
        self.0.now()
    }
}

fn reason(stop: Stopped) -> Stop {
    match stop {
        Stopped::Cancelled => Stop::Cancelled,
        Stopped::Draining => Stop::Draining,
        Stopped::Fenced => Stop::Fenced,
        other => Stop::Other(other.to_string()),
    }
}
