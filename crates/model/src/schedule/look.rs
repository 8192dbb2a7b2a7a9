//! One look at a schedule: what is over, what is due, whose turn it is. Whoever looks holds the schedule's lock, and writes
//! all of what comes out in one transaction.

use super::decide::{Begun, Left, Look, Room, Standing, ask, decide};
use super::{CatchUp, FLOW, Overlap, Rhythm, Schedule, ScheduledWork};
use crate::Planted;
use crate::id::{RunId, ScheduleId};
use crate::idempotency::Idempotency;
use crate::json::Json;
use crate::policy::{Policy, PolicyPatch};
use crate::run::{Kind, NewRun, OccurrenceOf, RunState, Spec};
use crate::spelled::spelled;
use crate::time::StoreTime;
use serde_json::{Map, Value, json};
use std::collections::BTreeSet;
use std::sync::Arc;
use std::time::Duration;

/// What the store knows of a schedule, read under its lock.
#[derive(Clone, Debug)]
pub struct Situation {
    pub id: ScheduleId,
    pub schedule: Arc<Schedule>,
    pub enabled: bool,
    /// The earliest due time that is not decided.
    pub next_due: Option<StoreTime>,
    /// Its occurrences that wait or have begun, in the order of their ids.
    pub occurrences: Vec<Occurrence>,
    /// Those it comes after that have succeeded since.
    pub fed_by: BTreeSet<String>,
    /// The others of its group; nothing if it has none.
    pub others: Others,
    /// Since when it counts as late.
    pub late_since: Option<StoreTime>,
    /// Where the last run of it left off.
    pub cursor: Option<Json>,
    pub now: StoreTime,
}

/// One due time that became, or will become, a run.
#[derive(Clone, Debug, PartialEq)]
pub struct Occurrence {
    /// That of its run, also before there is one.
    pub run: RunId,
    pub due: StoreTime,
    pub cause: DueBy,
    /// What somebody asked for with it.
    pub wish: Option<Json>,
    pub state: OccurrenceState,
}

impl Occurrence {
    pub fn waits(&self) -> bool {
        self.state == OccurrenceState::Waiting
    }

    /// Somebody asked for a part of the source, from here to there.
    pub fn of_a_part(&self) -> bool {
        let wish = self.wish.as_ref().and_then(|wish| wish.read::<Value>().ok());
        wish.is_some_and(|wish| wish.get("range").is_some())
    }
}

#[derive(Clone, Debug, PartialEq)]
pub enum OccurrenceState {
    /// For its turn.
    Waiting,
    /// Its run is not over.
    Begun,
    /// Its run is over, or was forgotten: then nothing is known of its end.
    Over { state: Option<RunState>, checkpoint: Option<Json> },
}

spelled! {
    /// Why something is due.
    pub enum DueBy {
        Clock = "clock",
        /// Somebody asked.
        Asked = "asked",
        /// What it comes after has succeeded.
        After = "after",
    }
}

/// What others that share a limit with a schedule have.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct Others {
    pub unfinished: usize,
    /// The due times of what waits there and may begin.
    pub waiting: Vec<StoreTime>,
}

/// What is looked for.
#[derive(Clone, Debug, PartialEq)]
pub enum Wish {
    /// Whatever follows from what is over. What is due by the clock only if `clock` says so: somebody outside may call
    /// for that.
    Look { clock: bool },
    /// Somebody asks for a run now. What is asked for again with the same key is answered with the run of the first time.
    Trigger { run: RunId, wish: Option<Json>, idempotency: Option<Idempotency> },
}

impl Wish {
    /// The run that is asked for and the key of the request, if it has one.
    pub fn key(&self) -> Option<(RunId, &Idempotency)> {
        match self {
            Wish::Trigger { run, idempotency: Some(idempotency), .. } => Some((*run, idempotency)),
            _ => None,
        }
    }
}

