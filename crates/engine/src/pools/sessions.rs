//! The sessions of one pool: which worker each belongs to, and which runs wait for a worker. They live in the memory of
//! their replica; the store only knows which replica keeps the strict ones.

use super::pool::Pool;
use super::worker::Worker;
use crate::engine::lock;
use everbeat_model::session::{Held, Keeper, Live, waits_for};
use everbeat_model::{BootInstant, ReplicaId, SessionId, WorkerId};
use everbeat_store::KeptSession;
use std::collections::{BTreeMap, BTreeSet};
use std::sync::atomic::{AtomicBool, AtomicUsize};
use std::sync::{Mutex, MutexGuard};
use tokio::sync::Notify;

/// While the store is away, no more sessions that are over are remembered: the sweep lets go of the rest.
const MOST_OVER: usize = 10_000;

#[derive(Default)]
pub(super) struct Sessions {
    table: Mutex<Table>,
    /// Something may be over.
    pub(super) changed: Notify,
    /// This pool has kept a strict session: other replicas may leave runs to it.
    pub(super) keeps: AtomicBool,
    /// How often it was looked for runs that wait for nobody.
    pub(super) looks: AtomicUsize,
}

#[derive(Default)]
pub(super) struct Table {
    live: BTreeMap<String, Entry>,
    /// How many sessions each worker holds.
    held: BTreeMap<WorkerId, usize>,
    /// Workers that runs wait for, or have waited for.
    awaited: BTreeMap<WorkerId, Awaited>,
    /// Sessions that the store is asked for, which have not begun, and by how many runs.
    asked: BTreeMap<String, (SessionId, usize)>,
    /// Where nothing should wait any more.
    pub(super) unbind: BTreeSet<String>,
    /// Sessions that are over, of which the store does not know so yet.
    pub(super) over: Vec<(ReplicaId, KeptSession)>,
    /// It was told that there are as many sessions as there may be.
    told: bool,
}

#[derive(Clone)]
pub(super) struct Entry {
    pub(super) live: Live,
    /// The replica for which the store was told that the session is kept.
    pub(super) kept: Option<ReplicaId>,
}

/// The runs that wait for a worker.
struct Awaited {
    replica: ReplicaId,
    /// Of which tasks runs have ever waited here. What has waited may come back, when its next attempt is due.
    tasks: BTreeSet<String>,
    /// Runs may wait now: their session lives.
    rightly: bool,
}

/// What the workers of a pool do, as far as sessions go.
pub(super) type Keepers = BTreeMap<WorkerId, (Keeper, BTreeSet<SessionId>)>;

impl Sessions {
    pub(super) fn table(&self) -> MutexGuard<'_, Table> {
        lock(&self.table)
    }
}

impl Table {
    pub(super) fn entry(&self, key: &str) -> Option<&Entry> {
        self.live.get(key)
    }

    pub(super) fn entries(&self) -> impl Iterator<Item = (&String, &Entry)> {
        self.live.iter()
    }

    pub(super) fn len(&self) -> usize {
        self.live.len()
    }

    /// How many sessions a worker holds.
    pub(super) fn held_by(&self, worker: WorkerId) -> usize {
        self.held.get(&worker).copied().unwrap_or(0)
    }

    /// A session begins, in place of the one of its key. Those beyond `most` that were not used for longest are over;
    /// answers how many, if that is to be told.
    pub(super) fn begin(
        &mut self,
        pool: &str,
        key: &str,
        entry: Entry,
        most: usize,
        in_use: impl Fn(&Live) -> bool,
    ) -> Option<usize> {
        self.end(pool, key);
        if self.asked.get(key).is_some_and(|(id, _)| *id == entry.live.id) {
            self.asked.remove(key);
        }
        let mut many = 0;
        while self.live.len() >= most {
            let unused = self.live.iter().filter(|(_, entry)| !in_use(&entry.live));
            let oldest = unused.min_by_key(|(_, entry)| entry.live.last_used).map(|(key, _)| key.clone());
            let Some(oldest) = oldest else { break };
            self.end(pool, &oldest);
            many += 1;
        }
        *self.held.entry(entry.live.worker).or_default() += 1;
        self.live.insert(key.to_string(), entry);
        if self.live.len() <= most / 2 {
            self.told = false;
        }
        (many > 0 && !std::mem::replace(&mut self.told, true)).then_some(many)
    }

    pub(super) fn change(&mut self, key: &str, change: impl FnOnce(&mut Entry)) {
        if let Some(entry) = self.live.get_mut(key) {
            change(entry);
        }
    }

    /// A session is over. What waits for it may begin anywhere.
    pub(super) fn end(&mut self, pool: &str, key: &str) {
        let Some(Entry { live, kept }) = self.live.remove(key) else { return };
        let left = self.held_by(live.worker).saturating_sub(1);
        match left {
            0 => _ = self.held.remove(&live.worker),
            _ => _ = self.held.insert(live.worker, left),
        }
        if live.awaited {
            self.free(live.worker);
        }
        if let Some(replica) = kept {
            self.unbind.insert(waits_for(replica, None));
            self.let_go(replica, pool, key, live.id);
        }
    }

