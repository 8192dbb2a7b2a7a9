use crate::{Author, Declared, Part, Result};
use async_trait::async_trait;
use everbeat_model::event::{EventKind, line};
use everbeat_model::schedule::{Decision, Left, Occurrence, Schedule, ScheduleKind, Situation, Wish};
use everbeat_model::{Json, Run, RunId, ScheduleId, StoreTime};
use std::collections::BTreeMap;
use std::sync::Arc;
use std::time::Duration;

/// Schedules and flows. What becomes of a due time is decided under the schedule's lock and written with all that follows
/// from it (runs made, occurrences left out, when it is due next) in one transaction: once, whoever looks.
///
/// A run of a schedule notes it in the transaction that finishes the run. Whoever looks next takes the note. A note that is
/// taken twice costs a look, nothing else.
#[async_trait]
pub trait Schedules {
    /// Writes a schedule. Another definition under the same name takes the place of the one before, and what waits follows
    /// it.
    async fn put_schedule(&self, put: PutSchedule) -> Result<Put>;

    /// Switches a schedule on or off; none if there is no such schedule.
    async fn enable_schedule(&self, kind: ScheduleKind, name: &str, enabled: bool) -> Result<Option<StoredSchedule>>;

    /// Forgets a schedule and what waits for it. Its runs stay.
    async fn delete_schedule(&self, kind: ScheduleKind, name: &str, version: Option<u64>) -> Result<Deleted>;

    async fn schedule(&self, kind: ScheduleKind, name: &str) -> Result<Option<StoredSchedule>>;

    /// By name. No more than [`LIST_BYTES`](crate::LIST_BYTES) besides the last one: inputs and results may be large, and
    /// a list is read as a whole.
    async fn schedules(&self, filter: ScheduleFilter) -> Result<Part<StoredSchedule>>;

    /// How many of each kind are late.
    async fn late_schedules(&self) -> Result<BTreeMap<ScheduleKind, u64>>;

    /// Schedules to be looked at, longest due first, at most `limit`: those that are noted, those that are due by the
    /// clock if their kind is in `clock`, and those that may have become late.
    async fn due_schedules(&self, clock: &[ScheduleKind], limit: usize) -> Result<DueSchedules>;

    /// Looks at a schedule. A mere look passes over one that somebody else looks at just now. A trigger whose run is known
    /// already changes nothing, and answers where the run is: it may be asked for again. So does one with an idempotency
    /// key that was used for the same request; with a key of another request it is refused (`KeyReused`). A trigger that
    /// becomes nothing uses no key.
    async fn look_at_schedule(&self, id: ScheduleId, wish: Wish, scheduler: Arc<dyn Scheduler>) -> Result<LookedAt>;

    /// What waits for its turn, oldest first.
    async fn waiting_occurrences(&self, id: ScheduleId) -> Result<Vec<Occurrence>>;

    /// Occurrences that were left out, newest first.
    async fn left_occurrences(&self, id: ScheduleId, limit: usize) -> Result<Vec<LeftOut>>;

    /// Notes schedules whose begun run is over or unknown, at most `limit`; answers how many. There are none unless
    /// something went wrong: this is the net. Notes for schedules that were deleted meanwhile are dropped.
    async fn note_stranded_schedules(&self, limit: usize) -> Result<usize>;
}

/// What decides over a situation. Pure, and quick: it is called inside a transaction, again if that has to be repeated.
pub trait Scheduler: Send + Sync + 'static {
    fn look(&self, situation: &Situation, wish: Wish) -> Decision;
}

#[derive(Clone, Debug)]
pub struct PutSchedule {
    /// Its id, should it be new.
    pub id: ScheduleId,
    pub schedule: Schedule,
    /// Unless given, it stays as it is; a new one is enabled.
    pub enabled: Option<bool>,
    /// Only in place of this version.
    pub version: Option<u64>,
    pub author: Author,
}

