//! The shim alone, for this crate's tests: `everbeat shim` without the rest of `everbeat`.

use std::process::ExitCode;

fn main() -> ExitCode {
    everbeat_supervisor::job::shim::main(std::env::args_os().skip(1))
}
