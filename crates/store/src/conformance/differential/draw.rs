use super::graphs::NAMES;
use super::op::{Move, Op, Proof, Secret, Signal, Words};
use super::rng::Rng;
use crate::{Claim, Enqueue, Idempotency, Keep, News, OutputFilter, RunFilter, VerdictFilter};
use everbeat_model::event::EventKind;
use everbeat_model::output::{Item, OutputKind};
use everbeat_model::policy::HeartbeatMode;
use everbeat_model::replica::NewReplica;
use everbeat_model::run::{COMMAND, Claimed, Kind, Spec, lane_on};
use everbeat_model::session::Affinity;
use everbeat_model::verdict::{Judgement, Subject, SubjectKind};
use everbeat_model::{
    Ending, ExecutionId, Json, NewRun, Next, Outcome, Policy, Reason, ReplicaId, RunId, RunState, Session, Standing,
    StoreTime, Verdict, VerdictId, WorkerId, id,
};
use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;
use std::time::Duration;

const TASKS: [&str; 4] = ["mail", "report", "work", COMMAND];
const HOSTS: [&str; 2] = ["host 0", "it's host 1"];
const QUEUES: [&str; 3] = ["default", "it's", "bulk"];
const TEXTS: [&str; 6] = ["null", "1.0", "{\"b\":1,\"a\":[\"\\u0000\"]}", "\"🦀\"", "[]", "\"';--\""];

/// Real time passes at one of the stores; so a delay is either over at once or never.
const NEVER: Duration = Duration::from_secs(10 * 86_400);
const YEAR_2200: StoreTime = StoreTime(7_258_118_400_000_000);
const LONG_AGO: StoreTime = StoreTime(1_600_000_000_000_000);

/// Draws the history. It aims at what runs and what is finished, so that much of what it draws takes
/// effect; it never foretells an answer.
pub(super) struct World {
    pub(super) rng: Rng,
    ids: id::Sequence,
    /// Graphs that the history begins with.
    undefined: Vec<&'static str>,
    /// What comes next, the last one first.
    intended: Vec<Op>,
    pub(super) executions: Vec<ExecutionId>,
    /// How many executions have a run that is over and that nobody has looked at.
    pub(super) awaited: usize,
    /// A definition was applied since all were looked at.
    pub(super) applied: bool,
    pub(super) runs: Vec<RunId>,
    /// Every request for runs.
    sent: Vec<Enqueue>,
    pub(super) replicas: Vec<ReplicaId>,
    hosts: BTreeMap<ReplicaId, &'static str>,
    /// Every lease ever granted.
    pub(super) leases: Vec<Claimed>,
    pub(super) running: Vec<RunId>,
    pub(super) finished: Vec<RunId>,
    verdicts: Vec<VerdictId>,
    /// How many items an attempt has streamed, if all were kept.
    said: BTreeMap<(RunId, u32), u64>,
}

impl World {
    pub(super) fn new(seed: u64) -> World {
        World {
            rng: Rng::new(seed),
            ids: id::Sequence::default(),
            undefined: NAMES.to_vec(),
            intended: Vec::new(),
            executions: Vec::new(),
            awaited: 0,
            applied: false,
            runs: Vec::new(),
            sent: Vec::new(),
            replicas: Vec::new(),
            hosts: BTreeMap::new(),
            leases: Vec::new(),
            running: Vec::new(),
            finished: Vec::new(),
            verdicts: Vec::new(),
            said: BTreeMap::new(),
        }
    }

