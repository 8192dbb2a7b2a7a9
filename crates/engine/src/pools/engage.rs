//! Which worker performs a run, and whether the run has to wait for one.

use super::link::{FromWorker, LeaseShown, SessionShown};
use super::performer::waited_for;
use super::pool::Pool;
use super::sessions::Entry;
use super::worker::Worker;
use crate::attempts::{Post, Work};
use everbeat_model::run::Spec;
use everbeat_model::session::{Affinity, Candidate, Choice, Held, Keeper, Live, Session, choose, roomiest, waits_for};
use everbeat_model::{BootInstant, Hole, ReplicaId, SessionId, Token, WorkerId};
use everbeat_store::KeptSession;
use std::collections::BTreeMap;
use std::sync::Arc;
use std::sync::atomic::Ordering;
use tokio::sync::mpsc;

/// So often the store is asked for a session that begins and ends meanwhile.
const MOST_ASKS: usize = 3;

/// Who performs an attempt.
pub(super) enum Engaged {
    By(Engagement),
    /// The run waits there for its session.
    Waits(String),
    /// The run cannot begin just now, and why.
    Later(&'static str),
    /// Nobody has a free slot.
    Nobody,
}

pub(super) struct Engagement {
    pub(super) worker: Arc<Worker>,
    pub(super) heard: mpsc::Receiver<FromWorker>,
    pub(super) session: Option<SessionShown>,
}

const UNSAID: Engaged = Engaged::Later("the store did not say who keeps its session");

impl Pool {
    /// The worker that performs a run, and where it is heard.
    pub(super) async fn engage(&self, post: &Post, work: &Work, lease: &LeaseShown) -> Engaged {
        let spec = work.spec();
        let Some(session) = &spec.session else { return self.engage_any(post, lease, spec) };
        let mut kept = None;
        for _ in 0..MOST_ASKS {
            let claimed = self.claimed(post, lease.token);
            let asked = match self.engage_in(post, session, lease, spec, (&claimed, kept.as_ref())) {
                Ok(engaged) => return engaged,
                Err(asked) => asked,
            };
            let wish = KeptSession { pool: self.scope().to_string(), key: session.key.clone(), id: asked.id };
            self.sessions.keeps.store(true, Ordering::Relaxed);
            match post.life.call(post.life.core.store.keep_session(wish, post.replica())).await {
                Ok(keeper) if keeper == post.replica() => kept = Some(asked),
                Ok(keeper) => return Engaged::Waits(waits_for(keeper, None)),
                Err(_) => return UNSAID,
            }
        }
        UNSAID
    }

    /// The worker with the most room.
    fn engage_any(&self, post: &Post, lease: &LeaseShown, spec: &Spec) -> Engaged {
        let (workers, claimed) = (self.workers(), self.claimed(post, lease.token));
        let mut candidates = {
            let table = self.sessions.table();
            let candidate = |worker: &Arc<Worker>| Candidate {
                worker: worker.id,
                room: if self.able(worker, spec) { worker.state().spare(worker.id, &claimed) } else { 0 },
                sessions: table.held_by(worker.id),
            };
            workers.iter().map(candidate).collect::<Vec<_>>()
        };
        while let Some(best) = roomiest(&candidates) {
            if let Some(engagement) = begin(&workers, best, lease, spec, None) {
                return Engaged::By(engagement);
            }
            candidates.retain(|candidate| candidate.worker != best);
        }
        Engaged::Nobody
    }

