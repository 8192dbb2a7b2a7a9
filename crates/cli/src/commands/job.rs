use super::To;
use super::find::WORK;
use super::{logs, show};
use crate::args::{LogsArgs, RunArgs, Stream};
use crate::client::{Answer, Client, Trouble, escape};
use crate::contact::Contact;
use crate::exit::{self, Failure};
use crate::follow::{Ended, From, Reading, Sink};
use crate::output::{self, message, plain};
use crate::spinner::Spinner;
use crate::{interrupt, term, waiting};
use everbeat_model::run::COMMAND;
use everbeat_model::time::format_duration;
use everbeat_model::{Invalid, Reason};
use rustix::event::{PollFd, PollFlags, Timespec, poll};
use rustix::fs::FileType;
use serde::Serialize;
use serde_json::{Map, Value};
use std::collections::BTreeMap;
use std::ffi::OsStr;
use std::io;
use std::sync::Arc;
use std::time::Duration;

/// Submits a command, follows it to its end and ends as it did.
pub(crate) fn run(to: &To, args: RunArgs) -> Result<u8, Failure> {
    let submission = Submission::new(&to.client, &args)?;
    let contact = Arc::new(Contact::new(args.patience));
    let accepted = submission.submit(&to.client, &contact).map_err(own)?;
    let id = plain(&accepted.value["id"]);
    if !args.stdin && stdin_is_dropped() {
        term::warn("everbeat: the command gets nothing of what comes on stdin; hand it over with -i");
    }
    if args.detach {
        to.print(accepted.raw.get(), || id);
        return Ok(exit::DONE);
    }
    interrupt::with(goes_on(to, &id));
    term::say(&format!("everbeat: job {id}"));
    let company = Spinner::of_run(&to.client, Some("job"), &id);
    let ended = follow(to, &contact, &id).and_then(|ended| match ended {
        Ended::Whole => finished(&to.client, &contact, &id).map(Some),
        Ended::Unread => Ok(None),
    });
    drop(company);
    match ended {
        Ok(Some(job)) => {
            if to.json() {
                output::print(&output::pretty(job.raw.get()));
            }
            Ok(end_like(&job.value))
        }
        Ok(None) => {
            term::warn(&goes_on(to, &id));
            Ok(exit::UNREAD)
        }
        Err(trouble) => Err(unfollowed(to, &id, trouble)),
    }
}

/// With `-o json`, stdout is for the finished job.
fn follow(to: &To, contact: &Arc<Contact>, id: &str) -> Result<Ended, Trouble> {
    let stdout = if to.json() { Sink::Stderr } else { Sink::Stdout };
    let reading = Reading {
        client: to.client.clone(),
        contact: contact.clone(),
        id: id.to_string(),
        from: From::Offset(0),
        follow: true,
    };
    reading.read(vec![(Stream::Stdout, stdout), (Stream::Stderr, Sink::Stderr)])
}

/// One request waits no longer, so that a server which froze is noticed.
const ROUND: &str = "30s";
const ROUND_WITHIN: Duration = Duration::from_secs(45);

fn finished(client: &Client, contact: &Contact, id: &str) -> Result<Answer, Trouble> {
    let path = format!("/api/v1/jobs/{}", escape(id));
    loop {
        match contact.ask(|| client.get_within(&path, &[("wait", "finished"), ("timeout", ROUND)], ROUND_WITHIN)) {
            Ok(job) if waiting::is_finished(&job.value) => return Ok(job),
            Ok(_) => {}
            Err(trouble) if trouble.timed_out() => {}
            Err(trouble) => return Err(trouble),
        }
    }
}

