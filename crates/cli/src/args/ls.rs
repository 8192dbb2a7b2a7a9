//! What can be listed, and how much of it.

use super::CheckFilterArgs;
use clap::Subcommand;

#[derive(Debug, Subcommand)]
pub(crate) enum Ls {
    /// Runs, newest first
    #[command(alias = "run")]
    Runs {
        /// Only those in this state
        #[arg(long, value_parser = ["scheduled", "ready", "running", "succeeded", "failed", "cancelled"])]
        state: Option<String>,
        /// Only those of this task
        #[arg(long)]
        task: Option<String>,
        /// Only those in this queue
        #[arg(long)]
        queue: Option<String>,
        /// Only those of this kind
        #[arg(long, value_parser = ["task", "node", "flow", "job"])]
        kind: Option<String>,
        #[command(flatten)]
        page: PageArgs,
    },
    /// Jobs, newest first
    #[command(alias = "job")]
    Jobs {
        /// Only those in this state
        #[arg(long, value_parser = ["scheduled", "ready", "running", "succeeded", "failed", "cancelled"])]
        state: Option<String>,
        /// Only those in this queue
        #[arg(long)]
        queue: Option<String>,
        #[command(flatten)]
        page: PageArgs,
    },
    /// Graphs by name, each as it was applied last
    #[command(alias = "graph")]
    Graphs {
        #[command(flatten)]
        page: PageArgs,
    },
    /// Executions, newest first
    #[command(alias = "execution")]
    Executions {
        /// Only those of this graph
        #[arg(long)]
        graph: Option<String>,
        /// Only those whose values fulfil this: NODE.OP:JSON, like age.gte:18 or paid.is_set; repeatable
        #[arg(long = "where", value_name = "CONDITION")]
        conditions: Vec<String>,
        /// Sort by created_at, updated_at, revision, id or a node; with - before it in reverse
        #[arg(long, value_name = "FIELD", allow_hyphen_values = true)]
        sort: Option<String>,
        /// Archived ones too
        #[arg(long)]
        archived: bool,
        #[command(flatten)]
        page: PageArgs,
    },
    /// Flows by name, with how they fared and when they are due
    #[command(alias = "flow")]
    Flows {
        #[command(flatten)]
        page: PageArgs,
    },
    /// Schedules by name, with how they fared and when they are due
    #[command(alias = "schedule")]
    Schedules {
        #[command(flatten)]
        page: PageArgs,
    },
    /// Checks by name, with how they stand
    #[command(alias = "check")]
    Checks {
        #[command(flatten)]
        which: CheckFilterArgs,
    },
    /// Replicas, newest first
    #[command(alias = "replica")]
    Replicas {
        /// Only those in this state
        #[arg(long, value_parser = ["active", "draining", "dead", "left"])]
        state: Option<String>,
        #[command(flatten)]
        page: PageArgs,
    },
    /// Pools of worker processes of the server that answers
    #[command(alias = "pool")]
    Pools {
        #[command(flatten)]
        page: PageArgs,
    },
    /// Workers of the server that answers, with their pulse and what they perform
    #[command(alias = "worker")]
    Workers {
        /// Only those of this pool
        #[arg(long)]
        pool: Option<String>,
        /// Only those in this state
        #[arg(long, value_parser = ["starting", "ready", "busy", "draining", "ending", "dead"])]
        state: Option<String>,
        #[command(flatten)]
        page: PageArgs,
    },
    /// Verdicts, newest first
    #[command(alias = "verdict")]
    Verdicts {
        /// Only those about this run
        #[arg(long, value_name = "ID")]
        run: Option<String>,
        /// Only those about this run or replica
        #[arg(long, value_name = "ID")]
        subject: Option<String>,
        #[command(flatten)]
        page: PageArgs,
    },
    /// Queues, with what stands in them
    #[command(alias = "queue")]
    Queues {
        #[command(flatten)]
        page: PageArgs,
    },
    /// Tasks that a replica or worker has offered
    #[command(alias = "task")]
    Tasks {
        #[command(flatten)]
        page: PageArgs,
    },
}

#[derive(Debug, Default, clap::Args)]
pub(crate) struct PageArgs {
    /// How many at most
    #[arg(long, value_name = "N", value_parser = clap::value_parser!(u32).range(1..))]
    pub(crate) limit: Option<u32>,
    /// Go on where an earlier list ended: its next_cursor
    #[arg(long)]
    pub(crate) cursor: Option<String>,
    /// All of them, page after page
    #[arg(long, conflicts_with = "limit")]
    pub(crate) all: bool,
    /// Whole ids and nothing cut, also on a terminal
    #[arg(short, long)]
    pub(crate) wide: bool,
}
