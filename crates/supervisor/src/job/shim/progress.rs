//! Progress lines from the job, which may write anything.

use crate::job::protocol::MOST_PROGRESS_BYTES;
use everbeat_model::Json;
use rustix::io::Errno;
use serde_json::Value;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};

#[derive(Debug, Default)]
pub(super) struct Progress {
    pipe: Option<OwnedFd>,
    line: Vec<u8>,
    /// The rest of a line that was too long.
    skipping: bool,
}

/// How much is read before others have their turn.
const TURNS: usize = 16;

impl Progress {
    pub(super) fn connect(&mut self, pipe: OwnedFd) {
        self.pipe = Some(pipe);
    }

    pub(super) fn pipe(&self) -> Option<BorrowedFd<'_>> {
        self.pipe.as_ref().map(AsFd::as_fd)
    }

    /// The last valid line that came, if any. What is no JSON object is passed over.
    pub(super) fn latest(&mut self, buffer: &mut [u8]) -> Option<Value> {
        let mut latest = None;
        for _ in 0..TURNS {
            let Some(pipe) = &self.pipe else { break };
            match rustix::io::read(pipe, &mut *buffer) {
                Ok(0) => self.pipe = None,
                Ok(length) => latest = self.take(&buffer[..length]).or(latest),
                Err(Errno::INTR) => {}
                Err(Errno::AGAIN) => break,
                Err(_) => self.pipe = None,
            }
        }
        latest
    }

    fn take(&mut self, bytes: &[u8]) -> Option<Value> {
        let mut latest = None;
        for part in bytes.split_inclusive(|byte| *byte == b'\n') {
            if !self.skipping {
                self.line.extend_from_slice(part);
            }
            self.skipping |= self.line.len() > MOST_PROGRESS_BYTES;
            if self.skipping {
                self.line.clear();
            }
            if part.ends_with(b"\n") {
                latest = read(&self.line).or(latest);
                self.line.clear();
                self.skipping = false;
            }
        }
        latest
    }
}

/// Progress is an object, within the bounds of all JSON.
fn read(line: &[u8]) -> Option<Value> {
    let read = Json::parse(std::str::from_utf8(line).ok()?).ok()?.value();
    Some(read).filter(Value::is_object)
}

#[cfg(test)]
mod tests {
    use super::*;
    use serde_json::json;

    #[test]
    fn the_last_valid_line_counts_whatever_else_is_written() {
        let mut progress = Progress::default();
        assert_eq!(progress.take(b"{\"done\":1}\n{\"do"), Some(json!({"done": 1})));
        assert_eq!(progress.take(b"ne\":2}\nnonsense\n7\n"), Some(json!({"done": 2})));
        assert_eq!(progress.take(&vec![b'x'; 3 * MOST_PROGRESS_BYTES]), None);
        assert!(progress.line.len() <= MOST_PROGRESS_BYTES);
        assert_eq!(progress.take(b"\"}\n{\"done\":3}\n"), Some(json!({"done": 3})));
    }
}
