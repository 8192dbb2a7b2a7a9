//! Detached commands: what is asked for, and what their end means.

use crate::attempt::Outcome;
use crate::error::Invalid;
use crate::json::Json;
use crate::policy::{OnLost, Policy};
use crate::reason::Reason;
use crate::settle::Ending;
use crate::shortage::Shortage;
use crate::time::format_duration;
use serde::{Deserialize, Serialize};
use std::collections::BTreeMap;
use std::time::Duration;

/// What a detached run is to perform: the input of a job, or the arguments of a node that is a command.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct Command {
    /// Program and arguments; never a shell line.
    pub command: Vec<String>,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub name: Option<String>,
    #[serde(default, skip_serializing_if = "BTreeMap::is_empty")]
    pub env: BTreeMap<String, String>,
    /// Absolute; the workspace unless given.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub cwd: Option<String>,
    #[serde(default, rename = "sessionId", skip_serializing_if = "Option::is_none")]
    pub session_id: Option<String>,
    #[serde(default, rename = "agentEngine", skip_serializing_if = "Option::is_none")]
    pub agent_engine: Option<String>,
    /// What it reads from its standard input; nothing unless given. Of a node that is a command, its input is this.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub stdin: Option<String>,
}

/// So much a kernel takes for one argument; all together must fit into a spec.
const MOST_ARGUMENT_BYTES: usize = 128 << 10;
const MOST_BYTES: usize = 512 << 10;
const MOST_NAME_BYTES: usize = 200;

/// What is shown in place of a variable's value, which may be a secret.
pub const HIDDEN: &str = "***";

impl Command {
    /// Whether a process can be given all of this.
    pub fn check(&self) -> Result<(), Invalid> {
        let Some(program) = self.command.first() else {
            let hint = "give the program and its arguments as a list, like [\"python3\", \"train.py\"]";
            return Err(Invalid::new("command", "[]", "is empty", hint));
        };
        if program.is_empty() {
            return Err(Invalid::new("command[0]", "\"\"", "is empty", "name the program, like \"python3\""));
        }
        for (place, argument) in self.command.iter().enumerate() {
            let field = format!("command[{place}]");
            no_nul(&field, argument)?;
            if argument.len() >= MOST_ARGUMENT_BYTES {
                let hint = "hand large input over in a file; the kernel takes less than 128 KiB per argument";
                return Err(Invalid::new(field, format!("{} bytes", argument.len()), "is too long", hint));
            }
        }
        for (name, value) in &self.env {
            let field = format!("env.{name}");
            if name.is_empty() || name.contains('=') {
                let hint = "use names without \"=\", like \"LANG\"";
                return Err(Invalid::new("env", format!("{name:?}"), "cannot be a variable's name", hint));
            }
            if name.starts_with("EVERBEAT_") {
                let hint = "those names are set by Everbeat; use another";
                return Err(Invalid::new(field, format!("{value:?}"), "is a reserved name", hint));
            }
            if value == HIDDEN {
                let hint = "give the value itself: what was read from the server shows this in its place";
                return Err(Invalid::new(field, format!("{value:?}"), "stands for a value that is not shown", hint));
            }
            no_nul("env", name)?;
            no_nul(&field, value)?;
        }
        if let Some(cwd) = &self.cwd {
            no_nul("cwd", cwd)?;
            if !cwd.starts_with('/') {
                let hint = "give the whole path, from /, or leave it out to work in the job's workspace";
                return Err(Invalid::new("cwd", format!("{cwd:?}"), "is not absolute", hint));
            }
        }
        for (field, text) in
            [("name", &self.name), ("sessionId", &self.session_id), ("agentEngine", &self.agent_engine)]
        {
            let Some(text) = text else { continue };
            if text.is_empty() || text.len() > MOST_NAME_BYTES || text.chars().any(char::is_control) {
                let hint = format!("use 1 to {MOST_NAME_BYTES} bytes without control characters");
                return Err(Invalid::new(field, format!("{text:?}"), "cannot be taken", hint));
            }
        }
        // Its standard input goes a way of its own, and is bounded by what a request may hold.
        let bytes = Json::of(&Command { stdin: None, ..self.clone() }).as_str().len();
        if bytes > MOST_BYTES {
            let hint = "command and environment together may have 512 KiB; hand large input over in a file";
            return Err(Invalid::new("command", format!("{bytes} bytes"), "is too large", hint));
        }
        Ok(())
    }
}

