//! What can be asked of checks, and what a job can say.

use super::PageArgs;
use clap::Subcommand;

#[derive(Debug, Subcommand)]
pub(crate) enum CheckAction {
    /// List checks by name, with how they stand
    Ls {
        #[command(flatten)]
        which: CheckFilterArgs,
    },
    /// Show a check
    Show {
        /// Its name
        name: String,
    },
    /// Write a check: how often a job outside is expected to ping
    #[command(after_help = "Examples:\n  \
        everbeat check put backup --period 1d --grace 2h\n  \
        everbeat check put report --cron '30 2 * * *' --tz Europe/Berlin")]
    Put(CheckPutArgs),
    /// Write the checks of these files, TOML or JSON; - reads from stdin
    Apply {
        /// A file with one check, or with several as [[check]]
        #[arg(required = true, value_name = "FILE")]
        files: Vec<String>,
    },
    /// Say how the checks of these files differ from what the server has; exit code 1 if they do
    Diff {
        #[arg(required = true, value_name = "FILE")]
        files: Vec<String>,
    },
    /// Expect nothing of its job until it is resumed; pings are kept
    Pause {
        /// Its name
        name: String,
    },
    /// Expect pings again, counted from now
    Resume {
        /// Its name
        name: String,
    },
    /// Delete it and its pings; a later ping makes a new one
    Rm {
        /// Its name
        name: String,
    },
    /// List its last pings, newest first
    Pings {
        /// Its name
        name: String,
        #[command(flatten)]
        page: PageArgs,
    },
}

#[derive(Debug, clap::Args)]
pub(crate) struct CheckFilterArgs {
    /// Only those in this state
    #[arg(long, value_parser = ["new", "up", "late", "down", "paused"])]
    pub(crate) state: Option<String>,
    #[command(flatten)]
    pub(crate) page: PageArgs,
}

#[derive(Debug, clap::Args)]
#[command(group = clap::ArgGroup::new("check_rhythm").args(["period", "cron"]))]
pub(crate) struct CheckPutArgs {
    /// Its name
    pub(crate) name: String,
    /// A success is expected so long after the last one [default: 1d]
    #[arg(long, value_name = "DURATION")]
    pub(crate) period: Option<String>,
    /// By the clock: minute, hour, day, month, day of the week
    #[arg(long, value_name = "EXPRESSION")]
    pub(crate) cron: Option<String>,
    /// The time zone of --cron, like Europe/Berlin [default: UTC]
    #[arg(long, value_name = "ZONE", requires = "cron")]
    pub(crate) tz: Option<String>,
    /// How much later a success may come, and how long it may take from start to end [default: 1h]
    #[arg(long, value_name = "DURATION")]
    pub(crate) grace: Option<String>,
    /// What it is for
    #[arg(long, value_name = "TEXT")]
    pub(crate) description: Option<String>,
}

#[derive(Debug, clap::Args)]
#[command(group = clap::ArgGroup::new("signal").args(["start", "fail", "exit", "log"]))]
pub(crate) struct PingArgs {
    /// Name of the check
    pub(crate) name: String,
    /// The job begins
    #[arg(long)]
    pub(crate) start: bool,
    /// The job has failed
    #[arg(long)]
    pub(crate) fail: bool,
    /// The job ended with this code; 0 is a success
    #[arg(long, value_name = "CODE")]
    pub(crate) exit: Option<u8>,
    /// Only note something; the state of the check stays
    #[arg(long)]
    pub(crate) log: bool,
    /// What to keep with the ping; - reads it from stdin. Its first 10,000 bytes are kept
    #[arg(long, value_name = "TEXT", allow_hyphen_values = true)]
    pub(crate) message: Option<String>,
}
