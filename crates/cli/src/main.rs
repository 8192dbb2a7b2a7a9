//! The `everbeat` binary: the server, and the client that talks to one.

mod args;
mod bench;
mod client;
mod clock;
mod commands;
mod config;
mod exit;
mod jq;
mod logging;
mod notify;
mod output;
mod serve;
mod tasks;
mod waiting;

use args::{Args, Command};
use clap::Parser;
use exit::Failure;
use std::process::ExitCode;

fn main() -> ExitCode {
    // Before anything else: a shim has one thread and no runtime.
    let mut arguments = std::env::args_os().skip(1);
    if arguments.next().is_some_and(|first| first == "shim") {
        return everbeat_supervisor::job::shim::main(arguments);
    }
    let args = Args::parse();
    match perform(args) {
        Ok(code) => ExitCode::from(code),
        Err(failure) => {
            eprintln!("{failure}");
            ExitCode::from(failure.code)
        }
    }
}

fn perform(args: Args) -> Result<u8, Failure> {
    let Args { command, remote, output } = args;
    let to = || commands::To::new(&remote, output);
    match command {
        Command::Serve(flags) => serve::serve(&flags),
        Command::Config(asked) => commands::config::show(&asked, output),
        Command::Submit(submit) => commands::run::submit(&to()?, submit),
        Command::Ls { what } => commands::list::list(&to()?, what),
        Command::Show { id } => commands::show::show(&to()?, &id),
        Command::Explain { id } => commands::explain::explain(&to()?, &id),
        Command::Wait { id, timeout } => commands::run::wait(&to()?, &id, timeout),
        Command::Cancel { id } => commands::run::cancel(&to()?, &id),
        Command::Retry { id } => commands::run::retry(&to()?, &id),
        Command::Graph { action } => commands::graph::act(&to()?, action),
        Command::Execution { action } => commands::execution::act(&to()?, action),
        Command::Replica { action } => commands::replica::act(&to()?, action),
        Command::Queue { action } => commands::queue::act(&to()?, action),
        Command::Invariants => commands::invariants::check(&to()?),
        Command::Events(asked) => commands::events::read(&to()?, &asked),
        Command::Bench(asked) => bench::bench(&asked),
        Command::Completions { shell } => commands::completions(shell),
        Command::JqEvaluate => jq::evaluate(),
    }
}
