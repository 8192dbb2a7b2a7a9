//! The shim: the tiny program that owns one job. One thread, one loop, no runtime.

mod child;
mod clients;
mod detach;
mod failure;
mod kill_points;
mod last_timer;
mod output;
mod progress;
mod run;
mod start;

pub(crate) use detach::probe;
pub use detach::spawn;
pub(crate) use kill_points::server_kill_point;

use std::ffi::OsString;
use std::path::Path;
use std::process::ExitCode;

/// `shim FOLDER` is the shim itself; `shim --detach FOLDER` starts it as nobody's child and ends; `shim --probe` only
/// ends. To be called first thing, before any thread or runtime is started.
pub fn main(arguments: impl IntoIterator<Item = OsString>) -> ExitCode {
    let arguments: Vec<OsString> = arguments.into_iter().filter(|argument| argument != "shim").collect();
    let done = match arguments.as_slice() {
        [detach, _] if detach == detach::DETACH => detach::detach(),
        [probe] if probe == detach::PROBE => Ok(()),
        [folder] => start::start(Path::new(folder)),
        _ => {
            eprintln!("usage: shim FOLDER");
            return ExitCode::from(2);
        }
    };
    match done {
        Ok(()) => ExitCode::SUCCESS,
        Err(error) => {
            detach::tell_not_begun(&error);
            // Where the standard streams lead nowhere, `examine` tells the same.
            eprintln!("shim: {error}");
            ExitCode::FAILURE
        }
    }
}
