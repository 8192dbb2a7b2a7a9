//! The one door through which time enters shims and what watches them.

use rustix::event::poll;
use rustix::time::{ClockId, Timespec, clock_gettime};
use std::io;
use std::sync::OnceLock;

/// Milliseconds since this machine booted, sleep included. No clock setting moves it.
pub(crate) fn boot_ms() -> u64 {
    milliseconds(clock_gettime(ClockId::Boottime))
}

/// The same in microseconds.
pub(crate) fn boot_us() -> u64 {
    let time = clock_gettime(ClockId::Boottime);
    u64::try_from(time.tv_sec).unwrap_or(0) * 1_000_000 + u64::try_from(time.tv_nsec).unwrap_or(0) / 1000
}

/// Milliseconds since 1970 by the wall clock: for people only.
pub(crate) fn wall_ms() -> u64 {
    milliseconds(clock_gettime(ClockId::Realtime))
}

fn milliseconds(time: Timespec) -> u64 {
    u64::try_from(time.tv_sec).unwrap_or(0) * 1000 + u64::try_from(time.tv_nsec).unwrap_or(0) / 1_000_000
}

pub(crate) fn timespec(ms: u64) -> Timespec {
    Timespec { tv_sec: (ms / 1000) as i64, tv_nsec: ((ms % 1000) * 1_000_000) as _ }
}

/// The wall clock's time as RFC 3339 with milliseconds.
pub(crate) fn now_text() -> String {
    text(wall_ms())
}

pub(crate) fn text(wall_ms: u64) -> String {
    let time = i64::try_from(wall_ms).ok().and_then(|ms| jiff::Timestamp::from_millisecond(ms).ok());
    time.unwrap_or_default().strftime("%Y-%m-%dT%H:%M:%S%.3fZ").to_string()
}

/// The time a text names; one before 1970 or none at all is `None`.
pub(crate) fn parse(text: &str) -> Option<u64> {
    let time: jiff::Timestamp = text.parse().ok()?;
    u64::try_from(time.as_millisecond()).ok()
}

/// Which boot of this machine this is. No process sees two.
pub(crate) fn boot_id() -> io::Result<String> {
    static KNOWN: OnceLock<String> = OnceLock::new();
    if let Some(known) = KNOWN.get() {
        return Ok(known.clone());
    }
    let read = std::fs::read_to_string("/proc/sys/kernel/random/boot_id")?;
    Ok(KNOWN.get_or_init(|| read.trim().to_owned()).clone())
}

/// Waits. Only for what gives no signal, such as a lock that another process holds.
pub(crate) fn pause(ms: u64) {
    let _interrupted_is_soon_enough = poll(&mut [], Some(&timespec(ms)));
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_time_is_written_with_three_digits_and_read_back() {
        assert_eq!(text(1_760_524_245_120), "2025-10-15T10:30:45.120Z");
        assert_eq!(parse("2025-10-15T10:30:45.120Z"), Some(1_760_524_245_120));
        assert_eq!(parse("yesterday"), None);
        assert_eq!(parse("1969-12-31T00:00:00Z"), None);
    }
}
