//! The files of a source, one after the other, and what is remembered of them.

use super::compression::Compression;
use super::csv::{Limits, Rows, Unreadable};
use super::format::{Format, Place, ReadFormat};
use super::identity::Remembered;
use super::lines::Lines;
use super::types::Types;
use crate::Trouble;
use crate::blocking::of_io;
use serde::{Deserialize, Serialize};
use serde_json::Value;
use std::collections::{BTreeSet, VecDeque};
use std::fs::File;
use std::io::{self, Read, Seek, SeekFrom};
use std::path::{Path, PathBuf};

/// What a flow says of the files it reads.
#[derive(Clone)]
pub(super) struct Files {
    pub(super) path: String,
    pub(super) format: Option<Format>,
    pub(super) compression: Option<Compression>,
    pub(super) types: Types,
    pub(super) max_record_bytes: usize,
    pub(super) scope: Scope,
}

/// What a run reads.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Scope {
    /// Everything.
    All,
    /// What no run before it has read.
    New,
}

/// The cursor: of `All` the last file, those before it by name are done; of `New` every file that is there.
#[derive(Default, Serialize, Deserialize)]
struct Cursor {
    files: Vec<Remembered>,
}

/// More would make cursors too large.
const MOST_FILES: usize = 10_000;

/// Where a run stands in the files of its source.
pub(super) struct Walk {
    files: Files,
    ahead: VecDeque<PathBuf>,
    cursor: Cursor,
    current: Option<Current>,
    /// Which of the cursor's files are still there, under whatever name.
    met: BTreeSet<usize>,
}

/// The file that is being read.
pub(super) struct Current {
    pub(super) path: Box<str>,
    pub(super) reader: Box<dyn ReadFormat>,
    /// Which of the cursor's files it is.
    number: usize,
}

impl Walk {
    pub(super) fn begin(files: Files, cursor: Option<&Value>) -> Result<Walk, Trouble> {
        let cursor = match cursor {
            None => Cursor::default(),
            Some(cursor) => serde_json::from_value(cursor.clone()).map_err(|error| {
                let said = "is none of a source of files: the flow's source was changed; trigger it as a new flow";
                Trouble::permanent(format!("the cursor {cursor} {said} ({error})"))
            })?,
        };
        let mut ahead = matching(&files.path)?;
        if let (Scope::All, Some(last)) = (files.scope, cursor.files.last()) {
            ahead.retain(|path| path.as_path() >= Path::new(&last.path));
        }
        Ok(Walk { files, ahead, cursor, current: None, met: BTreeSet::new() })
    }

    pub(super) fn cursor(&self) -> Value {
        serde_json::to_value(&self.cursor).unwrap_or_default()
    }

    /// The file to read from, if there is one.
    pub(super) fn current(&mut self) -> Result<Option<&mut Current>, Trouble> {
        while self.current.is_none() {
            let Some(path) = self.ahead.pop_front() else {
                self.forget_gone();
                return Ok(None);
            };
            self.current = self.enter(&path)?;
        }
        Ok(self.current.as_mut())
    }

    /// Remembers how far the current file was read.
    pub(super) fn note(&mut self) {
        if let Some(current) = &self.current {
            self.cursor.files[current.number].read_to(current.reader.place());
        }
    }

    /// The current file has nothing more.
    pub(super) fn leave(&mut self) {
        self.note();
        if let Some(current) = self.current.take() {
            self.cursor.files[current.number].done = true;
        }
    }

    /// Files that are no longer there, or were replaced, need not be remembered.
    fn forget_gone(&mut self) {
        if self.files.scope == Scope::New {
            let met = std::mem::take(&mut self.met);
            let files = std::mem::take(&mut self.cursor.files).into_iter().enumerate();
            self.cursor.files = files.filter(|(number, _)| met.contains(number)).map(|(_, file)| file).collect();
            self.met = (0..self.cursor.files.len()).collect();
        }
    }

