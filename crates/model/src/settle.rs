//! The only way an attempt ends, decided here for every path: performer, owner, sweep, drain.
//!
//! | outcome                    | cancel asked | tries left | next                                    |
//! |----------------------------|--------------|------------|-----------------------------------------|
//! | succeeded                  | any          | any        | succeeded                               |
//! | cancelled                  | any          | any        | cancelled                               |
//! | failed, of its own accord  | yes          | any        | failed                                  |
//! | any other                  | yes          | any        | cancelled                               |
//! | released                   | no           | any        | ready, or after its pause, at no cost   |
//! | lost, `on_lost = fail`     | no           | any        | failed                                  |
//! | lost                       | no           | yes        | first loss: ready; later: after backoff |
//! | failed, timed out, stalled | no           | yes        | after backoff                           |
//! | failed, for good           | no           | any        | failed                                  |
//! | any other                  | no           | no         | failed                                  |

use crate::attempt::Outcome;
use crate::id::WorkerId;
use crate::json::Json;
use crate::lease::Shown;
use crate::policy::{OnLost, Policy};
use crate::reason::Reason;
use crate::run::{RunState, Spec, Standing};
use crate::time::{StoreTime, format_duration};
use crate::verdict::Verdict;
use std::sync::Arc;
use std::time::Duration;

/// How an attempt ended, before anything is decided from it.
#[derive(Clone, Debug, PartialEq)]
pub struct Ending {
    pub outcome: Outcome,
    pub result: Option<Json>,
    pub error: Option<Json>,
    /// The failure will not go away by trying again.
    pub permanent: bool,
    /// Whoever performed it says that it ended so before any wish to stop reached it. A cancel that came too late
    /// prevents the next try, and does not change what this one was.
    pub own: bool,
    /// Of a released one: the next may not begin before.
    pub pause: Option<Duration>,
}

impl Ending {
    pub fn succeeded(result: Json) -> Ending {
        Ending { result: Some(result), ..Ending::plain(Outcome::Succeeded) }
    }

    /// An ending of which nothing more is to be said.
    pub fn plain(outcome: Outcome) -> Ending {
        Ending { outcome, result: None, error: None, permanent: false, own: false, pause: None }
    }

    pub fn failed(message: &str, permanent: bool) -> Ending {
        Ending { permanent, ..Ending::because(Outcome::Failed, Reason::Failed, message) }
    }

    /// A failure with what the one who failed says besides: a traceback, for people.
    pub fn failed_with(message: &str, permanent: bool, detail: Option<String>) -> Ending {
        let Some(detail) = detail else { return Ending::failed(message, permanent) };
        let reason = Reason::Failed.as_str();
        let error = Json::of(&serde_json::json!({ "reason": reason, "message": message, "detail": detail }));
        Ending { permanent, error: Some(error), ..Ending::plain(Outcome::Failed) }
    }

    /// An ending other than success, with its reason and a message for people.
    pub fn because(outcome: Outcome, reason: Reason, message: &str) -> Ending {
        let error = Json::of(&serde_json::json!({ "reason": reason.as_str(), "message": message }));
        Ending { error: Some(error), ..Ending::plain(outcome) }
    }

    /// How much text it is.
    pub fn bytes(&self) -> usize {
        [&self.result, &self.error].into_iter().flatten().map(|json| json.as_str().len()).sum()
    }
}

/// Where the run goes from here.
#[derive(Clone, Copy, Debug, PartialEq)]
pub enum Next {
    Finish(RunState),
    Ready,
    After(Duration),
}

impl Next {
    /// What happens next, in words.
    pub fn describe(&self, standing: &Standing) -> String {
        let attempt = standing.attempt + 1;
        match self {
            Next::Finish(state) => format!("run {}", state.as_str()),
            Next::Ready => format!("ready again at once, for attempt {attempt}"),
            Next::After(delay) => {
                let delay = Duration::from_millis(u64::try_from(delay.as_millis()).unwrap_or(u64::MAX));
                format!("attempt {attempt} follows in {}", format_duration(delay))
            }
        }
    }
}

/// Decides what follows an ending. `standing` is that of the attempt which ended; `chance` is a
/// random number in `0..1` for the jitter of a delay.
pub fn decide(
    ending: &Ending,
    policy: &Policy,
    standing: Standing,
    cancel_asked: bool,
    chance: f64,
) -> (Next, Standing) {
    let outcome = ending.outcome;
    let mut after = standing;
    after.tries += u32::from(outcome.counts());
    after.losses += u32::from(outcome == Outcome::Lost);
    let tries_left = after.tries < policy.max_attempts;
    let next = match outcome {
        Outcome::Succeeded => Next::Finish(RunState::Succeeded),
        Outcome::Cancelled => Next::Finish(RunState::Cancelled),
        Outcome::Failed if cancel_asked && ending.own => Next::Finish(RunState::Failed),
        _ if cancel_asked => Next::Finish(RunState::Cancelled),
        Outcome::Released => ending.pause.map_or(Next::Ready, Next::After),
        Outcome::Lost if policy.on_lost == OnLost::Fail => Next::Finish(RunState::Failed),
        _ if !tries_left || ending.permanent => Next::Finish(RunState::Failed),
        Outcome::Lost if after.losses == 1 => Next::Ready,
        Outcome::Lost => Next::After(policy.backoff.delay(after.losses - 1, chance)),
        Outcome::Failed | Outcome::TimedOut | Outcome::Stalled => {
            Next::After(policy.backoff.delay(after.tries - after.losses, chance))
        }
    };
    (next, after)
}