fn no_nul(field: &str, text: &str) -> Result<(), Invalid> {
    match text.contains('\0') {
        true => Err(Invalid::new(field, format!("{text:?}"), "contains a NUL", "no process can be given one")),
        false => Ok(()),
    }
}

/// What a job's own policy is laid over: it is tried once, and a loss is the end of it.
pub fn base_policy(runs: &Policy, stop_grace: Duration) -> Policy {
    Policy { max_attempts: 1, on_lost: OnLost::Fail, cancel_grace: stop_grace, ..runs.clone() }
}

/// How a command ended, as its shim recorded it. An unknown exit is not an exit: see [`lost`].
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct Exit {
    pub exit_code: Option<i32>,
    pub exit_signal: Option<i32>,
    /// Why the command never ran.
    pub start_error: Option<String>,
    /// What the kernel said of it.
    pub start_errno: Option<i32>,
    /// Which part of what was asked for it was: `program`, `folder` or `input`.
    pub start_failed: Option<String>,
    pub stopped: Option<Stopped>,
    pub output_bytes: u64,
    pub dropped_bytes: u64,
}

impl Exit {
    /// What the machine lacked to begin it. It never ran, and that is not its fault.
    pub fn shortage(&self) -> Option<Shortage> {
        let never_ran = self.start_error.is_some() && self.stopped.is_none();
        self.start_errno.filter(|_| never_ran).and_then(Shortage::of_errno)
    }

    /// The code that a shell would give: 127 for a program that is not there, 126 for one that cannot be executed, and
    /// 125 for a command that could not be started for another reason.
    pub fn code(&self) -> Option<i32> {
        const NO_SUCH_FILE: i32 = 2;
        const NOT_A_FOLDER: i32 = 20;
        if self.start_error.is_none() || self.stopped.is_some() {
            return self.exit_code;
        }
        Some(match (self.start_failed.as_deref(), self.start_errno) {
            (Some("program"), Some(NO_SUCH_FILE | NOT_A_FOLDER)) => 127,
            (Some("program"), _) => 126,
            _ => 125,
        })
    }
}

/// Why a command was stopped, if it was.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Stopped {
    /// By its owner, or by a wish that an owner left: somebody cancelled it.
    Requested,
    /// By its owner: it made no progress.
    Stalled,
    /// By its shim: it ran too long.
    Deadline,
    /// By its shim: nobody vouched for it, and its side effects are not fenced.
    Isolated,
    /// Somebody asked its shim to end, as a machine that shuts down does.
    ShimTerminated,
}