    pub(super) fn draw(&mut self) -> Op {
        if let Some(first) = self.undefined.pop() {
            return World::define(first, false);
        }
        if let Some(next) = self.intended.pop() {
            return next;
        }
        let draw: fn(&mut World) -> Op = self.rng.weighted(&[
            (13, |w| w.enqueue()),
            (18, |w| w.claim()),
            (24, |w| Op::Settle(w.some(4, World::settle))),
            (8, |w| Op::Sign(w.some(3, World::signal))),
            (8, |w| w.append()),
            (3, |w| w.read_output()),
            (3, |w| Op::WasSettled(w.some(3, World::proof))),
            (6, |w| w.cancel()),
            (8, |w| w.reopen()),
            (4, |w| w.place()),
            (4, |w| w.succession()),
            (3, |w| w.unbind()),
            (4, |w| w.desertion()),
            (2, |w| Op::Adopt(w.replica(), w.rng.below(3))),
            (5, |_| Op::Promote),
            (4, |w| w.join()),
            (4, |w| Op::Renew(w.replica())),
            (2, |w| w.bury()),
            (1, |w| Op::Drain(w.replica())),
            (1, |w| Op::Leave(w.replica())),
            (3, |w| Op::Pause(w.rng.pick(&QUEUES).to_string(), w.rng.percent(40))),
            (1, |w| Op::Offer(w.some(3, |w| w.rng.pick(&TASKS).to_string()).into_iter().collect::<BTreeSet<_>>())),
            (2, |w| Op::Record(w.some(2, |w| w.verdict(None)))),
            (2, |w| Op::Finished(w.some(8, World::run))),
            (3, |w| w.list_runs()),
            (2, |w| w.list_verdicts()),
            (2, |w| Op::LeaseIndex(w.replica(), w.rng.percent(50).then(|| w.run()), w.rng.below(5))),
            (1, |w| Op::Detached(w.rng.percent(50).then(|| w.run()), w.rng.below(5))),
            (1, |w| Op::Announce((0..w.rng.below(4)).map(|_| w.news()).collect())),
            (2, |w| Op::Events { back: w.rng.below(60), limit: w.rng.below(12) }),
            (1, |w| Op::SweepDue(w.rng.pick(&["lost", "clean"]), w.rng.pick(&[Duration::ZERO, NEVER]))),
            (1, |w| w.forget()),
            (1, |w| Op::ForgetRuns(w.age())),
            (1, |w| Op::ForgetReplicas(w.age())),
            (1, |w| Op::ForgetVerdicts(w.age())),
            (2, |w| Op::TrimEvents(w.rng.next() % 20)),
            (2, |w| w.apply()),
            (6, |w| w.start()),
            (24, |w| w.advance()),
            (14, |w| w.look()),
            (3, |w| w.list_executions()),
            (3, |w| w.read_execution()),
        ]);
        draw(self)
    }

    /// One to `most` of something.
    pub(super) fn some<T>(&mut self, most: usize, draw: impl Fn(&mut World) -> T) -> Vec<T> {
        (0..=self.rng.below(most)).map(|_| draw(self)).collect()
    }

    pub(super) fn next_id(&mut self) -> uuid::Uuid {
        self.ids.next(1_767_225_600_000, u128::from(self.rng.next()) << 64)
    }

    /// Mostly a known run, the younger the likelier.
    fn run(&mut self) -> RunId {
        let reach = if self.rng.percent(70) { 12 } else { 400 };
        let back = self.rng.below(reach.min(self.runs.len()));
        match self.runs.iter().rev().nth(back) {
            Some(run) if self.rng.percent(96) => *run,
            _ => RunId(self.next_id()),
        }
    }

    fn replica(&mut self) -> ReplicaId {
        let back = self.rng.below(self.replicas.len().min(4));
        match self.replicas.iter().rev().nth(back) {
            Some(replica) if self.rng.percent(96) => *replica,
            _ => ReplicaId(self.next_id()),
        }
    }

    fn text(&mut self) -> Json {
        Json::stored(self.rng.pick(&TEXTS))
    }

    fn maybe_text(&mut self) -> Option<Json> {
        self.rng.percent(60).then(|| self.text())
    }

    fn age(&mut self) -> Duration {
        if self.rng.percent(60) { NEVER } else { Duration::ZERO }
    }

    fn enqueue(&mut self) -> Op {
        let most = if self.rng.percent(60) { 1 } else { 6 };
        Op::Enqueue(self.some(most, World::request))
    }

    /// Mostly a new request, sometimes one that was sent before, in the same batch or earlier.
    fn request(&mut self) -> Enqueue {
        let back = self.rng.below(self.sent.len().min(4));
        if let Some(again) = self.sent.iter().rev().nth(back).filter(|_| self.rng.percent(8)) {
            return again.clone();
        }
        let most = if self.rng.percent(70) { 1 } else { 5 };
        let runs: Vec<NewRun> = self.some(most, World::new_run);
        self.runs.extend(runs.iter().map(|run| run.id));
        let newest_key = 2 + self.runs.len() / 8;
        let idempotency = self.rng.percent(35).then(|| Idempotency {
            key: format!("request {}", self.rng.below(newest_key)),
            fingerprint: if self.rng.percent(80) { "one" } else { "other" }.to_string(),
        });
        let request = Enqueue { runs, idempotency };
        self.sent.push(request.clone());
        request
    }