/// A decided ending, ready to be written under the lease it shows.
#[derive(Clone, Debug)]
pub struct Settlement {
    pub shown: Shown,
    pub spec: Arc<Spec>,
    pub ending: Ending,
    pub next: Next,
    pub standing: Standing,
    /// Kept by the owner in memory while the attempt ran; the store's own record otherwise.
    pub last_heartbeat_at: Option<StoreTime>,
    /// The worker that performed the attempt, if one did and the writer knows which.
    pub worker_id: Option<WorkerId>,
    pub verdict: Option<Verdict>,
}

impl Settlement {
    /// A run that somebody asked to cancel in the meantime must not be tried again: such a write is
    /// refused and decided anew.
    pub fn unless_cancelled(&self) -> bool {
        !matches!(self.next, Next::Finish(_))
    }
}

/// What became of a settlement.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Settled {
    Done,
    /// The lease is no longer the one shown; nothing was changed.
    Fenced,
    /// A cancel arrived first; nothing was changed. Decide again with it.
    CancelAsked,
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::policy::PolicyPatch;
    use serde_json::json;

    fn check(outcome: Outcome, cancel: bool, tries: u32, losses: u32, expected: Next) {
        let policy = Policy::BASELINE;
        let ending = Ending::plain(outcome);
        let standing = Standing { attempt: tries + 1, tries, losses };
        let (next, after) = decide(&ending, &policy, standing, cancel, 0.0);
        assert_eq!(next, expected, "{outcome:?} cancel={cancel} tries={tries} losses={losses}");
        assert_eq!(after.attempt, standing.attempt);
        assert_eq!(after.tries, tries + u32::from(outcome.counts()));
    }

    #[test]
    fn the_table_above_holds() {
        use Outcome::*;
        let failed = Next::Finish(RunState::Failed);
        let cancelled = Next::Finish(RunState::Cancelled);
        let second = Duration::from_secs(1);
        check(Succeeded, false, 0, 0, Next::Finish(RunState::Succeeded));
        check(Succeeded, true, 2, 0, Next::Finish(RunState::Succeeded));
        check(Cancelled, false, 0, 0, cancelled);
        for outcome in [Failed, Lost, TimedOut, Stalled, Released] {
            check(outcome, true, 0, 0, cancelled);
        }
        check(Released, false, 2, 0, Next::Ready);
        check(Lost, false, 0, 0, Next::Ready);
        check(Lost, false, 1, 1, Next::After(second));
        check(Lost, false, 1, 0, Next::Ready);
        check(Lost, false, 2, 2, failed);
        for outcome in [Failed, TimedOut, Stalled] {
            check(outcome, false, 0, 0, Next::After(second));
            check(outcome, false, 1, 0, Next::After(second * 2));
            check(outcome, false, 2, 0, failed);
        }
    }

    #[test]
    fn a_policy_may_refuse_to_retry_what_was_lost() {
        let policy =
            PolicyPatch::parse(&json!({"on_lost": "fail"})).and_then(|p| p.over(&Policy::BASELINE)).expect("valid");
        let ending = Ending::because(Outcome::Lost, Reason::ReplicaSilent, "gone");
        let (next, _) = decide(&ending, &policy, Standing { attempt: 1, ..Standing::default() }, false, 0.5);
        assert_eq!(next, Next::Finish(RunState::Failed));
    }

    #[test]
    fn a_cancel_that_came_after_the_end_only_prevents_the_next_try() {
        let standing = Standing { attempt: 1, ..Standing::default() };
        let check = |outcome, cancel, expected| {
            let ending = Ending { own: true, ..Ending::plain(outcome) };
            assert_eq!(decide(&ending, &Policy::BASELINE, standing, cancel, 0.0).0, expected, "{outcome:?} {cancel}");
        };
        check(Outcome::Failed, true, Next::Finish(RunState::Failed));
        check(Outcome::Failed, false, Next::After(Duration::from_secs(1)));
        check(Outcome::Lost, true, Next::Finish(RunState::Cancelled));
        check(Outcome::Succeeded, true, Next::Finish(RunState::Succeeded));
    }

    #[test]
    fn what_is_released_with_a_pause_waits_for_it_at_no_cost() {
        let pause = Some(Duration::from_secs(3));
        let ending = Ending { pause, ..Ending::because(Outcome::Released, Reason::Shortage, "no space") };
        let standing = Standing { attempt: 9, ..Standing::default() };
        let (next, after) = decide(&ending, &Policy::BASELINE, standing, false, 0.0);
        assert_eq!((next, after.tries), (Next::After(Duration::from_secs(3)), 0));
        assert_eq!(decide(&ending, &Policy::BASELINE, standing, true, 0.0).0, Next::Finish(RunState::Cancelled));
    }

    #[test]
    fn a_permanent_failure_is_not_tried_again() {
        let ending = Ending::failed("no such table", true);
        let (next, _) = decide(&ending, &Policy::BASELINE, Standing { attempt: 1, ..Standing::default() }, false, 0.5);
        assert_eq!(next, Next::Finish(RunState::Failed));
    }
}