    pub(super) fn let_go(&mut self, replica: ReplicaId, pool: &str, key: &str, id: SessionId) {
        if self.over.len() < MOST_OVER {
            self.over.push((replica, KeptSession { pool: pool.to_string(), key: key.to_string(), id }));
        }
    }

    /// What waits for this worker may begin anywhere.
    fn free(&mut self, worker: WorkerId) {
        if let Some(awaited) = self.awaited.get_mut(&worker).filter(|awaited| awaited.rightly) {
            awaited.rightly = false;
            self.unbind.insert(waits_for(awaited.replica, Some(worker)));
        }
    }

    /// A run of this session waits for its worker. Answers whether it is the first.
    pub(super) fn wait(&mut self, key: &str, worker: WorkerId, task: &str, replica: ReplicaId) -> bool {
        let mut first = false;
        self.change(key, |entry| first = !std::mem::replace(&mut entry.live.awaited, true));
        if self.awaited.get(&worker).is_some_and(|awaited| awaited.replica != replica) {
            self.free(worker);
            self.awaited.remove(&worker);
        }
        let fresh = || Awaited { replica, tasks: BTreeSet::new(), rightly: true };
        let awaited = self.awaited.entry(worker).or_insert_with(fresh);
        awaited.rightly = true;
        awaited.tasks.insert(task.to_string());
        first
    }

    /// The tasks of runs that may wait for this worker in this life of the replica.
    pub(super) fn waiting_for(&self, worker: WorkerId, replica: ReplicaId) -> impl Iterator<Item = &String> {
        let awaited = self.awaited.get(&worker).filter(|awaited| awaited.rightly && awaited.replica == replica);
        awaited.into_iter().flat_map(|awaited| &awaited.tasks)
    }

    /// Whether runs may wait for any worker.
    pub(super) fn awaits(&self) -> bool {
        self.awaited.values().any(|awaited| awaited.rightly)
    }

    /// Whether runs may rightly wait for this worker in this life of the replica.
    pub(super) fn is_awaited(&self, worker: WorkerId, replica: ReplicaId) -> bool {
        self.awaited.get(&worker).is_some_and(|awaited| awaited.rightly && awaited.replica == replica)
    }

    /// The strict sessions that are kept, or that the store is asked for.
    pub(super) fn kept(&self) -> Vec<SessionId> {
        let live = self.live.values().map(|entry| entry.live.id);
        live.chain(self.asked.values().map(|(id, _)| *id)).collect()
    }

    /// Whether this replica keeps a strict session here, or asks for one.
    pub(super) fn keeps(&self, replica: ReplicaId) -> bool {
        !self.asked.is_empty() || self.live.values().any(|entry| entry.kept == Some(replica))
    }

    /// The store is about to be asked for a session. All who ask at once ask for the same one.
    pub(super) fn ask(&mut self, key: &str, fresh: SessionId) -> SessionId {
        let (id, runs) = self.asked.entry(key.to_string()).or_insert((fresh, 0));
        *runs += 1;
        *id
    }

    /// Whether the session that was asked for has not begun, and none other since.
    pub(super) fn is_asked(&self, key: &str, id: SessionId) -> bool {
        self.asked.get(key).is_some_and(|(asked, _)| *asked == id)
    }

    /// One of those who asked does so no more. A session that nobody has begun by then is let go; answers whether.
    pub(super) fn asked(&mut self, replica: ReplicaId, pool: &str, key: &str, id: SessionId) -> bool {
        let Some((_, runs)) = self.asked.get_mut(key).filter(|(asked, _)| *asked == id) else { return false };
        *runs -= 1;
        let last = *runs == 0;
        if last {
            self.asked.remove(key);
            self.let_go(replica, pool, key, id);
        }
        last
    }

    /// Ends what is over. Answers when to look again for what runs wait for.
    pub(super) fn sweep(
        &mut self,
        pool: &str,
        keepers: &Keepers,
        leaving: bool,
        now: BootInstant,
    ) -> Option<BootInstant> {
        if leaving {
            self.live.values_mut().for_each(|entry| entry.live.ending = true);
        }
        let over = |entry: &Entry| entry.held(keepers).over(now);
        let ended: Vec<String> =
            self.live.iter().filter(|(_, entry)| over(entry)).map(|(key, _)| key.clone()).collect();
        ended.iter().for_each(|key| self.end(pool, key));
        let wanted: BTreeSet<WorkerId> =
            self.live.values().filter(|entry| entry.live.awaited).map(|entry| entry.live.worker).collect();
        let idle: Vec<WorkerId> = self.awaited.keys().filter(|worker| !wanted.contains(worker)).copied().collect();
        idle.into_iter().for_each(|worker| self.free(worker));
        self.awaited.retain(|worker, awaited| awaited.rightly || keepers.contains_key(worker));
        let awaited = self.live.values().filter(|entry| entry.live.awaited && !entry.held(keepers).in_use);
        awaited.map(|entry| entry.live.last_used + entry.live.ttl).min()
    }
}

