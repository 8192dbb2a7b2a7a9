//! The life of one simulated shim. It runs on its machine's own clock, whatever becomes of the replica that
//! started it.

use crate::job_checker;
use crate::machine::{Disk, Lack, Machine, Phase, Script, Sentinel, Shim, Spec, Told};
use crate::rng::Rng;
use crate::shared::Shared;
use everbeat_model::job::{Exit, Stopped};
use everbeat_model::{Hole, RunId, Token};
use std::sync::Arc;
use tokio::sync::{Notify, oneshot, watch};

const MS: u64 = 1000;
const EAGAIN: i32 = 11;
/// So long an ended shim waits to be told that its end is stored.
const LINGER: u64 = 6_000 * MS;

/// One process on its way from being spawned to its end.
pub(crate) struct ShimLife {
    pub(crate) shared: Arc<Shared>,
    pub(crate) machine: Arc<Machine>,
    pub(crate) spec: Spec,
    /// Told when the command has begun or ended, or that it never will for a shortage; dropped when there will be none.
    pub(crate) begun: Option<oneshot::Sender<Result<(), Short>>>,
}

/// Nothing was begun, for want of something.
pub(crate) struct Short;

/// Why a shim does not go on.
struct Gone;

impl ShimLife {
    pub(crate) async fn live(mut self) {
        let mut rng = Rng::new(self.shared.seed ^ self.token().0.as_u128() as u64, 77);
        let troubled = self.shared.network().rates.shims > 0.0;
        let slow = troubled && rng.chance(0.3);
        // Some of them so slow that they must not start any more.
        let longest = *rng.pick(&[600, 4000]);
        self.shared.sleep(if slow { rng.between(50, longest) * MS } else { rng.between(200, 5 * MS) }).await;
        let Ok(nudged) = self.take_lock() else { return };
        let slow = troubled && rng.chance(0.05);
        self.shared.sleep(if slow { rng.between(50, 600) * MS } else { rng.between(100, 2 * MS) }).await;
        if troubled && rng.chance(0.02) {
            return self.die("dies before it starts its command");
        }
        if self.machine.disk().lacks(self.shared.now()) == Some(Lack::Record) {
            kill(&self.shared, &self.machine, self.job(), self.token());
            self.begun.take().map(|begun| begun.send(Err(Short)));
            return;
        }
        if self.begin().is_err() {
            return;
        }
        self.begun.take().map(|begun| begun.send(Ok(())));
        while let Some(at) = self.next_look() {
            let sleep = self.shared.executor.sleep_until(at);
            tokio::select! {
                biased;
                () = nudged.notified() => {}
                () = sleep => {}
            }
            if self.keep_time().is_err() {
                return;
            }
        }
    }

    fn token(&self) -> Token {
        self.spec.attempt.token
    }

    fn job(&self) -> RunId {
        self.spec.attempt.job
    }

    /// A second shim cannot; nor one that is fenced, of another boot, or replaced.
    fn take_lock(&self) -> Result<Arc<Notify>, Gone> {
        let now = self.shared.now();
        let mut disk = self.machine.disk();
        let boot = disk.boot;
        let folder = disk.folders.get_mut(&self.job()).ok_or(Gone)?;
        if boot != self.spec.boot || folder.shim.is_some() {
            return Err(Gone);
        }
        let spec = folder.spec.as_ref().map(|spec| spec.attempt.token);
        let started = folder.started == Some(self.token()) || folder.exit_of(self.token()).is_some();
        if spec != Some(self.token()) || folder.forbids(&self.spec.attempt) || started {
            return Err(Gone);
        }
        let order = &self.spec.order;
        let script = order.command.command.get(1).and_then(|text| serde_json::from_str::<Script>(text).ok());
        if now >= self.spec.start_before {
            return Err(Gone);
        }
        let nudged = Arc::new(Notify::new());
        let isolated_after = order.isolated_after.map(|span| span.as_micros() as u64);
        folder.locked = Some(self.token());
        folder.shim = Some(Shim {
            attempt: self.spec.attempt.clone(),
            tenure: self.spec.attempt.tenure,
            phase: Phase::Locked,
            hung_until: 0,
            deadline_at: order.deadline.map(|span| now + span.as_micros() as u64),
            // It counts from the start of the command.
            isolated_at: None,
            isolated_after,
            last_at: None,
            stop_grace: order.stop_grace.as_micros() as u64,
            stopped: None,
            seq: 0,
            beat_at: now,
            interval: order.heartbeat_interval.as_micros() as u64,
            script: script.ok_or(Gone)?,
            told: watch::Sender::new(Told { tenure: self.spec.attempt.tenure, ..Told::default() }),
            nudged: nudged.clone(),
        });
        Ok(nudged)
    }

