//! What has become of an attempt: the lock first, then whoever holds it, then what it left.

use super::client::{Client, Error};
use super::clock;
use super::folder::{JobFolder, Problem};
use super::kernel_lock::{self, State};
use super::protocol::{Hello, Refusal};
use super::records::{ExitRecord, Record, Started};
use super::spec::{Identity, Spec};
use std::time::Duration;

#[derive(Debug)]
pub enum Finding {
    /// The lock is held and its holder answers: alive, whatever the sentinel's age.
    Live(Box<Hello>),
    /// The lock is held and nobody answers.
    Hung,
    /// With its true status. The shim may linger still.
    Exited(Box<ExitRecord>),
    /// Nobody has taken the lock for this attempt yet.
    Starting,
    /// The lock is free and there is no record: [`super::fence`] says whether it is lost or never started.
    Gone,
    /// The machine has booted since, and there is no record.
    Rebooted,
    /// What stands there cannot be understood, or is of another attempt. Never death.
    Unknown(String),
}

/// So long a shim may take to answer. It does nothing that takes longer than a write to the disk.
const HELLO_WITHIN: Duration = Duration::from_secs(2);

pub fn examine(folder: &JobFolder, identity: &Identity) -> Finding {
    examine_within(folder, identity, HELLO_WITHIN)
}

pub fn examine_within(folder: &JobFolder, identity: &Identity, hello_within: Duration) -> Finding {
    look(folder, identity, hello_within).unwrap_or_else(|problem| Finding::Unknown(problem.to_string()))
}

fn look(folder: &JobFolder, identity: &Identity, hello_within: Duration) -> Result<Finding, Problem> {
    // A record that cannot be read does not hide a living shim.
    let record = ExitRecord::read(folder, identity);
    if let Ok(Some(record)) = record {
        return Ok(Finding::Exited(Box::new(record)));
    }
    match kernel_lock::state(folder)? {
        State::Held => Ok(ask(folder, identity, hello_within)),
        State::Free | State::Absent => {
            // The shim may have ended since the record was looked for.
            if let Some(record) = ExitRecord::read(folder, identity)? {
                return Ok(Finding::Exited(Box::new(record)));
            }
            let started: Option<Started> = Record::read(folder, identity)?;
            let spec = Spec::read(folder)?;
            if spec.identity() != *identity {
                return Err(Problem::Foreign("spec.json".into()));
            }
            let boot = clock::boot_id().map_err(|error| Problem::Unreadable("boot_id".into(), error))?;
            if spec.boot_id != boot {
                Ok(Finding::Rebooted)
            } else if started.is_some() || kernel_lock::note(folder, identity).is_some() {
                // It may have been taken, and its record written, between these looks.
                match kernel_lock::state(folder)? {
                    State::Held => Ok(ask(folder, identity, hello_within)),
                    _ => Ok(ExitRecord::read(folder, identity)?
                        .map_or(Finding::Gone, |record| Finding::Exited(Box::new(record)))),
                }
            } else {
                Ok(Finding::Starting)
            }
        }
    }
}

/// Asks the lock's holder, again and again until the time is over: it may have locked just now.
fn ask(folder: &JobFolder, identity: &Identity, within: Duration) -> Finding {
    let until = clock::boot_ms() + within.as_millis() as u64;
    loop {
        let left = until.saturating_sub(clock::boot_ms());
        let answer =
            Client::connect(folder, identity, Duration::from_millis(left)).and_then(|mut client| client.hello());
        match answer {
            Ok(Hello { exit: Some(record), .. }) => return Finding::Exited(Box::new(record)),
            Ok(hello) => return Finding::Live(Box::new(hello)),
            Err(Error::Refused(Refusal::Fenced, _)) => {
                return Finding::Unknown("another attempt's shim holds the lock".into());
            }
            Err(_) if left == 0 => return Finding::Hung,
            Err(_) => {}
        }
        // Its holder may have ended meanwhile.
        match (ExitRecord::read(folder, identity), kernel_lock::state(folder)) {
            (Ok(Some(record)), _) => return Finding::Exited(Box::new(record)),
            (_, Ok(State::Free)) if kernel_lock::note(folder, identity).is_some() => {
                return match ExitRecord::read(folder, identity) {
                    Ok(Some(record)) => Finding::Exited(Box::new(record)),
                    Ok(None) => Finding::Gone,
                    Err(problem) => Finding::Unknown(problem.to_string()),
                };
            }
            _ => clock::pause(5),
        }
    }
}
