//! What can be asked of graphs and of their executions.

use super::{PageArgs, duration};
use clap::{Subcommand, ValueEnum};
use everbeat_model::{Json, NotJson};
use serde_json::value::RawValue;
use std::time::Duration;

#[derive(Debug, Subcommand)]
pub(crate) enum GraphAction {
    /// Store a definition; executions that stand go on with it
    Apply {
        /// File with the definition in JSON or TOML, or - for stdin
        file: String,
        /// Accept tasks that nobody has offered yet
        #[arg(long)]
        accept_unknown: bool,
    },
    /// Show a graph
    Show {
        /// Name of the graph
        name: String,
        /// The latest definition of this version [default: the latest of all]
        #[arg(long)]
        version: Option<String>,
        /// As a Mermaid flowchart
        #[arg(long)]
        mermaid: bool,
    },
    /// Show how far executions of a graph have come
    Analytics {
        /// Name of the graph
        name: String,
    },
}

#[derive(Debug, Subcommand)]
pub(crate) enum ExecutionAction {
    /// Start an execution; of a singleton graph, find the one that stands
    Start {
        /// Name of the graph
        graph: String,
        /// The latest definition of this version [default: the latest of all]
        #[arg(long)]
        version: Option<String>,
        /// Value to set with the start; JSON, and what is no JSON is a text; repeatable
        #[arg(long, value_name = "NODE=JSON", value_parser = assignment)]
        set: Vec<Assignment>,
        /// Values to set with the start: a JSON object, @FILE to read it from a file, or - for stdin
        #[arg(long, value_name = "JSON")]
        values: Option<String>,
        /// Kept with each of the values: JSON, @FILE or -
        #[arg(long, value_name = "JSON", allow_hyphen_values = true)]
        metadata: Option<String>,
        /// Starting again with the same key and content makes no second execution
        #[arg(long, value_name = "KEY")]
        idempotency_key: Option<String>,
    },
    /// Set values, all or none
    Set {
        /// Id of an execution
        id: String,
        /// Value to set; JSON, and what is no JSON is a text: a=5 a=true a='{"k": 1}' a='"5"' a=word
        #[arg(value_name = "NODE=JSON", required = true, value_parser = assignment)]
        values: Vec<Assignment>,
        /// Kept with each of the values: JSON, @FILE or -
        #[arg(long, value_name = "JSON", allow_hyphen_values = true)]
        metadata: Option<String>,
    },
    /// Take values away, one after the other
    Unset {
        /// Id of an execution
        id: String,
        /// Name of an input node
        #[arg(value_name = "NODE", required = true)]
        nodes: Vec<String>,
    },
    /// Print a value; exit code 1 if it is not set or its computation failed
    Get {
        /// Id of an execution
        id: String,
        /// Name of a node
        node: String,
        /// Wait for any value, for one newer than now, or for one newer than --revision
        #[arg(long, value_enum)]
        wait: Option<WaitFor>,
        /// With --wait newer-than: the revision that is known already
        #[arg(long, value_name = "N", required_if_eq("wait", "newer-than"), requires = "wait")]
        revision: Option<u64>,
        /// With --wait: give up after so long, with exit code 124 [default: never]
        #[arg(long, value_name = "DURATION", value_parser = duration, requires = "wait")]
        timeout: Option<Duration>,
    },
    /// Show an execution with what each node does
    Show {
        /// Id of an execution
        id: String,
        /// As a Mermaid flowchart, with the state of each node
        #[arg(long)]
        mermaid: bool,
    },
    /// Sum an execution up in words
    Summary {
        /// Id of an execution
        id: String,
    },
    /// List what was set and cleared, oldest first
    History {
        /// Id of an execution
        id: String,
        #[command(flatten)]
        page: PageArgs,
    },
    /// Compute a node again, with all its attempts
    Retry {
        /// Id of an execution
        id: String,
        /// Name of a node
        node: String,
    },
    /// Give the computation of a node up: the node has failed
    Abandon {
        /// Id of an execution
        id: String,
        /// Name of a node
        node: String,
    },
    /// Archive an execution: nothing of it is computed any more
    Archive {
        /// Id of an execution
        id: String,
    },
    /// Bring an execution back from the archive
    Unarchive {
        /// Id of an execution
        id: String,
    },
}

impl ExecutionAction {
    /// Of the execution that it is about.
    pub(crate) fn id(&mut self) -> Option<&mut String> {
        match self {
            ExecutionAction::Start { .. } => None,
            ExecutionAction::Set { id, .. }
            | ExecutionAction::Unset { id, .. }
            | ExecutionAction::Get { id, .. }
            | ExecutionAction::Show { id, .. }
            | ExecutionAction::Summary { id }
            | ExecutionAction::History { id, .. }
            | ExecutionAction::Retry { id, .. }
            | ExecutionAction::Abandon { id, .. }
            | ExecutionAction::Archive { id }
            | ExecutionAction::Unarchive { id } => Some(id),
        }
    }
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
pub(crate) enum WaitFor {
    Any,
    Newer,
    #[value(alias = "newer_than")]
    NewerThan,
}

/// A node and what it is to be.
#[derive(Clone, Debug)]
pub(crate) struct Assignment {
    pub(crate) node: String,
    pub(crate) value: Box<RawValue>,
}

fn assignment(text: &str) -> Result<Assignment, String> {
    let Some((node, value)) = text.split_once('=').filter(|(node, _)| !node.is_empty()) else {
        return Err("it is not NODE=JSON (write it like price=5)".to_string());
    };
    let as_text = || serde_json::value::to_raw_value(value).map_err(|error| error.to_string());
    let value = match Json::read_text(value) {
        Ok(_) => serde_json::from_str(value).map_err(|error| error.to_string())?,
        Err(NotJson::Syntax(_)) => as_text()?,
        Err(beyond) => return Err(format!("its value {} ({})", beyond.problem(), beyond.hint())),
    };
    Ok(Assignment { node: node.to_string(), value })
}