/// What the exit of a command means for its attempt. `result` is what it gave, if it succeeded;
/// `reattached` says that it outlived a replica.
pub fn ending(
    exit: &Exit,
    policy: &Policy,
    cancel_asked: bool,
    reattached: bool,
    result: impl FnOnce() -> Json,
) -> Ending {
    let how = describe(exit);
    let (outcome, reason, message) = match exit {
        Exit { start_error: Some(why), stopped: None, .. } => {
            (Outcome::Failed, Reason::NotStarted, format!("the command could not be started: {why}"))
        }
        Exit { stopped: Some(Stopped::Deadline), .. } => {
            let deadline = policy.deadline.map(format_duration).unwrap_or_default();
            (Outcome::TimedOut, Reason::Deadline, format!("stopped after its deadline of {deadline}; {how}"))
        }
        Exit { stopped: Some(Stopped::Requested), .. } if cancel_asked => {
            (Outcome::Cancelled, Reason::Cancelled, format!("cancelled on request; {how}"))
        }
        Exit { stopped: Some(Stopped::Requested), .. } => {
            (Outcome::Failed, Reason::Stopped, format!("stopped on request; {how}"))
        }
        Exit { stopped: Some(Stopped::Stalled), .. } => {
            let timeout = policy.stall_timeout.map(format_duration).unwrap_or_default();
            (Outcome::Stalled, Reason::NoProgress, format!("stopped: no progress for {timeout}; {how}"))
        }
        Exit { stopped: Some(Stopped::Isolated), .. } => {
            (Outcome::Lost, Reason::Isolated, format!("stopped: nobody could vouch for it in time; {how}"))
        }
        Exit { stopped: Some(Stopped::ShimTerminated), .. } => {
            (Outcome::Lost, Reason::ShimTerminated, format!("its shim was asked to end; {how}"))
        }
        Exit { exit_code: Some(0), .. } => return Ending::succeeded(result()),
        _ => (Outcome::Failed, Reason::Exited, how),
    };
    let mut error = serde_json::json!({
        "reason": reason.as_str(), "message": message, "exit_code": exit.code(), "exit_signal": exit.exit_signal,
        "reattached": reattached,
    });
    if reason == Reason::NotStarted {
        error["errno"] = exit.start_errno.into();
        error["failed_part"] = exit.start_failed.clone().into();
    }
    Ending {
        error: Some(Json::of(&error)),
        permanent: reason == Reason::NotStarted,
        own: exit.stopped.is_none(),
        ..Ending::plain(outcome)
    }
}

/// The ending of an attempt whose command ended nobody knows how.
pub fn lost(reason: Reason, message: &str) -> Ending {
    let error = serde_json::json!({
        "reason": reason.as_str(), "message": format!("{message}; its exit is unknown"), "exit_code": null,
        "exit_signal": null,
    });
    Ending { error: Some(Json::of(&error)), ..Ending::plain(Outcome::Lost) }
}

/// The ending of an attempt that could not begin for want of something, which is nobody's failure.
pub fn short(what: Shortage, message: &str, pause: Duration) -> Ending {
    let error = serde_json::json!({
        "reason": Reason::Shortage.as_str(), "message": format!("{what}: {message}"), "short": what, "hint": what.hint(),
    });
    Ending { error: Some(Json::of(&error)), pause: Some(pause), ..Ending::plain(Outcome::Released) }
}

/// How it ended, in words.
fn describe(exit: &Exit) -> String {
    match (exit.exit_code, exit.exit_signal) {
        (Some(code), _) => format!("the command exited with code {code}"),
        (None, Some(signal)) => format!("the command was killed by signal {signal}"),
        (None, None) => match &exit.start_error {
            Some(why) => why.clone(),
            None => "how the command exited is unknown".to_string(),
        },
    }
}

/// What a finished job's result or error says of its exit.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Deserialize)]
#[serde(default)]
pub struct KnownExit {
    pub exit_code: Option<i32>,
    pub exit_signal: Option<i32>,
    pub reattached: bool,
}

