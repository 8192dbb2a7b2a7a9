//! Why a ready run does not run yet: the first reason that stands in its way.

use super::view::RunView;
use crate::attempts::Performer;
use crate::{Engine, Result};
use everbeat_model::replica::ReplicaState;
use everbeat_model::run::Spec;
use everbeat_model::session::awaited;
use everbeat_model::time::format_duration;
use everbeat_model::{Replica, RunId};

/// So many runs before a run are counted, and no more.
const MOST_AHEAD: usize = 10_000;

type Why = (String, Option<String>);

impl Engine {
    pub(crate) async fn why_ready(&self, run: &RunView) -> Result<Why> {
        let spec = &run.run.spec;
        let queues = self.core.store.queues().await?;
        if queues.iter().any(|queue| queue.name == spec.queue && queue.paused) {
            let remedy = format!("everbeat queue resume {}", spec.queue);
            return Ok((format!("ready, but queue {:?} is paused", spec.queue), Some(remedy)));
        }
        if !self.core.store.tasks().await?.contains(&spec.task) {
            let remedy = "start a worker that offers it".to_string();
            return Ok((format!("ready, but nobody has ever offered task {:?}", spec.task), Some(remedy)));
        }
        let replicas = self.core.store.replicas().await?;
        let active: Vec<&Replica> = replicas.iter().filter(|replica| replica.state == ReplicaState::Active).collect();
        if let Some(why) = self.nobody_there(spec, &active) {
            return Ok(why);
        }
        let before = self.before(spec, run.run.id).await?;
        let there = match active.len() {
            1 => "1 replica is active".to_string(),
            count => format!("{count} replicas are active"),
        };
        Ok(match self.full(spec) {
            Some((reason, remedy)) => (format!("ready, but {reason}; {before}, {there}"), Some(remedy)),
            None => (format!("ready: it is taken with the next look for work; {before}, {there}"), None),
        })
    }

    fn nobody_there(&self, spec: &Spec, active: &[&Replica]) -> Option<Why> {
        if active.is_empty() {
            let remedy = "start a replica: everbeat serve".to_string();
            return Some(("ready, but no replica is active".to_string(), Some(remedy)));
        }
        if let (Some((replica, _)), Some(session)) = (spec.host.as_deref().and_then(awaited), &spec.session) {
            let summary = format!("ready, and waits for its session {:?}, which replica {replica} keeps", session.key);
            let remedy = "wait until the worker of the session is free, or end the session: \
                          everbeat pool end-session POOL KEY";
            return Some((summary, Some(remedy.to_string())));
        }
        let host = spec.host.as_ref().filter(|host| !active.iter().any(|replica| replica.host == **host))?;
        let window = format_duration(self.core.settings.jobs.reattach_window);
        let summary = format!("ready, but it belongs to host {host}, where its workspace is, and no replica is there");
        Some((summary, Some(format!("start a replica there; after {window} without one it may begin elsewhere"))))
    }

    /// Where the run stands in its line.
    async fn before(&self, spec: &Spec, run: RunId) -> Result<String> {
        let ahead = self.core.store.ahead(spec, run, MOST_AHEAD).await?;
        let (what, plural) = match self.performer_of(spec).and_then(Performer::noun) {
            Some(noun) => (noun.to_string(), format!("{noun}s")),
            None => (format!("run of task {:?}", spec.task), format!("runs of task {:?}", spec.task)),
        };
        Ok(match ahead {
            0 => format!("no {what} is before it in queue {:?}", spec.queue),
            1 => format!("1 {what} of higher priority or age is before it in queue {:?}", spec.queue),
            _ => {
                let least = if ahead == MOST_AHEAD as u64 { "at least " } else { "" };
                format!("{least}{ahead} {plural} of higher priority or age are before it in queue {:?}", spec.queue)
            }
        })
    }

    /// Which limit of this replica is reached, and what would lift it.
    fn full(&self, spec: &Spec) -> Option<(String, String)> {
        let life = self.core.life()?;
        let crew = life.crew_of(spec)?;
        let performer = &life.crew(crew).performer;
        if let Some(hindrance) = performer.hindrance(&*self.core.env) {
            let reason = format!("no {} are begun on this host: {}", performer.name(), hindrance.reason);
            return Some((reason, hindrance.remedy));
        }
        let (settings, table) = (&self.core.settings, life.table());
        let queue = settings.queues.get(&spec.queue);
        if let Some(most) =
            queue.and_then(|queue| queue.concurrency).filter(|most| table.of_queue(&spec.queue) >= *most)
        {
            let reason = format!("queue {:?} runs as many here as its concurrency allows ({most})", spec.queue);
            return Some((reason, format!("raise concurrency of [[queue]] {:?}, or wait", spec.queue)));
        }
        if let Some(most) = settings.tasks.get(&spec.task).filter(|most| table.of_task(&spec.task) >= **most) {
            let reason = format!("task {:?} runs as many here as its concurrency allows ({most})", spec.task);
            return Some((reason, format!("raise concurrency of [[task]] {:?}, or wait", spec.task)));
        }
        let (taken, capacity) = (table.of_crew(crew).count(), performer.capacity());
        if taken >= capacity.slots {
            let reason = format!("this replica has no free slot ({taken} of {} taken)", capacity.slots);
            return Some((reason, format!("add replicas, raise {}, or wait", capacity.setting)));
        }
        let rate = queue.and_then(|queue| queue.rate)?;
        let reason = format!("queue {:?} starts no more than {rate} a second here", spec.queue);
        Some((reason, format!("raise rate of [[queue]] {:?}, or wait", spec.queue)))
    }
}
