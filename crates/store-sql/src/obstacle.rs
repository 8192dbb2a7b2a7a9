//! What stands in the way, from an error of the operating system.

use everbeat_store::Obstacle;
use std::io::{self, ErrorKind};

/// Linux' numbers for "this process" and "the whole system" having too many open files.
const EMFILE: i32 = 24;
const ENFILE: i32 = 23;

/// What an error of the operating system says about the store.
pub(crate) fn of_io(error: &io::Error) -> Obstacle {
    match error.kind() {
        _ if matches!(error.raw_os_error(), Some(EMFILE | ENFILE)) => Obstacle::NoDescriptors,
        ErrorKind::StorageFull | ErrorKind::QuotaExceeded => Obstacle::DiskFull,
        ErrorKind::ReadOnlyFilesystem | ErrorKind::PermissionDenied => Obstacle::ReadOnly,
        ErrorKind::OutOfMemory => Obstacle::NoMemory,
        ErrorKind::TimedOut | ErrorKind::WouldBlock => Obstacle::NoAnswer,
        ErrorKind::ConnectionRefused
        | ErrorKind::ConnectionReset
        | ErrorKind::ConnectionAborted
        | ErrorKind::NotConnected
        | ErrorKind::BrokenPipe
        | ErrorKind::UnexpectedEof
        | ErrorKind::HostUnreachable
        | ErrorKind::NetworkUnreachable
        | ErrorKind::NetworkDown
        | ErrorKind::AddrNotAvailable => Obstacle::Unreachable,
        _ => Obstacle::Io,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_error_of_the_system_names_its_cause() {
        for (number, cause) in [
            (24, Obstacle::NoDescriptors),
            (23, Obstacle::NoDescriptors),
            (28, Obstacle::DiskFull),
            (122, Obstacle::DiskFull),
            (30, Obstacle::ReadOnly),
            (12, Obstacle::NoMemory),
            (111, Obstacle::Unreachable),
            (104, Obstacle::Unreachable),
            (110, Obstacle::NoAnswer),
            (5, Obstacle::Io),
        ] {
            assert_eq!(of_io(&io::Error::from_raw_os_error(number)), cause, "{number}");
        }
    }
}
