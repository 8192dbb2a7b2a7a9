use crate::exit::{self, Failure as Exit};
use async_trait::async_trait;
use everbeat_engine::{Ctx, Failure, Handler};
use everbeat_model::Json;
use everbeat_supervisor::contained::{self, Contained, Limit};
use serde::{Deserialize, Serialize};
use std::io::{self, Read, Write};
use std::os::unix::process::CommandExt;
use std::process::Command;
use std::time::Duration;

/// The task `jq`. A program is a stranger's code: each is evaluated in a process of its own, by
/// [`evaluate`], and that process may die of it.
pub(crate) struct Jq;

pub(crate) const SUBCOMMAND: &str = "jq-evaluate";

const MEMORY_BYTES: u64 = 512 << 20;
const CPU_SECONDS: u64 = 30;
/// A part of the memory. Not left to the system's default, so that a program that can recurse on one
/// machine can on all.
const STACK_BYTES: usize = 64 << 20;
/// The result, and the few bytes around it in an [`Answer`].
const MOST_OUTPUT_BYTES: usize = (4 << 20) + 64;
/// A process that could not use up its CPU seconds in so long is not running at all.
const PATIENCE: Duration = Duration::from_secs(600);

#[derive(Debug, Deserialize, Serialize)]
#[serde(rename_all = "lowercase")]
enum Answer {
    Ok(Json),
    Error(String),
}

#[async_trait]
impl Handler for Jq {
    async fn perform(&self, ctx: Ctx, input: Json) -> Result<Json, Failure> {
        let of_node = ctx.parent().and_then(|_| ctx.args());
        let question = everbeat::jq::question(of_node.as_ref(), &input, ctx.now()).map_err(Failure::permanent)?;
        // Not the path of this executable: after an upgrade another version may stand there.
        let mut command = Command::new("/proc/self/exe");
        command.arg0("everbeat").arg(SUBCOMMAND);
        let contained = contained::run(command, question.as_str().as_bytes(), MOST_OUTPUT_BYTES);
        // Whoever has to stop does so by dropping the process.
        tokio::select! {
            biased;
            slept = ctx.sleep(PATIENCE) => {
                slept?;
                Err(Failure::new(format!("the jq evaluator did not answer within {} s", PATIENCE.as_secs())))
            }
            ended = contained => match ended {
                Ok(ended) => outcome(ended),
                Err(error) => Err(Failure::new(format!("the jq evaluator cannot be run: {error}"))),
            },
        }
    }
}

/// What a program does it will do again; what happens to its process may not.
fn outcome(contained: Contained) -> Result<Json, Failure> {
    let memory = MEMORY_BYTES >> 20;
    match contained {
        Contained::Finished { stdout } => match serde_json::from_slice(&stdout) {
            Ok(Answer::Ok(result)) => Ok(result),
            Ok(Answer::Error(message)) => Err(Failure::permanent(message)),
            Err(error) => Err(Failure::new(format!("the jq evaluator gave no readable answer: {error}"))),
        },
        Contained::Over(limit) => Err(Failure::permanent(match limit {
            Limit::Output => "the jq program gives more than 4 MiB of output".to_string(),
            Limit::Cpu => format!("the jq program used more than {CPU_SECONDS} s of processor time"),
            Limit::Memory => format!("the jq program used more than {memory} MiB of memory"),
            Limit::Stack => "the jq program overflowed its stack: it recurses too deeply".to_string(),
            Limit::MemoryOrStack => {
                format!("the jq program used more than {memory} MiB of memory or overflowed its stack")
            }
        })),
        Contained::Broken { status, stderr_tail } => {
            Err(Failure::new(format!("the jq evaluator broke off with {status}: {}", stderr_tail.trim())))
        }
    }
}

/// The other side: reads the input of one run from stdin and writes one [`Answer`] to stdout.
pub(crate) fn evaluate() -> Result<u8, Exit> {
    let broken = |error: io::Error| Exit::server(format!("jq cannot be evaluated: {error}"), "");
    contained::limit_self(MEMORY_BYTES, CPU_SECONDS).map_err(broken)?;
    let mut input = String::new();
    io::stdin().read_to_string(&mut input).map_err(broken)?;
    let thread = std::thread::Builder::new().name("jq".to_string()).stack_size(STACK_BYTES);
    let evaluation = thread.spawn(move || everbeat::jq::perform(&input)).map_err(broken)?;
    let answer = match evaluation.join() {
        Ok(Ok(result)) => Answer::Ok(result),
        Ok(Err(message)) => Answer::Error(message),
        Err(panic) => {
            let said = panic.downcast_ref::<&str>().map(ToString::to_string);
            let said = said.or_else(|| panic.downcast_ref::<String>().cloned()).unwrap_or_default();
            Answer::Error(format!("the jq program broke off: {said}"))
        }
    };
    let mut stdout = io::stdout().lock();
    serde_json::to_writer(&mut stdout, &answer).map_err(|error| broken(error.into()))?;
    stdout.flush().map_err(broken)?;
    Ok(exit::DONE)
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::os::unix::process::ExitStatusExt;
    use std::process::ExitStatus;

    fn finished(stdout: &str) -> Result<Json, Failure> {
        outcome(Contained::Finished { stdout: stdout.into() })
    }

    #[test]
    fn an_answer_is_the_outcome_and_its_numbers_stay_as_they_are() {
        let text = r#"{"n":12345678901234567890123,"x":1.0}"#;
        let written = serde_json::to_string(&Answer::Ok(Json::parse(text).unwrap())).unwrap();
        assert_eq!(written, format!(r#"{{"ok":{text}}}"#));
        assert_eq!(finished(&written).unwrap().as_str(), text);
        assert_eq!(finished(r#"{"error":"no"}"#), Err(Failure::permanent("no")));
    }

    #[test]
    fn what_a_program_did_is_permanent_and_what_befell_its_process_is_not() {
        for limit in [Limit::Output, Limit::Cpu, Limit::Memory, Limit::Stack, Limit::MemoryOrStack] {
            assert!(outcome(Contained::Over(limit)).expect_err("a failure").permanent, "{limit:?}");
        }
        assert!(!finished("").expect_err("a failure").permanent);
        let broken = Contained::Broken { status: ExitStatus::from_raw(9), stderr_tail: "why\n".to_string() };
        let failure = outcome(broken).expect_err("a failure");
        assert!(!failure.permanent && failure.message.ends_with(": why"), "{}", failure.message);
    }
}
