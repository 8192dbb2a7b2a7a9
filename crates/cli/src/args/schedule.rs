//! What can be asked of schedules and flows.

use super::PageArgs;
use clap::Subcommand;
use std::time::Duration;

#[derive(Debug, Subcommand)]
pub(crate) enum FlowAction {
    /// Write the flows of these files, TOML or JSON; - reads from stdin
    Apply {
        /// A file with one flow, or with several as [[flow]]
        #[arg(required = true, value_name = "FILE")]
        files: Vec<String>,
        /// Accept tasks that nobody has offered yet
        #[arg(long)]
        accept_unknown: bool,
    },
    /// Say how the flows of these files differ from what the server has; exit code 1 if they do
    Diff {
        #[arg(required = true, value_name = "FILE")]
        files: Vec<String>,
    },
    /// Read the first records of a flow, show what would be written, and write nothing
    #[command(after_help = "Examples:\n  \
        everbeat flow test products\n  \
        everbeat flow test flows/products.toml -n 3")]
    Test {
        /// Name of a flow, or a file with one that need not be applied
        #[arg(value_name = "NAME|FILE")]
        which: String,
        /// How many records to read
        #[arg(short = 'n', long, value_name = "N", default_value_t = 10, value_parser = clap::value_parser!(u32).range(1..=1000))]
        limit: u32,
    },
    #[command(flatten)]
    Common(ScheduleVerb),
    /// Ask for a run over a part of its source, and follow it
    Backfill {
        /// Name of the flow
        name: String,
        /// From this value of the source's cursor column on: JSON, or text
        #[arg(long, value_name = "VALUE", allow_hyphen_values = true)]
        from: Option<String>,
        /// Up to this value, which is not part of it
        #[arg(long, value_name = "VALUE", allow_hyphen_values = true)]
        to: Option<String>,
        /// Go on after this cursor
        #[arg(long, value_name = "JSON")]
        cursor: Option<String>,
    },
}

#[derive(Debug, Subcommand)]
pub(crate) enum ScheduleAction {
    /// Write a schedule: a task that is due again and again
    #[command(after_help = "Examples:\n  \
        everbeat schedule put report --task report --every 15m\n  \
        everbeat schedule put nightly --task backup --cron '30 2 * * *' --tz Europe/Berlin --input '{\"full\": true}'")]
    Put(Box<PutArgs>),
    #[command(flatten)]
    Common(ScheduleVerb),
}

/// What schedules and flows have in common.
#[derive(Debug, Subcommand)]
pub(crate) enum ScheduleVerb {
    /// Ask for a run now
    Trigger {
        /// Its name
        name: String,
        /// Wait until the run is finished; the exit code tells how it ended
        #[arg(long)]
        wait: bool,
        /// With --wait: give up after so long, with exit code 124 [default: never]
        #[arg(long, value_name = "DURATION", value_parser = super::duration, requires = "wait")]
        timeout: Option<Duration>,
    },
    /// Let it be due again; what was missed meanwhile is not made up for
    Enable {
        /// Its name
        name: String,
    },
    /// Let nothing of it be due; what runs goes on
    Disable {
        /// Its name
        name: String,
    },
    /// Print when it is due next
    Next {
        /// Its name
        name: String,
        /// How many times
        #[arg(short = 'n', long, value_name = "N", default_value_t = 10, value_parser = clap::value_parser!(u32).range(1..=1000))]
        limit: u32,
    },
    /// List its runs, newest first
    Runs {
        /// Its name
        name: String,
        #[command(flatten)]
        page: PageArgs,
    },
    /// Show it
    Show {
        /// Its name
        name: String,
    },
    /// Delete it; its runs stay
    Rm {
        /// Its name
        name: String,
    },
}

#[derive(Debug, clap::Args)]
#[command(group = clap::ArgGroup::new("rhythm").args(["every", "cron"]))]
pub(crate) struct PutArgs {
    /// Its name
    pub(crate) name: String,
    /// The task to perform
    #[arg(long)]
    pub(crate) task: String,
    /// Input: JSON, @FILE to read it from a file, or - to read it from stdin
    #[arg(long, value_name = "JSON", allow_hyphen_values = true)]
    pub(crate) input: Option<String>,
    /// So long after the time before
    #[arg(long, value_name = "DURATION")]
    pub(crate) every: Option<String>,
    /// By the clock: minute, hour, day, month, day of the week
    #[arg(long, value_name = "EXPRESSION")]
    pub(crate) cron: Option<String>,
    /// The time zone of --cron, like Europe/Berlin [default: UTC]
    #[arg(long, value_name = "ZONE", requires = "cron")]
    pub(crate) tz: Option<String>,
    /// What becomes of a due time while an earlier run is not over [default: skip]
    #[arg(long, value_parser = ["skip", "queue", "allow"])]
    pub(crate) overlap: Option<String>,
    /// What becomes of due times that nobody looked at [default: latest]
    #[arg(long, value_parser = ["latest", "all", "none"])]
    pub(crate) catch_up: Option<String>,
    /// Queue to wait in [default: default]
    #[arg(long)]
    pub(crate) queue: Option<String>,
    /// What differs from the configured policy, as a JSON object
    #[arg(long, value_name = "JSON")]
    pub(crate) policy: Option<String>,
    /// Late is what is not over so long after it was due
    #[arg(long, value_name = "DURATION")]
    pub(crate) late_after: Option<String>,
    /// Accept a task that nobody has offered yet
    #[arg(long)]
    pub(crate) accept_unknown: bool,
}
