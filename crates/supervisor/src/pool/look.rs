//! What a worker's process does, read from `/proc` and its cgroup.
#![allow(unsafe_code)] // sysconf(3), which this build of rustix does not have.

use super::cgroup::Leaf;
use crate::job::processes;
use everbeat_engine::pools::{ProcessLook, ProcessState};
use std::fs;
use std::time::Duration;

/// Of a process whose pidfd says, after this, that it lived all the while.
pub(super) fn look(pid: i32, leaf: Option<&Leaf>) -> Option<ProcessLook> {
    let main = Stat::of(pid)?;
    let others = || {
        let below = leaf.map_or_else(|| processes::descendants(pid), Leaf::pids);
        below.into_iter().filter(move |other| *other != pid).filter_map(Stat::of)
    };
    let cpu = leaf.and_then(Leaf::cpu_us).map(Duration::from_micros);
    let memory = leaf.and_then(Leaf::memory_bytes);
    let (cpu, resident_bytes) = match (cpu, memory) {
        (Some(cpu), Some(memory)) => (cpu, memory),
        (cpu, memory) => {
            let mut sum = (ticks(main.cpu_ticks), main.resident_pages);
            for other in others() {
                sum = (sum.0 + ticks(other.cpu_ticks), sum.1 + other.resident_pages);
            }
            (cpu.unwrap_or(sum.0), memory.unwrap_or(sum.1 * page_bytes()))
        }
    };
    Some(ProcessLook { state: main.state, cpu, resident_bytes })
}

/// How a process ended that nobody has reaped yet, as wait(2) tells it.
pub(super) fn zombie_status(pid: i32) -> Option<i32> {
    Stat::of(pid).filter(|stat| stat.state == ProcessState::Dead)?.exit
}

#[derive(Debug, PartialEq)]
struct Stat {
    state: ProcessState,
    /// With that of the children it has waited for.
    cpu_ticks: u64,
    resident_pages: u64,
    /// As wait(2) tells it.
    exit: Option<i32>,
}

impl Stat {
    fn of(pid: i32) -> Option<Stat> {
        Stat::read(&fs::read(format!("/proc/{pid}/stat")).ok()?)
    }

    /// `pid (name) state …`; the name may hold anything, parentheses and blanks included. The fields are those of proc(5).
    fn read(text: &[u8]) -> Option<Stat> {
        const FIRST: usize = 3;
        let end = text.iter().rposition(|byte| *byte == b')')?;
        let fields: Vec<&str> = std::str::from_utf8(text.get(end + 1..)?).ok()?.split_ascii_whitespace().collect();
        let number =
            |field: usize| fields.get(field - FIRST)?.parse::<i64>().ok().and_then(|it| u64::try_from(it).ok());
        let state = match *fields.first()? {
            "R" => ProcessState::Running,
            "D" => ProcessState::Blocked,
            "T" | "t" => ProcessState::Stopped,
            "Z" | "X" | "x" => ProcessState::Dead,
            _ => ProcessState::Sleeping,
        };
        let cpu_ticks = number(14)? + number(15)? + number(16).unwrap_or(0) + number(17).unwrap_or(0);
        let exit = fields.get(52 - FIRST).and_then(|exit| exit.parse().ok());
        Some(Stat { state, cpu_ticks, resident_pages: number(24).unwrap_or(0), exit })
    }
}

fn ticks(ticks: u64) -> Duration {
    let per_second = system_value(libc::_SC_CLK_TCK).unwrap_or(100);
    Duration::from_micros(ticks * 1_000_000 / per_second)
}

fn page_bytes() -> u64 {
    system_value(libc::_SC_PAGESIZE).unwrap_or(4096)
}

fn system_value(name: libc::c_int) -> Option<u64> {
    // SAFETY: sysconf(3) has no preconditions.
    u64::try_from(unsafe { libc::sysconf(name) }).ok().filter(|value| *value > 0)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_process_with_any_name_is_read() {
        let text = b"7 (a) b) R) T 1 7 7 0 -1 4194560 1 2 3 4 50 25 5 20 20 0 1 0 99 1000 42 18446744073709551615 1 1";
        let expected = Stat { state: ProcessState::Stopped, cpu_ticks: 100, resident_pages: 42, exit: None };
        assert_eq!(Stat::read(text), Some(expected));
        assert_eq!(Stat::read(b"7 (a"), None);
    }

    #[test]
    fn this_process_is_seen() {
        let look = look(std::process::id() as i32, None).unwrap();
        assert!(look.resident_bytes > 100_000, "{look:?}");
    }
}
