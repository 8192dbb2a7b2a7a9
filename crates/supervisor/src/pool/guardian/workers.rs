//! One worker, as its guardian sees it: from the fork until nothing of it is left.

use super::child::{self, Given, Told};
use super::contain::Contain;
use super::fork;
use super::keeper::{self, Keeping};
use super::memory::{Counter, Kills};
use crate::job::clock;
use crate::pool::cgroup::Leaf;
use crate::pool::link::{self, Received};
use crate::pool::pidfd;
use crate::pool::protocol::{FromGuardian, FromKeeper, How, OutOfMemory, Stage, ToKeeper};
use rustix::event::{PollFd, PollFlags};
use rustix::pipe::{PipeFlags, pipe_with};
use rustix::process::{Pid, Signal, WaitId, WaitIdOptions, pidfd_send_signal};
use std::io;
use std::os::fd::{AsFd, OwnedFd};

#[derive(Debug)]
pub(super) struct Worker {
    pub(super) id: u64,
    /// For reports.
    pub(super) worker: String,
    /// The writing end of the worker's life line: only this process has it.
    _life: OwnedFd,
    /// Until the program runs, or cannot.
    told: Option<OwnedFd>,
    /// The child of this process: the worker itself, or its keeper. Not reaped while this is here, so that the number is
    /// its own.
    child: Pid,
    child_fd: OwnedFd,
    hold: Hold,
    /// Whether the server was told how its order went, and whether it knows of the worker since then.
    answered: bool,
    announced: bool,
    /// What counts whom the kernel kills for lack of memory, where that is not its own leaf.
    counter: Option<Counter>,
    /// When its main process ended.
    ended_at: Option<u64>,
    /// Whether this guardian has killed it.
    pub(super) killed: bool,
    /// When it was asked to end because its server died.
    pub(super) asked_at: Option<u64>,
}

#[derive(Debug)]
enum Hold {
    Leaf { leaf: Leaf, found: usize },
    Keeper(Keeper),
}

#[derive(Debug)]
struct Keeper {
    how: How,
    link: OwnedFd,
    /// The worker's main process, once the keeper has told of it.
    main: Option<(i32, OwnedFd)>,
    runs: bool,
    exited: Option<(Option<i32>, Option<i32>)>,
    emptied: Option<(u64, usize)>,
    is_gone: bool,
}

/// A message for the server, with the descriptor that goes with it.
pub(super) type Message = (FromGuardian, Option<OwnedFd>);

impl Worker {
    pub(super) fn start(
        contain: &Contain,
        id: u64,
        worker: String,
        descriptors: Vec<OwnedFd>,
        oom_score: &str,
    ) -> Result<Worker, (Stage, io::Error)> {
        let here = |error: io::Error| (Stage::Process, error);
        let (life_end, life) = pipe().map_err(here)?;
        let (told, told_end) = pipe().map_err(here)?;
        rustix::io::ioctl_fionbio(&told, true).map_err(|error| here(error.into()))?;
        let given = Given::new(descriptors, life_end, oom_score)?;
        let ((child, child_fd), hold) = match contain {
            Contain::Cgroup(cgroup) => {
                let leaf = cgroup.leaf(id).map_err(here)?;
                let child = leaf.door().and_then(|door| {
                    let parent = rustix::process::getpid();
                    fork::fork(0, || given.become_it(&told_end, parent, Some(&door)))
                });
                let child = child.inspect_err(|_| leaf.remove()).map_err(here)?;
                (child, Hold::Leaf { leaf, found: 0 })
            }
            Contain::Namespace(namespaces) => {
                let (child, link) = kept(given, told_end, Some(*namespaces)).map_err(here)?;
                (child, Hold::Keeper(Keeper::new(How::Namespace, link)))
            }
            Contain::Tree => {
                let (child, link) = kept(given, told_end, None).map_err(here)?;
                (child, Hold::Keeper(Keeper::new(How::Walk, link)))
            }
        };
        Ok(Worker {
            id,
            worker,
            _life: life,
            told: Some(told),
            child,
            child_fd,
            hold,
            answered: false,
            announced: false,
            counter: None,
            ended_at: None,
            killed: false,
            asked_at: None,
        })
    }

