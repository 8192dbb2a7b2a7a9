//! Where a worker is: told by itself, or, if it cannot, by the kernel.

use super::pidfd;
use crate::job::clock;
use rustix::process::{Signal, pidfd_send_signal};
use std::fmt::Write;
use std::fs::{self, File};
use std::io::{Read, Seek, SeekFrom};
use std::os::fd::BorrowedFd;
use std::path::Path;

const DUMPED_WITHIN_MS: u64 = 2000;
const LOOK_AGAIN_MS: u64 = 10;
/// A dump that has not grown for so long is whole.
const STABLE_MS: u64 = 50;
const MOST_DUMP_BYTES: u64 = 256 << 10;
const MOST_THREADS: usize = 64;

/// For a thread that may wait. None if the process is gone.
pub(super) fn stacks(pid: i32, pidfd: BorrowedFd<'_>, dump: &Path) -> Option<String> {
    let told = dumped(pid, pidfd, dump).map(|stacks| format!("told by the worker:\n{stacks}"));
    told.or_else(|| kernel(pid).map(|lines| format!("told by the kernel:\n{lines}"))).filter(|_| pidfd::is_alive(pidfd))
}

/// Without a handler the signal would kill: it is sent only to a worker that made the file and handles it.
fn dumped(pid: i32, pidfd: BorrowedFd<'_>, dump: &Path) -> Option<String> {
    let before = fs::metadata(dump).ok()?.len();
    if !handles(pid, Signal::USR1) || !pidfd::is_alive(pidfd) {
        return None;
    }
    pidfd_send_signal(pidfd, Signal::USR1).ok()?;
    let until = clock::boot_ms() + DUMPED_WITHIN_MS;
    let (mut length, mut since) = (before, clock::boot_ms());
    loop {
        clock::pause(LOOK_AGAIN_MS);
        let (now, at) = (fs::metadata(dump).ok()?.len(), clock::boot_ms());
        if now != length {
            (length, since) = (now, at);
        }
        if length > before && at.saturating_sub(since) >= STABLE_MS || at >= until {
            break;
        }
    }
    if length <= before {
        return None;
    }
    let mut file = File::open(dump).ok()?;
    file.seek(SeekFrom::Start(before)).ok()?;
    let mut bytes = Vec::new();
    file.take(MOST_DUMP_BYTES).read_to_end(&mut bytes).ok()?;
    Some(String::from_utf8_lossy(&bytes).into_owned())
}

fn handles(pid: i32, signal: Signal) -> bool {
    let status = fs::read_to_string(format!("/proc/{pid}/status")).unwrap_or_default();
    let caught = status.lines().find_map(|line| u64::from_str_radix(line.strip_prefix("SigCgt:")?.trim(), 16).ok());
    caught.is_some_and(|caught| caught & (1 << (signal.as_raw() - 1)) != 0)
}

/// For each thread its name, its state, where in the kernel it waits, and for what call.
fn kernel(pid: i32) -> Option<String> {
    let mut lines = String::new();
    let threads = fs::read_dir(format!("/proc/{pid}/task")).ok()?.flatten().take(MOST_THREADS);
    for thread in threads {
        let read = |name: &str| fs::read_to_string(thread.path().join(name)).unwrap_or_default().trim().to_owned();
        let status = read("status");
        let field =
            |name: &str| status.lines().find_map(|line| line.strip_prefix(name)).unwrap_or("?").trim().to_owned();
        let number = thread.file_name().to_string_lossy().into_owned();
        let (name, state) = (field("Name:"), field("State:"));
        let _to_memory = writeln!(
            lines,
            "thread {number} {name}: {state}, in {}, call {}",
            shown(read("wchan")),
            shown(read("syscall"))
        );
    }
    Some(lines).filter(|lines| !lines.is_empty())
}

fn shown(text: String) -> String {
    if text.is_empty() { "?".to_owned() } else { text }
}
