//! What can be asked of detached commands.

use super::duration;
use clap::{Subcommand, ValueEnum};
use std::ffi::OsString;
use std::time::Duration;

#[derive(Debug, clap::Args)]
pub(crate) struct RunArgs {
    /// Print the job's id and end; the job runs on by itself
    #[arg(short, long)]
    pub(crate) detach: bool,
    /// Hand what comes on stdin to the command, as text; without it the command reads nothing
    #[arg(short = 'i', long)]
    pub(crate) stdin: bool,
    /// What people should call it [default: its program]
    #[arg(long)]
    pub(crate) name: Option<String>,
    /// Stop it when it runs longer than this, like 30s, 10m or 2h [default: never]
    #[arg(long, value_name = "DURATION", value_parser = duration)]
    pub(crate) deadline: Option<Duration>,
    /// Environment variable for the command; without a value, the one it has here; repeatable
    #[arg(short, long, value_name = "NAME[=VALUE]")]
    pub(crate) env: Vec<OsString>,
    /// Folder to work in, on the server's machine [default: this folder if the server is on this
    /// machine, else the job's own workspace]
    #[arg(long, value_name = "DIR")]
    pub(crate) cwd: Option<OsString>,
    /// What differs from the policy of jobs, as a JSON object, like '{"max_attempts": 3}'
    #[arg(long, value_name = "JSON")]
    pub(crate) policy: Option<String>,
    /// Queue to wait in [default: default]
    #[arg(long)]
    pub(crate) queue: Option<String>,
    /// Session that the job belongs to; kept in its sentinel
    #[arg(long, value_name = "ID")]
    pub(crate) session_id: Option<String>,
    /// Engine that the job's agent uses; kept in its sentinel
    #[arg(long, value_name = "NAME")]
    pub(crate) agent_engine: Option<String>,
    /// Give up following when the server is away for so long; the job goes on
    #[arg(long, value_name = "DURATION", value_parser = duration, default_value = "10m")]
    pub(crate) patience: Duration,
    /// The program and its arguments, taken literally: there is no shell in between
    #[arg(value_name = "CMD", required = true, trailing_var_arg = true)]
    pub(crate) command: Vec<OsString>,
}

#[derive(Debug, clap::Args)]
pub(crate) struct LogsArgs {
    /// Id of a job or run
    pub(crate) id: String,
    /// Go on until the job or run is finished, through restarts of the server
    #[arg(short, long)]
    pub(crate) follow: bool,
    /// With --follow: end with the job's own exit code, as `everbeat run` does
    #[arg(long, requires = "follow")]
    pub(crate) exit_code: bool,
    /// Begin with the last so many lines of each stream [default: with all that is kept]
    #[arg(long, value_name = "LINES")]
    pub(crate) tail: Option<u64>,
    /// Of a job: only this stream, to stdout [default: each to its own]
    #[arg(long, value_enum)]
    pub(crate) stream: Option<Stream>,
    /// With --follow: give up when the server is away for so long
    #[arg(long, value_name = "DURATION", value_parser = duration, default_value = "10m")]
    pub(crate) patience: Duration,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
pub(crate) enum Stream {
    Stdout,
    Stderr,
}

impl Stream {
    pub(crate) fn as_str(self) -> &'static str {
        match self {
            Stream::Stdout => "stdout",
            Stream::Stderr => "stderr",
        }
    }
}

#[derive(Debug, clap::Args)]
pub(crate) struct BeatArgs {
    /// What the job is doing
    #[arg(long, value_enum)]
    pub(crate) status: Option<BeatStatus>,
    /// How much is done
    #[arg(long, value_name = "N")]
    pub(crate) done: Option<u64>,
    /// Of how much
    #[arg(long, value_name = "N")]
    pub(crate) total: Option<u64>,
    /// What it is about
    #[arg(long, value_name = "TEXT")]
    pub(crate) note: Option<String>,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
pub(crate) enum BeatStatus {
    Running,
    Waiting,
    Processing,
}

#[derive(Debug, Subcommand)]
pub(crate) enum RecoveryAction {
    /// What became of the jobs that the server found when it started
    Status,
    /// The sentinel file of every job on the server's host, as it is on the disk
    Sentinels,
    /// How old the heartbeats of the running jobs are
    Heartbeats,
    /// Counts of heartbeats written, jobs gone stale, reattached and lost
    Metrics,
    /// Jobs whose heartbeat is old, and what to do about them
    Stale,
    /// Jobs that failed, and whether they can be resumed
    Failed,
    /// Heartbeat, sentinel and workspace of one job
    Health {
        /// Id of a job
        id: String,
    },
    /// Open failed jobs again, in their workspaces; without ids or --all, only list them
    #[command(after_help = "Examples:\n  \
        everbeat recovery resume           which jobs failed, why, and whether they can be resumed\n  \
        everbeat recovery resume ID ID\n  \
        everbeat recovery resume --all")]
    Resume {
        /// Ids of jobs
        #[arg(value_name = "ID")]
        ids: Vec<String>,
        /// All that failed
        #[arg(long, conflicts_with = "ids")]
        all: bool,
    },
    /// Remove the folders of finished jobs; what is left in their workspaces is archived
    Clean {
        /// Only say what would be removed
        #[arg(long)]
        dry_run: bool,
        /// Only jobs that were finished so long ago [default: jobs.keep of the server]
        #[arg(long, value_name = "DURATION", value_parser = duration)]
        older_than: Option<Duration>,
    },
    /// What the server recovered at its latest starts, newest first
    StartupLog,
}
