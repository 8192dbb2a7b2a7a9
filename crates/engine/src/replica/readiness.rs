//! Whether this replica takes work, check by check. A check says what it found and, unless all is well,
//! what to do. To add one: a name in `CheckName`, a function from `Core` to `Check`, a line in `readiness`.

use super::{Life, Phase, Trouble};
use crate::attempts::Hindrance;
use crate::engine::Core;
use crate::{Engine, Error};
use everbeat_model::run::COMMAND;
use everbeat_model::time::format_duration;
use everbeat_store::Error as StoreError;
use std::sync::Arc;
use std::time::Duration;

/// What every check found, in the order of `CheckName::ALL`.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Readiness {
    pub checks: Vec<Check>,
}

#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Check {
    pub name: CheckName,
    pub status: CheckStatus,
    /// What was found, in words for people. It holds nothing secret: probes need no token.
    pub detail: String,
    /// What to do about it; none if nothing is to be done.
    pub hint: Option<String>,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum CheckName {
    /// It has joined and is not about to leave.
    Replica,
    /// Its loops turn.
    Loops,
    /// The store acknowledges its renewals.
    Store,
    /// Endings of attempts can be stored.
    Settling,
    /// Its host has what commands need to begin.
    Jobs,
    /// Its pools have workers that serve.
    Pools,
}

/// Only `Failing` makes a replica unready.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum CheckStatus {
    Ok,
    /// Something is wrong, and others need not stay away for it.
    Degraded,
    Failing,
}

impl Engine {
    pub fn readiness(&self) -> Readiness {
        let core = &self.core;
        Readiness { checks: vec![replica(core), loops(core), store(core), settling(core), jobs(core), pools(core)] }
    }
}

impl Readiness {
    pub fn ready(&self) -> bool {
        self.failing().is_none()
    }

    /// The first check that fails: those before it explain those after it.
    pub fn failing(&self) -> Option<&Check> {
        self.checks.iter().find(|check| check.status == CheckStatus::Failing)
    }
}

impl Check {
    pub(crate) fn ok(name: CheckName, detail: impl Into<String>) -> Check {
        Check { name, status: CheckStatus::Ok, detail: detail.into(), hint: None }
    }

    pub(crate) fn degraded(name: CheckName, detail: impl Into<String>, hint: impl Into<String>) -> Check {
        Check { status: CheckStatus::Degraded, ..Check::failing(name, detail, hint) }
    }

    pub(crate) fn failing(name: CheckName, detail: impl Into<String>, hint: impl Into<String>) -> Check {
        Check { name, status: CheckStatus::Failing, detail: detail.into(), hint: Some(hint.into()) }
    }
}

impl CheckName {
    pub const ALL: [CheckName; 6] = [
        CheckName::Replica,
        CheckName::Loops,
        CheckName::Store,
        CheckName::Settling,
        CheckName::Jobs,
        CheckName::Pools,
    ];

    pub fn as_str(self) -> &'static str {
        match self {
            CheckName::Replica => "replica",
            CheckName::Store => "store",
            CheckName::Settling => "settling",
            CheckName::Jobs => "jobs",
            CheckName::Pools => "pools",
            CheckName::Loops => "loops",
        }
    }
}

impl CheckStatus {
    pub const ALL: [CheckStatus; 3] = [CheckStatus::Ok, CheckStatus::Degraded, CheckStatus::Failing];

    pub fn as_str(self) -> &'static str {
        match self {
            CheckStatus::Ok => "ok",
            CheckStatus::Degraded => "degraded",
            CheckStatus::Failing => "failing",
        }
    }
}

fn replica(core: &Core) -> Check {
    let name = CheckName::Replica;
    let leaves = "send work to another replica";
    match core.life() {
        _ if core.has_ended() => Check::failing(name, "the replica has left", leaves),
        Some(life) if life.phase() == Phase::Draining => {
            let running = life.awaited();
            Check::failing(name, format!("draining: {running} attempts are still performed"), leaves)
        }
        _ if core.stopping() => Check::failing(name, "draining", leaves),
        None => Check::failing(name, "not joined yet", "it joins as soon as the store answers"),
        Some(life) if life.phase() == Phase::Fenced => {
            let detail = "judged dead by another replica; it stops its work and joins again under a new id";
            Check::failing(name, detail, "look at its verdict: everbeat ls verdicts")
        }
        Some(_) => Check::ok(name, "joined"),
    }
}

