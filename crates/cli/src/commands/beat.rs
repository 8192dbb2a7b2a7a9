use crate::args::{BeatArgs, BeatStatus};
use crate::exit::{self, Failure};
use everbeat_supervisor::job::Client;
use everbeat_supervisor::job::client::Error;
use everbeat_supervisor::job::sentinel::Status;
use serde_json::{Map, Value};
use std::time::Duration;

/// A shim that is well answers within milliseconds; whoever beats has work to do.
const WITHIN: Duration = Duration::from_secs(5);
/// Set in the environment of every job.
const INSIDE: &str = "EVERBEAT_SOCKET";

/// Tells this job's shim how far the job is. No server is needed.
pub(crate) fn beat(args: BeatArgs) -> Result<u8, Failure> {
    if std::env::var_os(INSIDE).is_none() {
        let hint = "`everbeat beat` is for the command of a job; start one with `everbeat run -- CMD`";
        return Err(Failure::new(exit::USAGE, "this is not inside a job", hint));
    }
    let status = args.status.map(|status| match status {
        BeatStatus::Running => Status::Running,
        BeatStatus::Waiting => Status::Waiting,
        BeatStatus::Processing => Status::Processing,
    });
    Client::of_this_job(WITHIN).and_then(|mut shim| shim.beat(status, progress(args))).map_err(untold)?;
    Ok(exit::DONE)
}

fn progress(args: BeatArgs) -> Option<Value> {
    let given = [
        ("done", args.done.map(Value::from)),
        ("total", args.total.map(Value::from)),
        ("note", args.note.map(Value::from)),
    ];
    let given: Map<String, Value> =
        given.into_iter().filter_map(|(name, value)| Some((name.to_string(), value?))).collect();
    Some(given).filter(|given| !given.is_empty()).map(Value::Object)
}

fn untold(error: Error) -> Failure {
    let hint = match &error {
        Error::Refused(..) => "a later attempt of this job may have taken over; this one should end",
        _ => "the job goes on; beat again later",
    };
    Failure::server(format!("the beat was not taken: {error}"), hint)
}
