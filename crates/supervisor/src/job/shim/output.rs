//! The job's output on its way from a pipe to a log.
//!
//! A pipe, not the file itself: only so can a log be capped and rotated without losing a line, and a full
//! disk cost output instead of stopping the job. The shim is a copy away from every byte, but if it dies
//! the job dies with it anyway.

use crate::job::folder::{JobFolder, Problem};
use crate::job::logs::{Begin, Files, Index};
use everbeat_engine::Stream;
use rustix::fs::{self, Mode, OFlags};
use rustix::io::Errno;
use std::fs::File;
use std::io;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::os::unix::fs::FileExt;

#[derive(Debug)]
pub(super) struct Output {
    stream: Stream,
    pipe: Option<OwnedFd>,
    log: Option<Log>,
    most_file_bytes: u64,
    pub(super) written: u64,
    /// For which there was no room.
    pub(super) dropped: u64,
}

#[derive(Debug)]
struct Log {
    file: File,
    inode: u64,
    base: u64,
    length: u64,
}

/// How much is read from one pipe before others have their turn.
pub(super) const TURN_BYTES: usize = 256 << 10;

impl Output {
    /// Goes on where an earlier attempt's output ended.
    pub(super) fn open(folder: &JobFolder, stream: Stream, limit_bytes: u64) -> Output {
        // Half for the current file, half for the rotated one.
        let most_file_bytes = (limit_bytes / 2).max(1);
        let log = open_log(folder, stream).ok();
        Output { stream, pipe: None, log, most_file_bytes, written: 0, dropped: 0 }
    }

    pub(super) fn connect(&mut self, pipe: OwnedFd) {
        self.pipe = Some(pipe);
    }

    pub(super) fn pipe(&self) -> Option<BorrowedFd<'_>> {
        self.pipe.as_ref().map(AsFd::as_fd)
    }

    /// Takes what the pipe holds, up to a turn's worth. Says whether it may hold more.
    pub(super) fn pump(&mut self, folder: &JobFolder, buffer: &mut [u8]) -> bool {
        let mut taken = 0;
        while taken < TURN_BYTES {
            let Some(pipe) = &self.pipe else { return false };
            match rustix::io::read(pipe, &mut *buffer) {
                Ok(0) => self.pipe = None,
                Ok(length) => {
                    taken += length;
                    self.keep(folder, &buffer[..length]);
                }
                Err(Errno::INTR) => {}
                Err(Errno::AGAIN) => return false,
                Err(_) => self.pipe = None,
            }
        }
        true
    }

    fn keep(&mut self, folder: &JobFolder, mut bytes: &[u8]) {
        while !bytes.is_empty() {
            if self.log.as_ref().is_none_or(|log| log.length >= self.most_file_bytes) {
                match rotate(folder, self.stream, self.log.as_ref()) {
                    Ok(log) => self.log = Some(log),
                    Err(_) => break,
                }
            }
            let Some(log) = &mut self.log else { break };
            let room = usize::try_from(self.most_file_bytes - log.length).unwrap_or(usize::MAX);
            match log.file.write_at(&bytes[..bytes.len().min(room)], log.length) {
                Ok(0) => break,
                Ok(length) => {
                    log.length += length as u64;
                    self.written += length as u64;
                    bytes = &bytes[length..];
                }
                Err(error) if error.kind() == io::ErrorKind::Interrupted => {}
                Err(_) => break,
            }
        }
        self.dropped += bytes.len() as u64;
    }
}

/// The log of an earlier attempt, if the index knows it; else a new one.
fn open_log(folder: &JobFolder, stream: Stream) -> io::Result<Log> {
    let flags = OFlags::WRONLY | OFlags::NOFOLLOW | OFlags::NONBLOCK | OFlags::CLOEXEC;
    if let (Ok(index), Ok((_, stat))) = (Index::read(folder, stream), folder.open_file(&stream.current()))
        && let Some(base) = index.base(stat.st_ino)
    {
        let file = File::from(fs::openat(folder.dir(), stream.current(), flags, Mode::empty())?);
        let stat = fs::fstat(&file)?;
        return Ok(Log { file, inode: stat.st_ino, base, length: stat.st_size as u64 });
    }
    rotate(folder, stream, None)
}