    fn enter(&mut self, path: &Path) -> Result<Option<Current>, Trouble> {
        let shown = path.to_string_lossy().into_owned();
        let failed = |error: io::Error| of_io("read", path, &error);
        let mut file = match File::open(path) {
            Ok(file) => file,
            // It went since the names were listed.
            Err(error) if error.kind() == io::ErrorKind::NotFound && is_pattern(&self.files.path) => return Ok(None),
            Err(error) => return Err(failed(error)),
        };
        let metadata = file.metadata().map_err(failed)?;
        if metadata.is_dir() {
            return Ok(None);
        }
        let number = match self.remembered(&mut file, &metadata).map_err(failed)? {
            Some(number) => number,
            None => {
                let file = Remembered::new(&shown, &mut file).map_err(failed)?;
                self.remember(file)?
            }
        };
        self.met.insert(number);
        let known = &mut self.cursor.files[number];
        if known.is_read(&metadata) || (self.files.scope == Scope::All && known.done) {
            return Ok(None);
        }
        known.begins(&shown, metadata.len());
        let place = known.place();
        let reader = self.files.open(path, file, place)?;
        Ok(Some(Current { path: shown.into(), reader, number }))
    }

    fn remembered(&self, file: &mut File, metadata: &std::fs::Metadata) -> io::Result<Option<usize>> {
        for (number, known) in self.cursor.files.iter().enumerate() {
            if known.is(file, metadata)? {
                return Ok(Some(number));
            }
        }
        Ok(None)
    }

    fn remember(&mut self, file: Remembered) -> Result<usize, Trouble> {
        if self.files.scope == Scope::All {
            self.cursor.files.clear();
        }
        // Those that were replaced are forgotten only when all files were looked at.
        if self.cursor.files.len() == 2 * MOST_FILES {
            let said = "move away what was read, or name fewer files";
            return Err(Trouble::permanent(format!(
                "{:?} names more than {MOST_FILES} files; {said}",
                self.files.path
            )));
        }
        self.cursor.files.push(file);
        Ok(self.cursor.files.len() - 1)
    }
}

impl Files {
    /// Opens a file at a place.
    fn open(&self, path: &Path, mut file: File, place: Place) -> Result<Box<dyn ReadFormat>, Trouble> {
        let failed = |error: io::Error| of_io("read", path, &error);
        let Some(format) = self.format.or_else(|| Format::of(path)) else {
            let hint = "say \"format\": \"ndjson\" or \"csv\" in the source";
            return Err(Trouble::permanent(format!("the name of {path:?} does not tell its format; {hint}")));
        };
        let compression = self.compression.unwrap_or_else(|| Compression::of(path));
        // A plain file of lines needs nothing of what was read.
        let jumps = compression == Compression::Plain && format == Format::Ndjson;
        if jumps {
            file.seek(SeekFrom::Start(place.offset)).map_err(failed)?;
        }
        let mut input = compression.reader(file).map_err(failed)?;
        let whole = self.scope == Scope::All || compression != Compression::Plain;
        match format {
            Format::Ndjson => {
                if !jumps {
                    // Damage before the place is met again behind it.
                    _ = io::copy(&mut input.by_ref().take(place.offset), &mut io::sink());
                }
                Ok(Box::new(Lines::new(input, place, self.max_record_bytes, whole)))
            }
            Format::Csv => {
                let limits = Limits { record_bytes: self.max_record_bytes, whole };
                let mut rows = Rows::open(input, &self.types, limits).map_err(|unreadable| match unreadable {
                    Unreadable::Io(error) => failed(error),
                    Unreadable::Header(reason) => Trouble::permanent(format!("the header of {path:?} {reason}")),
                })?;
                if place.offset > 0 {
                    rows.skip_to(place).map_err(failed)?;
                }
                Ok(Box::new(rows))
            }
        }
    }
}

pub(super) fn is_pattern(path: &str) -> bool {
    path.contains(['*', '?', '['])
}

/// The files that a path names, by name.
fn matching(path: &str) -> Result<VecDeque<PathBuf>, Trouble> {
    if !is_pattern(path) {
        return Ok(VecDeque::from([PathBuf::from(path)]));
    }
    let refused = |error: glob::PatternError| Trouble::permanent(format!("the path {path:?} cannot be read: {error}"));
    let mut found = Vec::new();
    for entry in glob::glob(path).map_err(refused)? {
        let entry = entry.map_err(|error| of_io("list", error.path(), error.error()))?;
        found.push(entry);
        if found.len() > MOST_FILES {
            let said = "move away what was read, or name fewer files";
            return Err(Trouble::permanent(format!("{path:?} names more than {MOST_FILES} files; {said}")));
        }
    }
    found.sort();
    Ok(found.into())
}
