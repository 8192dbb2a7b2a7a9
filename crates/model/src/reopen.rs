//! Whether a finished run may be opened again.

use crate::id::RunId;
use crate::run::Standing;

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Reopened {
    Ready,
    /// The run is not finished, or somebody else opened it first.
    NotFinished,
    /// This unfinished run holds the unique key of the run.
    KeyTaken(RunId),
    NotFound,
}

/// A run that somebody asks to open again, as the store has it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Closed {
    pub run: RunId,
    /// The last attempt of the run; none unless the run is finished.
    pub finished: Option<u32>,
    /// The unfinished run that holds the unique key of the run.
    pub holder: Option<RunId>,
}

/// Decides over a run, or over none of that id. `attempt` is the one that the caller takes for the last: of several who
/// ask for the same opening, one gets it.
pub fn reopen(closed: Option<Closed>, attempt: u32) -> Reopened {
    let Some(Closed { run, finished, holder }) = closed else { return Reopened::NotFound };
    match holder {
        _ if finished != Some(attempt) => Reopened::NotFinished,
        None => Reopened::Ready,
        Some(holder) if holder == run => Reopened::NotFinished,
        Some(holder) => Reopened::KeyTaken(holder),
    }
}

/// What a reopened run has behind it: its tries begin anew, its attempts are counted on, so that no former owner can
/// speak for it.
pub fn standing(attempt: u32) -> Standing {
    Standing { attempt, ..Standing::default() }
}

#[cfg(test)]
mod tests {
    use super::*;
    use uuid::Uuid;

    #[test]
    fn a_finished_run_is_opened_once_unless_another_run_holds_its_key() {
        let [run, other] = [1, 2].map(|number| RunId(Uuid::from_u128(number)));
        let check = |finished, holder, expected| {
            assert_eq!(reopen(Some(Closed { run, finished, holder }), 3), expected, "{finished:?} {holder:?}");
        };
        check(Some(3), None, Reopened::Ready);
        check(Some(3), Some(other), Reopened::KeyTaken(other));
        check(Some(3), Some(run), Reopened::NotFinished);
        check(Some(4), None, Reopened::NotFinished);
        check(Some(4), Some(other), Reopened::NotFinished);
        check(None, None, Reopened::NotFinished);
        check(None, Some(run), Reopened::NotFinished);
        assert_eq!(reopen(None, 3), Reopened::NotFound);
    }

    #[test]
    fn a_reopened_run_has_all_its_tries_and_counts_its_attempts_on() {
        assert_eq!(standing(3), Standing { attempt: 3, tries: 0, losses: 0 });
    }
}