/// Puts a new file in the place of the current one, which becomes the rotated one. The index knows all
/// three before anything is renamed.
fn rotate(folder: &JobFolder, stream: Stream, current: Option<&Log>) -> io::Result<Log> {
    let (temporary, file) = folder.create_temporary()?;
    let renewed = (|| {
        let inode = fs::fstat(&file)?.st_ino;
        let rotated = known(folder, stream)?;
        let base = match (current, rotated) {
            (Some(log), _) => log.base + log.length,
            (None, Some((begin, length))) => begin.base + length,
            (None, None) => 0,
        };
        let mut files: Vec<Begin> = rotated.map(|(begin, _)| begin).into_iter().collect();
        files.extend(current.map(|log| Begin { inode: log.inode, base: log.base }));
        files.push(Begin { inode, base });
        folder.write_quickly(&stream.index(), &Index { files })?;
        if current.is_some() {
            match fs::renameat(folder.dir(), stream.current(), folder.dir(), stream.rotated()) {
                // Somebody took the log away.
                Ok(()) | Err(Errno::NOENT) => {}
                Err(error) => return Err(error.into()),
            }
        }
        fs::renameat(folder.dir(), &temporary, folder.dir(), stream.current())?;
        io::Result::Ok((inode, base))
    })();
    match renewed {
        Ok((inode, base)) => Ok(Log { file, inode, base, length: 0 }),
        Err(error) => {
            let _nothing_more_to_do = folder.unlink(&temporary);
            Err(error)
        }
    }
}

/// The rotated file, if there is one and the index knows it.
fn known(folder: &JobFolder, stream: Stream) -> io::Result<Option<(Begin, u64)>> {
    match (folder.open_file(&stream.rotated()), Index::read(folder, stream)) {
        (Ok((_, stat)), Ok(index)) => {
            Ok(index.base(stat.st_ino).map(|base| (Begin { inode: stat.st_ino, base }, stat.st_size as u64)))
        }
        (Err(Problem::Missing(_)), _) | (_, Err(Problem::Missing(_))) => Ok(None),
        (Err(problem), _) | (_, Err(problem)) => Err(io::Error::other(problem.to_string())),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::job::logs;

    #[test]
    fn a_reader_that_begins_anywhere_sees_each_kept_byte_at_its_own_offset() {
        let root = tempfile::tempdir().unwrap();
        let folder = JobFolder::create(root.path(), "j").unwrap();
        let mut all = Vec::new();
        for attempt in 0..3 {
            let mut output = Output::open(&folder, Stream::Stdout, 200);
            for n in 0..50 {
                let line = format!("attempt {attempt} line {n}\n");
                output.keep(&folder, line.as_bytes());
                all.extend_from_slice(line.as_bytes());
                let chunk = logs::read_from(&folder, Stream::Stdout, 0, 1000).unwrap();
                assert_eq!(chunk.end, all.len() as u64);
                assert!(chunk.bytes.len() <= 200);
                assert_eq!(chunk.bytes, &all[chunk.offset as usize..]);
                let tail = logs::tail(&folder, Stream::Stdout, 2).unwrap();
                let lines = tail.bytes.split_inclusive(|byte| *byte == b'\n').count();
                assert!(tail.bytes.ends_with(line.as_bytes()) && lines == 2.min(attempt * 50 + n + 1));
            }
            assert_eq!(output.dropped, 0);
        }
        assert_eq!(logs::read_from(&folder, Stream::Stdout, u64::MAX, 10).unwrap().bytes, b"");
        assert_eq!(logs::read_from(&folder, Stream::Stderr, 0, 10).unwrap().end, 0);
    }
}