    pub(super) fn child(&self) -> Pid {
        self.child
    }

    pub(super) fn polled(&self) -> impl Iterator<Item = PollFd<'_>> {
        let told = self.told.iter().map(|told| PollFd::new(told, PollFlags::IN));
        let link = match &self.hold {
            Hold::Keeper(keeper) if !keeper.is_gone => Some(PollFd::new(&keeper.link, PollFlags::IN)),
            _ => None,
        };
        // Of a worker, until its end was seen; the end of a keeper is the last thing that is seen.
        let is_over = matches!(self.hold, Hold::Leaf { .. }) && self.ended_at.is_some();
        let child = (!is_over).then(|| PollFd::new(&self.child_fd, PollFlags::IN));
        told.chain(link).chain(child)
    }

    /// Whether it must be looked at again soon, although nothing may tell.
    pub(super) fn is_clearing(&self) -> bool {
        self.ended_at.is_some()
    }

    /// Sees what has happened, and kills what is left of one that has ended. Answers whether nothing of it is left.
    pub(super) fn step(&mut self, kills: &mut Kills, say: &mut Vec<Message>) -> bool {
        let was_announced = self.announced;
        self.hear_start(say);
        let is_over = match &mut self.hold {
            Hold::Leaf { .. } => self.step_leaf(kills, say),
            Hold::Keeper(_) => self.step_keeper(kills, say),
        };
        if self.announced && !was_announced {
            self.look(kills);
        }
        is_over
    }

    /// Finds what counts whom the kernel kills for lack of memory. Again and again: a worker may move to another cgroup.
    pub(super) fn look(&mut self, kills: &mut Kills) {
        if !self.announced || self.ended_at.is_some() {
            return;
        }
        let pid = self.child.as_raw_nonzero().get();
        match &self.hold {
            Hold::Leaf { leaf, .. } => {
                self.counter = leaf.ran_out_of_memory().is_none().then(|| kills.counter(pid)).flatten();
            }
            Hold::Keeper(keeper) => self.counter = keeper.main.as_ref().and_then(|(pid, _)| kills.counter(*pid)),
        }
    }

    pub(super) fn counter(&self) -> Option<&Counter> {
        self.counter.as_ref()
    }

    /// Whether the kernel ended it for lack of memory, if it was killed and nobody here did that.
    fn out_of_memory(&self, signal: Option<i32>, kills: &mut Kills) -> OutOfMemory {
        if signal != Some(Signal::KILL.as_raw()) || self.killed {
            return OutOfMemory::No;
        }
        let counted = match &self.hold {
            Hold::Leaf { leaf, .. } => leaf.ran_out_of_memory(),
            Hold::Keeper(_) => None,
        };
        match counted {
            Some(true) => OutOfMemory::OwnCgroup,
            Some(false) => OutOfMemory::No,
            None => self.counter.as_ref().map_or(OutOfMemory::No, |counter| kills.explain(counter)),
        }
    }

    fn hear_start(&mut self, say: &mut Vec<Message>) {
        let Some(told) = &self.told else { return };
        match child::told(told) {
            Told::Nothing => return,
            Told::Failed(stage, errno) => {
                self.answered = true;
                say.push((FromGuardian::Failed { id: self.id, stage, errno }, None));
            }
            Told::Runs => match &mut self.hold {
                Hold::Leaf { leaf, .. } => {
                    let (pid, leaf) = (self.child.as_raw_nonzero().get(), Some(leaf.path().to_owned()));
                    self.answered = true;
                    self.announced = announce(say, self.id, pid, &self.child_fd, leaf);
                }
                Hold::Keeper(keeper) => keeper.runs = true,
            },
        }
        self.told = None;
    }

    fn step_leaf(&mut self, kills: &mut Kills, say: &mut Vec<Message>) -> bool {
        let Hold::Leaf { leaf, found } = &mut self.hold else { return true };
        if self.ended_at.is_none() {
            let look = WaitIdOptions::EXITED | WaitIdOptions::NOHANG | WaitIdOptions::NOWAIT;
            let (code, signal) = match rustix::process::waitid(WaitId::PidFd(self.child_fd.as_fd()), look) {
                Ok(Some(status)) => (status.exit_status(), status.terminating_signal()),
                _ => return false,
            };
            self.ended_at = Some(clock::boot_us());
            *found = leaf.pids().len().max(*found);
            if self.announced {
                let out_of_memory = self.out_of_memory(signal, kills);
                say.push((FromGuardian::Exited { id: self.id, code, signal, out_of_memory }, None));
            }
        }
        let Hold::Leaf { leaf, found } = &mut self.hold else { return true };
        if !leaf.is_empty() {
            let _again_soon = leaf.kill();
            return false;
        }
        leaf.remove();
        let how = if *found == 0 { How::Exited } else { How::Cgroup };
        let found = *found;
        self.say_emptied(say, how, found, None);
        true
    }

    fn step_keeper(&mut self, kills: &mut Kills, say: &mut Vec<Message>) -> bool {
        // Looked at first: what the keeper said before its end is heard below.
        let look = WaitIdOptions::EXITED | WaitIdOptions::NOHANG | WaitIdOptions::NOWAIT;
        let is_over = matches!(rustix::process::waitid(WaitId::PidFd(self.child_fd.as_fd()), look), Ok(Some(_)));
        self.hear_keeper();
        self.hear_start(say);
        let Hold::Keeper(keeper) = &mut self.hold else { return true };
        if let (true, false, Some((pid, main))) = (keeper.runs, self.answered, &keeper.main) {
            self.answered = true;
            self.announced = announce(say, self.id, *pid, main, None);
        }
        if is_over && self.ended_at.is_none() {
            // Nobody saw how it ended.
            (self.ended_at, keeper.exited) = (Some(clock::boot_us()), Some((None, None)));
        }
        if let (true, Some((code, signal))) = (self.announced, keeper.exited.take()) {
            let out_of_memory = self.out_of_memory(signal, kills);
            say.push((FromGuardian::Exited { id: self.id, code, signal, out_of_memory }, None));
        }
        let Hold::Keeper(keeper) = &mut self.hold else { return true };
        if !is_over {
            return false;
        }
        // With the first process of a namespace the kernel has ended all others; what the keeper of a tree left, if it was
        // killed, has become this process's own, and is killed as a stray.
        let (how, took_us, killed) = match keeper.emptied {
            Some((took_us, 0)) => (How::Exited, Some(took_us), 0),
            Some((took_us, killed)) => (keeper.how, Some(took_us), killed),
            None => (keeper.how, None, 0),
        };
        self.say_emptied(say, how, killed, took_us);
        true
    }

    fn hear_keeper(&mut self) {
        let Hold::Keeper(keeper) = &mut self.hold else { return };
        loop {
            match link::receive::<FromKeeper>(&keeper.link) {
                Ok(Received::Message(FromKeeper::Started, mut descriptors)) => {
                    keeper.main = descriptors.pop().and_then(|main| Some((pidfd::number(&main)?, main)));
                    // One that cannot be known must not run.
                    let said = if keeper.main.is_some() { ToKeeper::Known } else { ToKeeper::Kill };
                    let _it_has_ended = link::send(&keeper.link, &said, &[]);
                }
                Ok(Received::WithoutRoom(FromKeeper::Started)) => {
                    let _it_has_ended = link::send(&keeper.link, &ToKeeper::Kill, &[]);
                }
                Ok(Received::Message(FromKeeper::Exited { code, signal }, _)) => {
                    (self.ended_at, keeper.exited) = (Some(clock::boot_us()), Some((code, signal)));
                }
                Ok(Received::Message(FromKeeper::Emptied { took_us, killed }, _)) => {
                    keeper.emptied = Some((took_us, killed));
                }
                Ok(Received::WithoutRoom(_)) => {}
                Ok(Received::End) => return keeper.is_gone = true,
                Err(_nothing_more) => return,
            }
        }
    }

    /// The last word of a worker; of one that was never there, the answer to its order.
    fn say_emptied(&self, say: &mut Vec<Message>, how: How, killed: usize, took_us: Option<u64>) {
        if self.announced {
            let since = self.ended_at.map_or(0, |at| clock::boot_us().saturating_sub(at));
            let took_us = took_us.unwrap_or(since);
            say.push((FromGuardian::Emptied { id: self.id, how, took_us, killed }, None));
        } else if !self.answered {
            let (stage, errno) = (Stage::Process, libc::EAGAIN);
            say.push((FromGuardian::Failed { id: self.id, stage, errno }, None));
        }
    }

    /// The polite signal to its main process, and the one that wakes the stopped so that they hear it.
    pub(super) fn ask(&mut self, now: u64) {
        self.asked_at = Some(now);
        let main = match &self.hold {
            Hold::Leaf { .. } => Some(&self.child_fd),
            Hold::Keeper(keeper) => keeper.main.as_ref().map(|(_, main)| main),
        };
        for signal in [Signal::TERM, Signal::CONT] {
            let _it_has_ended = main.map(|main| pidfd_send_signal(main, signal));
        }
    }

    /// Everything of it, at once.
    pub(super) fn kill(&mut self) {
        let is_running = self.ended_at.is_none();
        self.killed |= is_running;
        match &mut self.hold {
            Hold::Leaf { leaf, found } => {
                if is_running {
                    // Its main process is among them.
                    *found = leaf.pids().len().saturating_sub(1).max(*found);
                }
                let _it_may_not_be_inside_yet = pidfd_send_signal(&self.child_fd, Signal::KILL);
                let _again_soon = leaf.kill();
            }
            Hold::Keeper(keeper) => {
                // Its keeper ends the rest, whether it hears of it from here or from the kernel.
                let _it_may_have_ended = link::send(&keeper.link, &ToKeeper::Kill, &[]);
                let _it_has_ended = keeper.main.as_ref().map(|(_, main)| pidfd_send_signal(main, Signal::KILL));
            }
        }
    }

    /// Takes the end of its child from the kernel: the number may be another's from now on.
    pub(super) fn reap(self) {
        let _not_yet_is_soon = rustix::process::waitid(WaitId::PidFd(self.child_fd.as_fd()), WaitIdOptions::EXITED);
    }
}

