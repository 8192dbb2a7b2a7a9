use super::{Host, make_folder};
use crate::job::{self, JobFolder};
use everbeat_engine::Removed;
use everbeat_model::RunId;
use std::fs;
use std::io::{self, ErrorKind};
use std::path::PathBuf;
use std::time::Duration;

/// An archive holds no more of one workspace.
const MOST_ARCHIVED_BYTES: u64 = 4 << 30;

impl Host {
    /// First it is made sure that the folder may go, then what it holds is kept, and only then it goes.
    pub(super) fn remove(&self, job: RunId, archive: bool, dry_run: bool) -> io::Result<Removed> {
        let folder = self.open(job)?;
        let counted = job::clean(&folder, true)?;
        let mut removed = Removed { entries: counted.entries, bytes: counted.bytes, archived_to: None };
        let holds_results = fs::read_dir(folder.workspace())?.next().is_some();
        if archive && holds_results {
            let to = self.archive_of(job);
            if !dry_run {
                self.keep(&folder, &to)?;
            }
            removed.archived_to = Some(to.display().to_string());
        }
        if !dry_run {
            job::clean(&folder, false)?;
        }
        Ok(removed)
    }

    fn archives(&self) -> PathBuf {
        self.data_dir.join("archive")
    }

    fn archive_of(&self, job: RunId) -> PathBuf {
        self.archives().join(job.to_string())
    }

    /// Copied aside and renamed: what bears a job's name is whole. An earlier one of an interrupted removal
    /// is put in its place.
    fn keep(&self, folder: &JobFolder, to: &std::path::Path) -> io::Result<()> {
        make_folder(&self.archives())?;
        let aside = self.archives().join(format!("{}{}", job::LEFTOVER, uuid::Uuid::new_v4().simple()));
        job::archive(folder, &aside, MOST_ARCHIVED_BYTES)?;
        match fs::rename(&aside, to) {
            Err(error) if matches!(error.kind(), ErrorKind::DirectoryNotEmpty | ErrorKind::AlreadyExists) => {
                let former = self.archives().join(format!("{}{}", job::LEFTOVER, uuid::Uuid::new_v4().simple()));
                fs::rename(to, former)?;
                fs::rename(&aside, to)
            }
            renamed => renamed,
        }
    }

    pub(super) fn forget_archives(&self, keep: Duration) -> io::Result<usize> {
        job::clean_leftovers(&self.root)?;
        let archives = self.archives();
        if !archives.exists() {
            return Ok(0);
        }
        job::clean_leftovers(&archives)?;
        let mut forgotten = 0;
        for entry in fs::read_dir(&archives)? {
            let entry = entry?;
            let age = entry.metadata()?.modified()?.elapsed().unwrap_or_default();
            if entry.file_type()?.is_dir() && age > keep {
                // Out of sight first, then away: by descriptors, following nothing.
                let aside = archives.join(format!("{}{}", job::LEFTOVER, uuid::Uuid::new_v4().simple()));
                fs::rename(entry.path(), aside)?;
                forgotten += 1;
            }
        }
        job::clean_leftovers(&archives)?;
        Ok(forgotten)
    }
}
