//! What is known of attempts whose place another one has taken. A store that fails over may forget that they ended,
//! and ask for them again.

use super::folder::{JobFolder, MOST_RECORD_BYTES, PAST, Problem};
use super::kernel_lock;
use super::records::{ExitRecord, FenceRecord, Record, Started};
use super::sentinel;
use super::spec::{Identity, Spec};
use everbeat_engine::Fenced;
use serde::{Deserialize, Serialize};
use std::io;

#[derive(Debug, Default, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub(crate) struct Past {
    attempts: Vec<PastAttempt>,
    /// Those up to this number that are not listed any more. Each may have run.
    #[serde(default)]
    dropped_through: u64,
}

#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
struct PastAttempt {
    epoch: u64,
    nonce: String,
    may_have_run: bool,
    exit: Option<ExitRecord>,
}

/// So many are listed. A store forgets the commits of moments, not of hundreds of attempts.
const MOST_ATTEMPTS: usize = 256;

impl Past {
    pub(crate) fn read(folder: &JobFolder) -> Result<Past, Problem> {
        match folder.read_json(PAST, MOST_RECORD_BYTES) {
            Err(Problem::Missing(_)) => Ok(Past::default()),
            read => read,
        }
    }

    fn find(&self, identity: &Identity) -> Option<&PastAttempt> {
        self.attempts.iter().find(|past| past.identity() == *identity)
    }

    /// Whether it is over, so that nothing may start it.
    pub(crate) fn forbids(&self, identity: &Identity) -> bool {
        self.find(identity).is_some() || identity.attempt <= self.dropped_through
    }

    pub(crate) fn may_have_run(&self, identity: &Identity) -> bool {
        self.find(identity).map_or(identity.attempt <= self.dropped_through, |past| past.may_have_run)
    }

    /// What had become of it; nothing, if it is not over.
    pub(crate) fn verdict(self, identity: &Identity) -> Option<Fenced> {
        let (over, ran) = (self.forbids(identity), self.may_have_run(identity));
        over.then(|| match self.exit(identity) {
            Some(record) => Fenced::Exited(record.exit()),
            None if ran => Fenced::Lost,
            None => Fenced::NeverStarted,
        })
    }

    pub(crate) fn exit(self, identity: &Identity) -> Option<ExitRecord> {
        self.attempts.into_iter().find(|past| past.identity() == *identity)?.exit
    }

    /// Keeps what the records say of other attempts, before this one's take their place. For the holder of the lock.
    pub(crate) fn keep(folder: &JobFolder, by: &Identity) -> io::Result<()> {
        Past::add(folder, standing(folder).into_iter().filter(|found| found.identity() != *by))
    }

    /// Keeps that an attempt may have run, where its fence has no room: a later one's stands there.
    pub(crate) fn note(folder: &JobFolder, identity: &Identity, may_have_run: bool) -> io::Result<()> {
        let Identity { attempt: epoch, token: nonce } = identity.clone();
        Past::add(folder, [PastAttempt { epoch, nonce, may_have_run, exit: None }])
    }

    fn add(folder: &JobFolder, found: impl IntoIterator<Item = PastAttempt>) -> io::Result<()> {
        let mut past = Past::read(folder).map_err(Problem::into_error)?;
        let mut changed = false;
        for found in found {
            changed |= past.learn(found);
        }
        if !changed {
            return Ok(());
        }
        past.attempts.sort_by_key(|attempt| attempt.epoch);
        let surplus = past.attempts.len().saturating_sub(MOST_ATTEMPTS);
        for dropped in past.attempts.drain(..surplus) {
            past.dropped_through = past.dropped_through.max(dropped.epoch);
        }
        folder.write_durably(PAST, &past)
    }

    /// Says whether that was new.
    fn learn(&mut self, found: PastAttempt) -> bool {
        let Some(known) = self.attempts.iter_mut().find(|known| known.identity() == found.identity()) else {
            self.attempts.push(found);
            return true;
        };
        let before = known.clone();
        known.may_have_run |= found.may_have_run;
        known.exit = known.exit.take().or(found.exit);
        *known != before
    }
}

