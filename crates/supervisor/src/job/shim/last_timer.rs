//! The last keeper of an isolated command's time. The kernel kills the shim at that time unless it is put off, also one
//! that is stopped or turns in circles; and the command dies with its shim.
#![allow(unsafe_code)] // timer_create(2) and its kin: rustix offers only timers that somebody has to read.

use std::io;
use std::ptr;

#[derive(Debug)]
pub(super) struct LastTimer {
    id: libc::timer_t,
}

impl LastTimer {
    /// Not armed yet. A process that this one starts has none.
    pub(super) fn new() -> io::Result<LastTimer> {
        let mut id: libc::timer_t = ptr::null_mut();
        // SAFETY: sigevent is plain integers and a pointer, for which zero is a value; both outlive the call.
        let made = unsafe {
            let mut event: libc::sigevent = std::mem::zeroed();
            event.sigev_notify = libc::SIGEV_SIGNAL;
            event.sigev_signo = libc::SIGKILL;
            libc::timer_create(libc::CLOCK_BOOTTIME, &raw mut event, &raw mut id)
        };
        if made == 0 { Ok(LastTimer { id }) } else { Err(io::Error::last_os_error()) }
    }

    /// On boot time.
    pub(super) fn put_off(&self, at_ms: u64) -> io::Result<()> {
        // Zero would disarm it.
        self.set(at_ms.max(1))
    }

    /// Nothing runs any more that would have to be killed.
    pub(super) fn disarm(&self) {
        let _an_armed_one_can_be_set = self.set(0);
    }

    fn set(&self, at_ms: u64) -> io::Result<()> {
        // SAFETY: itimerspec is plain integers, for which zero is a value (their types differ between systems).
        let mut time: libc::itimerspec = unsafe { std::mem::zeroed() };
        time.it_value.tv_sec = (at_ms / 1000) as _;
        time.it_value.tv_nsec = (at_ms % 1000 * 1_000_000) as _;
        // SAFETY: the timer is this value's own, and `time` outlives the call.
        let set = unsafe { libc::timer_settime(self.id, libc::TIMER_ABSTIME, &raw const time, ptr::null_mut()) };
        if set == 0 { Ok(()) } else { Err(io::Error::last_os_error()) }
    }
}

impl Drop for LastTimer {
    fn drop(&mut self) {
        // SAFETY: the timer is this value's own, and nobody uses it after this.
        unsafe { libc::timer_delete(self.id) };
    }
}