/// Ends as a finished job did. What the exit code alone does not tell goes to stderr.
fn end_like(job: &Value) -> u8 {
    let (code, error) = (code(job), &job["error"]);
    if job["state"] != "succeeded" && error["reason"].as_str().and_then(Reason::parse) != Some(Reason::Exited) {
        let id = plain(&job["id"]);
        let said = Some(message(error)).filter(|said| !said.is_empty()).unwrap_or_else(|| plain(&job["state"]));
        term::warn(&format!("everbeat: job {id}: {said}"));
        if code == exit::OWN {
            term::warn(&format!("  hint: `everbeat explain {id}` tells more"));
        }
    }
    code
}

/// The exit code of a finished job, as a shell would give it.
fn code(job: &Value) -> u8 {
    let number = |name: &str| job[name].as_i64();
    match (number("exit_code"), number("exit_signal")) {
        (None, None) if job["state"] == "succeeded" => exit::DONE,
        // It was stopped and said nothing of it; whoever goes by the code must not take that for success.
        (Some(0), _) if job["state"] != "succeeded" => exit::OWN,
        // What a process ends with has eight bits.
        (Some(code), _) => code.to_le_bytes()[0],
        (None, Some(signal)) => 128_u8.saturating_add(u8::try_from(signal).unwrap_or(u8::MAX)),
        (None, None) => exit::OWN,
    }
}

pub(crate) fn logs(to: &To, args: &LogsArgs) -> Result<u8, Failure> {
    let id = to.id(&args.id, WORK)?;
    let patience = if args.follow { args.patience } else { Duration::ZERO };
    let contact = Arc::new(Contact::new(patience));
    match contact.ask(|| to.client.get(&format!("/api/v1/runs/{}", escape(&id)), &[])) {
        Ok(run) if run.value["task"] != COMMAND => return logs::of_run(to, args, &id, &contact),
        Err(trouble) if args.exit_code && !trouble.is("not-found") => return Err(unfollowed(to, &id, trouble)),
        Err(trouble) if !trouble.is("not-found") => return Err(trouble.into()),
        _ => {}
    }
    let reading = Reading {
        client: to.client.clone(),
        contact,
        id: id.clone(),
        from: args.tail.map_or(From::Offset(0), From::Tail),
        follow: args.follow,
    };
    let streams = match args.stream {
        Some(stream) => vec![stream],
        None => vec![Stream::Stdout, Stream::Stderr],
    };
    let sink = |stream: &Stream| match (to.json(), stream, args.stream) {
        (true, _, _) => Sink::Lines(Vec::new()),
        (false, Stream::Stderr, None) => Sink::Stderr,
        (false, _, _) => Sink::Stdout,
    };
    let company = args.follow.then(|| {
        interrupt::with(goes_on(to, &id));
        Spinner::of_run(&to.client, Some("job"), &id)
    });
    let ended = reading.read(streams.into_iter().map(|stream| (stream, sink(&stream))).collect());
    if !args.exit_code {
        ended?;
        return Ok(exit::DONE);
    }
    let ended = ended.and_then(|ended| match ended {
        Ended::Whole => finished(&to.client, &reading.contact, &id).map(Some),
        Ended::Unread => Ok(None),
    });
    drop(company);
    match ended {
        Ok(Some(job)) => Ok(end_like(&job.value)),
        Ok(None) => Ok(exit::UNREAD),
        Err(trouble) => Err(unfollowed(to, &id, trouble)),
    }
}

pub(crate) fn remove(to: &To, given: &str, dry_run: bool) -> Result<u8, Failure> {
    let id = &to.id(given, WORK)?;
    let query = if dry_run { &[("dry_run", "true")][..] } else { &[] };
    let removed = to.client.delete(&format!("/api/v1/jobs/{}", escape(id)), query)?;
    to.print(removed.raw.get(), || {
        let verb = if dry_run { "would be removed" } else { "is removed" };
        format!("job {id} {verb}{}", show::amount(&removed.value))
    });
    Ok(exit::DONE)
}

