//! What a pidfd tells of its process.
#![allow(unsafe_code)] // An ioctl that rustix does not have, once.

use super::look;
use rustix::event::{PollFd, PollFlags, Timespec, poll};
use std::fs;
use std::os::fd::{AsFd, AsRawFd};

/// Whether the process has not ended.
pub(super) fn is_alive(pidfd: impl AsFd) -> bool {
    let now = Timespec { tv_sec: 0, tv_nsec: 0 };
    matches!(poll(&mut [PollFd::new(&pidfd, PollFlags::IN)], Some(&now)), Ok(0))
}

/// The number of the process in this process's namespace, for as long as it was not reaped: until then it is its own.
pub(super) fn number(pidfd: impl AsFd) -> Option<i32> {
    let path = format!("/proc/self/fdinfo/{}", pidfd.as_fd().as_raw_fd());
    let info = fs::read_to_string(path).ok()?;
    let pid: i32 = info.lines().find_map(|line| line.strip_prefix("Pid:")?.trim().parse().ok())?;
    Some(pid).filter(|pid| *pid > 0)
}

/// How a process ended: its code or its signal. Also for who is not its parent, as far as the kernel tells: before it is
/// reaped always, afterwards since Linux 6.15.
pub(super) fn exit(pidfd: impl AsFd) -> Option<(Option<i32>, Option<i32>)> {
    let unreaped = number(&pidfd).and_then(|pid| {
        let status = look::zombie_status(pid);
        // What was read was this process, and not another of its number.
        status.filter(|_| number(&pidfd) == Some(pid))
    });
    let status = unreaped.or_else(|| reaped_status(pidfd))?;
    Some(match status & 0x7f {
        0 => (Some(status >> 8 & 0xff), None),
        signal => (None, Some(signal)),
    })
}

fn reaped_status(pidfd: impl AsFd) -> Option<i32> {
    // SAFETY: the kernel's structure is plain integers; zero is a value of each.
    let mut info: libc::pidfd_info = unsafe { std::mem::zeroed() };
    info.mask = libc::PIDFD_INFO_EXIT.into();
    // SAFETY: the descriptor is open, and `info` is a valid structure of the size that the call's number tells.
    let asked = unsafe { libc::ioctl(pidfd.as_fd().as_raw_fd(), libc::PIDFD_GET_INFO, &raw mut info) };
    (asked == 0 && info.mask & u64::from(libc::PIDFD_INFO_EXIT) != 0).then_some(info.exit_code)
}

#[cfg(test)]
mod tests {
    use super::*;
    use rustix::process::{Pid, PidfdFlags, pidfd_open};

    #[test]
    fn a_number_is_told_until_its_process_is_reaped() {
        let mut child = std::process::Command::new("cat").stdin(std::process::Stdio::piped()).spawn().unwrap();
        let pid = child.id() as i32;
        let pidfd = pidfd_open(Pid::from_raw(pid).unwrap(), PidfdFlags::empty()).unwrap();
        assert!(is_alive(&pidfd) && number(&pidfd) == Some(pid));
        drop(child.stdin.take());
        let _ended = poll(&mut [PollFd::new(&pidfd, PollFlags::IN)], None);
        assert!(!is_alive(&pidfd) && number(&pidfd) == Some(pid), "it was not reaped");
        child.wait().unwrap();
        assert_eq!(number(&pidfd), None);
    }

    #[test]
    fn an_end_is_told_before_the_process_is_reaped_and_never_invented() {
        for (script, expected) in [("exit 7", (Some(7), None)), ("kill -9 $$", (None, Some(9)))] {
            let mut child = std::process::Command::new("sh").args(["-c", script]).spawn().unwrap();
            let pidfd = pidfd_open(Pid::from_raw(child.id() as i32).unwrap(), PidfdFlags::empty()).unwrap();
            let _ended = poll(&mut [PollFd::new(&pidfd, PollFlags::IN)], None);
            assert_eq!(exit(&pidfd), Some(expected), "{script}");
            child.wait().unwrap();
            assert!(exit(&pidfd).is_none_or(|exit| exit == expected), "{script}");
        }
    }
}
