//! What stands in the jobs' common folder, known to the store or not.

use super::clean::is_leftover;
use super::folder::{JobFolder, Problem};
use super::kernel_lock::{self, State};
use super::root::Root;
use super::spec::{Identity, Spec};
use std::io;
use std::path::Path;

#[derive(Debug)]
pub struct Found {
    pub job_id: String,
    pub state: FoundState,
}

#[derive(Debug)]
pub enum FoundState {
    /// Somebody holds its lock. The attempt is the spec's; or why the spec cannot be read.
    Held(Result<Identity, Problem>),
    /// Nobody does.
    Free(Result<Identity, Problem>),
    /// Not a job's folder, or one at which nothing can be seen, and why.
    Foreign(String),
}

/// Every entry of the jobs' common folder, by name; only what [`super::clean_leftovers`] takes away is left out.
/// It follows nothing and asks no shim.
pub fn scan(root: &Path) -> io::Result<Vec<Found>> {
    let root = Root::open(root)?;
    let jobs = root.names()?.into_iter().filter(|name| !is_leftover(name.as_bytes()));
    Ok(jobs.map(|job_id| Found { state: state(&root, &job_id), job_id }).collect())
}

fn state(root: &Root, job_id: &str) -> FoundState {
    let look = |folder: &JobFolder| Ok((kernel_lock::state(folder)?, Spec::read(folder)));
    match root.job(job_id).and_then(|folder| look(&folder)) {
        Ok((State::Held, spec)) => FoundState::Held(spec.map(|spec| spec.identity())),
        Ok((State::Free | State::Absent, spec)) => FoundState::Free(spec.map(|spec| spec.identity())),
        Err(problem) => FoundState::Foreign(problem.to_string()),
    }
}
