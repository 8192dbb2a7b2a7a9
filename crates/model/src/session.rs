//! Sessions: runs that belong together are performed by the same worker. What a run says of its session, which worker
//! performs the run, and when a session is over. Pure: whoever keeps the sessions hands in what is known.

use crate::error::Invalid;
use crate::id::{ReplicaId, SessionId, WorkerId};
use crate::spelled::spelled;
use crate::time::{BootInstant, duration_from, format_duration};
use serde_json::{Map, Value, json};
use std::time::Duration;

spelled! {
    /// How much a run insists on the worker of its session.
    pub enum Affinity {
        /// The worker of the session performs the run if that worker has a free slot; else another does, and the session
        /// moves there.
        Hint = "hint",
        /// No other worker performs the run while that of the session lives.
        Strict = "strict",
    }
}

/// What a run says of the session that it belongs to.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Session {
    pub key: String,
    pub affinity: Affinity,
    /// So long after its last use the session is over; none means as its pool says.
    pub ttl: Option<Duration>,
}

/// Sessions live no shorter.
pub const SHORTEST_TTL: Duration = Duration::from_secs(1);
/// Sessions live no longer without being used.
pub const LONGEST_TTL: Duration = Duration::from_secs(7 * 86_400);
/// Unless the run or its pool says otherwise.
pub const DEFAULT_TTL: Duration = Duration::from_secs(3600);

const KEY_LIMIT: usize = 200;
const FIELDS: [&str; 3] = ["key", "affinity", "ttl"];

impl Session {
    /// Reads `{"key": "user-42", "affinity": "strict", "ttl": "10m"}`.
    pub fn parse(value: &Value) -> Result<Session, Invalid> {
        let example = "write it like {\"key\": \"user-42\", \"affinity\": \"strict\", \"ttl\": \"10m\"}";
        let Value::Object(fields) = value else {
            return Err(Invalid::new("", value, "is not an object", example));
        };
        if let Some(strange) = fields.keys().find(|name| !FIELDS.contains(&name.as_str())) {
            let hint = format!("use only {}", FIELDS.join(", "));
            return Err(Invalid::new(strange, &fields[strange], "is not a field of a session", hint));
        }
        let key = match fields.get("key") {
            Some(Value::String(key)) => key.clone(),
            Some(other) => return Err(Invalid::new("key", other, "is not text", example)),
            None => return Err(Invalid::new("key", "nothing", "is missing", example)),
        };
        check_session_key("key", &key)?;
        let given = |name: &str| fields.get(name).filter(|value| !value.is_null());
        let affinity = match given("affinity") {
            None => Affinity::Hint,
            Some(word) => word.as_str().and_then(Affinity::parse).ok_or_else(|| {
                let words: Vec<&str> = Affinity::ALL.iter().map(|word| word.as_str()).collect();
                Invalid::new("affinity", word, "is not an affinity", format!("use {}", words.join(" or ")))
            })?,
        };
        let ttl = given("ttl").map(|ttl| check_ttl(ttl).map_err(|invalid| invalid.within("ttl"))).transpose()?;
        Ok(Session { key, affinity, ttl })
    }

    /// Whether a session that was not read is within bounds.
    pub fn check(&self) -> Result<(), Invalid> {
        check_session_key("key", &self.key)?;
        self.ttl.map_or(Ok(()), |ttl| in_range(ttl, format_duration(ttl)).map_err(|invalid| invalid.within("ttl")))
    }

    pub fn to_value(&self) -> Value {
        let mut fields = Map::new();
        fields.insert("key".to_string(), json!(self.key));
        fields.insert("affinity".to_string(), json!(self.affinity.as_str()));
        fields.insert("ttl".to_string(), json!(self.ttl.map(format_duration)));
        Value::Object(fields)
    }

    pub fn to_stored(&self) -> String {
        self.to_value().to_string()
    }

    /// Reads the stored form. What cannot be read is none: a row must never stop a loop.
    pub fn from_stored(text: &str) -> Option<Session> {
        Session::parse(&serde_json::from_str(text).ok()?).ok()
    }
}