    fn new_run(&mut self) -> NewRun {
        let max_attempts = 1 + self.rng.small(3);
        let heartbeat = self.rng.pick(&[HeartbeatMode::Auto, HeartbeatMode::Auto, HeartbeatMode::Manual]);
        let task = self.rng.pick(&TASKS);
        let host = if task == COMMAND && self.rng.percent(15) { self.host() } else { None };
        let spec = Spec {
            kind: self.rng.pick(&Kind::ALL),
            task: task.to_string(),
            queue: self.rng.pick(&QUEUES).to_string(),
            priority: self.rng.pick(&[-1, 0, 0, 0, 5]),
            input: self.text(),
            policy: Arc::new(Policy { heartbeat, max_attempts, ..Policy::BASELINE }),
            unique_key: self.rng.percent(45).then(|| format!("key '{}'", self.rng.below(3))),
            args: self.rng.percent(30).then(|| self.text()),
            parent: None,
            host,
            session: self.rng.percent(10).then(|| self.session()),
            occurrence: None,
        };
        let run_at = self.rng.weighted(&[(8, None), (1, Some(LONG_AGO)), (1, Some(YEAR_2200))]);
        NewRun { id: RunId(self.next_id()), spec: Arc::new(spec), run_at }
    }

    fn session(&mut self) -> Session {
        let affinity = self.rng.pick(&[Affinity::Hint, Affinity::Strict]);
        let ttl = self.rng.percent(50).then_some(Duration::from_secs(90));
        Session { key: self.rng.pick(&["a", "o'clock", "é"]).to_string(), affinity, ttl }
    }

    fn claim(&mut self) -> Op {
        let free = |w: &mut World| w.rng.pick(&[0, 1, 1, 2, 3, 100]);
        let mut tasks = BTreeMap::new();
        let there = HOSTS.map(|host| lane_on(COMMAND, host));
        for lane in TASKS.map(str::to_string).into_iter().chain(there) {
            if self.rng.percent(85) {
                tasks.insert(lane, free(self));
            }
        }
        let mut queues = BTreeMap::new();
        for queue in QUEUES {
            if self.rng.percent(30) {
                queues.insert(queue.to_string(), free(self));
            }
        }
        let among = self.rng.percent(20).then(|| BTreeSet::from([self.rng.pick(&QUEUES).to_string()]));
        Op::Claim(Claim { replica: self.replica(), limit: self.rng.below(7), tasks, queues, among })
    }

    /// Mostly a lease that stands, sometimes any that was ever granted.
    fn lease(&mut self) -> Option<Claimed> {
        let run = if self.rng.percent(75) { self.one_of(|w| &w.running) } else { None };
        let standing = run.and_then(|run| self.last_lease(run).cloned());
        let back = self.rng.below(self.leases.len());
        standing.or_else(|| self.leases.get(back).cloned())
    }

    fn last_lease(&self, run: RunId) -> Option<&Claimed> {
        self.leases.iter().rev().find(|claimed| claimed.lease.run_id == run)
    }

    fn one_of(&mut self, runs: impl Fn(&World) -> &Vec<RunId>) -> Option<RunId> {
        let place = self.rng.below(runs(self).len());
        runs(self).get(place).copied()
    }

    fn proof(&mut self) -> Proof {
        let lease = self.lease();
        self.proof_of(lease.as_ref())
    }

    /// Shows the right token, that of another lease, or one that was never granted.
    fn proof_of(&mut self, claimed: Option<&Claimed>) -> Proof {
        let (run, attempt, owner) = match claimed {
            Some(claimed) => (claimed.lease.run_id, claimed.lease.attempt, claimed.lease.replica_id),
            None => (self.run(), 1, ReplicaId(uuid::Uuid::nil())),
        };
        let other = self.lease().map(|other| Secret::Of(other.lease.run_id, other.lease.attempt));
        let secret = match self.rng.below(20) {
            0 => Secret::Forged,
            1 => other.unwrap_or(Secret::Forged),
            _ => Secret::Of(run, attempt),
        };
        let owner = if self.rng.percent(5) { self.replica() } else { owner };
        Proof { run, attempt, secret, owner, rescue: self.rng.percent(20) }
    }

    fn host(&mut self) -> Option<String> {
        self.rng.pick(&[None, Some(HOSTS[0]), Some(HOSTS[1])]).map(str::to_string)
    }

    /// A lease of a detached run that stands.
    fn detached(&mut self) -> Option<Claimed> {
        let standing = self.running.iter().filter_map(|run| self.last_lease(*run));
        let detached: Vec<Claimed> = standing.filter(|claimed| claimed.spec.detached()).cloned().collect();
        let place = self.rng.below(detached.len());
        detached.get(place).cloned()
    }