/// What a look comes to.
#[derive(Clone, Debug, Default)]
pub struct Decision {
    /// Something was due by the clock.
    pub due: bool,
    /// Runs to be made. Those of occurrences that waited wait no longer.
    pub begin: Vec<NewRun>,
    /// Occurrences that wait from now on, and those that begin and did not wait.
    pub add: Vec<Occurrence>,
    /// Of these the run is over: they are forgotten.
    pub over: Vec<RunId>,
    pub left: Vec<Left>,
    pub next_due: Option<StoreTime>,
    /// The last due time that was decided, if one was.
    pub last_due: Option<StoreTime>,
    pub cursor: Option<Json>,
    /// What it comes after was taken into account.
    pub fed: bool,
    /// A run has succeeded: those that come after it are told.
    pub feeds: bool,
    /// There is room in its group: the others are looked at.
    pub frees: bool,
    pub late_since: Option<StoreTime>,
    /// When to look again besides `next_due`.
    pub look_at: Option<StoreTime>,
    /// There is more to decide: look again at once.
    pub again: bool,
}

/// What runs are made with.
#[derive(Clone, Debug)]
pub struct RunDefaults {
    pub policy: Arc<Policy>,
    pub queue: String,
    pub hole: Planted,
}

/// Decides.
pub fn look(situation: &Situation, wish: Wish, defaults: &RunDefaults, new_run: &mut dyn FnMut() -> RunId) -> Decision {
    let schedule = &*situation.schedule;
    let mut decision =
        Decision { next_due: situation.next_due, cursor: situation.cursor.clone(), ..Decision::default() };
    for occurrence in &situation.occurrences {
        let OccurrenceState::Over { state, checkpoint } = &occurrence.state else { continue };
        decision.over.push(occurrence.run);
        decision.feeds |= *state == Some(RunState::Succeeded);
        decision.frees |= schedule.group.is_some();
        // A run over a part of the source says nothing of how far the flow has come.
        if let Some(checkpoint) = checkpoint.as_ref().filter(|_| !occurrence.of_a_part()) {
            decision.cursor = Some(checkpoint.clone());
        }
    }
    // Nothing but what somebody asks for begins while it is not enabled.
    let may_begin = |occurrence: &&Occurrence| situation.enabled || occurrence.cause == DueBy::Asked;
    let waiting: Vec<&Occurrence> =
        situation.of(|state| *state == OccurrenceState::Waiting).filter(may_begin).collect();
    let clock = matches!(wish, Wish::Look { clock: true }) && situation.enabled;
    decision.fed = situation.enabled
        && !schedule.after.is_empty()
        && schedule.after.iter().all(|name| situation.fed_by.contains(name));
    let at_once = (decision.fed || matches!(wish, Wish::Trigger { .. })).then_some(situation.now);
    // While something waits, what is due and may not overlap is left out.
    let waits_for_it = schedule.terms.overlap != Overlap::Skip || waiting.is_empty();
    let by_clock = situation.due_now().filter(|_| clock && waits_for_it);
    let oldest = waiting.iter().map(|occurrence| occurrence.due).chain(at_once).chain(by_clock).min();
    let mut standing = Standing {
        next_due: situation.next_due,
        unfinished: situation.of(|state| *state == OccurrenceState::Begun).count(),
        waiting: waiting.iter().map(|occurrence| occurrence.due).collect(),
        room: room(situation, oldest),
    };
    let mut terms = schedule.terms.clone();
    if schedule.group.is_some() {
        terms.concurrency = None;
    }
    if !clock {
        (terms.rhythm, standing.next_due) = (None, None);
    }
    let by_clock = decide(&terms, &standing, situation.now);
    if clock {
        (decision.next_due, decision.due, decision.again) = (by_clock.next_due, by_clock.due, by_clock.again);
    }
    standing.proceed(&by_clock);
    decision.take(situation, &waiting, by_clock, DueBy::Clock, None, defaults, new_run);
    if let Wish::Trigger { run, wish, .. } = wish {
        let asked = ask(&terms, &standing, situation.now);
        standing.proceed(&asked);
        decision.take(situation, &waiting, asked, DueBy::Asked, wish.as_ref(), defaults, &mut || run);
    }
    if decision.fed {
        let fed = ask(&terms, &standing, situation.now);
        decision.take(situation, &waiting, fed, DueBy::After, None, defaults, new_run);
    }
    decision.judge_lateness(situation);
    decision
}

