use super::format::Place;
use serde::{Deserialize, Serialize};
use std::fs::{File, Metadata};
use std::io::{self, Read, Seek};
use std::os::unix::fs::MetadataExt;

/// What is remembered of one file: who it is, and how far it was read.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub(super) struct Remembered {
    pub(super) path: String,
    device: u64,
    inode: u64,
    /// A digest of its first bytes, since a file system gives the number of a removed file to the next one.
    head: String,
    head_bytes: u64,
    /// How long the file was, packed, when it was read to its end.
    length: u64,
    pub(super) offset: u64,
    pub(super) line: u64,
    /// Read to its end.
    pub(super) done: bool,
}

const MOST_HEAD_BYTES: u64 = 1024;

impl Remembered {
    /// A file that is about to be read from its beginning. Leaves the file at its beginning.
    pub(super) fn new(path: &str, file: &mut File) -> io::Result<Remembered> {
        let metadata = file.metadata()?;
        let head_bytes = metadata.len().min(MOST_HEAD_BYTES);
        Ok(Remembered {
            path: path.to_string(),
            device: metadata.dev(),
            inode: metadata.ino(),
            head: digest(file, head_bytes)?,
            head_bytes,
            length: metadata.len(),
            offset: 0,
            line: 1,
            done: false,
        })
    }

    /// Whether this file, which may have another name now, is the one. Leaves the file at its beginning.
    pub(super) fn is(&self, file: &mut File, metadata: &Metadata) -> io::Result<bool> {
        let same = metadata.dev() == self.device && metadata.ino() == self.inode && metadata.len() >= self.length;
        Ok(same && digest(file, self.head_bytes)? == self.head)
    }

    /// Whether there is nothing in the file that was not read.
    pub(super) fn is_read(&self, metadata: &Metadata) -> bool {
        self.done && metadata.len() == self.length
    }

    pub(super) fn place(&self) -> Place {
        Place { offset: self.offset, line: self.line }
    }

    pub(super) fn read_to(&mut self, place: Place) {
        (self.offset, self.line) = (place.offset, place.line);
    }

    /// `length` is what the file had when its reading began: what was appended meanwhile may not have been seen.
    pub(super) fn begins(&mut self, path: &str, length: u64) {
        (self.path, self.length, self.done) = (path.to_string(), length, false);
    }
}

/// FNV-1a, 64 bits.
fn digest(file: &mut File, bytes: u64) -> io::Result<String> {
    file.rewind()?;
    let mut head = Vec::new();
    file.by_ref().take(bytes).read_to_end(&mut head)?;
    file.rewind()?;
    let digest = head.iter().fold(0xcbf2_9ce4_8422_2325_u64, |digest, byte| {
        (digest ^ u64::from(*byte)).wrapping_mul(0x0000_0100_0000_01b3)
    });
    Ok(format!("{digest:016x}"))
}
