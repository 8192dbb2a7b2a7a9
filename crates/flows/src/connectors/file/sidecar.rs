use crate::blocking::of_io;
use crate::{Committed, Surroundings, Trouble};
use serde::{Deserialize, Serialize};
use serde_json::Value;
use std::fs::{self, File};
use std::io::{self, Write};
use std::path::{Path, PathBuf};

/// What stands beside a file that a flow writes: up to which length its content counts, and which cursor that is.
#[derive(Clone, Debug, Serialize, Deserialize)]
pub(super) struct Sidecar {
    pub(super) flow: String,
    pub(super) run: String,
    pub(super) fence: u64,
    pub(super) length: u64,
    /// None until the run has written something.
    pub(super) cursor: Option<Value>,
    /// What became of the batch of that cursor.
    pub(super) outcome: Option<String>,
    /// What the last run of the flow had committed.
    pub(super) before: Option<(String, Value)>,
}

/// A larger one was not written here.
const MOST_BYTES: u64 = 16 << 20;

impl Sidecar {
    pub(super) fn path(of: &Path) -> PathBuf {
        let mut name = of.file_name().unwrap_or_default().to_os_string();
        name.push(".everbeat-cursor");
        of.with_file_name(name)
    }

    /// None if there is none.
    pub(super) fn read(path: &Path) -> Result<Option<Sidecar>, Trouble> {
        let bytes = match fs::metadata(path) {
            Ok(metadata) if metadata.len() > MOST_BYTES => Err(io::Error::other("it is too large")),
            Ok(_) => fs::read(path),
            Err(error) => Err(error),
        };
        match bytes {
            Ok(bytes) => serde_json::from_slice(&bytes).map(Some).map_err(|error| {
                let said = "it is damaged; remove it, and the next run writes without knowing of the last one";
                Trouble::permanent(format!("cannot read {path:?}: {said} ({error})"))
            }),
            Err(error) if error.kind() == io::ErrorKind::NotFound => Ok(None),
            Err(error) => Err(of_io("read", path, &error)),
        }
    }

    /// For a run that begins to write, or goes on, after what was there.
    pub(super) fn taken_over(found: Option<Sidecar>, around: &Surroundings, length: u64) -> Result<Sidecar, Trouble> {
        let new = Sidecar {
            flow: around.flow.to_string(),
            run: around.run.to_string(),
            fence: around.fence,
            length,
            cursor: None,
            outcome: None,
            before: None,
        };
        match found {
            Some(found) if found.is_of(around) && found.fence > around.fence => Err(fenced(around.fence)),
            Some(found) if found.is_of(around) => {
                Ok(Sidecar { cursor: found.cursor, outcome: found.outcome, before: found.before, ..new })
            }
            Some(found) if found.flow == new.flow => {
                let run = found.run;
                Ok(Sidecar { before: found.cursor.map(|cursor| (run, cursor)).or(found.before), ..new })
            }
            _ => Ok(new),
        }
    }

    pub(super) fn is_of(&self, around: &Surroundings) -> bool {
        *self.flow == *around.flow && *self.run == *around.run
    }

    pub(super) fn committed(&self) -> Option<Committed> {
        let own = self.cursor.clone().map(|cursor| Committed { run: self.run.clone(), cursor });
        own.or_else(|| self.before.clone().map(|(run, cursor)| Committed { run, cursor }))
    }

    /// Takes the place of the one before in one step.
    pub(super) fn write(&self, path: &Path) -> Result<(), Trouble> {
        let new = path.with_extension("everbeat-cursor-new");
        let written = || -> io::Result<()> {
            let mut file = File::create(&new)?;
            file.write_all(serde_json::to_string(self)?.as_bytes())?;
            file.sync_data()?;
            fs::rename(&new, path)
        };
        written().map_err(|error| of_io("write", path, &error))
    }
}

pub(super) fn fenced(fence: u64) -> Trouble {
    Trouble::fenced(format!("attempt {fence} of this run may no longer write: a later attempt has taken over"))
}