/// How many more runs the others of its group leave. Those that wait there for longer come first: longer than the oldest
/// of what waits here or is decided by this look. Otherwise what this look has wait could be older than all that waits, and
/// nobody would look at it again.
fn room(situation: &Situation, oldest: Option<StoreTime>) -> Room {
    if situation.schedule.group.is_none() {
        return Room::Unbounded;
    }
    let limit = situation.schedule.terms.concurrency.unwrap_or(1);
    let own = situation.of(|state| *state == OccurrenceState::Begun).count();
    let oldest = oldest.unwrap_or(situation.now);
    let ahead = situation.others.waiting.iter().filter(|due| **due < oldest).count();
    Room::For(limit.saturating_sub(own + situation.others.unfinished + ahead))
}

impl Situation {
    /// The oldest due time that a look by the clock has begin or wait, if one has come.
    fn due_now(&self) -> Option<StoreTime> {
        let terms = &self.schedule.terms;
        let (rhythm, first) = terms.rhythm.as_ref().zip(self.next_due.filter(|due| *due <= self.now))?;
        Some(if terms.catch_up == CatchUp::All { first } else { rhythm.latest(first, self.now) })
    }

    fn of(&self, which: impl Fn(&OccurrenceState) -> bool) -> impl Iterator<Item = &Occurrence> {
        self.occurrences.iter().filter(move |occurrence| which(&occurrence.state))
    }
}

impl Standing {
    /// What was just decided counts for what is decided next.
    fn proceed(&mut self, look: &Look) {
        let waited = look.begun.iter().filter(|begun| begun.waited).count();
        self.waiting.drain(..waited);
        self.waiting.extend(&look.queued);
        self.unfinished += look.begun.len();
        if let Room::For(room) = &mut self.room {
            *room = room.saturating_sub(look.begun.len());
        }
    }
}

impl Decision {
    /// Turns what the terms come to into runs and occurrences. Those that waited are the first of `waiting` that have not
    /// begun.
    #[allow(clippy::too_many_arguments)]
    fn take(
        &mut self,
        situation: &Situation,
        waiting: &[&Occurrence],
        look: Look,
        cause: DueBy,
        wish: Option<&Json>,
        defaults: &RunDefaults,
        new_run: &mut dyn FnMut() -> RunId,
    ) {
        let new = |run: RunId, due: StoreTime, state: OccurrenceState| {
            let wish = wish.cloned();
            Occurrence { run, due, cause, wish, state }
        };
        for Begun { due, waited } in look.begun {
            if waited {
                let begun: BTreeSet<RunId> = self.begin.iter().map(|run| run.id).collect();
                let queued = self.add.iter().filter(|added| added.state == OccurrenceState::Waiting);
                let mut turn =
                    waiting.iter().copied().chain(queued).filter(|occurrence| !begun.contains(&occurrence.run));
                if let Some(occurrence) = turn.next().cloned() {
                    self.begin.push(run_of(situation, &occurrence, self.cursor.as_ref(), defaults));
                    self.add.retain(|added| added.run != occurrence.run);
                    if !waiting.iter().any(|known| known.run == occurrence.run) {
                        self.add.push(Occurrence { state: OccurrenceState::Begun, ..occurrence });
                    }
                }
                continue;
            }
            let occurrence = new(new_run(), due, OccurrenceState::Begun);
            self.begin.push(run_of(situation, &occurrence, self.cursor.as_ref(), defaults));
            self.add.push(occurrence);
            self.decided(cause, due);
        }
        for due in look.queued {
            self.add.push(new(new_run(), due, OccurrenceState::Waiting));
            self.decided(cause, due);
        }
        for left in &look.left {
            self.decided(cause, left.to);
        }
        self.left.extend(look.left);
    }

    fn decided(&mut self, cause: DueBy, due: StoreTime) {
        if cause == DueBy::Clock {
            self.last_due = self.last_due.max(Some(due));
        }
    }

    /// It is late when something that was due is not over after `late_after`.
    fn judge_lateness(&mut self, situation: &Situation) {
        self.late_since = None;
        let Some(late_after) = situation.schedule.terms.late_after.filter(|_| situation.enabled) else { return };
        let over: BTreeSet<RunId> = self.over.iter().copied().collect();
        let open = situation.occurrences.iter().filter(|occurrence| !over.contains(&occurrence.run)).chain(&self.add);
        let Some(oldest) = open.map(|occurrence| occurrence.due).chain(self.next_due).min() else { return };
        let late_at = oldest.plus(late_after);
        if late_at <= situation.now {
            self.late_since = situation.late_since.or(Some(late_at));
        } else {
            self.look_at = Some(late_at);
        }
    }
}