impl PastAttempt {
    fn identity(&self) -> Identity {
        Identity { attempt: self.epoch, token: self.nonce.clone() }
    }
}

/// What the folder's records say, each of its own attempt. One that cannot be read was refused by [`super::fence`]
/// before, or is nobody's.
fn standing(folder: &JobFolder) -> Vec<PastAttempt> {
    let mut found = Vec::new();
    if let Ok(Some(exit)) = <ExitRecord as Record>::read_any(folder) {
        let may_have_run = exit.start_error.is_none();
        found.push(PastAttempt { epoch: exit.epoch, nonce: exit.nonce.clone(), may_have_run, exit: Some(exit) });
    }
    if let Ok(Some(Started { epoch, nonce, .. })) = Started::read_any(folder) {
        found.push(PastAttempt { epoch, nonce, may_have_run: true, exit: None });
    }
    if let Ok(Some(FenceRecord { epoch, nonce, may_have_run, .. })) = FenceRecord::read_any(folder) {
        found.push(PastAttempt { epoch, nonce, may_have_run, exit: None });
    }
    if let Ok(sentinel) = sentinel::read(folder) {
        found.push(PastAttempt { epoch: sentinel.epoch, nonce: sentinel.nonce, may_have_run: true, exit: None });
    }
    found
}

/// Puts a spec in the place of an earlier attempt's, which must be over; what is known of that one is kept. Refused
/// where this attempt is over itself, or somebody came between.
pub fn install(folder: &JobFolder, spec: &Spec) -> io::Result<()> {
    let mine = spec.identity();
    let Some(_lock) = kernel_lock::take(folder)? else { return Err(taken("another attempt holds its lock")) };
    // The lock of a folder that somebody has just taken away guards nothing.
    if !folder.is_in_place() {
        return Err(taken("its folder was taken away just now"));
    }
    match Spec::read(folder) {
        Ok(other) if other.epoch > mine.attempt || other.identity() == mine => {
            return Err(taken("its place is taken by the same or a later attempt"));
        }
        Ok(_) | Err(Problem::Missing(_)) => {}
        Err(problem) => return Err(problem.into_error()),
    }
    if Past::read(folder).map_err(Problem::into_error)?.forbids(&mine) {
        return Err(taken("it is over already"));
    }
    Past::keep(folder, &mine)?;
    spec.write(folder)
}

fn taken(why: &str) -> io::Error {
    io::Error::other(why.to_owned())
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::job::spec::new_token;

    fn attempt(attempt: u64) -> Identity {
        Identity { attempt, token: new_token().unwrap() }
    }

    #[test]
    fn of_attempts_that_are_not_listed_any_more_nobody_says_that_they_never_ran() {
        let root = tempfile::tempdir().unwrap();
        let folder = JobFolder::create(root.path(), "j").unwrap();
        let all: Vec<Identity> = (1..=MOST_ATTEMPTS as u64 + 3).map(attempt).collect();
        for identity in &all {
            Past::note(&folder, identity, false).unwrap();
        }
        let past = Past::read(&folder).unwrap();
        assert_eq!(past.attempts.len(), MOST_ATTEMPTS);
        assert!(all.iter().all(|identity| past.forbids(identity)));
        let told: Vec<bool> = all[..5].iter().map(|identity| past.may_have_run(identity)).collect();
        assert_eq!(told, [true, true, true, false, false]);
        assert!(!past.forbids(&attempt(MOST_ATTEMPTS as u64 + 4)));
    }

    #[test]
    fn what_was_learned_of_an_attempt_is_not_unlearned() {
        let root = tempfile::tempdir().unwrap();
        let folder = JobFolder::create(root.path(), "j").unwrap();
        let one = attempt(1);
        Past::note(&folder, &one, true).unwrap();
        Past::note(&folder, &one, false).unwrap();
        assert!(Past::read(&folder).unwrap().may_have_run(&one));
    }
}
