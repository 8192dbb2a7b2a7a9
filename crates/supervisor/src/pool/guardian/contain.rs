//! What holds the processes of a pool together: the best that there is here.

use super::fork;
use super::keeper::Namespaces;
use crate::pool::cgroup::PoolCgroup;
use crate::pool::protocol::Containment;
use rustix::process::{WaitId, WaitIdOptions};
use std::ffi::OsString;
use std::io;
use std::os::fd::AsFd;

#[derive(Debug)]
pub(super) enum Contain {
    Cgroup(PoolCgroup),
    Namespace(Namespaces),
    Tree,
}

impl Contain {
    /// `planned` is noted already.
    pub(super) fn choose(planned: Option<PoolCgroup>) -> Contain {
        if let Some(cgroup) = planned.and_then(|planned| planned.create().ok()) {
            return Contain::Cgroup(cgroup);
        }
        if is_masked(NAMESPACE) {
            return Contain::Tree;
        }
        let usable = [false, true].map(Namespaces::new).into_iter().find(|namespaces| works(*namespaces));
        usable.map_or(Contain::Tree, Contain::Namespace)
    }

    /// Where the cgroup of this guardian would be, if there may be one.
    pub(super) fn plan(tag: &str) -> Option<PoolCgroup> {
        PoolCgroup::planned(tag).ok().filter(|_| !is_masked(CGROUP))
    }

    pub(super) fn kind(&self) -> Containment {
        match self {
            Contain::Cgroup(_) => Containment::Cgroup,
            Contain::Namespace(_) => Containment::PidNamespace,
            Contain::Tree => Containment::TreeWalk,
        }
    }
}

/// Whether a process in such namespaces can be made, and make one itself.
fn works(namespaces: Namespaces) -> bool {
    let tried = fork::fork(namespaces.flags, || {
        let entered = namespaces.enter();
        let inner = entered.and_then(|()| fork::fork(0, || fork::exit(0)));
        fork::exit(i32::from(inner.is_err()))
    });
    let Ok((_, child)) = tried else { return false };
    loop {
        match rustix::process::waitid(WaitId::PidFd(child.as_fd()), WaitIdOptions::EXITED) {
            Err(rustix::io::Errno::INTR) => {}
            ended => return ended.ok().flatten().is_some_and(|status| status.exit_status() == Some(0)),
        }
    }
}

/// Names what a guardian is to believe that this machine does not have: `cgroup`, `namespace`, or both.
const MASK: &str = "EVERBEAT_POOL_MASK";
const CGROUP: &str = "cgroup";
const NAMESPACE: &str = "namespace";

/// Release builds have none of it.
const REACHABLE: bool = cfg!(any(debug_assertions, feature = "kill-points"));

fn is_masked(what: &str) -> bool {
    REACHABLE && std::env::var(MASK).is_ok_and(|masked| masked.split(',').any(|masked| masked == what))
}

/// What a guardian gets of its starter's environment: so a test of a whole server reaches its guardians.
pub(in crate::pool) fn inherited() -> impl Iterator<Item = (&'static str, OsString)> {
    [MASK].into_iter().filter(|_| REACHABLE).filter_map(|name| Some((name, std::env::var_os(name)?)))
}

/// Why a pool that must hold everything together does not start here.
pub(super) fn refusal() -> io::Error {
    let why = "containment = \"strict\" needs a cgroup (version 2, Linux 5.14 or later, in which the server may make \
               others) or PID namespaces (as root, or with user namespaces), and here is neither; allow one of them, \
               or set containment = \"auto\"";
    io::Error::new(io::ErrorKind::Unsupported, why)
}