/// The run of an occurrence that begins. A flow goes on at the cursor, also at that of a run whose end this very look found.
fn run_of(situation: &Situation, occurrence: &Occurrence, cursor: Option<&Json>, defaults: &RunDefaults) -> NewRun {
    let schedule = &*situation.schedule;
    let mut args = match occurrence.wish.as_ref().map(Json::read::<Value>) {
        Some(Ok(Value::Object(wish))) => wish,
        _ => Map::new(),
    };
    args.insert(schedule.kind.as_str().to_string(), json!(schedule.name));
    args.insert("due_at".to_string(), json!(occurrence.due));
    args.insert("cause".to_string(), json!(occurrence.cause.as_str()));
    let (kind, input, goes_on_at) = match &schedule.work {
        ScheduledWork::Task { input, .. } => (Kind::Task, input.clone(), None),
        ScheduledWork::Flow { configuration, .. } if configuration.get("task").is_some() => {
            (Kind::Flow, configuration.clone(), Some("cursor"))
        }
        // The configuration is read when the run begins, so that a change reaches what waits. What the runner of flows keeps
        // is more than a cursor, so that it is told apart from one that somebody asks for.
        ScheduledWork::Flow { .. } => (Kind::Flow, json!({ "flow": schedule.name }), Some("previous")),
    };
    if let Some(name) = goes_on_at
        && let Some(Ok(cursor)) = cursor.map(Json::read::<Value>)
    {
        args.entry(name.to_string()).or_insert(cursor);
    }
    let base = if schedule.task() == FLOW { patient(&defaults.policy) } else { defaults.policy.clone() };
    let spec = Spec {
        kind,
        task: schedule.task().to_string(),
        queue: schedule.queue.clone().unwrap_or_else(|| defaults.queue.clone()),
        priority: schedule.priority,
        input: Json::of(&input),
        args: Some(Json::of(&Value::Object(args))),
        policy: policy(&schedule.policy, &base),
        unique_key: None,
        parent: None,
        host: None,
        session: None,
        occurrence: Some(OccurrenceOf { schedule: situation.id, due: occurrence.due }),
    };
    NewRun { id: occurrence.run, spec: Arc::new(spec), run_at: None }
}

/// The runner of flows goes on where the attempt before was lost, so that many attempts cost little.
fn patient(policy: &Arc<Policy>) -> Arc<Policy> {
    let mut patient = (**policy).clone();
    patient.max_attempts = patient.max_attempts.max(FLOW_ATTEMPTS);
    patient.backoff.max = patient.backoff.max.min(FLOW_BACKOFF);
    patient.backoff.initial = patient.backoff.initial.min(FLOW_BACKOFF);
    Arc::new(patient)
}

/// Attempts of a run of a flow, unless the flow or the configuration asks for more.
const FLOW_ATTEMPTS: u32 = 25;
/// It waits no longer between them.
const FLOW_BACKOFF: Duration = Duration::from_secs(10);

/// The schedule's own policy over the configured one. It was checked when the schedule was written; should the
/// configuration have changed so that they no longer go together, the built-in one stands in.
fn policy(own: &Map<String, Value>, base: &Arc<Policy>) -> Arc<Policy> {
    if own.is_empty() {
        return base.clone();
    }
    let over = |base: &Policy| PolicyPatch::parse(&Value::Object(own.clone())).and_then(|patch| patch.over(base));
    over(base).or_else(|_| over(&Policy::BASELINE)).map_or_else(|_| base.clone(), Arc::new)
}

/// When a schedule that was written or enabled is due next. `last_due` is what was decided last: whatever the clock shows
/// by now, nothing until then is due again.
pub fn rearm(rhythm: Option<&Rhythm>, last_due: Option<StoreTime>, now: StoreTime) -> Option<StoreTime> {
    let rhythm = rhythm?;
    match (rhythm, last_due) {
        (Rhythm::Every(_), Some(last)) => rhythm.after(last).map(|next| next.max(now)),
        (Rhythm::Cron(_), Some(last)) => rhythm.after(last.max(now)),
        (_, None) => rhythm.first(now),
    }
}
