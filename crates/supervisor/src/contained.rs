//! A program in a process of its own, which may die of what it does without harm to this one.

use rustix::event::{PollFd, PollFlags, Timespec, poll};
use rustix::process::{self as kernel, DumpableBehavior, Resource, Rlimit, Signal};
use std::io;
use std::os::unix::process::ExitStatusExt;
use std::process::{Command, ExitStatus, Stdio};
use tokio::io::{AsyncRead, AsyncReadExt, AsyncWriteExt};

/// How a contained program ended.
#[derive(Debug)]
pub enum Contained {
    /// By itself, and well.
    Finished { stdout: Vec<u8> },
    /// It went over a limit.
    Over(Limit),
    /// By itself and not well, or because somebody else killed it.
    Broken { status: ExitStatus, stderr_tail: String },
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Limit {
    Output,
    Cpu,
    Memory,
    Stack,
    /// It crashed, as one does without memory or stack, and left no word which of them it was.
    MemoryOrStack,
}

/// Runs a program to its end: its whole stdin is `input`, its environment is empty. Dropping the future
/// kills it. It is expected to call [`limit_self`] first thing, and to start no processes.
pub async fn run(command: Command, input: &[u8], most_output_bytes: usize) -> io::Result<Contained> {
    let mut command = tokio::process::Command::from(command);
    command.env_clear().stdin(Stdio::piped()).stdout(Stdio::piped()).stderr(Stdio::piped());
    // A group of its own: Ctrl-C in a terminal is for the server, which then drains.
    command.process_group(0).kill_on_drop(true);
    let mut child = command.spawn()?;
    let (Some(mut stdin), Some(stdout), Some(stderr)) = (child.stdin.take(), child.stdout.take(), child.stderr.take())
    else {
        return Err(io::Error::other("a child process came without its pipes"));
    };
    let feed = async move {
        // A program may end without having read it all; how it ended says more than the broken pipe.
        let _it_reads_no_more = stdin.write_all(input).await;
    };
    let read = async {
        let mut output = Vec::new();
        stdout.take(most_output_bytes as u64 + 1).read_to_end(&mut output).await?;
        let over = output.len() > most_output_bytes;
        if over {
            child.start_kill()?;
        }
        io::Result::Ok((output, over))
    };
    let ((), read, stderr_tail) = tokio::join!(feed, read, tail(stderr));
    let (stdout, over) = read?;
    let status = child.wait().await?;
    Ok(if over { Contained::Over(Limit::Output) } else { judge(status, stdout, stderr_tail) })
}

fn judge(status: ExitStatus, stdout: Vec<u8>, stderr_tail: String) -> Contained {
    if status.success() {
        return Contained::Finished { stdout };
    }
    let died_of = |signals: &[Signal]| signals.iter().any(|signal| status.signal() == Some(signal.as_raw()));
    if died_of(&[Signal::XCPU]) {
        Contained::Over(Limit::Cpu)
    } else if died_of(&[Signal::ABORT, Signal::SEGV, Signal::BUS]) {
        // Rust's runtime aborts on both, and says on stderr which it was.
        Contained::Over(match &stderr_tail {
            said if said.contains("overflowed its stack") => Limit::Stack,
            said if said.contains("memory allocation of") => Limit::Memory,
            _ => Limit::MemoryOrStack,
        })
    } else {
        Contained::Broken { status, stderr_tail }
    }
}

/// So much of stderr is kept: its end, where the cause of death stands.
const MOST_TAIL_BYTES: usize = 4096;

async fn tail(mut stderr: impl AsyncRead + Unpin) -> String {
    let (mut tail, mut part) = (Vec::new(), [0; MOST_TAIL_BYTES]);
    while let Ok(length @ 1..) = stderr.read(&mut part).await {
        tail.extend_from_slice(&part[..length]);
        tail.drain(..tail.len().saturating_sub(MOST_TAIL_BYTES));
    }
    String::from_utf8_lossy(&tail).into_owned()
}

/// Puts this process under limits that it cannot lift, and ties its life to the process that started it.
pub fn limit_self(memory_bytes: u64, cpu_seconds: u64) -> io::Result<()> {
    // A killed server cannot kill its children. (The kernel takes the thread that started this process
    // for its parent; those of a runtime's workers last as long as the runtime.)
    kernel::set_parent_process_death_signal(Some(Signal::KILL))?;
    // One that died before that sends nothing; but nobody is left to read then.
    if nobody_reads()? {
        return Err(io::Error::other("whoever started this process is gone"));
    }
    // If the machine runs out of memory, this process goes first; and it yields to those that must beat
    // in time. Where neither can be had, the limits below still hold.
    let _without_proc = std::fs::write("/proc/self/oom_score_adj", "1000");
    let _as_it_was = kernel::nice(NICENESS);
    // No core of a program that was meant to die. The limit alone does not bind a dump handler.
    kernel::set_dumpable_behavior(DumpableBehavior::NotDumpable)?;
    lower(Resource::Core, 0, 0)?;
    lower(Resource::Fsize, 0, 0)?;
    lower(Resource::Nofile, MOST_FILES, MOST_FILES)?;
    // At the lower of the two the kernel sends SIGXCPU, which names the reason; at the upper SIGKILL.
    lower(Resource::Cpu, cpu_seconds, cpu_seconds + 1)?;
    lower(Resource::As, memory_bytes, memory_bytes)
}

/// Whether the other end of stdout, if that is a pipe, is closed.
fn nobody_reads() -> io::Result<bool> {
    let stdout = rustix::stdio::stdout();
    let mut polled = [PollFd::new(&stdout, PollFlags::empty())];
    poll(&mut polled, Some(&Timespec { tv_sec: 0, tv_nsec: 0 }))?;
    Ok(polled[0].revents().contains(PollFlags::ERR))
}

const NICENESS: i32 = 10;
/// The standard streams, and a few for what the C library or a time zone reads.
const MOST_FILES: u64 = 16;

/// Lowers a limit; one that is lower already stays.
fn lower(resource: Resource, soft: u64, hard: u64) -> io::Result<()> {
    let before = kernel::getrlimit(resource);
    let maximum = before.maximum.map_or(hard, |before| before.min(hard));
    // The distance between the two stays, where there is one.
    let current = before.current.map_or(soft, |before| before.min(soft)).min(maximum.saturating_sub(hard - soft));
    kernel::setrlimit(resource, Rlimit { current: Some(current), maximum: Some(maximum) })?;
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;

    async fn shell(script: &str, input: &[u8], most_output_bytes: usize) -> Contained {
        let mut command = Command::new("/bin/sh");
        command.args(["-c", script]);
        run(command, input, most_output_bytes).await.unwrap()
    }

    #[tokio::test]
    async fn input_larger_than_a_pipe_goes_in_while_output_comes_out() {
        let input = vec![b'x'; 1 << 20];
        let ended = shell("exec cat", &input, 1 << 20).await;
        assert!(matches!(&ended, Contained::Finished { stdout } if *stdout == input));
    }

    #[tokio::test]
    async fn one_byte_of_output_too_many_ends_the_program() {
        assert!(matches!(shell("printf 1234", b"", 4).await, Contained::Finished { stdout } if stdout == b"1234"));
        assert!(matches!(shell("printf 12345; exec sleep 1000", b"", 4).await, Contained::Over(Limit::Output)));
        assert!(matches!(shell("while :; do echo x; done", b"", 1000).await, Contained::Over(Limit::Output)));
    }

    #[tokio::test]
    async fn a_program_sees_nothing_of_this_environment() {
        let Contained::Finished { stdout } = run(Command::new("/usr/bin/env"), b"", 1000).await.unwrap() else {
            panic!("env does not end well");
        };
        assert_eq!(String::from_utf8_lossy(&stdout), "");
    }

    #[tokio::test]
    async fn a_death_is_told_by_its_signal_and_its_last_words() {
        let over = |script: &'static str| async move {
            match shell(script, b"unread", 10).await {
                Contained::Over(limit) => limit,
                other => panic!("{script}: {other:?}"),
            }
        };
        assert_eq!(over("kill -s XCPU $$").await, Limit::Cpu);
        assert_eq!(over("echo thread main has overflowed its stack >&2; kill -s ABRT $$").await, Limit::Stack);
        assert_eq!(over("echo memory allocation of 9 bytes failed >&2; kill -s ABRT $$").await, Limit::Memory);
        assert_eq!(over("kill -s SEGV $$").await, Limit::MemoryOrStack);
        for script in ["echo no >&2; kill -s KILL $$", "echo no >&2; exit 3"] {
            let ended = shell(script, b"", 10).await;
            assert!(matches!(&ended, Contained::Broken { stderr_tail, .. } if stderr_tail == "no\n"), "{ended:?}");
        }
    }

    #[tokio::test]
    async fn only_the_end_of_stderr_is_kept() {
        let script = "i=0; while [ $i -lt 5000 ]; do echo line $i >&2; i=$((i+1)); done; exit 1";
        let Contained::Broken { stderr_tail, .. } = shell(script, b"", 10).await else { panic!("it ends well") };
        assert!(stderr_tail.ends_with("line 4999\n") && stderr_tail.len() == MOST_TAIL_BYTES, "{}", stderr_tail.len());
    }

    #[tokio::test]
    async fn a_program_that_cannot_be_started_is_an_error() {
        assert!(run(Command::new("/nowhere/at/all"), b"", 10).await.is_err());
    }
}
