use crate::client::Trouble;
use crate::clock::Patience;
use crate::term;
use everbeat_model::time::format_duration;
use std::sync::{Mutex, MutexGuard, PoisonError};
use std::time::Duration;

/// A server that may go away and come back while something is asked of it. Shared by all who ask, so that
/// each absence is told once.
pub(crate) struct Contact {
    span: Duration,
    /// How much longer its present absence is borne.
    away: Mutex<Option<Patience>>,
}

impl Contact {
    /// Absences up to this span are borne; with none, the first trouble is the answer.
    pub(crate) fn new(span: Duration) -> Contact {
        Contact { span, away: Mutex::new(None) }
    }

    /// Asks until the server answers, or has been away for too long.
    pub(crate) fn ask<T>(&self, ask: impl Fn() -> Result<T, Trouble>) -> Result<T, Trouble> {
        let mut pauses = Pauses::default();
        loop {
            match ask() {
                Err(trouble) if trouble.passing() => {
                    let patience = self.away(&trouble);
                    if patience.left().is_zero() {
                        return Err(trouble);
                    }
                    patience.pause(pauses.next());
                }
                answer => {
                    self.back();
                    return answer;
                }
            }
        }
    }

    fn away(&self, trouble: &Trouble) -> Patience {
        *self.lock().get_or_insert_with(|| {
            if !self.span.is_zero() {
                let span = format_duration(self.span);
                term::warn(&format!("everbeat: {trouble}; trying again for {span}"));
            }
            Patience::new(Some(self.span))
        })
    }

    fn back(&self) {
        if self.lock().take().is_some() {
            term::warn("everbeat: the server is back");
        }
    }

    fn lock(&self) -> MutexGuard<'_, Option<Patience>> {
        self.away.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

const FIRST_PAUSE: Duration = Duration::from_millis(100);
const LONGEST_PAUSE: Duration = Duration::from_secs(1);

/// Pauses between tries, from short to long.
pub(crate) struct Pauses(Duration);

impl Default for Pauses {
    fn default() -> Pauses {
        Pauses(FIRST_PAUSE)
    }
}

impl Pauses {
    pub(crate) fn next(&mut self) -> Duration {
        let pause = self.0;
        self.0 = (pause * 2).min(LONGEST_PAUSE);
        pause
    }
}
