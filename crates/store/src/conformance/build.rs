//! Builders for what cases put into a store.

use crate::{Claim, Held, Sign};
use everbeat_model::lease::Shown;
use everbeat_model::run::{Claimed, Kind, Spec};
use everbeat_model::{
    Ending, Json, NewRun, Next, Outcome, Policy, Reason, ReplicaId, RunId, RunState, Settlement, StoreTime, Token,
};
use std::collections::BTreeMap;
use std::sync::Arc;
use uuid::Uuid;

/// Every task that a plain claim asks for.
const TASKS: [&str; 3] = ["work", "mail", "report"];

/// A run as a case describes it.
#[derive(Clone)]
pub(super) struct Draft {
    pub(super) id: RunId,
    pub(super) spec: Spec,
    run_at: Option<StoreTime>,
}

impl Draft {
    /// A task without any wishes.
    pub(super) fn plain(id: RunId) -> Draft {
        let spec = Spec {
            kind: Kind::Task,
            task: "work".to_string(),
            queue: "default".to_string(),
            priority: 0,
            input: Json::null(),
            policy: Arc::new(Policy::BASELINE),
            unique_key: None,
            args: None,
            parent: None,
            host: None,
            session: None,
            occurrence: None,
        };
        Draft { id, spec, run_at: None }
    }

    pub(super) fn task(mut self, task: &str) -> Draft {
        self.spec.task = task.to_string();
        self
    }

    pub(super) fn queue(mut self, queue: &str) -> Draft {
        self.spec.queue = queue.to_string();
        self
    }

    pub(super) fn kind(mut self, kind: Kind) -> Draft {
        self.spec.kind = kind;
        self
    }

    pub(super) fn priority(mut self, priority: i16) -> Draft {
        self.spec.priority = priority;
        self
    }

    pub(super) fn key(mut self, key: &str) -> Draft {
        self.spec.unique_key = Some(key.to_string());
        self
    }

    pub(super) fn input(mut self, input: Json) -> Draft {
        self.spec.input = input;
        self
    }

    pub(super) fn policy(mut self, policy: Policy) -> Draft {
        self.spec.policy = Arc::new(policy);
        self
    }

    pub(super) fn host(mut self, host: &str) -> Draft {
        self.spec.host = Some(host.to_string());
        self
    }

    pub(super) fn at(mut self, at: StoreTime) -> Draft {
        self.run_at = Some(at);
        self
    }

    /// Due in the year 2200.
    pub(super) fn far_off(self) -> Draft {
        self.at(StoreTime(7_258_118_400_000_000))
    }

    pub(super) fn done(self) -> NewRun {
        NewRun { id: self.id, spec: Arc::new(self.spec), run_at: self.run_at }
    }
}

/// A claim of every task, without limits of tasks or queues.
pub(super) fn claim(replica: ReplicaId, limit: usize) -> Claim {
    let tasks = TASKS.iter().map(|task| (task.to_string(), 10_000)).collect();
    Claim { replica, limit, tasks, queues: BTreeMap::new(), among: None }
}

pub(super) fn ids(claimed: &[Claimed]) -> Vec<RunId> {
    claimed.iter().map(|claimed| claimed.lease.run_id).collect()
}

pub(super) fn json(text: &str) -> Json {
    Json::parse(text).expect("valid JSON")
}

pub(super) fn ended(claimed: &Claimed, ending: Ending, next: Next) -> Settlement {
    Settlement {
        shown: claimed.lease.shown(),
        spec: claimed.spec.clone(),
        ending,
        next,
        standing: claimed.standing,
        last_heartbeat_at: None,
        worker_id: None,
        verdict: None,
    }
}

pub(super) fn success(claimed: &Claimed) -> Settlement {
    ended(claimed, Ending::succeeded(json("\"done\"")), Next::Finish(RunState::Succeeded))
}

pub(super) fn failure(claimed: &Claimed) -> Settlement {
    ended(claimed, Ending::failed("broken", true), Next::Finish(RunState::Failed))
}

/// Failed, to be tried again.
pub(super) fn retry(claimed: &Claimed, next: Next) -> Settlement {
    ended(claimed, Ending::failed("broken", false), next)
}

/// What a rescuer writes about a lease that it found.
pub(super) fn rescue(held: &Held) -> Settlement {
    Settlement {
        shown: Shown { rescue: true, ..held.lease.shown() },
        spec: held.spec.clone(),
        ending: Ending::because(Outcome::Lost, Reason::ReplicaSilent, "its replica fell silent"),
        next: Next::Ready,
        standing: held.standing,
        last_heartbeat_at: None,
        worker_id: None,
        verdict: None,
    }
}

pub(super) fn with_token(settlement: Settlement, token: Token) -> Settlement {
    Settlement { shown: Shown { token, ..settlement.shown }, ..settlement }
}

/// A token that no store has granted.
pub(super) fn forged() -> Token {
    Token(Uuid::from_u128(0xbad))
}

pub(super) fn sign(claimed: &Claimed, progress: Option<&str>, checkpoint: Option<&str>) -> Sign {
    Sign { shown: claimed.lease.shown(), progress: progress.map(json), checkpoint: checkpoint.map(json) }
}
