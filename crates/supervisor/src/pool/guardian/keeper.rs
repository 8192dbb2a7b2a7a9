//! Where there is no cgroup, each worker has a keeper: a copy of the guardian between the two, of which everything that
//! the worker starts is and stays a descendant. In a PID namespace the keeper is its first process.
//!
//! A keeper ends its worker's processes when the worker ends, when its guardian says so, and when its guardian is gone.

use super::child::{self, Given};
use super::fork;
use crate::job::{clock, processes};
use crate::pool::link::{self, Received};
use crate::pool::protocol::{FromKeeper, Stage, ToKeeper};
use crate::signals::Signals;
use rustix::event::{PollFd, PollFlags, poll};
use rustix::process::{Pid, Signal, WaitId, WaitIdOptions, WaitOptions};
use std::collections::BTreeSet;
use std::convert::Infallible;
use std::fs;
use std::io;
use std::os::fd::{AsFd, OwnedFd};

/// What a keeper has. All else that it inherited is closed.
pub(super) struct Keeping {
    pub(super) given: Given,
    /// To the guardian; its end is the guardian's death.
    pub(super) link: OwnedFd,
    /// Where it is said why there is no worker.
    pub(super) told: OwnedFd,
    /// The namespaces that it is in; none for a tree.
    pub(super) namespaces: Option<Namespaces>,
}

/// Killed processes are gone within about that.
const LOOK_AGAIN_MS: u64 = 2;

/// The whole life of a keeper.
pub(super) fn keep(keeping: Keeping) -> Infallible {
    let Keeping { given, link, told, namespaces } = keeping;
    let mut keeper = match Keeper::begin(given, link, &told, namespaces) {
        Ok(keeper) => keeper,
        Err(error) => {
            child::tell(&told, Stage::Process, &error);
            fork::exit(fork::EXIT_BROKEN)
        }
    };
    // The worker has the other one, until its program runs.
    drop(told);
    loop {
        keeper.turn();
    }
}

struct Keeper {
    link: OwnedFd,
    in_namespace: bool,
    own_pid: Pid,
    signals: Signals,
    main: Pid,
    pidfd: OwnedFd,
    /// Whether the guardian knows the main process. Until then it is not reaped, so that its number is its own.
    is_known: bool,
    /// When the main process was seen to have ended.
    ended_at: Option<u64>,
    killing: bool,
    killed: BTreeSet<i32>,
}

impl Keeper {
    fn begin(given: Given, link: OwnedFd, told: &OwnedFd, namespaces: Option<Namespaces>) -> io::Result<Keeper> {
        let kept: Vec<_> = given.descriptors().into_iter().chain([link.as_fd(), told.as_fd()]).collect();
        fork::close_all_but(&kept)?;
        let in_namespace = namespaces.is_some();
        if let Some(namespaces) = namespaces {
            namespaces.enter()?;
            // With the first process of a namespace all others die.
            rustix::process::set_parent_process_death_signal(Some(Signal::KILL))?;
        } else {
            rustix::process::set_child_subreaper(Some(rustix::process::getpid()))?;
        }
        let _for_people_who_look_at_a_list = fs::write("/proc/self/comm", "everbeat-keeper");
        rustix::process::setsid()?;
        let signals = Signals::take()?;
        let own_pid = rustix::process::getpid();
        let (main, pidfd) = {
            let parent = own_pid;
            fork::fork(0, move || given.become_it(told, parent, None))?
        };
        link::send(&link, &FromKeeper::Started, &[pidfd.as_fd()])?;
        let killed = BTreeSet::new();
        Ok(Keeper {
            link,
            in_namespace,
            own_pid,
            signals,
            main,
            pidfd,
            is_known: false,
            ended_at: None,
            killing: false,
            killed,
        })
    }

    fn turn(&mut self) {
        let timeout = self.killing.then(|| clock::timespec(LOOK_AGAIN_MS));
        let mut polled = vec![PollFd::new(&self.signals, PollFlags::IN), PollFd::new(&self.link, PollFlags::IN)];
        if self.ended_at.is_none() {
            polled.push(PollFd::new(&self.pidfd, PollFlags::IN));
        }
        let _interrupted = poll(&mut polled, timeout.as_ref());
        while self.signals.next().is_some() {}
        self.hear();
        self.take_exit();
        match self.killing {
            true => self.clear(),
            false => self.reap_adopted(),
        }
    }