    /// Marks the start durably, and only then starts.
    fn begin(&self) -> Result<(), Gone> {
        let now = self.shared.now();
        let mut disk = self.machine.disk();
        let short = disk.lacks(now) == Some(Lack::Command);
        let folder = disk.folders.get_mut(&self.job()).ok_or(Gone)?;
        let wished =
            folder.wish.is_some_and(|(of, tenure, _)| of == self.token() && tenure >= self.spec.attempt.tenure);
        let shim = folder.shim_of(self.token()).ok_or(Gone)?;
        if now >= self.spec.start_before {
            folder.let_go();
            return Err(Gone);
        }
        if wished || shim.script.missing {
            let (why, stopped) = match wished {
                true => ("cancelled before it started", Some(Stopped::Requested)),
                false => ("no such program", None),
            };
            let exit = Exit { start_error: Some(why.to_string()), stopped, ..Exit::default() };
            self.record(&mut disk, exit, now);
            return Ok(());
        }
        if short {
            self.shared.truth().short.insert(self.token());
            let start_error = Some("no process could be made".to_string());
            self.record(&mut disk, Exit { start_error, start_errno: Some(EAGAIN), ..Exit::default() }, now);
            return Ok(());
        }
        shim.vouched(now);
        shim.phase = Phase::Running { ends_at: now + shim.script.runs_ms * MS };
        folder.started = Some(self.token());
        folder.hint.notify_waiters();
        drop(disk);
        let stops = self.spec.order.isolated_after.is_some();
        job_checker::begins(&self.shared, &self.spec.attempt, self.machine.place, stops);
        Ok(())
    }

    /// When there is something to do next.
    fn next_look(&self) -> Option<u64> {
        let now = self.shared.now();
        let mut disk = self.machine.disk();
        let shim = disk.folders.get_mut(&self.job())?.shim_of(self.token())?;
        let own = match shim.phase {
            Phase::Exited { until } => Some(until),
            _ => [shim.deadline_at, shim.isolated_at, Some(shim.beat_at)].into_iter().flatten().min(),
        };
        // One that hangs does nothing; its command goes on and may end. The kernel does not hang.
        let own = own.map(|at| at.max(shim.hung_until));
        let last = shim.last_at.filter(|_| shim.runs() && self.has_last_timer());
        let running = self.shared.truth().commands.get(&self.token()).is_some_and(|command| command.runs);
        let command = match shim.hangs(now) {
            true => shim.ends_by_itself_at().filter(|_| running),
            false => shim.command_ends_at(),
        };
        [own, command, last].into_iter().flatten().min()
    }

    fn has_last_timer(&self) -> bool {
        !self.shared.hole.is(Hole::NoLastTimer)
    }

