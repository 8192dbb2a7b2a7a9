//! Finding and signalling processes without trusting a PID: a pidfd is opened first, then what made the
//! process ours is looked at again, and only then the pidfd is signalled.

use rustix::process::{Pid, PidfdFlags, Signal, pidfd_open, pidfd_send_signal};
use std::fs;

/// Stands in the environment of every process of a job.
pub(crate) const JOB_TAG: &str = "EVERBEAT_JOB_TAG";
/// Stands in the environment of a shim.
pub(crate) const SHIM_TAG: &str = "EVERBEAT_SHIM_TAG";

/// Signals every process that `is_ours`, as judged after its pidfd was opened. Says how many there were,
/// those included that may not be signalled: they are still there.
pub(crate) fn signal(pids: impl IntoIterator<Item = i32>, signal: Signal, is_ours: impl Fn(i32) -> bool) -> usize {
    let mut found = 0;
    for raw in pids {
        let Some(pid) = Pid::from_raw(raw) else { continue };
        let Ok(pidfd) = pidfd_open(pid, PidfdFlags::empty()) else { continue };
        if is_ours(raw) {
            let _counted_all_the_same = pidfd_send_signal(&pidfd, signal);
            found += 1;
        }
    }
    found
}

/// A variable's name and its value.
pub(crate) type Tag<'a> = (&'a str, &'a str);

