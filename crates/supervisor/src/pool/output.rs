//! The lines that a worker writes, read no faster than somebody takes them: a worker that writes more waits.

use everbeat_engine::pools::OutputLine;
use std::io;
use std::os::fd::OwnedFd;
use tokio::net::unix::pipe::Receiver;

/// More of a line is not told.
pub(super) const MOST_LINE_BYTES: usize = 16 << 10;
/// The same for the standard output of a worker that speaks lines: each is a result.
pub(super) const MOST_RESULT_BYTES: usize = 4 << 20;

/// Both outputs of a worker.
#[derive(Debug)]
pub(super) struct Output {
    streams: [Stream; 2],
    /// Whose turn it is: nobody who writes much keeps the other from being read.
    next: usize,
}

impl Output {
    /// Inside a runtime.
    pub(super) fn new(stdout: OwnedFd, stderr: OwnedFd, lines: bool) -> io::Result<Output> {
        let most = if lines { MOST_RESULT_BYTES } else { MOST_LINE_BYTES };
        let stdout = Stream { pipe: Some(Receiver::from_owned_fd(stdout)?), error: false, lines: Lines::new(most) };
        let lines = Lines::new(MOST_LINE_BYTES);
        let stderr = Stream { pipe: Some(Receiver::from_owned_fd(stderr)?), error: true, lines };
        Ok(Output { streams: [stdout, stderr], next: 0 })
    }

    /// Nothing is lost when this is dropped half-way.
    pub(super) async fn line(&mut self) -> Option<OutputLine> {
        loop {
            for _ in 0..2 {
                let at = self.next;
                self.next = 1 - at;
                let stream = &mut self.streams[at];
                if let Some((text, cut)) = stream.lines.next(stream.pipe.is_none()) {
                    return Some(OutputLine { error: stream.error, text, cut });
                }
            }
            let [one, other] = &self.streams;
            match (&one.pipe, &other.pipe) {
                (None, None) => return None,
                (Some(pipe), None) | (None, Some(pipe)) => _ = pipe.readable().await,
                (Some(one), Some(other)) => tokio::select! {
                    _ = one.readable() => {}
                    _ = other.readable() => {}
                },
            }
            self.streams.iter_mut().for_each(Stream::fill);
        }
    }
}

#[derive(Debug)]
struct Stream {
    /// None at its end.
    pipe: Option<Receiver>,
    error: bool,
    lines: Lines,
}

impl Stream {
    fn fill(&mut self) {
        let Some(pipe) = &self.pipe else { return };
        match pipe.try_read(self.lines.room()) {
            Ok(0) => self.pipe = None,
            Ok(length) => self.lines.add(length),
            Err(error) if error.kind() == io::ErrorKind::WouldBlock => {}
            Err(_) => self.pipe = None,
        }
    }
}

/// Splits what comes into lines, in bounded memory.
#[derive(Debug)]
struct Lines {
    most: usize,
    held: Vec<u8>,
    part: Box<[u8; PART_BYTES]>,
    /// So far there is no end of a line in `held`.
    searched: usize,
    /// The beginning of this line was told already.
    skipping: bool,
}

const PART_BYTES: usize = 8 << 10;

impl Lines {
    fn new(most: usize) -> Lines {
        Lines { most, held: Vec::new(), part: Box::new([0; PART_BYTES]), searched: 0, skipping: false }
    }

    /// Where to read to. What is held is never more than a line and such a part.
    fn room(&mut self) -> &mut [u8] {
        &mut self.part[..]
    }

    fn add(&mut self, length: usize) {
        self.held.extend_from_slice(&self.part[..length]);
    }

    /// The next line, and whether it was cut.
    fn next(&mut self, at_end: bool) -> Option<(String, bool)> {
        loop {
            let found = self.held[self.searched..].iter().position(|byte| *byte == b'\n').map(|at| at + self.searched);
            self.searched = if found.is_some() { 0 } else { self.held.len() };
            if self.skipping {
                let over = found.map_or(self.held.len(), |at| at + 1);
                self.take(over);
                self.skipping = found.is_none();
                found?;
                continue;
            }
            return match found {
                Some(at) => {
                    let line = self.text(at.min(self.most), at > self.most);
                    self.take(at + 1);
                    Some(line)
                }
                None if self.held.len() > self.most => {
                    let line = self.text(self.most, true);
                    self.take(self.held.len());
                    self.skipping = true;
                    Some(line)
                }
                None if at_end && !self.held.is_empty() => {
                    let line = self.text(self.held.len(), false);
                    self.take(self.held.len());
                    Some(line)
                }
                None => None,
            };
        }
    }

    fn text(&self, length: usize, cut: bool) -> (String, bool) {
        (String::from_utf8_lossy(&self.held[..length]).into_owned(), cut)
    }

    fn take(&mut self, length: usize) {
        self.held.drain(..length);
        self.searched = 0;
        if self.held.is_empty() {
            // A long line of long ago takes no memory for ever.
            self.held.shrink_to(MOST_LINE_BYTES);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn told(lines: &mut Lines, text: &[u8], at_end: bool) -> Vec<(String, bool)> {
        let mut told = Vec::new();
        for part in text.chunks(PART_BYTES).chain(text.is_empty().then_some(&[][..])) {
            lines.room()[..part.len()].copy_from_slice(part);
            lines.add(part.len());
            told.extend(std::iter::from_fn(|| lines.next(false)));
            assert!(lines.held.len() <= lines.most + PART_BYTES);
        }
        told.extend(std::iter::from_fn(|| lines.next(at_end)));
        told
    }

    fn line(text: &str) -> (String, bool) {
        (text.to_owned(), false)
    }

    #[test]
    fn lines_are_told_whole_however_they_arrive() {
        let mut lines = Lines::new(100);
        assert_eq!(told(&mut lines, b"one\n\ntw", false), [line("one"), line("")]);
        assert_eq!(told(&mut lines, b"o\nthr\xffee", false), [line("two")]);
        assert_eq!(told(&mut lines, b"", true), [line("thr\u{fffd}ee")]);
        assert_eq!(told(&mut lines, b"", true), []);
    }

    #[test]
    fn of_a_long_line_only_the_beginning_is_told_and_held() {
        let mut lines = Lines::new(10);
        assert_eq!(told(&mut lines, b"0123456789\n", false), [line("0123456789")]);
        assert_eq!(told(&mut lines, b"0123456789x\n", false), [("0123456789".to_owned(), true)]);
        let mut long = vec![b'x'; 1 << 20];
        assert_eq!(told(&mut lines, &long, false), [("xxxxxxxxxx".to_owned(), true)]);
        long.extend(b"rest\nnext\n");
        assert_eq!(told(&mut lines, &long, false), [line("next")]);
    }
}