    fn place(&mut self) -> Op {
        let claimed = self.detached();
        Op::Place(self.proof_of(claimed.as_ref()), self.host())
    }

    /// The owner of a detached run goes, and a newcomer on its host, or whoever, takes over.
    fn succession(&mut self) -> Op {
        let Some(claimed) = self.detached() else { return self.join() };
        let owner = claimed.lease.replica_id;
        let limit = self.rng.pick(&[0, 1, 1, 100, 100, 100]);
        let host = self.hosts.get(&owner).copied().unwrap_or(HOSTS[0]);
        let join = self.join_on(host);
        let to = if self.rng.percent(80) { self.replicas.last().copied() } else { None };
        let adopt = Op::Adopt(to.unwrap_or_else(|| self.replica()), limit);
        let list = Op::Detached(self.rng.percent(30).then(|| self.run()), 5);
        let end = if self.rng.percent(50) { Op::Leave(owner) } else { Op::Bury(owner, None, self.verdict(None)) };
        self.intended = vec![Op::Place(self.proof_of(Some(&claimed)), self.host()), adopt, list, end];
        join
    }

    fn news(&mut self) -> News {
        News {
            kind: self.rng.pick(&[EventKind::JobStale, EventKind::JobDead]),
            subject: self.run().to_string(),
            attempt: self.rng.percent(50).then(|| self.rng.small(3)),
            detail: self.maybe_text(),
        }
    }

    fn unbind(&mut self) -> Op {
        Op::Unbind(self.rng.pick(&HOSTS), self.rng.pick(&[0, 1, 1, 2, 100]))
    }

    /// A detached run begins somewhere and is returned; then its host is given up.
    fn desertion(&mut self) -> Op {
        let Some(claimed) = self.detached() else { return self.claim() };
        let host = self.rng.pick(&HOSTS);
        let next = self.rng.pick(&[Next::Ready, Next::After(Duration::ZERO), Next::After(NEVER)]);
        let settle = Move { next, ..self.settle_of(Some(claimed.clone())) };
        let unbind = Op::Unbind(host, self.rng.pick(&[1, 100]));
        self.intended = vec![self.claim(), Op::Promote, unbind, Op::Settle(vec![settle])];
        Op::Place(self.proof_of(Some(&claimed)), Some(host.to_string()))
    }

    fn settle(&mut self) -> Move {
        let claimed = self.lease();
        self.settle_of(claimed)
    }

    fn settle_of(&mut self, claimed: Option<Claimed>) -> Move {
        let proof = self.proof_of(claimed.as_ref());
        let result = self.node_result(claimed.as_ref()).or_else(|| self.maybe_text());
        let ending = Ending {
            outcome: self.rng.pick(&Outcome::ALL),
            result,
            error: self.maybe_text(),
            permanent: self.rng.percent(10),
            ..Ending::plain(Outcome::Failed)
        };
        let next = self.rng.pick(&[
            Next::Finish(RunState::Succeeded),
            Next::Finish(RunState::Failed),
            Next::Finish(RunState::Cancelled),
            Next::Ready,
            Next::Ready,
            Next::After(Duration::ZERO),
            Next::After(NEVER),
        ]);
        let standing = Standing { attempt: proof.attempt, tries: self.rng.small(4), losses: self.rng.small(2) };
        let spec = claimed.map_or_else(|| self.new_run().spec, |claimed| claimed.spec);
        let last_heartbeat_at = self.rng.percent(20).then_some(LONG_AGO);
        let worker_id = self.rng.percent(30).then(|| WorkerId(self.next_id()));
        let verdict = self.rng.percent(25).then(|| self.verdict(Some(&proof)));
        Move { proof, spec, ending, next, standing, last_heartbeat_at, worker_id, verdict }
    }

    fn signal(&mut self) -> Signal {
        Signal { proof: self.proof(), progress: self.maybe_text(), checkpoint: self.maybe_text() }
    }

    /// A little is kept, so that much goes.
    fn append(&mut self) -> Op {
        let keep = Keep { bytes: self.rng.pick(&[0, 40, 60, 1000]), items: self.rng.pick(&[0, 5, 8, 1000]) };
        Op::Append(self.some(4, World::words), keep)
    }

    /// Mostly what comes next, sometimes what was said before, sometimes with a gap.
    fn words(&mut self) -> Words {
        let proof = self.proof();
        let items = self.some(3, |w| Item { kind: w.rng.pick(OutputKind::ALL), text: w.text().as_str().into() });
        let items = if self.rng.percent(5) { Vec::new() } else { items };
        let said = self.said.entry((proof.run, proof.attempt)).or_default();
        let (next, count) = (*said, items.len() as u64);
        *said += count;
        let after =
            self.rng.pick(&[next, next, next, next, next.saturating_sub(1), next.saturating_sub(count), next + 1]);
        Words { proof, after, items }
    }