#[derive(Clone, Debug)]
pub enum Put {
    Created(StoredSchedule),
    Replaced(StoredSchedule),
    /// The same was written before.
    Unchanged(StoredSchedule),
    /// Its version is another one; none if there is no such schedule.
    Conflict(Option<u64>),
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Deleted {
    Done,
    NotFound,
    /// Its version is another one.
    Conflict(u64),
}

/// A schedule as it is stored.
#[derive(Clone, Debug)]
pub struct StoredSchedule {
    pub id: ScheduleId,
    pub schedule: Arc<Schedule>,
    /// Rises with every definition.
    pub version: u64,
    pub enabled: bool,
    pub created_at: StoreTime,
    pub updated_at: StoreTime,
    pub next_due: Option<StoreTime>,
    /// The last due time that was decided.
    pub last_due: Option<StoreTime>,
    pub late_since: Option<StoreTime>,
    /// Where its last run left off.
    pub cursor: Option<Json>,
    pub waiting: usize,
    /// Its runs that are not over.
    pub unfinished: usize,
    /// The run that was made last, unless it was forgotten.
    pub last_run: Option<Run>,
    pub declared: Declared,
}

impl StoredSchedule {
    /// What may be large of it: its definition, its cursor and its last run.
    pub fn bytes(&self) -> usize {
        let cursor = self.cursor.as_ref().map_or(0, |cursor| cursor.as_str().len());
        self.schedule.to_stored().len() + cursor + self.last_run.as_ref().map_or(0, Run::bytes)
    }
}

#[derive(Clone, Debug, Default)]
pub struct ScheduleFilter {
    pub kind: Option<ScheduleKind>,
    /// Only names after this one.
    pub after: Option<String>,
    pub limit: usize,
}

#[derive(Clone, Debug, Default, PartialEq)]
pub struct DueSchedules {
    pub schedules: Vec<DueSchedule>,
    /// How long until the next one is to be looked at; none if there is none.
    pub next_in: Option<Duration>,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct DueSchedule {
    pub id: ScheduleId,
    pub kind: ScheduleKind,
    /// Something of it is due by the clock.
    pub by_clock: bool,
}

#[derive(Clone, Debug, PartialEq)]
pub enum LookedAt {
    Done(LookedSchedule),
    /// Somebody else looks at it.
    Busy,
    NotFound,
}

/// What a look came to.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct LookedSchedule {
    pub due: bool,
    pub begun: Vec<RunId>,
    /// Occurrences that wait since this look.
    pub waiting: Vec<RunId>,
    pub left: u64,
    pub again: bool,
    /// This is what an earlier trigger came to.
    pub repeats: bool,
}

impl LookedSchedule {
    /// Where the run of an earlier trigger is.
    pub fn again(run: RunId, waits: bool) -> LookedSchedule {
        let (begun, waiting) = if waits { (Vec::new(), vec![run]) } else { (vec![run], Vec::new()) };
        LookedSchedule { begun, waiting, repeats: true, ..LookedSchedule::default() }
    }

    /// Whether this run has been made, or waits for its turn.
    pub fn has(&self, run: RunId) -> bool {
        self.begun.contains(&run) || self.waiting.contains(&run)
    }

    pub fn of(decision: &Decision) -> LookedSchedule {
        let waits = |occurrence: &&Occurrence| occurrence.waits();
        LookedSchedule {
            due: decision.due,
            begun: decision.begin.iter().map(|run| run.id).collect(),
            waiting: decision.add.iter().filter(waits).map(|occurrence| occurrence.run).collect(),
            left: decision.left.iter().map(|left| left.count).sum(),
            again: decision.again,
            repeats: false,
        }
    }
}

/// Occurrences that were left out, and when that was decided.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct LeftOut {
    pub at: StoreTime,
    pub left: Left,
}

/// So many records of what was left out are kept for a schedule.
pub const MOST_LEFT: usize = 1000;

/// What a decision tells those who follow the log.
pub fn schedule_events(situation: &Situation, decision: &Decision) -> Vec<String> {
    let schedule = &situation.schedule;
    let flow = schedule.kind == ScheduleKind::Flow;
    let mut lines = Vec::new();
    let mut tell = |kind: EventKind, detail: serde_json::Value| {
        lines.push(line(kind, &schedule.name, None, Some(&Json::of(&detail))));
    };
    for left in &decision.left {
        let kind = if flow { EventKind::FlowSkipped } else { EventKind::ScheduleSkipped };
        let (why, count) = (left.why.as_str(), left.count);
        tell(kind, serde_json::json!({ "why": why, "count": count, "from": left.from, "to": left.to }));
    }
    match (situation.late_since, decision.late_since) {
        (None, Some(since)) => {
            let kind = if flow { EventKind::FlowLate } else { EventKind::ScheduleLate };
            tell(kind, serde_json::json!({ "since": since }));
        }
        (Some(since), None) => {
            let kind = if flow { EventKind::FlowRecovered } else { EventKind::ScheduleRecovered };
            tell(kind, serde_json::json!({ "late_since": since }));
        }
        _ => {}
    }
    lines.extend(decision.begin.iter().map(|run| line(EventKind::RunCreated, &run.id.to_string(), None, None)));
    lines
}
