//! What the client can be asked. Each command returns the exit code of the process.

pub(crate) mod beat;
pub(crate) mod bulk;
pub(crate) mod check;
pub(crate) mod config;
pub(crate) mod events;
pub(crate) mod execution;
pub(crate) mod explain;
mod files;
pub(crate) mod find;
pub(crate) mod flow;
pub(crate) mod graph;
pub(crate) mod init;
pub(crate) mod invariants;
pub(crate) mod job;
pub(crate) mod list;
mod logs;
pub(crate) mod pool;
pub(crate) mod queue;
pub(crate) mod recovery;
pub(crate) mod replica;
pub(crate) mod run;
pub(crate) mod schedule;
pub(crate) mod show;
pub(crate) mod worker;

pub(crate) use list::progress;
pub(crate) use show::noun;

use crate::args::{Args, Output, Remote, UrlOrigin};
use crate::client::Client;
use crate::exit::{self, Failure};
use crate::{output, term};
use clap::CommandFactory;

/// Where a command is sent, and how its answer is shown.
pub(crate) struct To {
    pub(crate) client: Client,
    output: Output,
    /// The address, if it was said by a flag.
    url: Option<String>,
}

impl To {
    pub(crate) fn new(remote: &Remote, output: Output) -> Result<To, Failure> {
        let url = (remote.origin == UrlOrigin::Flag).then(|| remote.url.clone());
        Ok(To { client: Client::new(remote)?, output, url })
    }

    pub(crate) fn json(&self) -> bool {
        self.output == Output::Json
    }

    /// A command that can be copied: it speaks to the same server as this one.
    pub(crate) fn command(&self, rest: &str) -> String {
        match &self.url {
            Some(url) => format!("`everbeat --url {url} {rest}`"),
            None => format!("`everbeat {rest}`"),
        }
    }

    /// Prints the JSON as it came, or what `table` makes of it.
    pub(crate) fn print(&self, json: &str, table: impl FnOnce() -> String) {
        output::print(&if self.json() { output::pretty(json) } else { term::shown(&table()) });
    }
}

pub(crate) fn completions(shell: clap_complete::Shell) -> Result<u8, Failure> {
    let mut script = Vec::new();
    clap_complete::generate(shell, &mut Args::command(), "everbeat", &mut script);
    output::print(String::from_utf8_lossy(&script).trim_end());
    Ok(exit::DONE)
}
