//! The guardian alone, for this crate's tests: `everbeat guardian` without the rest of `everbeat`.

use std::process::ExitCode;

fn main() -> ExitCode {
    everbeat_supervisor::pool::guardian::main(std::env::args_os().skip(1))
}
