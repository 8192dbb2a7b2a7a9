//! Places where a test makes the shim die as if the machine's worst moment had come.

/// Kills this process if `EVERBEAT_SHIM_KILL_AT` names this place.
#[cfg(any(debug_assertions, feature = "kill-points"))]
pub(super) fn kill_point(place: &str) {
    if std::env::var_os("EVERBEAT_SHIM_KILL_AT").is_some_and(|at| *at == *place) {
        let _it_ends_here = rustix::process::kill_process(rustix::process::getpid(), rustix::process::Signal::KILL);
    }
}

#[cfg(not(any(debug_assertions, feature = "kill-points")))]
pub(super) fn kill_point(_place: &str) {}