impl KnownExit {
    pub fn of(result: Option<&Json>, error: Option<&Json>) -> KnownExit {
        result.or(error).and_then(|said| said.read().ok()).unwrap_or_default()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn command(words: &[&str]) -> Command {
        Command { command: words.iter().map(ToString::to_string).collect(), ..Command::default() }
    }

    #[test]
    fn what_no_process_can_be_given_is_refused_by_name() {
        let refused = |command: &Command, field: &str| {
            let invalid = command.check().expect_err("refused");
            assert_eq!(invalid.field, field, "{invalid}");
        };
        refused(&command(&[]), "command");
        refused(&command(&[""]), "command[0]");
        refused(&command(&["echo", "a\0b"]), "command[1]");
        refused(&command(&["echo", &"x".repeat(128 << 10)]), "command[1]");
        let with = |change: fn(&mut Command)| {
            let mut given = command(&["true"]);
            change(&mut given);
            given
        };
        refused(&with(|c| c.cwd = Some("here".into())), "cwd");
        refused(&with(|c| c.cwd = Some("/a\0".into())), "cwd");
        refused(&with(|c| drop(c.env.insert("A=B".into(), String::new()))), "env");
        refused(&with(|c| drop(c.env.insert("EVERBEAT_JOB_ID".into(), "x".into()))), "env.EVERBEAT_JOB_ID");
        refused(&with(|c| drop(c.env.insert("A".into(), "\0".into()))), "env.A");
        refused(&with(|c| drop(c.env.insert("A".into(), HIDDEN.into()))), "env.A");
        refused(&with(|c| c.name = Some("a\nb".into())), "name");
        for literal in ["; rm", "$(id)", "a\nb", "-rf", "", "`x`"] {
            command(&["echo", literal]).check().expect("taken literally");
        }
    }

    #[test]
    fn an_exit_means_what_it_says() {
        use Outcome::*;
        let exited = |code| Exit { exit_code: Some(code), ..Exit::default() };
        let killed = |signal| Exit { exit_signal: Some(signal), ..Exit::default() };
        let stopped = |exit: Exit, why| Exit { stopped: Some(why), ..exit };
        let check = |exit: Exit, cancel, outcome, reason: &str| {
            let ending = ending(&exit, &Policy::BASELINE, cancel, false, Json::null);
            assert_eq!(ending.outcome, outcome, "{exit:?}");
            let said = ending.error.map(|error| error.value()["reason"].clone());
            assert_eq!(said, (!reason.is_empty()).then(|| reason.into()), "{exit:?}");
        };
        check(exited(0), false, Succeeded, "");
        check(exited(0), true, Succeeded, "");
        check(exited(7), false, Failed, "exited");
        check(killed(11), false, Failed, "exited");
        check(killed(9), true, Failed, "exited");
        check(stopped(killed(15), Stopped::Requested), true, Cancelled, "cancelled");
        check(stopped(exited(0), Stopped::Requested), true, Cancelled, "cancelled");
        check(stopped(killed(15), Stopped::Requested), false, Failed, "stopped");
        check(stopped(exited(0), Stopped::Requested), false, Failed, "stopped");
        check(stopped(exited(0), Stopped::Stalled), false, Stalled, "no_progress");
        check(stopped(killed(9), Stopped::Deadline), false, TimedOut, "deadline");
        check(stopped(killed(9), Stopped::Isolated), false, Lost, "isolated");
        check(stopped(killed(15), Stopped::ShimTerminated), false, Lost, "shim_terminated");
        check(Exit { start_error: Some("no such file".into()), ..Exit::default() }, false, Failed, "not_started");
    }

    #[test]
    fn a_command_that_could_not_start_has_the_code_a_shell_would_give() {
        let check = |part: Option<&str>, errno, code, shortage| {
            let start_failed = part.map(ToString::to_string);
            let exit = Exit { start_error: Some("no".into()), start_errno: errno, start_failed, ..Exit::default() };
            assert_eq!((exit.code(), exit.shortage()), (Some(code), shortage), "{exit:?}");
        };
        check(Some("program"), Some(2), 127, None);
        check(Some("program"), Some(20), 127, None);
        check(Some("program"), Some(13), 126, None);
        check(Some("program"), Some(7), 126, None);
        check(Some("folder"), Some(2), 125, None);
        check(Some("input"), None, 125, None);
        check(None, Some(11), 125, Some(Shortage::Processes));
        check(Some("program"), Some(12), 126, Some(Shortage::Memory));
        check(Some("input"), Some(24), 125, Some(Shortage::Descriptors));
        let cancelled =
            Exit { start_error: Some("cancelled".into()), stopped: Some(Stopped::Requested), ..Exit::default() };
        assert_eq!((cancelled.code(), cancelled.shortage()), (None, None));
    }

    #[test]
    fn an_unknown_exit_is_called_unknown() {
        let error = lost(Reason::ShimDied, "its shim is gone").error.expect("says why");
        assert_eq!(KnownExit::of(None, Some(&error)), KnownExit::default());
        assert!(error.value()["message"].as_str().is_some_and(|message| message.contains("unknown")));
    }
}