fn store(core: &Core) -> Check {
    let name = CheckName::Store;
    // Before it has joined, what kept it from that; afterwards, what became of its last renewal.
    let trouble = core.life().map_or_else(|| core.trouble().map(Trouble::Store), |life| life.pulse().trouble.clone());
    match trouble {
        Some(Trouble::Store(error)) => {
            Check::failing(name, format!("the store does not acknowledge this replica: {error}"), remedy(error))
        }
        Some(Trouble::Withheld) => Check::failing(
            name,
            "the last renewal was not sent, for a loop of this replica hangs",
            "see the check of its loops",
        ),
        None => Check::ok(name, core.life().map_or_else(|| "not asked yet".to_string(), |life| renewed(core, &life))),
    }
}

fn renewed(core: &Core, life: &Arc<Life>) -> String {
    let age = core.env.boot().since(life.pulse().renewed);
    format!("it acknowledged a renewal {} ago", format_duration(Duration::from_secs(age.as_secs())))
}

fn loops(core: &Core) -> Check {
    let name = CheckName::Loops;
    match core.life().and_then(|life| life.wedged()) {
        Some(hung) => {
            let detail = format!("the {} loop has not turned for half a heartbeat timeout", hung);
            Check::failing(name, detail, "look at the machine's load and at the log; restart the server if it stays so")
        }
        None => Check::ok(name, "they turn"),
    }
}

/// How long nothing could be stored before that is said: a single lost answer is not worth it.
const UNSETTLED_FOR: Duration = Duration::from_secs(1);

fn settling(core: &Core) -> Check {
    let name = CheckName::Settling;
    let Some(life) = core.life() else { return Check::ok(name, "nothing is to be stored") };
    let now = core.env.boot();
    let (held, oldest) = {
        let table = life.table();
        (table.held().count(), table.held().min_by_key(|held| held.hold.since).cloned())
    };
    let unsettled = life.unsettled().clone().filter(|unsettled| now.since(unsettled.since) >= UNSETTLED_FOR);
    if let Some(unsettled) = unsettled {
        let (waiting, error) = (unsettled.waiting + held, unsettled.error);
        return Check::failing(name, format!("no ending can be stored: {error}; waiting: {waiting}"), remedy(error));
    }
    let unwritten = life.outbox.trouble().filter(|unwritten| now.since(unwritten.since) >= UNSETTLED_FOR);
    if let Some(unwritten) = unwritten.filter(|_| oldest.is_none()) {
        let (age, bytes, error) = (now.since(unwritten.since).as_secs(), life.outbox.unwritten(), unwritten.error);
        let detail = format!("what attempts stream cannot be stored for {age} s, {bytes} bytes: {error}");
        return Check::degraded(name, detail, remedy(error));
    }
    match oldest {
        Some(oldest) => {
            let (age, bytes) = (now.since(oldest.hold.since).as_secs(), oldest.bytes);
            let error = oldest.hold.error;
            let detail = format!(
                "endings that cannot be stored while others can: {held}; the oldest for {age} s, of {bytes} bytes: {error}"
            );
            Check::degraded(name, detail, remedy(error))
        }
        None => Check::ok(name, "every ending is stored as it comes"),
    }
}

/// What whoever runs the server can do; a client's remedy would be another.
fn remedy(error: StoreError) -> String {
    error.remedy().map_or_else(|| Error::Store(error).hint(), ToString::to_string)
}

/// Others need not stay away: tasks are performed here, and jobs that are sent here may begin elsewhere.
fn jobs(core: &Core) -> Check {
    let name = CheckName::Jobs;
    let Some(performer) = core.performers.iter().find(|performer| performer.knows(COMMAND)) else {
        return Check::ok(name, "this replica performs none");
    };
    match performer.hindrance(&*core.env) {
        Some(Hindrance { reason, remedy }) => {
            Check::degraded(name, format!("no {} are begun here: {reason}", performer.name()), remedy)
        }
        None => Check::ok(name, "they can begin"),
    }
}

/// Others need not stay away: what a degraded pool would perform waits, or is performed elsewhere.
fn pools(core: &Core) -> Check {
    let name = CheckName::Pools;
    let (all, degraded) = core.pools.degraded();
    match degraded.as_slice() {
        [] if all == 0 => Check::ok(name, "this replica has none"),
        [] => Check::ok(name, "none is degraded"),
        [first, ..] => {
            // Why is not said here: the last words of a worker may hold anything.
            let detail = format!("degraded: {}", degraded.join(", "));
            Check::degraded(name, detail, format!("see why: everbeat show {first}"))
        }
    }
}