/// What is sent to submit a job.
#[derive(Serialize)]
struct Submission {
    command: Vec<String>,
    #[serde(skip_serializing_if = "Option::is_none")]
    name: Option<String>,
    #[serde(skip_serializing_if = "BTreeMap::is_empty")]
    env: BTreeMap<String, String>,
    #[serde(skip_serializing_if = "Option::is_none")]
    cwd: Option<String>,
    #[serde(rename = "sessionId", skip_serializing_if = "Option::is_none")]
    session_id: Option<String>,
    #[serde(rename = "agentEngine", skip_serializing_if = "Option::is_none")]
    agent_engine: Option<String>,
    #[serde(skip_serializing_if = "Option::is_none")]
    stdin: Option<String>,
    #[serde(skip_serializing_if = "Option::is_none")]
    policy: Option<Value>,
    #[serde(skip_serializing_if = "Option::is_none")]
    queue: Option<String>,
}

impl Submission {
    fn new(client: &Client, args: &RunArgs) -> Result<Submission, Failure> {
        let command = args.command.iter().enumerate();
        let command = command.map(|(place, argument)| text(&format!("CMD[{place}]"), argument));
        let mut env = BTreeMap::new();
        for given in &args.env {
            let (name, value) = variable(text("--env", given)?)?;
            env.insert(name, value);
        }
        let mut cwd = args.cwd.as_deref().map(|cwd| text("--cwd", cwd)).transpose()?;
        if client.is_local() {
            // The same machine: the command finds what its caller would find.
            cwd = Some(here(cwd)?);
            if let (false, Ok(path)) = (env.contains_key("PATH"), std::env::var("PATH")) {
                env.insert("PATH".to_string(), path);
            }
        }
        Ok(Submission {
            command: command.collect::<Result<_, _>>()?,
            name: args.name.clone(),
            env,
            cwd,
            session_id: args.session_id.clone(),
            agent_engine: args.agent_engine.clone(),
            stdin: if args.stdin { Some(read_stdin()?) } else { None },
            policy: policy(args)?,
            queue: args.queue.clone(),
        })
    }

    /// A server that never was there is told of at once. One that was may have accepted the job: the same
    /// key finds it again.
    fn submit(&self, client: &Client, contact: &Contact) -> Result<Answer, Trouble> {
        let body = serde_json::to_string(self)
            .map_err(|error| Trouble::Refused { status: 400, problem: Value::String(error.to_string()) })?;
        let key = uuid::Uuid::new_v4().to_string();
        let send = || client.post("/api/v1/jobs", Some(&body), &[("idempotency-key", &key)]);
        match send() {
            Err(trouble) if trouble.met() && trouble.passing() => contact.ask(send),
            answer => answer,
        }
    }
}

/// All that comes on stdin.
fn read_stdin() -> Result<String, Failure> {
    io::read_to_string(io::stdin().lock()).map_err(|error| {
        let hint = "a job's stdin is kept as text in UTF-8; hand other bytes over in a file";
        Failure::usage(&Invalid::new("-i", "stdin", format!("cannot be read: {error}"), hint))
    })
}

/// Whether something waits on stdin that nobody reads. A pipe that is only open is nobody's input.
fn stdin_is_dropped() -> bool {
    let stdin = io::stdin();
    let piped = rustix::fs::fstat(&stdin).map(|stat| FileType::from_raw_mode(stat.st_mode));
    match piped {
        Ok(FileType::Fifo | FileType::Socket) => {
            let mut fds = [PollFd::new(&stdin, PollFlags::IN)];
            poll(&mut fds, Some(&Timespec::default())).is_ok() && fds[0].revents().contains(PollFlags::IN)
        }
        Ok(FileType::RegularFile) => rustix::fs::fstat(&stdin).is_ok_and(|stat| stat.st_size > 0),
        _ => false,
    }
}

fn text(what: &str, given: &OsStr) -> Result<String, Failure> {
    given.to_str().map(ToString::to_string).ok_or_else(|| {
        let hint = "a job's command, environment and folder are kept as text; hand other bytes over in a file";
        Failure::usage(&Invalid::new(what, format!("{given:?}"), "is not valid UTF-8", hint))
    })
}

