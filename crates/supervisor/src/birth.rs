use serde::{Deserialize, Serialize};
use std::fs::Metadata;
use std::os::unix::fs::MetadataExt;
use std::time::UNIX_EPOCH;

/// What a copy does not share with its original, and a renamed file keeps: the inode, and when it was made. Not the
/// device, whose number may change with every boot.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub(crate) struct Birth {
    inode: u64,
    /// Not every file system knows it.
    born_ns: Option<u64>,
}

impl Birth {
    pub(crate) fn of(file: &Metadata) -> Birth {
        let born = file.created().ok().and_then(|born| born.duration_since(UNIX_EPOCH).ok());
        Birth { inode: file.ino(), born_ns: born.and_then(|born| u64::try_from(born.as_nanos()).ok()) }
    }

    /// Whether both may be the same file.
    pub(crate) fn fits(self, other: Birth) -> bool {
        let born_apart = matches!((self.born_ns, other.born_ns), (Some(one), Some(other)) if one != other);
        self.inode == other.inode && !born_apart
    }
}
