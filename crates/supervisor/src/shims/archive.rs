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
    /// First it is made sure that the folder may go, then what it holds is kept, and only then it goes; all of it under
    /// the job's lock, so that what is removed is what was looked at and kept.
    pub(super) fn remove(&self, job: RunId, archive: bool, dry_run: bool) -> io::Result<Removed> {
        let folder = self.open(job)?;
        let mut archived_to = None;
        let cleaned = job::clean_with(&folder, dry_run, |folder| {
            if archive && job::has_results(folder)? {
                let to = self.archive_of(job);
                if !dry_run {
                    self.keep(folder, &to)?;
                }
                archived_to = Some(to.display().to_string());
            }
            Ok(())
        })?;
        // What it held, as a dry run counts it; not the folder itself.
        let entries = cleaned.entries.saturating_sub(u64::from(!dry_run));
        Ok(Removed { entries, bytes: cleaned.bytes, archived_to })
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
        let renamed = match fs::rename(&aside, to) {
            Err(error) if matches!(error.kind(), ErrorKind::DirectoryNotEmpty | ErrorKind::AlreadyExists) => {
                let former = self.archives().join(format!("{}{}", job::LEFTOVER, uuid::Uuid::new_v4().simple()));
                fs::rename(to, former)?;
                fs::rename(&aside, to)
            }
            renamed => renamed,
        };
        // What it was copied from is removed next.
        renamed.and_then(|()| fs::File::open(self.archives())?.sync_all())
    }

    /// One that cannot go does not keep the others; the first error is told in the end.
    pub(super) fn forget_archives(&self, keep: Duration) -> io::Result<usize> {
        let leftovers = job::clean_leftovers(&self.root).map(|_| ());
        let archives = self.archives();
        if !archives.exists() {
            return leftovers.map(|()| 0);
        }
        let put_aside: Vec<io::Result<bool>> =
            fs::read_dir(&archives)?.map(|entry| self.put_aside(&entry?, keep)).collect();
        let removed = job::clean_leftovers(&archives);
        leftovers?;
        removed?;
        put_aside.into_iter().try_fold(0, |count, forgotten| Ok(count + usize::from(forgotten?)))
    }

    /// Whether it was old enough. Out of sight first, then away: by descriptors, following nothing.
    fn put_aside(&self, entry: &fs::DirEntry, keep: Duration) -> io::Result<bool> {
        let metadata = match entry.metadata() {
            // Another replica of this host was faster.
            Err(error) if error.kind() == ErrorKind::NotFound => return Ok(false),
            metadata => metadata?,
        };
        let old = metadata.modified()?.elapsed().unwrap_or_default() > keep;
        let forgotten = old && metadata.is_dir() && !job::is_leftover(entry.file_name().as_encoded_bytes());
        if forgotten {
            let aside = self.archives().join(format!("{}{}", job::LEFTOVER, uuid::Uuid::new_v4().simple()));
            fs::rename(entry.path(), aside)?;
        }
        Ok(forgotten)
    }
}
