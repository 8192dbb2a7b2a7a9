//! What a pidfd tells of its process.

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
}
