//! The guardian: the tiny program that owns the workers of a pool. One thread, one loop, no runtime.
//!
//! Its connection to the server is its life line: when that ends, all its workers do, and then the guardian itself.

mod child;
mod contain;
mod fork;
mod keeper;
mod memory;
mod run;
mod start;
mod workers;

pub(super) use contain::inherited as inherited_masks;

use std::ffi::OsString;
use std::path::Path;
use std::process::ExitCode;

/// `guardian FOLDER`, with its connection to the server as its standard input. To be called first thing, before any
/// thread or runtime is started.
pub fn main(arguments: impl IntoIterator<Item = OsString>) -> ExitCode {
    let arguments: Vec<OsString> = arguments.into_iter().filter(|argument| argument != "guardian").collect();
    let [folder] = arguments.as_slice() else {
        eprintln!("usage: guardian FOLDER");
        return ExitCode::from(2);
    };
    match start::start(Path::new(folder)) {
        Ok(()) => ExitCode::SUCCESS,
        Err(error) => {
            // The server was told, if it still listens; the standard streams lead nowhere then.
            eprintln!("guardian: {error}");
            ExitCode::FAILURE
        }
    }
}