/// `NAME=VALUE`, or `NAME` for the value that it has here.
fn variable(given: String) -> Result<(String, String), Failure> {
    match given.split_once('=') {
        Some((name, value)) => Ok((name.to_string(), value.to_string())),
        None => match std::env::var(&given) {
            Ok(value) => Ok((given, value)),
            Err(error) => {
                let hint = format!("give it a value: -e {given}=VALUE");
                Err(Failure::usage(&Invalid::new("--env", format!("{given:?}"), error.to_string(), hint)))
            }
        },
    }
}

/// The folder to work in, seen from the current one.
fn here(given: Option<String>) -> Result<String, Failure> {
    let path = match &given {
        Some(given) => std::path::absolute(given),
        None => std::env::current_dir(),
    };
    let path = path.map_err(|error| {
        let hint = "name a folder with --cwd";
        Failure::usage(&Invalid::new("--cwd", given.unwrap_or_default(), format!("cannot be found: {error}"), hint))
    })?;
    text("--cwd", path.as_os_str())
}

fn policy(args: &RunArgs) -> Result<Option<Value>, Failure> {
    let mut policy = match args.policy.as_deref().map(|given| super::run::json("--policy", given)).transpose()? {
        None => Map::new(),
        Some(given) => serde_json::from_str(given.get()).map_err(|_| {
            let hint = "write it like '{\"max_attempts\": 3}'";
            Failure::usage(&Invalid::new("--policy", given.get(), "is not a JSON object", hint))
        })?,
    };
    if let Some(deadline) = args.deadline {
        policy.insert("deadline".to_string(), format_duration(deadline).into());
    }
    Ok(Some(policy).filter(|policy| !policy.is_empty()).map(Value::Object))
}

/// An error of Everbeat's own is no exit of the command.
fn own(trouble: Trouble) -> Failure {
    Failure::from(trouble).with_code(exit::OWN)
}

fn unfollowed(to: &To, id: &str, trouble: Trouble) -> Failure {
    let (follow, wait) = (to.command(&format!("logs -f {id}")), to.command(&format!("wait {id}")));
    let hint = format!("the job goes on; follow it with {follow}, get its end with {wait}");
    let said = match trouble.passing() {
        true => format!("job {id} can no longer be followed: {trouble}"),
        false => format!("job {id} cannot be followed: {}", trouble.detail().unwrap_or(&trouble.to_string())),
    };
    Failure::new(exit::OWN, said, hint)
}

fn goes_on(to: &To, id: &str) -> String {
    let (follow, stop) = (to.command(&format!("logs -f {id}")), to.command(&format!("cancel {id}")));
    format!("everbeat: job {id} goes on; follow it with {follow}, stop it with {stop}")
}

#[cfg(test)]
mod tests {
    use super::*;
    use serde_json::json;

    #[test]
    fn a_jobs_end_is_told_as_a_shell_would() {
        let check = |state: &str, exit_code: Value, exit_signal: Value, error: Value, expected: u8| {
            let job = json!({ "state": state, "exit_code": exit_code, "exit_signal": exit_signal, "error": error });
            assert_eq!(code(&job), expected, "{job}");
        };
        let none = || Value::Null;
        let said = |reason: &str| json!({ "reason": reason, "message": "…" });
        check("succeeded", json!(0), none(), none(), 0);
        check("failed", json!(7), none(), said("exited"), 7);
        check("failed", none(), json!(9), said("exited"), 137);
        check("cancelled", none(), json!(15), said("cancelled"), 143);
        check("cancelled", json!(0), none(), said("cancelled"), 125);
        check("cancelled", none(), none(), said("cancelled"), 125);
        check("failed", none(), none(), said("shim_died"), 125);
        check("failed", none(), json!(15), said("shim_terminated"), 143);
        check("failed", json!(127), none(), said("not_started"), 127);
        check("failed", json!(125), none(), said("not_started"), 125);
    }
}