    fn hear(&mut self) {
        loop {
            match link::receive(&self.link) {
                Err(error) if error.kind() == io::ErrorKind::WouldBlock => return,
                Ok(Received::Message(ToKeeper::Known, _)) => self.is_known = true,
                Ok(Received::Message(ToKeeper::Kill, _)) => self.killing = true,
                // Whatever else it is, nobody is left to ask.
                _ => return (self.is_known, self.killing) = (true, true),
            }
        }
    }

    fn take_exit(&mut self) {
        if self.ended_at.is_some() {
            return;
        }
        let look = WaitIdOptions::EXITED | WaitIdOptions::NOHANG | WaitIdOptions::NOWAIT;
        let Ok(Some(status)) = rustix::process::waitid(WaitId::PidFd(self.pidfd.as_fd()), look) else { return };
        self.ended_at = Some(clock::boot_ms());
        let exited = FromKeeper::Exited { code: status.exit_status(), signal: status.terminating_signal() };
        let _then_nobody_asks = link::send(&self.link, &exited, &[]);
        self.killing = true;
    }

    /// Reaps the orphans this process was given, but not the main process, whose end must be told first.
    fn reap_adopted(&self) {
        while let Ok(Some(pid)) = fork::ended_child() {
            if pid == self.main {
                return;
            }
            let _reaped = rustix::process::waitpid(Some(pid), WaitOptions::NOHANG);
        }
    }

    /// Kills and reaps until there is no child: then there is no descendant.
    fn clear(&mut self) {
        let no_child = loop {
            match fork::ended_child() {
                Ok(Some(pid)) if pid == self.main && !self.is_known => {
                    self.take_exit();
                    break false;
                }
                Ok(Some(pid)) => self.reap(pid),
                Ok(None) => break false,
                Err(_no_child) => break true,
            }
        };
        if no_child {
            let took_ms = self.ended_at.map_or(0, |at| clock::boot_ms().saturating_sub(at));
            let emptied = FromKeeper::Emptied { took_us: took_ms * 1000, killed: self.killed.len() };
            let _then_nobody_asks = link::send(&self.link, &emptied, &[]);
            fork::exit(0)
        }
        self.kill();
    }

    fn reap(&mut self, pid: Pid) {
        if pid == self.main {
            self.take_exit();
        }
        let Ok(Some((_, status))) = rustix::process::waitpid(Some(pid), WaitOptions::NOHANG) else { return };
        let by_us = status.terminating_signal() == Some(Signal::KILL.as_raw());
        if self.in_namespace && by_us && pid != self.main {
            self.killed.insert(pid.as_raw_nonzero().get());
        }
    }

    fn kill(&mut self) {
        if self.in_namespace {
            return fork::kill_namespace();
        }
        let own = self.own_pid.as_raw_nonzero().get();
        let main = self.main.as_raw_nonzero().get();
        let found = processes::descendants(own).into_iter().filter(|pid| !processes::is_zombie(*pid));
        let found: Vec<i32> = found.collect();
        processes::signal(found.iter().copied(), Signal::KILL, |pid| processes::descends(pid, own));
        self.killed.extend(found.into_iter().filter(|pid| *pid != main));
    }
}

/// New namespaces for one worker.
#[derive(Clone, Copy, Debug)]
pub(super) struct Namespaces {
    /// Those of clone(2).
    pub(super) flags: libc::c_int,
    user: u32,
    group: u32,
}

impl Namespaces {
    /// With `as_nobody`, in a user namespace of its own as well, which needs no privilege.
    pub(super) fn new(as_nobody: bool) -> Namespaces {
        let flags = libc::CLONE_NEWPID | libc::CLONE_NEWNS | if as_nobody { libc::CLONE_NEWUSER } else { 0 };
        let (user, group) = (rustix::process::geteuid().as_raw(), rustix::process::getegid().as_raw());
        Namespaces { flags, user, group }
    }

    /// In the first process in them.
    pub(super) fn enter(self) -> io::Result<()> {
        if self.flags & libc::CLONE_NEWUSER != 0 {
            // It is who it was. Other users and groups are nobody in there.
            fs::write("/proc/self/setgroups", "deny")?;
            fs::write("/proc/self/uid_map", format!("{0} {0} 1", self.user))?;
            fs::write("/proc/self/gid_map", format!("{0} {0} 1", self.group))?;
        }
        // Without a `/proc` of its own, a worker finds itself under `/proc/self` only.
        let _shows_those_outside = fork::mount_proc();
        Ok(())
    }
}