/// All processes whose environment has one of these, zombies excepted (nothing of them has one).
pub(crate) fn tagged(tags: &[Tag<'_>]) -> Vec<i32> {
    match tags {
        [] => Vec::new(),
        _ => all().filter(|pid| has_tag(*pid, tags)).collect(),
    }
}

pub(crate) fn has_tag(pid: i32, tags: &[Tag<'_>]) -> bool {
    let environment = fs::read(format!("/proc/{pid}/environ")).unwrap_or_default();
    match environment.is_empty() {
        false => names(&environment, tags),
        // A process whose first thread has ended shows none, but goes on for as long as another thread does; so does one
        // that was killed while a thread of it waits for the disk.
        true => {
            let threads = fs::read_dir(format!("/proc/{pid}/task")).into_iter().flatten().flatten();
            threads
                .filter(|thread| thread.file_name().to_str() != Some(&pid.to_string()))
                .filter_map(|thread| fs::read(thread.path().join("environ")).ok())
                .any(|environment| names(&environment, tags))
        }
    }
}

fn names(environment: &[u8], tags: &[Tag<'_>]) -> bool {
    environment.split(|byte| *byte == 0).any(|entry| {
        tags.iter().any(|(name, value)| {
            entry.strip_prefix(name.as_bytes()).and_then(|rest| rest.strip_prefix(b"=")) == Some(value.as_bytes())
        })
    })
}

fn all() -> impl Iterator<Item = i32> {
    let entries = fs::read_dir("/proc").into_iter().flatten().flatten();
    entries.filter_map(|entry| entry.file_name().to_str()?.parse().ok())
}

/// The children of a process, those it adopted included.
pub(crate) fn children(pid: i32) -> Vec<i32> {
    let threads = fs::read_dir(format!("/proc/{pid}/task")).into_iter().flatten().flatten();
    threads
        .filter_map(|thread| fs::read_to_string(thread.path().join("children")).ok())
        .flat_map(|list| list.split_ascii_whitespace().filter_map(|pid| pid.parse().ok()).collect::<Vec<i32>>())
        .collect()
}

/// All descendants of a process.
pub(crate) fn descendants(pid: i32) -> Vec<i32> {
    let mut found = children(pid);
    let mut next = 0;
    while next < found.len() {
        let more = children(found[next]);
        found.extend(more);
        next += 1;
    }
    found
}

/// Whether a process descends from `ancestor` now.
pub(crate) fn descends(pid: i32, ancestor: i32) -> bool {
    /// A chain this long is not one of a living tree but of a race.
    const MOST_GENERATIONS: usize = 10_000;
    std::iter::successors(Some(pid), |pid| stat(*pid).map(|stat| stat.parent))
        .take(MOST_GENERATIONS)
        .any(|pid| pid == ancestor)
}

pub(crate) fn group(pid: i32) -> Option<i32> {
    stat(pid).map(|stat| stat.group)
}

/// Whether a process has ended, whether or not it was reaped.
pub(crate) fn is_zombie(pid: i32) -> bool {
    stat(pid).is_none_or(|stat| matches!(stat.state, b'Z' | b'X'))
}

struct Stat {
    state: u8,
    parent: i32,
    group: i32,
}

/// `pid (name) state ppid pgrp …`; the name may hold anything, parentheses and blanks included.
fn stat(pid: i32) -> Option<Stat> {
    let text = fs::read(format!("/proc/{pid}/stat")).ok()?;
    let end = text.iter().rposition(|byte| *byte == b')')?;
    let rest = std::str::from_utf8(text.get(end + 1..)?).ok()?;
    let mut fields = rest.split_ascii_whitespace();
    let state = *fields.next()?.as_bytes().first()?;
    Some(Stat { state, parent: fields.next()?.parse().ok()?, group: fields.next()?.parse().ok()? })
}

/// The signals that may be asked for by name, with or without `SIG`.
pub(crate) fn signal_by_name(name: &str) -> Option<Signal> {
    Some(match name.strip_prefix("SIG").unwrap_or(name) {
        "HUP" => Signal::HUP,
        "INT" => Signal::INT,
        "QUIT" => Signal::QUIT,
        "ABRT" => Signal::ABORT,
        "KILL" => Signal::KILL,
        "USR1" => Signal::USR1,
        "USR2" => Signal::USR2,
        "ALRM" => Signal::ALARM,
        "TERM" => Signal::TERM,
        "CONT" => Signal::CONT,
        "STOP" => Signal::STOP,
        "TSTP" => Signal::TSTP,
        "WINCH" => Signal::WINCH,
        _ => return None,
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_child_is_found_below_its_parent() {
        let mut child = std::process::Command::new("sleep").arg("60").spawn().unwrap();
        let (me, pid) = (std::process::id() as i32, child.id() as i32);
        assert!(children(me).contains(&pid) && descendants(me).contains(&pid));
        assert!(descends(pid, me) && !descends(me, pid));
        assert_eq!(signal([pid], Signal::KILL, |_| false), 0, "not ours");
        assert_eq!(signal([pid], Signal::KILL, |pid| descends(pid, me)), 1);
        child.wait().unwrap();
        assert_eq!(signal([pid], Signal::KILL, |_| true), 0, "gone");
    }

    #[test]
    fn a_tag_is_compared_as_a_whole() {
        let mut child = std::process::Command::new("sleep").arg("60").env(JOB_TAG, "abc").spawn().unwrap();
        let pid = child.id() as i32;
        // A process that is just starting a program shows no environment for a moment.
        let shows = |_| {
            crate::job::clock::pause(1);
            tagged(&[(SHIM_TAG, "x"), (JOB_TAG, "abc")]).contains(&pid)
        };
        assert!((0..5000).any(shows));
        for other in [(JOB_TAG, "ab"), (JOB_TAG, "abcd"), ("JOB_TAG", "abc"), (SHIM_TAG, "abc")] {
            assert!(!has_tag(pid, &[other]), "{other:?}");
        }
        child.kill().unwrap();
        child.wait().unwrap();
    }
    #[test]
    fn a_process_whose_first_thread_has_ended_is_found_by_its_others() {
        const FIRST_THREAD_ENDS: &str = "import ctypes, platform, threading, time
threading.Thread(target=time.sleep, args=(1000,)).start()
ctypes.CDLL(None).syscall(93 if platform.machine() == 'aarch64' else 60, 0)";
        let mut command = std::process::Command::new("python3");
        let mut child = command.args(["-c", FIRST_THREAD_ENDS]).env(JOB_TAG, "first-thread").spawn().unwrap();
        let pid = child.id() as i32;
        let first_has_ended = |_| {
            crate::job::clock::pause(10);
            let stat = fs::read_to_string(format!("/proc/{pid}/stat")).unwrap();
            stat.contains(") Z ")
        };
        assert!((0..3000).any(first_has_ended));
        let tags = [(JOB_TAG, "first-thread")];
        assert_eq!(tagged(&tags), [pid]);
        assert_eq!(signal(tagged(&tags), Signal::KILL, |pid| has_tag(pid, &tags)), 1);
        child.wait().unwrap();
        assert_eq!(tagged(&tags), [0; 0]);
    }
}