impl Keeper {
    fn new(how: How, link: OwnedFd) -> Keeper {
        Keeper { how, link, main: None, runs: false, exited: None, emptied: None, is_gone: false }
    }
}

/// Forks a keeper, in new namespaces or in none. Answers it and the link to it.
fn kept(given: Given, told: OwnedFd, namespaces: Option<keeper::Namespaces>) -> io::Result<((Pid, OwnedFd), OwnedFd)> {
    let (link, link_end) = link::pair()?;
    let flags = namespaces.map_or(0, |namespaces| namespaces.flags);
    let keeping = Keeping { given, link: link_end, told, namespaces };
    Ok((fork::fork(flags, move || keeper::keep(keeping))?, link))
}

fn announce(say: &mut Vec<Message>, id: u64, pid: i32, pidfd: &OwnedFd, leaf: Option<std::path::PathBuf>) -> bool {
    match pidfd.try_clone() {
        Ok(pidfd) => {
            say.push((FromGuardian::Spawned { id, pid, leaf }, Some(pidfd)));
            true
        }
        Err(error) => {
            // It cannot be handed over, and so must not run.
            let _it_has_ended = pidfd_send_signal(pidfd, Signal::KILL);
            let errno = error.raw_os_error().unwrap_or(libc::EIO);
            say.push((FromGuardian::Failed { id, stage: Stage::Process, errno }, None));
            false
        }
    }
}

fn pipe() -> io::Result<(OwnedFd, OwnedFd)> {
    Ok(pipe_with(PipeFlags::CLOEXEC)?)
}
