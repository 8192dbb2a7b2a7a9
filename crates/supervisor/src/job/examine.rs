//! What has become of an attempt: the lock first, then whoever holds it, then what it left.

use super::client::Client;
use super::clock;
use super::folder::{JobFolder, Problem};
use super::kernel_lock::{self, State};
use super::past::Past;
use super::protocol::{Hello, Op, Refusal, Reply};
use super::records::{ExitRecord, FenceRecord, Record, Started};
use super::sentinel;
use super::spec::{Identity, Spec};
use everbeat_engine::Finding;
use std::time::Duration;

/// So long a shim may take to answer. It does nothing that takes longer than a write to the disk.
const HELLO_WITHIN: Duration = Duration::from_secs(2);

/// Asks as the owner of that tenure; of an ended attempt anybody may know.
pub fn examine(folder: &JobFolder, identity: &Identity, tenure: u32) -> Finding {
    examine_within(folder, identity, tenure, HELLO_WITHIN)
}

pub fn examine_within(folder: &JobFolder, identity: &Identity, tenure: u32, hello_within: Duration) -> Finding {
    look(folder, identity, tenure, hello_within).unwrap_or_else(|problem| Finding::Unknown(problem.to_string()))
}

fn look(folder: &JobFolder, identity: &Identity, tenure: u32, hello_within: Duration) -> Result<Finding, Problem> {
    let until = clock::boot_ms() + hello_within.as_millis() as u64;
    loop {
        // A record that cannot be read does not hide a living shim.
        if let Ok(Some(record)) = ExitRecord::read(folder, identity) {
            return Ok(Finding::Exited(record.exit()));
        }
        kernel_lock::in_place(folder)?;
        let found = match kernel_lock::state(folder)? {
            State::Held => ask(folder, identity, tenure, until),
            State::Free | State::Absent => infer(folder, identity)?,
        };
        // Else the lock passed from hand to hand meanwhile.
        if let Some(finding) = found {
            return Ok(finding);
        }
    }
}

/// Nobody holds the lock: what does the folder say? Nothing, if somebody has taken it since.
fn infer(folder: &JobFolder, identity: &Identity) -> Result<Option<Finding>, Problem> {
    let began = began(folder, identity)?;
    let spec = Spec::read(folder)?;
    if spec.identity() != *identity {
        return Err(Problem::Foreign("spec.json".into()));
    }
    // The shim may have come, ended and left its record since the first look.
    if kernel_lock::state(folder)? == State::Held {
        return Ok(None);
    }
    if let Some(record) = ExitRecord::read(folder, identity)? {
        return Ok(Some(Finding::Exited(record.exit())));
    }
    let boot = clock::boot_id().map_err(|error| Problem::Unreadable("boot_id".into(), error))?;
    let began = began || Past::read(folder)?.may_have_run(identity);
    Ok(Some(match began {
        _ if spec.boot_id != boot => Finding::Rebooted,
        true => Finding::Gone,
        false => Finding::NotStarted,
    }))
}

/// Any sign that a shim of this attempt has held the lock. Each may have been taken away, so none alone is missed.
fn began(folder: &JobFolder, identity: &Identity) -> Result<bool, Problem> {
    let started: Option<Started> = Record::read(folder, identity)?;
    let fence: Option<FenceRecord> = Record::read(folder, identity)?;
    Ok(started.is_some()
        || fence.is_some_and(|fence| fence.may_have_run)
        || kernel_lock::note(folder, identity).is_some()
        || sentinel::read(folder).is_ok_and(|sentinel| sentinel.is_of(identity)))
}

/// The same as [`examine`], also where the spec is missing or another attempt's: that is no proof that nothing ran.
/// Somebody may have taken it away while the command goes on.
pub fn examine_without_spec(folder: &JobFolder, identity: &Identity, tenure: u32) -> Finding {
    let other = match Spec::read(folder) {
        Ok(spec) if spec.identity() != *identity => Some(spec.identity()),
        Err(Problem::Missing(_)) => None,
        Ok(_) | Err(_) => return examine(folder, identity, tenure),
    };
    search(folder, identity, tenure, other.as_ref()).unwrap_or_else(|problem| Finding::Unknown(problem.to_string()))
}

/// `other` is the attempt whose spec stands there.
fn search(folder: &JobFolder, identity: &Identity, tenure: u32, other: Option<&Identity>) -> Result<Finding, Problem> {
    let until = clock::boot_ms() + HELLO_WITHIN.as_millis() as u64;
    loop {
        // A record that cannot be read does not hide a living shim.
        if let Ok(Some(record)) = ExitRecord::read(folder, identity) {
            return Ok(Finding::Exited(record.exit()));
        }
        kernel_lock::in_place(folder)?;
        let held = kernel_lock::state(folder)? == State::Held;
        match held.then(|| ask(folder, identity, tenure, until)) {
            None => {}
            Some(None) => continue,
            Some(Some(found)) => {
                let by_other = match found {
                    Finding::Unknown(_) => other.is_some(),
                    Finding::Hung => other.is_some_and(|other| kernel_lock::note(folder, other).is_some()),
                    _ => false,
                };
                if !by_other {
                    return Ok(found);
                }
            }
        }
        let began = began(folder, identity)?;
        if !held && kernel_lock::state(folder)? == State::Held {
            continue;
        }
        if let Some(record) = ExitRecord::read(folder, identity)? {
            return Ok(Finding::Exited(record.exit()));
        }
        return Ok(match other {
            _ if began => Finding::Gone,
            Some(other) if other.attempt > identity.attempt => Finding::Fenced,
            _ if Past::read(folder)?.may_have_run(identity) => Finding::Gone,
            _ => Finding::NotStarted,
        });
    }
}

/// The attempt whose shim holds the lock, as far as it is known.
pub fn holder(folder: &JobFolder) -> Result<Option<Identity>, Problem> {
    Ok(match kernel_lock::state(folder)? {
        State::Held => kernel_lock::last_note(folder).map(|note| note.identity()),
        State::Free | State::Absent => None,
    })
}

/// Asks the lock's holder, again and again until the time is over: it may have locked just now. Nothing,
/// if nobody holds it any more.
fn ask(folder: &JobFolder, identity: &Identity, tenure: u32, until: u64) -> Option<Finding> {
    loop {
        let left = until.saturating_sub(clock::boot_ms());
        let answer = Client::connect(folder, identity, tenure, Duration::from_millis(left))
            .and_then(|mut client| client.ask(Op::Hello));
        match answer {
            Ok(Reply::Hello(hello)) => return Some(answered(&hello)),
            Ok(Reply::Refused { error: Refusal::Fenced, later_tenure, .. }) => {
                return Some(match later_tenure {
                    Some(_) => Finding::Fenced,
                    None => Finding::Unknown("another attempt's shim holds the lock".into()),
                });
            }
            _ if kernel_lock::state(folder).is_ok_and(|state| state != State::Held) => return None,
            _ if left == 0 => return Some(Finding::Hung),
            _ => clock::pause(5),
        }
    }
}

fn answered(hello: &Hello) -> Finding {
    match &hello.exit {
        Some(record) => Finding::Exited(record.exit()),
        None => Finding::Live(hello.beat()),
    }
}
