//! What the client can be asked. Each command returns the exit code of the process.

pub(crate) mod beat;
pub(crate) mod config;
pub(crate) mod events;
pub(crate) mod execution;
pub(crate) mod explain;
pub(crate) mod graph;
pub(crate) mod invariants;
pub(crate) mod job;
pub(crate) mod list;
pub(crate) mod queue;
pub(crate) mod recovery;
pub(crate) mod replica;
pub(crate) mod run;
pub(crate) mod show;

use crate::args::{Args, Output, Remote};
use crate::client::Client;
use crate::exit::{self, Failure};
use crate::output;
use clap::CommandFactory;

/// Where a command is sent, and how its answer is shown.
pub(crate) struct To {
    pub(crate) client: Client,
    output: Output,
}

impl To {
    pub(crate) fn new(remote: &Remote, output: Output) -> Result<To, Failure> {
        Ok(To { client: Client::new(remote)?, output })
    }

    pub(crate) fn json(&self) -> bool {
        self.output == Output::Json
    }

    /// Prints the JSON as it came, or what `table` makes of it.
    pub(crate) fn print(&self, json: &str, table: impl FnOnce() -> String) {
        output::print(&if self.json() { output::pretty(json) } else { table() });
    }
}

pub(crate) fn completions(shell: clap_complete::Shell) -> Result<u8, Failure> {
    let mut script = Vec::new();
    clap_complete::generate(shell, &mut Args::command(), "everbeat", &mut script);
    output::print(String::from_utf8_lossy(&script).trim_end());
    Ok(exit::DONE)
}
