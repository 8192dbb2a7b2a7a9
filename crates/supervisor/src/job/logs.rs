//! A job's output. Each stream is at most two files, `stdout.log` and the older `stdout.log.1`; a byte's
//! offset counts from the first byte the job ever wrote and does not change when the files rotate.
//!
//! Which file begins at which offset stands in a small index, keyed by inode: a reader opens the files
//! first and reads the index after, so a rotation in between is noticed, never mistaken. (An inode cannot
//! pass to another file while the reader has it open.)

use super::folder::{JobFolder, Problem};
use everbeat_engine::{LogChunk, Stream};
use rustix::fs::Stat;
use serde::{Deserialize, Serialize};
use std::fs::File;
use std::io;
use std::os::unix::fs::FileExt;

/// Reads at most `limit` bytes from `offset` on. At the end of the stream there are none.
pub fn read_from(folder: &JobFolder, stream: Stream, offset: u64, limit: usize) -> Result<LogChunk, Problem> {
    let segments = open(folder, stream)?;
    let end = segments.last().map_or(0, Segment::end);
    let begin = segments.first().map_or(0, |first| first.base);
    let offset = offset.clamp(begin, end);
    let bytes = read(&segments, offset, limit).map_err(|error| Problem::Unreadable(stream.current(), error))?;
    Ok(LogChunk { offset, bytes, end })
}

/// The last `lines` lines, of at most [`MOST_TAIL_BYTES`].
pub fn tail(folder: &JobFolder, stream: Stream, lines: usize) -> Result<LogChunk, Problem> {
    let segments = open(folder, stream)?;
    let end = segments.last().map_or(0, Segment::end);
    let begin = segments.first().map_or(0, |first| first.base);
    let offset = end.saturating_sub(MOST_TAIL_BYTES as u64).max(begin);
    let bytes =
        read(&segments, offset, MOST_TAIL_BYTES).map_err(|error| Problem::Unreadable(stream.current(), error))?;
    // The newline that ends the last line begins no other.
    let body = bytes.strip_suffix(b"\n").unwrap_or(&bytes);
    let start = match lines {
        0 => bytes.len(),
        _ => {
            let newlines = body.iter().enumerate().rev().filter(|(_, byte)| **byte == b'\n');
            newlines.map(|(at, _)| at + 1).nth(lines - 1).unwrap_or(0)
        }
    };
    Ok(LogChunk { offset: offset + start as u64, bytes: bytes[start..].to_vec(), end })
}

pub const MOST_TAIL_BYTES: usize = 1 << 20;

/// The names of a stream's files.
pub(crate) trait Files {
    fn current(self) -> String;
    fn rotated(self) -> String;
    fn index(self) -> String;
}

impl Files for Stream {
    fn current(self) -> String {
        format!("{}.log", self.as_str())
    }

    fn rotated(self) -> String {
        format!("{}.1", self.current())
    }

    fn index(self) -> String {
        format!(".{}.index", self.current())
    }
}

/// Where each file of a stream begins. During a rotation it knows three.
#[derive(Debug, Default, Serialize, Deserialize)]
pub(crate) struct Index {
    pub(crate) files: Vec<Begin>,
}

#[derive(Clone, Copy, Debug, Serialize, Deserialize)]
pub(crate) struct Begin {
    pub(crate) inode: u64,
    pub(crate) base: u64,
}

impl Index {
    pub(crate) fn read(folder: &JobFolder, stream: Stream) -> Result<Index, Problem> {
        const MOST_INDEX_BYTES: u64 = 4096;
        folder.read_json(&stream.index(), MOST_INDEX_BYTES)
    }

    pub(crate) fn base(&self, inode: u64) -> Option<u64> {
        self.files.iter().find(|file| file.inode == inode).map(|file| file.base)
    }
}

struct Segment {
    file: File,
    base: u64,
    length: u64,
}

impl Segment {
    fn end(&self) -> u64 {
        self.base + self.length
    }
}

/// The files of a stream, oldest first, without a gap between them.
fn open(folder: &JobFolder, stream: Stream) -> Result<Vec<Segment>, Problem> {
    /// A rotation takes well under a millisecond, and happens once in half a log limit.
    const MOST_TRIES: usize = 100;
    for _ in 0..MOST_TRIES {
        let current = optional(folder.open_file(&stream.current()))?;
        let rotated = optional(folder.open_file(&stream.rotated()))?;
        let index = match Index::read(folder, stream) {
            Err(Problem::Missing(_)) if current.is_none() && rotated.is_none() => return Ok(Vec::new()),
            other => other?,
        };
        let located = |file: Option<(File, Stat)>| match file {
            None => Some(None),
            Some((file, stat)) => {
                let length = rustix::fs::fstat(&file).map_or(stat.st_size, |stat| stat.st_size) as u64;
                index.base(stat.st_ino).map(|base| Some(Segment { file, base, length }))
            }
        };
        match (located(rotated), located(current)) {
            (Some(Some(rotated)), Some(Some(current))) if rotated.end() == current.base => {
                return Ok(vec![rotated, current]);
            }
            (Some(None), Some(current)) => return Ok(current.into_iter().collect()),
            // Between the two renames of a rotation there is only the older file.
            (Some(Some(rotated)), Some(None)) => return Ok(vec![rotated]),
            _ => {}
        }
    }
    Err(Problem::Malformed(stream.index(), "it does not know the files beside it".into()))
}

fn optional<T>(opened: Result<T, Problem>) -> Result<Option<T>, Problem> {
    match opened {
        Ok(opened) => Ok(Some(opened)),
        Err(Problem::Missing(_)) => Ok(None),
        Err(problem) => Err(problem),
    }
}

fn read(segments: &[Segment], offset: u64, limit: usize) -> io::Result<Vec<u8>> {
    let mut bytes = Vec::new();
    for segment in segments {
        let at = offset + bytes.len() as u64;
        if at < segment.base || at >= segment.end() {
            continue;
        }
        let wanted = (limit - bytes.len()).min((segment.end() - at) as usize);
        let begin = bytes.len();
        bytes.resize(begin + wanted, 0);
        segment.file.read_exact_at(&mut bytes[begin..], at - segment.base)?;
    }
    Ok(bytes)
}
