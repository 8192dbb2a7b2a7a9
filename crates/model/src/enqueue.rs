//! Requests for runs, and what becomes of several of them that are written together.

use crate::id::RunId;
use crate::idempotency::{Idempotency, Sent};
use crate::run::NewRun;
use std::collections::{BTreeMap, BTreeSet};

/// A request for runs: all of them or none.
#[derive(Clone, Debug, Default)]
pub struct Enqueue {
    pub runs: Vec<NewRun>,
    pub idempotency: Option<Idempotency>,
}

impl Enqueue {
    /// How much text the request is.
    pub fn bytes(&self) -> usize {
        self.runs.iter().map(NewRun::bytes).sum()
    }

    /// Whether what the request makes depends on who holds a unique key.
    pub fn wants_unique_key(&self) -> bool {
        self.runs.iter().any(|run| run.spec.unique_key.is_some())
    }
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Enqueued {
    Created(RunId),
    /// An earlier run stands for this one.
    Exists(RunId),
}

impl Enqueued {
    pub fn id(self) -> RunId {
        match self {
            Enqueued::Created(id) | Enqueued::Exists(id) => id,
        }
    }
}

/// A request came with the idempotency key of another one.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Reused;

/// Decides over requests one after the other: what is stored of the keys and runs that they name, and what the requests
/// before have added to that.
#[derive(Clone, Debug, Default)]
pub struct Intake {
    /// By idempotency key: the fingerprint that the key was used with, and the runs which that request was answered.
    pub kept: BTreeMap<String, (String, Vec<RunId>)>,
    /// By unique key: the unfinished run that holds the key.
    pub holders: BTreeMap<String, RunId>,
    /// Runs that are stored, finished ones too.
    pub stored: BTreeSet<RunId>,
}

impl Intake {
    /// Answers a request, and adds what the request makes.
    pub fn accept(&mut self, request: &Enqueue) -> Result<Vec<Enqueued>, Reused> {
        if let Some(idempotency) = &request.idempotency {
            let kept = self.kept.get(&idempotency.key);
            match idempotency.sent(kept.map(|(fingerprint, runs)| (fingerprint.as_str(), runs))) {
                Sent::First => {}
                Sent::Again(runs) => return Ok(runs.iter().map(|run| Enqueued::Exists(*run)).collect()),
                Sent::Reused => return Err(Reused),
            }
        }
        let answers: Vec<Enqueued> = request.runs.iter().map(|run| self.add(run)).collect();
        if let Some(Idempotency { key, fingerprint }) = request.idempotency.clone() {
            self.kept.insert(key, (fingerprint, answers.iter().map(|answer| answer.id()).collect()));
        }
        Ok(answers)
    }

    fn add(&mut self, run: &NewRun) -> Enqueued {
        let key = run.spec.unique_key.as_ref();
        let holder = key.and_then(|key| self.holders.get(key)).copied();
        if let Some(other) = run.stood_for(self.stored.contains(&run.id), holder) {
            return Enqueued::Exists(other);
        }
        self.holders.extend(key.map(|key| (key.clone(), run.id)));
        self.stored.insert(run.id);
        Enqueued::Created(run.id)
    }
}

#[cfg(test)]
mod tests {
    use super::Enqueued::{Created, Exists};
    use super::*;
    use crate::json::Json;
    use crate::policy::Policy;
    use crate::run::{Kind, Spec};
    use std::sync::Arc;
    use uuid::Uuid;

    fn id(number: u128) -> RunId {
        RunId(Uuid::from_u128(number))
    }

    fn run(number: u128, unique_key: Option<&str>) -> NewRun {
        let spec = Spec {
            kind: Kind::Task,
            task: "t".to_string(),
            queue: "q".to_string(),
            priority: 0,
            input: Json::null(),
            args: None,
            policy: Arc::new(Policy::BASELINE),
            unique_key: unique_key.map(ToString::to_string),
            parent: None,
            host: None,
            session: None,
            occurrence: None,
        };
        NewRun { id: id(number), spec: Arc::new(spec), run_at: None }
    }

    fn request(runs: &[(u128, Option<&str>)], key: Option<(&str, &str)>) -> Enqueue {
        let idempotency =
            key.map(|(key, fingerprint)| Idempotency { key: key.to_string(), fingerprint: fingerprint.to_string() });
        Enqueue { runs: runs.iter().map(|(number, key)| run(*number, *key)).collect(), idempotency }
    }

    #[test]
    fn a_request_is_answered_by_what_the_requests_before_it_made() {
        let mut intake = Intake::default();
        intake.kept.insert("old".to_string(), ("f".to_string(), vec![id(90)]));
        intake.holders.insert("held".to_string(), id(91));
        for (runs, key, expected) in [
            (&[(1, None)][..], Some(("k", "f")), Ok(vec![Created(id(1))])),
            (&[(2, None)], Some(("k", "f")), Ok(vec![Exists(id(1))])),
            (&[(3, Some("free"))], Some(("k", "g")), Err(Reused)),
            (&[(4, Some("free"))], None, Ok(vec![Created(id(4))])),
            (&[(5, Some("free")), (6, None)], Some(("l", "f")), Ok(vec![Exists(id(4)), Created(id(6))])),
            (&[(7, Some("held"))], Some(("old", "f")), Ok(vec![Exists(id(90))])),
            (&[(8, Some("held"))], None, Ok(vec![Exists(id(91))])),
            (&[(9, None)], Some(("l", "f")), Ok(vec![Exists(id(4)), Exists(id(6))])),
            (&[(6, None)], None, Ok(vec![Exists(id(6))])),
        ] {
            assert_eq!(intake.accept(&request(runs, key)), expected, "{runs:?} {key:?}");
        }
    }

    #[test]
    fn a_stored_run_takes_no_key_from_the_request_that_names_it_again() {
        let mut intake = Intake { stored: BTreeSet::from([id(1)]), ..Intake::default() };
        assert_eq!(intake.accept(&request(&[(1, Some("k"))], None)), Ok(vec![Exists(id(1))]));
        assert_eq!(intake.holders, BTreeMap::new());
        assert_eq!(intake.accept(&request(&[(2, Some("k"))], None)), Ok(vec![Created(id(2))]));
    }
}
