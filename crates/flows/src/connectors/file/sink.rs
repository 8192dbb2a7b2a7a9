use super::compression::{self, Compression};
use super::csv::{Limits, Rows};
use super::format::{self, Format};
use super::sidecar::{Sidecar, fenced};
use super::types::Types;
use super::written::Writer;
use crate::blocking::{blocking, of_io};
use crate::{Committed, Fields, OpenSink, Promise, Record, Settings, Sink, Surroundings, Trouble, Written, outcome};
use async_trait::async_trait;
use everbeat_model::Invalid;
use serde_json::Value;
use std::fs::{File, OpenOptions, TryLockError};
use std::io::{self, Read, Seek, SeekFrom, Write};
use std::path::{Path, PathBuf};
use std::sync::{Arc, Mutex, PoisonError};

pub(crate) fn read(_: &str, fields: &mut Fields<'_>, _: &Settings) -> Result<Arc<dyn OpenSink>, Invalid> {
    let path = PathBuf::from(fields.required_text("path")?);
    let Some(format) = fields.choice("format", format::NAMES)?.or_else(|| Format::of(&path)) else {
        let hint = "say \"format\": \"ndjson\" or \"csv\"";
        return Err(Invalid::new("path", path.display(), "does not tell the format of the file", hint));
    };
    let compression = fields.choice("compression", compression::NAMES)?.unwrap_or_else(|| Compression::of(&path));
    let columns = fields.texts("columns")?;
    if columns.is_some() && format != Format::Csv {
        return Err(Invalid::new("columns", "a list", "is only for CSV", "leave it out"));
    }
    Ok(Arc::new(FileSink { path, format, compression, columns }))
}

#[derive(Clone)]
struct FileSink {
    path: PathBuf,
    format: Format,
    compression: Compression,
    columns: Option<Vec<String>>,
}

#[async_trait]
impl OpenSink for FileSink {
    fn promise(&self) -> Promise {
        Promise::AtLeastOnce
    }

    async fn open(&self, around: &Surroundings) -> Result<Box<dyn Sink>, Trouble> {
        let (sink, around) = (self.clone(), around.clone());
        let appending = blocking(move || Appending::open(sink, around)).await?;
        Ok(Box::new(Shared(Arc::new(Mutex::new(appending)))))
    }
}

/// Shared with the thread that writes, which goes on if nobody waits for it any more.
struct Shared(Arc<Mutex<Appending>>);

impl Shared {
    async fn with<T: Send + 'static>(
        &self,
        work: impl FnOnce(&mut Appending) -> Result<T, Trouble> + Send + 'static,
    ) -> Result<T, Trouble> {
        let shared = self.0.clone();
        blocking(move || work(&mut shared.lock().unwrap_or_else(PoisonError::into_inner))).await
    }
}

#[async_trait]
impl Sink for Shared {
    async fn committed(&mut self) -> Result<Option<Committed>, Trouble> {
        self.with(|appending| Ok(appending.sidecar.committed())).await
    }

    async fn outcome(&mut self) -> Result<Option<Written>, Trouble> {
        self.with(|appending| Ok(appending.sidecar.outcome.as_deref().and_then(outcome::from_text))).await
    }

    async fn write(&mut self, records: Vec<Record>, cursor: &Value) -> Result<Written, Trouble> {
        let cursor = cursor.clone();
        self.with(move |appending| appending.write(&records, cursor)).await
    }
}

struct Appending {
    sink: FileSink,
    around: Surroundings,
    file: File,
    sidecar: Sidecar,
    sidecar_path: PathBuf,
    writer: Writer,
}

