//! Places where a test makes a shim or a server die as if the machine's worst moment had come.

use rustix::process::Signal;
use std::ffi::OsString;

const SHIM_VARIABLE: &str = "EVERBEAT_SHIM_KILL_AT";
/// There it is only stopped, until somebody wakes it.
const FREEZE_VARIABLE: &str = "EVERBEAT_SHIM_FREEZE_AT";
const SERVER_VARIABLE: &str = "EVERBEAT_KILL_AT";

/// Release builds have none of it.
const REACHABLE: bool = cfg!(any(debug_assertions, feature = "kill-points"));

/// Kills this process, a shim, if `EVERBEAT_SHIM_KILL_AT` names this place.
pub(super) fn kill_point(place: &str) {
    signal_at(SHIM_VARIABLE, place, Signal::KILL);
    signal_at(FREEZE_VARIABLE, place, Signal::STOP);
}

/// The same for a server, by `EVERBEAT_KILL_AT`.
pub(crate) fn server_kill_point(place: &str) {
    signal_at(SERVER_VARIABLE, place, Signal::KILL);
}

fn signal_at(variable: &str, place: &str, signal: Signal) {
    if REACHABLE && std::env::var_os(variable).is_some_and(|at| *at == *place) {
        let _it_ends_here = rustix::process::kill_process(rustix::process::getpid(), signal);
    }
}

/// What a shim gets of its starter's environment: so a test of a whole server reaches its shims.
pub(super) fn inherited() -> impl Iterator<Item = (&'static str, OsString)> {
    let variables = [SHIM_VARIABLE, FREEZE_VARIABLE].into_iter().filter(|_| REACHABLE);
    variables.filter_map(|name| Some((name, std::env::var_os(name)?)))
}