    fn keep_time(&self) -> Result<(), Gone> {
        let now = self.shared.now();
        let mut disk = self.machine.disk();
        let boot = disk.boot;
        let folder = disk.folders.get_mut(&self.job()).ok_or(Gone)?;
        let wish = folder.wish.filter(|(of, ..)| *of == self.token());
        let shim = folder.shim_of(self.token()).ok_or(Gone)?;
        if shim.runs() && self.has_last_timer() && shim.last_at.is_some_and(|at| at <= now) {
            drop(disk);
            self.die("is killed by its last timer");
            return Err(Gone);
        }
        if shim.hangs(now) {
            if shim.ends_by_itself_at().is_some_and(|at| at <= now) {
                // Nobody takes note.
                self.shared.truth().command_ends(self.token());
            }
            return Ok(());
        }
        if let Phase::Exited { until } = shim.phase {
            if until <= now {
                folder.let_go();
                return Err(Gone);
            }
            return Ok(());
        }
        if shim.command_ends_at().is_some_and(|at| at <= now) {
            let exit = exit(shim);
            self.shared.truth().command_ends(self.token());
            if self.shared.network().dies_with_the_record() {
                drop(disk);
                self.die("dies before it has recorded the exit");
                return Err(Gone);
            }
            self.record(&mut disk, exit, now);
            return Ok(());
        }
        if shim.isolated_at.is_some_and(|at| at <= now) {
            shim.isolated_at = None;
            let span = shim.isolated_after.unwrap_or_default();
            job_checker::isolated(&self.shared, &shim.attempt, span);
            self.shared.trace(|truth| format!("{} is isolated and stops", truth.attempt(&self.spec.attempt)));
            shim.stop(Stopped::Isolated, shim.stop_grace.min(span / 4), now);
        }
        if shim.deadline_at.is_some_and(|at| at <= now) {
            shim.stop(Stopped::Deadline, shim.stop_grace, now);
            shim.deadline_at = None;
        }
        if shim.beat_at <= now {
            if let Some((_, tenure, grace)) = wish.filter(|(_, tenure, _)| *tenure >= shim.tenure) {
                shim.hears(tenure);
                shim.stop(Stopped::Requested, grace, now);
            }
            shim.seq += 1;
            shim.beat_at = now + shim.interval;
            let (seq, attempt, beat) = (shim.seq, shim.attempt.attempt, shim.beat());
            shim.told.send_modify(|told| told.beat = beat);
            folder.sentinel = Some(Sentinel { token: self.token(), attempt, seq, boot, at: now });
        }
        Ok(())
    }

    fn record(&self, disk: &mut Disk, exit: Exit, now: u64) {
        let Some(folder) = disk.folders.get_mut(&self.job()) else { return };
        self.shared.trace(|truth| format!("{} exits: {exit:?}", truth.attempt(&self.spec.attempt)));
        self.shared.truth().exits.insert(self.token(), exit.clone());
        folder.exit = Some((self.token(), exit));
        if let Some(shim) = folder.shim_of(self.token()) {
            shim.phase = Phase::Exited { until: now + LINGER };
            shim.told.send_modify(|told| told.over = true);
        }
        folder.hint.notify_waiters();
    }

    fn die(&self, how: &str) {
        self.shared.trace(|truth| format!("the shim of {} {how}", truth.attempt(&self.spec.attempt)));
        self.shared.truth().report.fault("death of a shim");
        kill(&self.shared, &self.machine, self.job(), self.token());
    }
}

/// How its command ended.
fn exit(shim: &Shim) -> Exit {
    let (exit_code, exit_signal) = match shim.phase {
        Phase::Stopping { ends_at, kill_at } if kill_at < ends_at => (None, Some(9)),
        Phase::Stopping { .. } if shim.script.stops_ms.is_some_and(|millis| millis % 2 == 0) => (None, Some(15)),
        _ => (Some(shim.script.code), None),
    };
    Exit { exit_code, exit_signal, stopped: shim.stopped, ..Exit::default() }
}

/// A shim dies, and its command with it; nobody knows how it ended.
pub(crate) fn kill(shared: &Shared, machine: &Machine, job: RunId, token: Token) {
    let mut disk = machine.disk();
    let Some(folder) = disk.folders.get_mut(&job) else { return };
    if folder.shim_of(token).is_some() {
        folder.let_go();
        shared.truth().command_ends(token);
    }
}
