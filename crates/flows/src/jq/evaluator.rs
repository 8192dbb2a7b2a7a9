use super::{Answer, Hello, limits};
use crate::{Evaluate, Trouble};
use async_trait::async_trait;
use serde_json::Value;
use std::collections::BTreeMap;
use std::ffi::OsString;
use std::io;
use std::os::unix::process::{CommandExt, ExitStatusExt};
use std::process::Stdio;
use tokio::io::{AsyncBufReadExt, AsyncReadExt, AsyncWriteExt, BufReader};
use tokio::process::{Child, ChildStdin, ChildStdout};
use tokio::sync::Mutex;

/// Evaluates jq programs in processes that run [`serve`](super::serve), one for each program, for as long as this lives.
pub struct Evaluator {
    command: Vec<OsString>,
    idle: Mutex<BTreeMap<String, Process>>,
}

/// More deaths in one batch are the program's fault as a whole.
const MOST_DEATHS: usize = 5;
/// A longer answer is none of an evaluator's.
const MOST_ANSWER_BYTES: u64 = 64 << 20;

type Outputs = Result<Vec<Value>, String>;

impl Evaluator {
    /// `command` starts a process that calls [`serve`](super::serve): a program and its arguments.
    pub fn new(command: Vec<OsString>) -> Evaluator {
        Evaluator { command, idle: Mutex::default() }
    }

    async fn start(&self, program: &str) -> Result<Process, Trouble> {
        let cannot = |error: io::Error| Trouble::transient(format!("the jq evaluator cannot be run: {error}"));
        let Some((path, arguments)) = self.command.split_first() else {
            return Err(Trouble::permanent("the jq evaluator has no command"));
        };
        let mut command = std::process::Command::new(path);
        command.args(arguments).env_clear().stdin(Stdio::piped()).stdout(Stdio::piped()).stderr(Stdio::null());
        // A group of its own: Ctrl-C in a terminal is for the server, which then drains.
        command.process_group(0);
        let mut child = tokio::process::Command::from(command).kill_on_drop(true).spawn().map_err(cannot)?;
        let (Some(stdin), Some(stdout)) = (child.stdin.take(), child.stdout.take()) else {
            return Err(cannot(io::Error::other("it came without its pipes")));
        };
        let mut process = Process { child, stdin, stdout: BufReader::with_capacity(128 << 10, stdout) };
        let hello = serde_json::to_string(&Hello { program: program.to_string() }).unwrap_or_default();
        process.stdin.write_all(format!("{hello}\n").as_bytes()).await.map_err(cannot)?;
        match process.answer().await.map_err(cannot)? {
            Some(Answer::Ok(_)) => Ok(process),
            Some(Answer::Error(problem)) => Err(Trouble::permanent(format!("the jq program {problem}"))),
            None => Err(cannot(io::Error::other(process.cause_of_death().await))),
        }
    }
}

#[async_trait]
impl Evaluate for Evaluator {
    async fn evaluate(&self, program: &str, records: &[&Value]) -> Result<Vec<Outputs>, Trouble> {
        // Whoever drops this future drops the process, too: nobody knows how far it came.
        let idle = self.idle.lock().await.remove(program);
        let mut process = match idle {
            Some(process) => process,
            None => self.start(program).await?,
        };
        let mut answers = Vec::with_capacity(records.len());
        let mut alive = process.batch(records, &mut answers).await?;
        let mut deaths = 0;
        // A process that died does not say of which record. From the first that it did not answer they go one by one.
        while answers.len() < records.len() {
            if !alive {
                process = self.start(program).await?;
            }
            let next = [records[answers.len()]];
            alive = process.batch(&next, &mut answers).await?;
            if !alive {
                deaths += 1;
                if deaths > MOST_DEATHS {
                    let said = "ends its evaluator with every record; it needs too much memory, stack or time";
                    return Err(Trouble::permanent(format!("the jq program {said}")));
                }
                answers.push(Err(process.cause_of_death().await));
            }
        }
        if alive {
            self.idle.lock().await.insert(program.to_string(), process);
        }
        Ok(answers)
    }
}

struct Process {
    child: Child,
    stdin: ChildStdin,
    stdout: BufReader<ChildStdout>,
}

impl Process {
    /// Appends the answers that came. Whether the process lives.
    async fn batch(&mut self, records: &[&Value], answers: &mut Vec<Outputs>) -> Result<bool, Trouble> {
        let mut text = format!("{}\n", records.len()).into_bytes();
        for record in records {
            let written = serde_json::to_writer(&mut text, record);
            written.map_err(|error| Trouble::permanent(format!("a record cannot be written as JSON: {error}")))?;
            text.push(b'\n');
        }
        let Process { stdin, stdout, .. } = self;
        let feed = async {
            // If it reads no more, it has died, and that is seen at the other end.
            let _broken_pipe = stdin.write_all(&text).await;
        };
        let hear = async {
            for _ in records {
                match next_answer(stdout).await {
                    Ok(Some(Answer::Ok(outputs))) => answers.push(Ok(outputs)),
                    Ok(Some(Answer::Error(reason))) => answers.push(Err(reason)),
                    Ok(None) | Err(_) => return false,
                }
            }
            true
        };
        let mut hear = std::pin::pin!(hear);
        // Who does not answer any more need not be fed to the end.
        tokio::select! {
            biased;
            alive = &mut hear => Ok(alive),
            () = feed => Ok(hear.await),
        }
    }

    async fn answer(&mut self) -> io::Result<Option<Answer>> {
        next_answer(&mut self.stdout).await
    }

    async fn cause_of_death(&mut self) -> String {
        // It may have closed its output and go on otherwise.
        let _dead_already = self.child.start_kill();
        let signal = self.child.wait().await.ok().and_then(|status| status.signal());
        let memory = limits::MEMORY_BYTES >> 20;
        match signal.and_then(rustix::process::Signal::from_named_raw) {
            Some(rustix::process::Signal::XCPU) => {
                format!("jq: the program used more than {} s of processor time", limits::CPU_SECONDS)
            }
            Some(rustix::process::Signal::ABORT | rustix::process::Signal::SEGV | rustix::process::Signal::BUS) => {
                format!("jq: the program used more than {memory} MiB of memory or overflowed its stack")
            }
            _ => "jq: the evaluator was ended while it worked on this record".to_string(),
        }
    }
}

/// None at the end of the output.
async fn next_answer(stdout: &mut BufReader<ChildStdout>) -> io::Result<Option<Answer>> {
    let mut line = Vec::new();
    (&mut *stdout).take(MOST_ANSWER_BYTES).read_until(b'\n', &mut line).await?;
    if line.last() != Some(&b'\n') {
        return Ok(None);
    }
    serde_json::from_slice(&line).map(Some).map_err(io::Error::from)
}
