//! The standard input of a worker that speaks lines.

use std::io;
use std::os::fd::OwnedFd;
use tokio::net::unix::pipe::Sender;

#[derive(Debug)]
pub(super) struct Input {
    /// None once it is closed.
    pipe: Option<Sender>,
    /// What a write that was given up had not sent: it goes first, so that no line is torn.
    unsent: Vec<u8>,
}

impl Input {
    /// Inside a runtime.
    pub(super) fn new(pipe: OwnedFd) -> io::Result<Input> {
        Ok(Input { pipe: Some(Sender::from_owned_fd(pipe)?), unsent: Vec::new() })
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

    /// What was to be written goes first, if the worker still reads.
    pub(super) async fn close(&mut self) {
        let _it_reads_no_more = self.flush().await;
        self.pipe = None;
    }

    async fn flush(&mut self) -> io::Result<()> {
        let Some(pipe) = &self.pipe else { return Err(io::ErrorKind::BrokenPipe.into()) };
        while !self.unsent.is_empty() {
            pipe.writable().await?;
            match pipe.try_write(&self.unsent) {
                Ok(sent) => drop(self.unsent.drain(..sent)),
                Err(error) if error.kind() == io::ErrorKind::WouldBlock => {}
                Err(error) => return Err(error),
            }
        }
        Ok(())
    }
}