/// Keys of sessions stand in paths and lists.
pub fn check_session_key(field: &str, key: &str) -> Result<(), Invalid> {
    let hint = format!("use 1 to {KEY_LIMIT} bytes without control characters");
    if key.is_empty() || key.len() > KEY_LIMIT || key.chars().any(char::is_control) {
        return Err(Invalid::new(field, format!("{key:?}"), "cannot be the key of a session", hint));
    }
    Ok(())
}

/// Reads the time that a session lives without being used.
pub fn check_ttl(value: &Value) -> Result<Duration, Invalid> {
    let ttl = duration_from(value)?;
    in_range(ttl, value)?;
    Ok(ttl)
}

fn in_range(ttl: Duration, shown: impl std::fmt::Display) -> Result<(), Invalid> {
    if !(SHORTEST_TTL..=LONGEST_TTL).contains(&ttl) {
        let hint = format!("use {} to {}", format_duration(SHORTEST_TTL), format_duration(LONGEST_TTL));
        return Err(Invalid::new("", shown, "is out of range", hint));
    }
    Ok(())
}

/// A session as the server that keeps it knows it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Live {
    /// Another one each time that a session of the same key begins.
    pub id: SessionId,
    pub worker: WorkerId,
    /// A run of it was strict: no hint moves it.
    pub strict: bool,
    pub ttl: Duration,
    pub begun: BootInstant,
    pub last_used: BootInstant,
    /// A person has asked for its end: nothing new is performed in it.
    pub ending: bool,
    /// Runs may wait for its worker.
    pub awaited: bool,
}

/// What is known of the worker of a session.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Keeper {
    /// It takes such work, and has so many free slots.
    Serves { room: usize },
    /// It takes nothing new of this kind; what it has, it finishes.
    Leaves,
    /// Its process has ended, and something of what it started may be left.
    Ends,
    /// Nothing of it is left.
    Gone,
}

/// A session, and what its worker does.
#[derive(Clone, Copy, Debug)]
pub struct Held<'a> {
    pub live: &'a Live,
    pub keeper: Keeper,
    /// Its worker performs a run of it.
    pub in_use: bool,
}

impl Held<'_> {
    /// Whether the next run of the key begins a new session.
    pub fn over(&self, now: BootInstant) -> bool {
        let left = match self.keeper {
            Keeper::Gone => true,
            Keeper::Leaves => !self.in_use,
            Keeper::Serves { .. } | Keeper::Ends => false,
        };
        let expired = now >= self.live.last_used + self.live.ttl;
        left || (!self.in_use && (self.live.ending || expired))
    }
}

/// A worker that performs such runs.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Candidate {
    pub worker: WorkerId,
    /// Its free slots.
    pub room: usize,
    /// The sessions that it holds.
    pub sessions: usize,
}

/// Who performs a run that belongs to a session.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Choice {
    /// The session goes on at its worker.
    Continues(WorkerId),
    /// A session begins at this worker, in place of the one of that key, if there is one.
    Begins(WorkerId),
    /// This worker performs the run, and the session stays where it is.
    Aside(WorkerId),
    /// The run waits for this worker.
    Waits(WorkerId),
    /// Nobody has a free slot.
    Nobody,
}

/// Chooses who performs a run. `held` is the session of its key, if there is one.
pub fn choose(affinity: Affinity, held: Option<Held<'_>>, candidates: &[Candidate], now: BootInstant) -> Choice {
    let best = roomiest(candidates);
    match held.filter(|held| !held.over(now)) {
        Some(Held { live, keeper: Keeper::Serves { room: 1.. }, .. }) if !live.ending => Choice::Continues(live.worker),
        Some(Held { live, .. }) if affinity == Affinity::Strict => Choice::Waits(live.worker),
        Some(Held { live, .. }) if live.strict => best.map_or(Choice::Nobody, Choice::Aside),
        _ => best.map_or(Choice::Nobody, Choice::Begins),
    }
}

/// The one with the most room, and among those the one with the fewest sessions: a worker that holds sessions is kept
/// free for them where that costs nothing.
pub fn roomiest(candidates: &[Candidate]) -> Option<WorkerId> {
    let free = candidates.iter().filter(|candidate| candidate.room > 0);
    free.min_by_key(|one| (usize::MAX - one.room, one.sessions, one.worker)).map(|one| one.worker)
}