impl Entry {
    pub(super) fn held<'a>(&'a self, keepers: &Keepers) -> Held<'a> {
        let live = &self.live;
        match keepers.get(&live.worker) {
            Some((keeper, used)) => Held { live, keeper: *keeper, in_use: used.contains(&live.id) },
            None => Held { live, keeper: Keeper::Gone, in_use: false },
        }
    }
}

impl Pool {
    /// By what name the store knows the sessions of this pool.
    pub(super) fn scope(&self) -> &str {
        // No pool has a name with a space.
        if self.remote { "no pool" } else { &self.settings.name }
    }

    pub(super) fn keepers(&self) -> Keepers {
        let keeper = |worker: &Worker| {
            let state = worker.state();
            (state.keeper(true, state.room()), state.sessions().collect())
        };
        self.workers().iter().map(|worker| (worker.id, keeper(worker))).collect()
    }

    /// A run of a session has ended at its worker.
    pub(super) fn session_used(&self, key: &str, worker: WorkerId, now: BootInstant) {
        let mut ending = false;
        self.sessions.table().change(key, |entry| {
            if entry.live.worker == worker {
                entry.live.last_used = now;
                ending = entry.live.ending;
            }
        });
        if ending {
            self.sessions.changed.notify_one();
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::time::Duration;
    use uuid::Uuid;

    const NOW: BootInstant = BootInstant(Duration::from_secs(1000));
    const TTL: Duration = Duration::from_secs(10);
    const POOL: &str = "pool";

    fn replica(number: u128) -> ReplicaId {
        ReplicaId(Uuid::from_u128(number))
    }

    fn worker() -> WorkerId {
        WorkerId(Uuid::from_u128(7))
    }

    fn id(number: u128) -> SessionId {
        SessionId(Uuid::from_u128(number))
    }

    fn begin(table: &mut Table, key: &str, number: u128) {
        let (begun, last_used) = (NOW, NOW);
        let live = Live {
            id: id(number),
            worker: worker(),
            strict: true,
            ttl: TTL,
            begun,
            last_used,
            ending: false,
            awaited: false,
        };
        table.begin(POOL, key, Entry { live, kept: Some(replica(1)) }, 10, |_| false);
    }

    fn serves() -> Keepers {
        BTreeMap::from([(worker(), (Keeper::Serves { room: 0 }, BTreeSet::new()))])
    }

    fn waiting(table: &Table, life: u128) -> Vec<&str> {
        table.waiting_for(worker(), replica(life)).map(String::as_str).collect()
    }

    #[test]
    fn what_has_waited_for_a_worker_is_offered_whenever_that_is_awaited_again() {
        let mut table = Table::default();
        begin(&mut table, "a", 1);
        assert!(table.wait("a", worker(), "mail", replica(1)));
        assert!(!table.wait("a", worker(), "mail", replica(1)), "not the first");
        assert_eq!(table.sweep(POOL, &serves(), false, NOW), Some(NOW + TTL));
        assert!(table.is_awaited(worker(), replica(1)) && table.unbind.is_empty());
        table.sweep(POOL, &serves(), false, NOW + TTL);
        assert!(!table.awaits() && waiting(&table, 1).is_empty());
        assert!(table.unbind.contains(&waits_for(replica(1), Some(worker()))));
        begin(&mut table, "b", 2);
        table.wait("b", worker(), "news", replica(1));
        assert_eq!(waiting(&table, 1), ["mail", "news"]);
        table.sweep(POOL, &Keepers::default(), false, NOW);
        assert!(table.awaited.is_empty(), "nothing is kept of a worker that is gone");
    }

    #[test]
    fn what_waits_in_a_former_life_of_the_replica_is_unbound() {
        let mut table = Table::default();
        begin(&mut table, "a", 1);
        table.wait("a", worker(), "mail", replica(1));
        table.wait("a", worker(), "news", replica(2));
        assert!(!table.is_awaited(worker(), replica(1)) && table.is_awaited(worker(), replica(2)));
        assert_eq!((waiting(&table, 1), waiting(&table, 2)), (vec![], vec!["news"]));
        assert_eq!(table.unbind, BTreeSet::from([waits_for(replica(1), Some(worker()))]));
    }

    #[test]
    fn a_session_that_was_asked_for_and_has_not_begun_is_let_go_by_the_last_who_asked() {
        let mut table = Table::default();
        assert_eq!([table.ask("a", id(1)), table.ask("a", id(2))], [id(1); 2], "all ask for the same one");
        assert!(table.keeps(replica(1)));
        assert_eq!(table.kept(), [id(1)]);
        assert!(!table.asked(replica(1), POOL, "a", id(1)) && table.over.is_empty());
        assert!(table.asked(replica(1), POOL, "a", id(1)));
        assert!(!table.keeps(replica(1)));
        let over: Vec<SessionId> = table.over.iter().map(|(_, kept)| kept.id).collect();
        assert_eq!(over, [id(1)]);
        table.ask("a", id(3));
        begin(&mut table, "a", 3);
        assert!(!table.asked(replica(1), POOL, "a", id(3)), "begun");
        assert_eq!(table.kept(), [id(3)]);
    }
}
