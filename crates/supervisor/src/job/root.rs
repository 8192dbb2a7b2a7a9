//! The jobs' common folder, opened once to look at many jobs.

use super::folder::{JobFolder, Problem};
use rustix::fs::{self, Dir, Mode, OFlags};
use std::io;
use std::os::fd::OwnedFd;
use std::path::{Path, PathBuf};

#[derive(Debug)]
pub(crate) struct Root {
    path: PathBuf,
    fd: OwnedFd,
}

impl Root {
    pub(crate) fn open(path: &Path) -> io::Result<Root> {
        let path = std::path::absolute(path)?;
        let fd = fs::open(&path, OFlags::DIRECTORY | OFlags::CLOEXEC, Mode::empty())?;
        Ok(Root { path, fd })
    }

    pub(crate) fn job(&self, job_id: &str) -> Result<JobFolder, Problem> {
        let opened = self.fd.try_clone().and_then(|fd| JobFolder::open_in(&self.path, fd, job_id));
        opened.map_err(|error| match error.kind() {
            io::ErrorKind::NotFound => Problem::Missing(job_id.into()),
            _ => Problem::Unreadable(job_id.into(), error),
        })
    }

    /// The names of all entries, in order. One that is no UTF-8 is no job's, and only shown.
    pub(crate) fn names(&self) -> io::Result<Vec<String>> {
        let mut names = Vec::new();
        for entry in Dir::read_from(&self.fd)? {
            match entry?.file_name().to_string_lossy().into_owned() {
                own if own == "." || own == ".." => {}
                name => names.push(name),
            }
        }
        names.sort_unstable();
        Ok(names)
    }
}
