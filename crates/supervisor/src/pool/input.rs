//! The standard input of a worker that speaks lines.

use std::io;
use std::os::fd::OwnedFd;
use tokio::net::unix::pipe::Sender;

#[derive(Debug)]
pub(super) struct Input {
    pipe: Sender,
    /// What a write that was given up had not sent: it goes first, so that no line is torn.
    unsent: Vec<u8>,
}

impl Input {
    /// Inside a runtime.
    pub(super) fn new(pipe: OwnedFd) -> io::Result<Input> {
        Ok(Input { pipe: Sender::from_owned_fd(pipe)?, unsent: Vec::new() })
    }

    /// Writes a line, with its end if it has none. Waits for a worker that does not read.
    pub(super) async fn write(&mut self, line: &[u8]) -> io::Result<()> {
        self.flush().await?;
        self.unsent.extend_from_slice(line);
        if !line.ends_with(b"\n") {
            self.unsent.push(b'\n');
        }
        self.flush().await
    }

    async fn flush(&mut self) -> io::Result<()> {
        while !self.unsent.is_empty() {
            self.pipe.writable().await?;
            match self.pipe.try_write(&self.unsent) {
                Ok(sent) => drop(self.unsent.drain(..sent)),
                Err(error) if error.kind() == io::ErrorKind::WouldBlock => {}
                Err(error) => return Err(error),
            }
        }
        Ok(())
    }
}