/// Where a run stands that waits for its session, in place of a host. No name of a host or a task has a space.
pub const WAITS_FOR: &str = "session ";

/// Where a run waits for a session that this replica keeps, or for the worker of it. Nobody but the replica claims the run
/// from there.
pub fn waits_for(replica: ReplicaId, worker: Option<WorkerId>) -> String {
    match worker {
        Some(worker) => format!("{WAITS_FOR}{replica} {worker}"),
        None => format!("{WAITS_FOR}{replica}"),
    }
}

/// Whether a run with such a host waits for a session, rather than belonging to a machine.
pub fn is_wait(host: &str) -> bool {
    host.starts_with(WAITS_FOR)
}

/// Whose session a run waits for, and at which worker. None of other hosts.
pub fn awaited(host: &str) -> Option<(ReplicaId, Option<WorkerId>)> {
    let named = host.strip_prefix(WAITS_FOR)?;
    match named.split_once(' ') {
        Some((replica, worker)) => Some((replica.parse().ok()?, Some(worker.parse().ok()?))),
        None => Some((named.parse().ok()?, None)),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use uuid::Uuid;

    const NOW: BootInstant = BootInstant(Duration::from_secs(1000));
    const TTL: Duration = Duration::from_secs(10);

    fn worker(number: u128) -> WorkerId {
        WorkerId(Uuid::from_u128(number))
    }

    fn live() -> Live {
        Live {
            id: SessionId(Uuid::from_u128(9)),
            worker: worker(1),
            strict: true,
            ttl: TTL,
            begun: NOW - TTL,
            last_used: NOW - TTL / 2,
            ending: false,
            awaited: false,
        }
    }

    fn others(rooms: &[usize]) -> Vec<Candidate> {
        let candidate = |(place, room): (usize, &usize)| Candidate {
            worker: worker(place as u128 + 1),
            room: *room,
            sessions: 10 - place,
        };
        rooms.iter().enumerate().map(candidate).collect()
    }

    #[test]
    fn a_session_is_read_or_refused_by_field() {
        let check = |text: &str, expected: &str| {
            let told = match Session::parse(&serde_json::from_str(text).expect("JSON")) {
                Ok(session) => session.to_stored(),
                Err(Invalid { field, problem, hint, .. }) => format!("{field}: {problem}; {hint}"),
            };
            assert!(told.contains(expected), "{text}: {told}");
        };
        check(r#"{"key":"a"}"#, r#"{"affinity":"hint","key":"a","ttl":null}"#);
        check(r#"{"key":"a b","affinity":"strict","ttl":"10m"}"#, r#"{"affinity":"strict","key":"a b","ttl":"10m"}"#);
        check(r#"{"key":"a","ttl":90,"affinity":null}"#, r#""ttl":"90s""#);
        check(r#""a""#, ": is not an object");
        check("{}", "key: is missing");
        check(r#"{"key":7}"#, "key: is not text");
        check(r#"{"key":""}"#, "key: cannot be the key of a session; use 1 to 200 bytes");
        check(r#"{"key":"a\nb"}"#, "key: cannot be");
        check(&json!({ "key": "x".repeat(201) }).to_string(), "key: cannot be");
        check(r#"{"key":"a","affinity":"sticky"}"#, "affinity: is not an affinity; use hint or strict");
        check(r#"{"key":"a","ttl":"0.5s"}"#, "ttl: is out of range; use 1s to 7d");
        check(r#"{"key":"a","ttl":"8d"}"#, "ttl: is out of range");
        check(r#"{"key":"a","ttl":"soon"}"#, "ttl: ");
        check(r#"{"key":"a","tll":"1m"}"#, "tll: is not a field of a session");
    }

    #[test]
    fn what_is_stored_reads_as_the_same_and_what_is_damaged_as_none() {
        let session = Session { key: "k\"é".to_string(), affinity: Affinity::Strict, ttl: Some(TTL) };
        assert_eq!(Session::from_stored(&session.to_stored()), Some(session));
        assert_eq!(Session::from_stored("{"), None);
        assert_eq!(Session::from_stored("{}"), None);
    }

    #[test]
    fn a_session_is_over_when_its_worker_is_gone_or_its_time_is() {
        let check = |live: Live, keeper: Keeper, in_use: bool, over: bool| {
            assert_eq!(Held { live: &live, keeper, in_use }.over(NOW), over, "{live:?} {keeper:?} {in_use}");
        };
        let busy = Keeper::Serves { room: 0 };
        let expired = Live { last_used: NOW - TTL, ..live() };
        let ending = Live { ending: true, ..live() };
        check(live(), busy, false, false);
        check(live(), busy, true, false);
        check(live(), Keeper::Leaves, false, true);
        check(live(), Keeper::Leaves, true, false);
        check(live(), Keeper::Ends, false, false);
        check(live(), Keeper::Gone, false, true);
        check(expired, busy, false, true);
        check(expired, Keeper::Ends, false, true);
        check(expired, busy, true, false);
        check(ending, busy, false, true);
        check(ending, busy, true, false);
    }

    #[test]
    fn a_strict_run_is_performed_by_the_worker_of_its_session_or_waits() {
        let choose = |live: Live, keeper: Keeper, in_use: bool| {
            choose(Affinity::Strict, Some(Held { live: &live, keeper, in_use }), &others(&[0, 2, 1]), NOW)
        };
        let free = Keeper::Serves { room: 1 };
        assert_eq!(choose(live(), free, true), Choice::Continues(worker(1)));
        assert_eq!(choose(live(), Keeper::Serves { room: 0 }, false), Choice::Waits(worker(1)));
        assert_eq!(choose(live(), Keeper::Leaves, true), Choice::Waits(worker(1)));
        assert_eq!(choose(live(), Keeper::Ends, false), Choice::Waits(worker(1)));
        assert_eq!(choose(live(), Keeper::Gone, false), Choice::Begins(worker(2)));
        assert_eq!(choose(Live { last_used: NOW - TTL, ..live() }, free, false), Choice::Begins(worker(2)));
        assert_eq!(choose(Live { ending: true, ..live() }, free, true), Choice::Waits(worker(1)));
    }

    #[test]
    fn a_hint_goes_elsewhere_rather_than_waiting_and_takes_the_session_along_unless_it_is_strict() {
        let busy = Keeper::Serves { room: 0 };
        let choose = |live: Live, keeper: Keeper, rooms: &[usize]| {
            choose(Affinity::Hint, Some(Held { live: &live, keeper, in_use: true }), &others(rooms), NOW)
        };
        let loose = Live { strict: false, ..live() };
        assert_eq!(choose(loose, Keeper::Serves { room: 1 }, &[1, 2]), Choice::Continues(worker(1)));
        assert_eq!(choose(loose, busy, &[0, 2]), Choice::Begins(worker(2)));
        assert_eq!(choose(loose, busy, &[0, 0]), Choice::Nobody);
        assert_eq!(choose(live(), busy, &[0, 2]), Choice::Aside(worker(2)));
        assert_eq!(choose(live(), busy, &[0, 0]), Choice::Nobody);
    }

    #[test]
    fn a_session_begins_where_there_is_most_room_and_fewest_sessions() {
        let choose = |rooms: &[usize]| choose(Affinity::Strict, None, &others(rooms), NOW);
        assert_eq!(choose(&[1, 3, 2]), Choice::Begins(worker(2)));
        assert_eq!(choose(&[1, 1, 1]), Choice::Begins(worker(3)));
        assert_eq!(choose(&[0, 0]), Choice::Nobody);
        assert_eq!(choose(&[]), Choice::Nobody);
    }

    #[test]
    fn whom_a_run_waits_for_is_told_from_a_host() {
        let replica = ReplicaId(Uuid::from_u128(5));
        for waited in [None, Some(worker(7))] {
            let host = waits_for(replica, waited);
            assert!(is_wait(&host));
            assert_eq!(awaited(&host), Some((replica, waited)));
        }
        assert_eq!((is_wait("host-1"), awaited("host-1"), awaited("session x y")), (false, None, None));
    }
}