    fn read_output(&mut self) -> Op {
        // Of those who streamed, mostly one that runs: what they said was heeded, rather than fenced.
        let streamed: Vec<RunId> = self.said.keys().map(|(run, _)| *run).collect();
        let running: Vec<RunId> = streamed.iter().filter(|run| self.running.contains(run)).copied().collect();
        let among = if self.rng.percent(80) && !running.is_empty() { running } else { streamed };
        let run = if among.is_empty() { self.run() } else { self.rng.pick(&among) };
        Op::Output(OutputFilter {
            run,
            kind: self.rng.pick(&[None, Some(OutputKind::Output), Some(OutputKind::Log)]),
            after: self.rng.next() % 6,
            limit: self.rng.below(8),
            bytes: self.rng.below(40),
        })
    }

    fn cancel(&mut self) -> Op {
        let running = if self.rng.percent(50) { self.one_of(|w| &w.running) } else { None };
        Op::Cancel(running.unwrap_or_else(|| self.run()))
    }

    fn reopen(&mut self) -> Op {
        let finished = if self.rng.percent(80) { self.one_of(|w| &w.finished) } else { None };
        let run = finished.unwrap_or_else(|| self.run());
        let last = self.last_lease(run).map_or(0, |claimed| claimed.lease.attempt);
        Op::Reopen(run, if self.rng.percent(85) { last } else { self.rng.small(3) })
    }

    fn forget(&mut self) -> Op {
        let finished = if self.rng.percent(70) { self.one_of(|w| &w.finished) } else { None };
        Op::Forget(finished.unwrap_or_else(|| self.run()))
    }

    fn join(&mut self) -> Op {
        let host = self.rng.pick(&HOSTS);
        self.join_on(host)
    }

    fn join_on(&mut self, host: &'static str) -> Op {
        let id = ReplicaId(self.next_id());
        self.replicas.push(id);
        self.hosts.insert(id, host);
        Op::Join(NewReplica {
            id,
            host: host.to_string(),
            machine: self.rng.percent(50).then(|| format!("machine of {host}")),
            version: "0.1.0".to_string(),
            heartbeat_interval: Duration::from_secs(10),
            heartbeat_timeout: Duration::from_millis(30_500),
            wall: LONG_AGO,
        })
    }

    fn bury(&mut self) -> Op {
        let beat = self.rng.percent(70).then(|| 1 + self.rng.next() % 3);
        Op::Bury(self.replica(), beat, self.verdict(None))
    }

    fn verdict(&mut self, about: Option<&Proof>) -> Verdict {
        let id = VerdictId(self.next_id());
        self.verdicts.push(id);
        let judged_by = self.replica();
        let subject = match about {
            Some(proof) => Subject { kind: SubjectKind::Run, id: proof.run.to_string() },
            None => Subject { kind: SubjectKind::Replica, id: self.replica().to_string() },
        };
        Verdict {
            id,
            at: LONG_AGO,
            subject,
            judgement: self.rng.pick(&Judgement::ALL),
            reason: Reason::ReplicaSilent.to_string(),
            evidence: self.text(),
            judged_by,
            run_id: about.map(|proof| proof.run),
            attempt: about.map(|proof| proof.attempt),
            then: "we'll see".to_string(),
        }
    }

    fn list_runs(&mut self) -> Op {
        Op::Runs(RunFilter {
            state: self.rng.percent(40).then(|| self.rng.pick(&RunState::ALL)),
            task: self.rng.percent(30).then(|| self.rng.pick(&TASKS).to_string()),
            queue: self.rng.percent(30).then(|| self.rng.pick(&QUEUES).to_string()),
            kind: self.rng.percent(20).then(|| self.rng.pick(&Kind::ALL)),
            schedule: None,
            before: self.rng.percent(50).then(|| self.run()),
            limit: self.rng.below(20),
        })
    }

    fn list_verdicts(&mut self) -> Op {
        let back = self.rng.below(self.verdicts.len().min(20));
        Op::Verdicts(VerdictFilter {
            run_id: self.rng.percent(30).then(|| self.run()),
            subject: self.rng.percent(30).then(|| self.run().to_string()),
            before: self.verdicts.iter().rev().nth(back).copied().filter(|_| self.rng.percent(50)),
            limit: self.rng.below(10),
        })
    }
}