    /// The worker that performs a run of a session. What is decided holds until the worker is engaged: nobody else decides
    /// about sessions of this pool meanwhile.
    fn engage_in<'a>(
        &'a self,
        post: &Post,
        session: &'a Session,
        lease: &LeaseShown,
        spec: &Spec,
        (claimed, asked): (&BTreeMap<Token, WorkerId>, Option<&Asked<'a>>),
    ) -> Result<Engaged, Asked<'a>> {
        let (now, replica, key) = (post.env().boot(), post.replica(), session.key.as_str());
        let (strict, workers) = (session.affinity == Affinity::Strict, self.workers());
        let hole = post.life.core.settings.hole;
        let asks = strict && !hole.is(Hole::SessionUnasked);
        let affinity = if hole.is(Hole::StrictMoves) { Affinity::Hint } else { session.affinity };
        let mut table = self.sessions.table();
        let entry = table.entry(key).cloned();
        let mut held = entry.as_ref().map(|entry| Held { live: &entry.live, keeper: Keeper::Gone, in_use: false });
        let mut candidates = Vec::with_capacity(workers.len());
        for worker in &workers {
            let able = self.able(worker, spec);
            let state = worker.state();
            let room = if able { state.spare(worker.id, claimed) } else { 0 };
            candidates.push(Candidate { worker: worker.id, room, sessions: table.held_by(worker.id) });
            if let Some(held) = held.as_mut().filter(|held| held.live.worker == worker.id) {
                (held.keeper, held.in_use) = (state.keeper(able, room), state.in_session(held.live.id));
            }
        }
        let fresh = || SessionId(post.life.core.new_id());
        let kept = |id: SessionId| asked.is_some_and(|asked| asked.id == id);
        match (choose(affinity, held, &candidates, now), entry) {
            (Choice::Continues(worker), Some(entry)) => {
                let id = entry.live.id;
                let mine = entry.kept == Some(replica) || kept(id);
                if asks && !mine {
                    return Err(Asked { pool: self, key, id, replica });
                }
                let shown = SessionShown { key: key.to_string(), id, is_new: false };
                let Some(engagement) = begin(&workers, worker, lease, spec, Some((shown, true))) else {
                    return Ok(Engaged::Nobody);
                };
                table.change(key, |entry| {
                    entry.live.last_used = now;
                    entry.live.ttl = self.ttl(session);
                    entry.live.strict |= affinity == Affinity::Strict;
                    entry.kept = if strict { Some(replica) } else { entry.kept };
                });
                Ok(Engaged::By(engagement))
            }
            (Choice::Begins(worker), _) => {
                let id = match asked.filter(|asked| table.is_asked(key, asked.id)) {
                    Some(asked) => asked.id,
                    // The id is made and noted at once: what is not noted, and older than others, is let go of.
                    None if asks => return Err(Asked { pool: self, key, id: table.ask(key, fresh()), replica }),
                    None => fresh(),
                };
                let shown = SessionShown { key: key.to_string(), id, is_new: true };
                let Some(engagement) = begin(&workers, worker, lease, spec, Some((shown, true))) else {
                    return Ok(Engaged::Nobody);
                };
                let live = Live { strict: affinity == Affinity::Strict, ..self.live(id, worker, session, now) };
                let entry = Entry { live, kept: strict.then_some(replica) };
                let in_use = |live: &Live| {
                    let worker = workers.iter().find(|worker| worker.id == live.worker);
                    worker.is_some_and(|worker| worker.state().in_session(live.id))
                };
                let most = self.settings.max_sessions;
                if table.begin(self.scope(), key, entry, most, in_use).is_some() {
                    tracing::warn!(
                        pool = self.settings.name,
                        max_sessions = most,
                        "the pool holds as many sessions as it may: those that were not used for longest end"
                    );
                }
                if table.len() == 1 || !table.unbind.is_empty() {
                    self.sessions.changed.notify_one();
                }
                Ok(Engaged::By(engagement))
            }
            (Choice::Aside(worker), _) => {
                let shown = SessionShown { key: key.to_string(), id: fresh(), is_new: true };
                let engagement = begin(&workers, worker, lease, spec, Some((shown, false)));
                Ok(engagement.map_or(Engaged::Nobody, Engaged::By))
            }
            // No slot that becomes free would do: the run is not left to a worker that it would not begin at.
            (Choice::Waits(_), Some(Entry { live: Live { ending: true, .. }, .. })) => {
                Ok(Engaged::Later("its session ends when what is performed in it has ended"))
            }
            (Choice::Waits(worker), _) if !workers.iter().any(|one| one.id == worker && self.able(one, spec)) => {
                Ok(Engaged::Later("the worker of its session does not perform such runs"))
            }
            (Choice::Waits(worker), _) => {
                if table.wait(key, worker, &spec.task, replica) {
                    self.sessions.changed.notify_one();
                }
                Ok(Engaged::Waits(waits_for(replica, Some(worker))))
            }
            (Choice::Continues(_) | Choice::Nobody, _) => Ok(Engaged::Nobody),
        }
    }

    /// Attempts that have waited for a worker and are about to begin there, besides this one: their slots are not for
    /// others.
    fn claimed(&self, post: &Post, token: Token) -> BTreeMap<Token, WorkerId> {
        if !self.sessions.table().awaits() {
            return BTreeMap::new();
        }
        let begins = |work: &Arc<Work>| work.token() != token && work.vital().worker.is_none() && !work.over();
        let works = post.works().into_iter().filter(begins);
        works.filter_map(|work| Some((work.token(), waited_for(&work)?))).collect()
    }

    fn live(&self, id: SessionId, worker: WorkerId, session: &Session, now: BootInstant) -> Live {
        Live {
            id,
            worker,
            strict: session.affinity == Affinity::Strict,
            ttl: self.ttl(session),
            begun: now,
            last_used: now,
            ending: false,
            awaited: false,
        }
    }

    fn ttl(&self, session: &Session) -> std::time::Duration {
        session.ttl.unwrap_or(self.settings.session_ttl)
    }

    /// Whether a worker performs such runs at all.
    fn able(&self, worker: &Worker, spec: &Spec) -> bool {
        let state = worker.state();
        self.serves(&state.hello.queues, &spec.queue) && state.hello.tasks.contains(&spec.task)
    }
}

/// Takes a slot of a worker. The session is counted as used by the attempt, unless the attempt is performed beside it.
fn begin(
    workers: &[Arc<Worker>],
    id: WorkerId,
    lease: &LeaseShown,
    spec: &Spec,
    session: Option<(SessionShown, bool)>,
) -> Option<Engagement> {
    let worker = workers.iter().find(|worker| worker.id == id)?.clone();
    let used = session.as_ref().filter(|(_, counts)| *counts).map(|(shown, _)| shown.id);
    let heard = worker.engage(lease, spec, used)?;
    Some(Engagement { worker, heard, session: session.map(|(shown, _)| shown) })
}

/// Held while the store is asked for a session, and until it has begun.
struct Asked<'a> {
    pool: &'a Pool,
    key: &'a str,
    id: SessionId,
    replica: ReplicaId,
}

impl Drop for Asked<'_> {
    fn drop(&mut self) {
        if self.pool.sessions.table().asked(self.replica, self.pool.scope(), self.key, self.id) {
            self.pool.sessions.changed.notify_one();
        }
    }
}
