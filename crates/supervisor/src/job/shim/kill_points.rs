//! Places where a test makes the shim die as if the machine's worst moment had come.

use std::ffi::OsString;

const VARIABLE: &str = "EVERBEAT_SHIM_KILL_AT";

/// Kills this process if `EVERBEAT_SHIM_KILL_AT` names this place.
#[cfg(any(debug_assertions, feature = "kill-points"))]
pub(super) fn kill_point(place: &str) {
    if std::env::var_os(VARIABLE).is_some_and(|at| *at == *place) {
        let _it_ends_here = rustix::process::kill_process(rustix::process::getpid(), rustix::process::Signal::KILL);
    }
}

#[cfg(not(any(debug_assertions, feature = "kill-points")))]
pub(super) fn kill_point(_place: &str) {}

/// What a shim gets of its starter's environment: so a test of a whole server reaches its shims.
pub(super) fn inherited() -> Option<(&'static str, OsString)> {
    let reachable = cfg!(any(debug_assertions, feature = "kill-points"));
    reachable.then(|| Some((VARIABLE, std::env::var_os(VARIABLE)?))).flatten()
}
