use std::fs::File;
use std::io::{self, BufReader, Read, Write};
use std::path::Path;

/// How the bytes of a file are packed.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Compression {
    Plain,
    Gzip,
    Zstd,
}

pub(super) const NAMES: &[(&str, Compression)] = &[("gzip", Compression::Gzip), ("zstd", Compression::Zstd)];

/// Larger windows would need more memory than a flow may use for one file.
const MOST_WINDOW_LOG: u32 = 27;
const ZSTD_LEVEL: i32 = 3;

impl Compression {
    /// By the end of a file's name.
    pub(super) fn of(path: &Path) -> Compression {
        match path.extension().and_then(|extension| extension.to_str()) {
            Some("gz") => Compression::Gzip,
            Some("zst") => Compression::Zstd,
            _ => Compression::Plain,
        }
    }

    pub(super) fn reader(self, file: File) -> io::Result<Box<dyn Read + Send>> {
        Ok(match self {
            Compression::Plain => Box::new(file),
            // A file may have several parts, one after the other.
            Compression::Gzip => Box::new(flate2::read::MultiGzDecoder::new(BufReader::new(file))),
            Compression::Zstd => {
                let mut decoder = zstd::stream::read::Decoder::new(file)?;
                decoder.window_log_max(MOST_WINDOW_LOG)?;
                Box::new(decoder)
            }
        })
    }

    /// A part of its own: parts one after the other are a whole file.
    pub(super) fn pack(self, bytes: Vec<u8>) -> io::Result<Vec<u8>> {
        match self {
            Compression::Plain => Ok(bytes),
            Compression::Gzip => {
                let mut encoder = flate2::write::GzEncoder::new(Vec::new(), flate2::Compression::default());
                encoder.write_all(&bytes)?;
                encoder.finish()
            }
            Compression::Zstd => zstd::stream::encode_all(&bytes[..], ZSTD_LEVEL),
        }
    }
}

/// Whether an error is one of what is in the file, not one of the disk below.
pub(super) fn is_damage(error: &io::Error) -> bool {
    error.raw_os_error().is_none() && error.kind() != io::ErrorKind::Interrupted
}
