//! The `everbeat` binary: the server, and the client that talks to one.

mod args;
mod bench;
mod client;
mod clock;
mod commands;
mod config;
mod contact;
mod exit;
mod flows;
mod follow;
mod interrupt;
mod jq;
mod logging;
mod notify;
mod opening;
mod output;
mod serve;
mod spinner;
mod streaming;
mod tasks;
mod term;
mod waiting;

use args::{Args, Command, UrlOrigin};
use clap::{CommandFactory, FromArgMatches};
use commands::bulk::Verb;
use exit::Failure;
use std::process::ExitCode;

fn main() -> ExitCode {
    // These are programs of their own, for nobody to type: the arguments of this one, its help, its suggestions and
    // its completions know nothing of them. Of a shim's or guardian's process nothing else may have begun.
    if std::env::args_os().nth(1).is_some_and(|first| first == "shim") {
        return everbeat_supervisor::job::shim::main(std::env::args_os().skip(1));
    }
    if std::env::args_os().nth(1).is_some_and(|first| first == "guardian") {
        return everbeat_supervisor::pool::guardian::main(std::env::args_os().skip(1));
    }
    if std::env::args_os().nth(1).is_some_and(|first| first == jq::SUBCOMMAND) {
        return ended(jq::evaluate());
    }
    if std::env::args_os().nth(1).is_some_and(|first| first == flows::EVALUATOR) {
        return everbeat_flows::jq::serve().map_or(ExitCode::FAILURE, |()| ExitCode::SUCCESS);
    }
    if std::env::args_os().len() <= 1 {
        let _nobody_reads_it = Args::command().print_help();
        return ExitCode::SUCCESS;
    }
    let matches = Args::command().get_matches();
    let mut args = Args::from_arg_matches(&matches).unwrap_or_else(|error| error.exit());
    args.remote.origin = UrlOrigin::of(&matches);
    term::settle(&args);
    warn_of_strangers(&args.command);
    ended(perform(args))
}

/// A server logs them itself. It and `config` refuse keys that are not known; nobody else reads any.
fn warn_of_strangers(command: &Command) {
    let strangers = match command {
        Command::Serve { .. } => return,
        Command::Config(_) => config::strangers(serve::environment()),
        _ => [config::strangers(serve::environment()), config::strange_keys(serve::environment())].concat(),
    };
    strangers.iter().for_each(|stranger| term::say(&format!("warning: {stranger}")));
}

fn ended(result: Result<u8, Failure>) -> ExitCode {
    match result {
        Ok(code) => ExitCode::from(code),
        Err(failure) => {
            term::warn(&failure.to_string());
            ExitCode::from(failure.code)
        }
    }
}

fn perform(args: Args) -> Result<u8, Failure> {
    let Args { command, remote, output, quiet: _, color: _ } = args;
    let to = || commands::To::new(&remote, output);
    match command {
        Command::Serve { flags, adopt_data } => serve::serve(&flags, adopt_data),
        Command::Init { language, folder } => commands::init::init(language, &folder, output),
        Command::Config(asked) => commands::config::show(&asked, output),
        Command::Run(asked) => commands::job::run(&to()?, asked),
        Command::Logs(asked) => commands::job::logs(&to()?, &asked),
        Command::Beat(told) => commands::beat::beat(told),
        Command::Rm { id, dry_run } => commands::job::remove(&to()?, &id, dry_run),
        Command::Recovery { action } => commands::recovery::act(&to()?, action),
        Command::Submit(submit) => commands::run::submit(&to()?, submit),
        Command::Ls { what } => commands::list::list(&to()?, what),
        Command::Show { id } => commands::show::show(&to()?, &id),
        Command::Explain { id } => commands::explain::explain(&to()?, &id),
        Command::Wait { id, timeout } => commands::run::wait(&to()?, &id, timeout),
        Command::Cancel { ids, state, which } => commands::bulk::act(&to()?, Verb::Cancel, &ids, state, which),
        Command::Retry { ids, state, which } => commands::bulk::act(&to()?, Verb::Retry, &ids, state, which),
        Command::Graph { action } => commands::graph::act(&to()?, action),
        Command::Execution { action } => commands::execution::act(&to()?, action),
        Command::Flow { action } => commands::flow::act(&to()?, action),
        Command::Schedule { action } => commands::schedule::act(&to()?, action),
        Command::Check { action } => commands::check::act(&to()?, action),
        Command::Ping(said) => commands::check::ping(&to()?, &said),
        Command::Heartbeat => commands::flow::heartbeat(&to()?),
        Command::Replica { action } => commands::replica::act(&to()?, action),
        Command::Pool { action } => commands::pool::act(&to()?, action),
        Command::Worker { action } => commands::worker::act(&to()?, action),
        Command::Queue { action } => commands::queue::act(&to()?, action),
        Command::Invariants => commands::invariants::check(&to()?),
        Command::Events(asked) => commands::events::read(&to()?, &asked),
        Command::Bench(asked) => bench::bench(&asked),
        Command::Completions { shell } => commands::completions(shell),
    }
}
