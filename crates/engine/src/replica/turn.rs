//! The loops whose turning proves that a replica works, and their calls to the store.

use super::Life;
use super::crew::Begun;
use crate::env::within;
use everbeat_model::BootInstant;
use everbeat_store::Error as StoreError;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;

/// A loop that must be seen to turn.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Turn {
    /// The claim loop of the performer in this place.
    Claim(usize),
    Settle,
    Sweep,
}

impl Life {
    /// A store call of a loop, bounded.
    pub(crate) async fn call<T>(&self, call: impl Future<Output = Result<T, StoreError>>) -> Result<T, StoreError> {
        let limit = self.core.settings.call_limit();
        let late = || Err(StoreError::no_answer());
        within(&*self.core.env, limit, call).await.unwrap_or_else(late)
    }

    /// A store call of a loop that must be seen to turn: every answer, of whatever kind, is a turn.
    pub(crate) async fn call_in<T>(
        &self,
        turn: Turn,
        call: impl Future<Output = Result<T, StoreError>>,
    ) -> Result<T, StoreError> {
        let answer = self.call(call).await;
        self.turned(turn);
        answer
    }

    pub(crate) fn turned(&self, turn: Turn) {
        self.last_turn(turn).store(self.core.env.boot().0.as_micros() as u64, Ordering::Relaxed);
    }

    fn last_turn(&self, turn: Turn) -> &AtomicU64 {
        match turn {
            Turn::Claim(crew) => &self.crew(crew).turned,
            Turn::Settle => &self.settle_turned,
            Turn::Sweep => &self.sweep_turned,
        }
    }

    /// The name of a loop that has not turned for half a timeout: wedged is not alive.
    pub(crate) fn wedged(&self) -> Option<String> {
        let now = self.core.env.boot();
        let half = self.core.settings.heartbeat_timeout / 2;
        let last = |turn: Turn| Duration::from_micros(self.last_turn(turn).load(Ordering::Relaxed));
        let claims = (0..self.crews.len()).map(Turn::Claim);
        let hung = claims.chain([Turn::Settle, Turn::Sweep]).find(|turn| now.since(BootInstant(last(*turn))) > half)?;
        Some(match hung {
            Turn::Claim(crew) => format!("claim {}", self.crew(crew).performer.name()),
            Turn::Settle => "settle".to_string(),
            Turn::Sweep => "sweep".to_string(),
        })
    }

    pub(crate) fn claims_begun(&self) -> Begun {
        Begun::by_now(&self.crews)
    }

    /// Whether all claims that had begun by then are over.
    pub(crate) fn claims_over(&self, begun: &Begun) -> bool {
        begun.over(&self.crews)
    }
}