impl Appending {
    fn open(sink: FileSink, around: Surroundings) -> Result<Appending, Trouble> {
        let path = &sink.path;
        let failed = |error: io::Error| of_io("write", path, &error);
        let folder = path.parent().filter(|folder| !folder.as_os_str().is_empty()).unwrap_or(Path::new("."));
        if !folder.is_dir() {
            let said = format!("cannot write {path:?}: the folder {folder:?} does not exist; create it first");
            return Err(Trouble::permanent(said));
        }
        let mut file = OpenOptions::new().read(true).append(true).create(true).open(path).map_err(failed)?;
        let sidecar_path = Sidecar::path(path);
        let locked = lock(&file, path)?;
        let found = Sidecar::read(&sidecar_path)?;
        let mut length = file.metadata().map_err(failed)?.len();
        if let Some(own) = found.as_ref().filter(|found| found.is_of(&around))
            && own.fence <= around.fence
            && own.length < length
        {
            // What a lost attempt wrote after its last cursor is written again.
            file.set_len(own.length).map_err(failed)?;
            length = own.length;
        }
        let sidecar = Sidecar::taken_over(found, &around, length)?;
        if sink.compression == Compression::Plain && !ends_a_line(&mut file, length).map_err(failed)? {
            file.write_all(b"\n").map_err(failed)?;
        }
        let columns = match sink.format {
            Format::Csv if length > 0 => Some(header(&sink, path)?),
            _ => sink.columns.clone(),
        };
        let sidecar = Sidecar { length: file.metadata().map_err(failed)?.len(), ..sidecar };
        sidecar.write(&sidecar_path)?;
        drop(locked);
        let writer = Writer { format: sink.format, columns };
        Ok(Appending { sink, around, file, sidecar, sidecar_path, writer })
    }

    fn write(&mut self, records: &[Record], cursor: Value) -> Result<Written, Trouble> {
        let path = self.sink.path.clone();
        let failed = |error: io::Error| of_io("write", &path, &error);
        let _locked = lock(&self.file, &path)?;
        if let Some(found) = Sidecar::read(&self.sidecar_path)?
            && found.is_of(&self.around)
            && found.fence != self.around.fence
        {
            return Err(fenced(self.around.fence));
        }
        let length = self.file.metadata().map_err(failed)?.len();
        let (mut bytes, mut rejected) = (Vec::new(), Vec::new());
        let written = self.writer.write(records, length == 0, &mut bytes, &mut rejected);
        if !bytes.is_empty() {
            let packed = self.sink.compression.pack(bytes).map_err(failed)?;
            let appended = self.file.write_all(&packed).and_then(|()| self.file.sync_data());
            if let Err(error) = appended {
                // Half a batch would stand before what comes next.
                let _best_effort = self.file.set_len(length);
                return Err(failed(error));
            }
        }
        let length = self.file.metadata().map_err(failed)?.len();
        let written = Written { written, rejected, ..Written::default() };
        let outcome = Some(outcome::to_text(&written));
        let sidecar =
            Sidecar { length, cursor: Some(cursor), outcome, fence: self.around.fence, ..self.sidecar.clone() };
        sidecar.write(&self.sidecar_path)?;
        self.sidecar = sidecar;
        Ok(written)
    }
}

/// Nobody else writes while it lives. Another handle of the same opened file.
struct Locked(File);

fn lock(file: &File, path: &Path) -> Result<Locked, Trouble> {
    let failed = |error: io::Error| of_io("lock", path, &error);
    let handle = file.try_clone().map_err(failed)?;
    match handle.try_lock() {
        Ok(()) => Ok(Locked(handle)),
        Err(TryLockError::WouldBlock) => Err(Trouble::transient(format!("somebody else is writing to {path:?}"))),
        Err(TryLockError::Error(error)) => Err(failed(error)),
    }
}

impl Drop for Locked {
    fn drop(&mut self) {
        let _closing_unlocks_too = self.0.unlock();
    }
}

fn ends_a_line(file: &mut File, length: u64) -> io::Result<bool> {
    if length == 0 {
        return Ok(true);
    }
    file.seek(SeekFrom::Start(length - 1))?;
    let mut last = [0];
    file.read_exact(&mut last)?;
    Ok(last == *b"\n")
}

/// The columns of a file that is there already.
fn header(sink: &FileSink, path: &Path) -> Result<Vec<String>, Trouble> {
    let failed = |error: io::Error| of_io("read", path, &error);
    let input = sink.compression.reader(File::open(path).map_err(failed)?).map_err(failed)?;
    let limits = Limits { record_bytes: 1 << 20, whole: true };
    let Ok(rows) = Rows::open(input, &Types::new(), limits) else {
        let said =
            format!("cannot append to {path:?}: its first line is no header of CSV; remove the file or name another");
        return Err(Trouble::permanent(said));
    };
    let names = rows.names();
    match &sink.columns {
        Some(columns) if *columns != names => {
            let (found, wanted) = (names.join(","), columns.join(","));
            Err(Trouble::permanent(format!("cannot append to {path:?}: its columns are {found}, not {wanted}")))
        }
        _ => Ok(names),
    }
}
