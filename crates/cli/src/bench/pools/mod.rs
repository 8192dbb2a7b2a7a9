//! Pools of Python workers, and what it costs to ping many workers.

mod link;
mod links;
mod workers;

use super::interrupt;
use crate::exit::{self, Failure};
use links::LinkFigures;
use serde::Serialize;
use std::fmt::Display;
use std::path::{Path, PathBuf};
use std::process::Command;
use std::time::Duration;
use uuid::Uuid;
use workers::WorkerFigures;

/// What to measure of pools.
#[derive(Debug, clap::Args)]
pub(crate) struct PoolArgs {
    /// A Python interpreter that has the package `everbeat`; pools of its workers are measured
    #[arg(long, env = "EVERBEAT_BENCH_PYTHON", value_name = "PATH")]
    python: Option<PathBuf>,
    /// How many runs each number of Python workers performs
    #[arg(long, default_value_t = 10_000, value_name = "N", value_parser = clap::value_parser!(u64).range(100..=1_000_000))]
    pool_runs: u64,
    /// The numbers of Python workers
    #[arg(long, default_values_t = [1, 4, 8], value_delimiter = ',', value_name = "N,N", value_parser = clap::value_parser!(u64).range(1..=64))]
    pool_workers: Vec<u64>,
    /// How many links of workers are held open and pinged; 0 leaves them out
    #[arg(long, default_value_t = 1000, value_name = "N", value_parser = clap::value_parser!(u64).range(0..=10_000))]
    links: u64,
    /// For how long the CPU time of the server is counted, without links and with them
    #[arg(long, default_value_t = 10, value_name = "SECONDS", value_parser = clap::value_parser!(u64).range(1..=600))]
    link_seconds: u64,
}

#[derive(Debug, Serialize)]
pub(crate) struct PoolFigures {
    #[serde(skip_serializing_if = "Vec::is_empty")]
    workers: Vec<WorkerFigures>,
    #[serde(skip_serializing_if = "Option::is_none")]
    links: Option<LinkFigures>,
}

/// None: nothing of it is wanted.
pub(crate) fn drive(args: &PoolArgs, latency_runs: u64) -> Result<Option<PoolFigures>, Failure> {
    let workers = match &args.python {
        Some(python) => {
            let python = &placed(python)?;
            check_python(python)?;
            eprintln!("pools of Python workers");
            let asked = (args.pool_runs, latency_runs);
            in_folder(|folder| workers::drive(folder, python, &args.pool_workers, asked))?
        }
        None => {
            eprintln!("pools of Python workers: left out; --python PATH names an interpreter that has `everbeat`");
            Vec::new()
        }
    };
    let links = match usize::try_from(args.links).unwrap_or(usize::MAX) {
        0 => None,
        links => {
            eprintln!("{links} links that are pinged");
            Some(in_folder(|folder| links::drive(folder, links, Duration::from_secs(args.link_seconds)))?)
        }
    };
    Ok((links.is_some() || !workers.is_empty()).then_some(PoolFigures { workers, links }))
}

/// Whatever becomes of the measurement, its folder does not stay.
fn in_folder<T>(measure: impl FnOnce(&Path) -> Result<T, Failure>) -> Result<T, Failure> {
    interrupt::check()?;
    let folder = std::env::temp_dir().join(format!("everbeat-bench-{}", Uuid::new_v4().simple()));
    std::fs::create_dir(&folder).map_err(|error| fail(&error))?;
    let measured = measure(&folder);
    if let Err(error) = std::fs::remove_dir_all(&folder) {
        eprintln!("{} stays behind: {error}", folder.display());
    }
    measured
}

/// Workers run in another folder: a path is made absolute, and a bare name is looked for where programs are.
fn placed(python: &Path) -> Result<PathBuf, Failure> {
    match python.components().count() {
        1 => Ok(python.to_path_buf()),
        _ => std::path::absolute(python).map_err(|error| fail(&error)),
    }
}

fn check_python(python: &Path) -> Result<(), Failure> {
    let unusable = |problem: String| {
        let message = format!("--python {}: {problem}", python.display());
        Failure::new(exit::USAGE, message, "name an interpreter for which `pip install everbeat` was done")
    };
    let asked = Command::new(python).args(["-c", "import everbeat.worker"]).output();
    let answer = asked.map_err(|error| unusable(format!("it cannot be run: {error}")))?;
    if answer.status.success() {
        return Ok(());
    }
    let said = String::from_utf8_lossy(&answer.stderr);
    Err(unusable(said.lines().last().unwrap_or("it ended without a word").to_string()))
}

fn fail(error: &dyn Display) -> Failure {
    Failure::server(format!("pools cannot be measured: {error}"), "")
}
