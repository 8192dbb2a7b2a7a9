//! Finding things by what a person says of them: an id, its first or last characters, the name of a job.

use crate::{Engine, Result};
use everbeat_model::job::Command;
use everbeat_model::run::Kind;
use everbeat_model::{ExecutionId, ReplicaId, Run, RunId, StoreTime, VerdictId, WorkerId};
use everbeat_store::Noun;
use std::borrow::Cow;
use std::collections::BTreeSet;
use std::ops::RangeInclusive;
use uuid::Uuid;

/// What can be found.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum Findable {
    Run,
    Job,
    Execution,
    Replica,
    Verdict,
    /// One of this replica.
    Worker,
}

impl Findable {
    pub const ALL: [Findable; 6] =
        [Findable::Run, Findable::Job, Findable::Execution, Findable::Replica, Findable::Verdict, Findable::Worker];

    pub fn as_str(self) -> &'static str {
        match self {
            Findable::Run => "run",
            Findable::Job => "job",
            Findable::Execution => "execution",
            Findable::Replica => "replica",
            Findable::Verdict => "verdict",
            Findable::Worker => "worker",
        }
    }
}

/// Something that fits.
#[derive(Clone, Debug, PartialEq)]
pub struct Match {
    pub id: Uuid,
    pub kind: Findable,
    /// The name of a job itself; of a run its task, of an execution its graph, of a replica its host, of a worker its pool.
    pub name: String,
    pub state: Cow<'static, str>,
    /// When the thing came to be.
    pub at: StoreTime,
}

/// What fits, newest first.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct Matches {
    pub found: Vec<Match>,
    /// There are more than are told.
    pub more: bool,
}

/// Last characters and names are looked for among so many of the newest of each kind, and among what runs.
pub const FIND_WINDOW: usize = 10_000;
/// Fewer characters of an id are not looked for: they would fit too much.
pub const SHORTEST_PART: usize = 4;
/// Whoever has to choose among more needs another way.
const MOST: usize = 20;

impl Engine {
    /// What an id, its first or last characters, or the name of a job stands for. An exact id wins over all else,
    /// and of jobs with the same name the only unfinished one over the finished.
    pub async fn find(&self, text: &str, kinds: &[Findable]) -> Result<Matches> {
        let kinds: BTreeSet<Findable> = kinds.iter().copied().collect();
        let mut matches = Matches::default();
        if let Ok(id) = Uuid::try_parse(text) {
            matches.found = self.identify(&BTreeSet::from([id]), &kinds).await?;
            return Ok(matches);
        }
        if let Some(part) = Part::read(text) {
            let ids = self.ids_with(&part, &kinds).await?;
            matches.more = ids.len() > MOST;
            matches.found = self.identify(&ids.into_iter().rev().take(MOST).collect(), &kinds).await?;
        }
        if kinds.contains(&Findable::Job) {
            for job in self.jobs_named(text).await? {
                if matches.found.iter().any(|known| known.id == job.id) {
                    continue;
                }
                matches.more |= matches.found.len() == MOST;
                matches.found.extend(Some(job).filter(|_| matches.found.len() < MOST));
            }
        }
        matches.found.sort_by_key(|found| std::cmp::Reverse(found.id));
        Ok(matches)
    }

    async fn ids_with(&self, part: &Part, kinds: &BTreeSet<Findable>) -> Result<BTreeSet<Uuid>> {
        let mut nouns = Vec::new();
        if kinds.contains(&Findable::Run) || kinds.contains(&Findable::Job) {
            nouns.extend([Noun::Run, Noun::RunningRun]);
        }
        nouns.extend(kinds.contains(&Findable::Execution).then_some(Noun::Execution));
        nouns.extend(kinds.contains(&Findable::Verdict).then_some(Noun::Verdict));
        nouns.extend(kinds.contains(&Findable::Worker).then_some(Noun::Worker));
        let mut ids = BTreeSet::new();
        for noun in nouns {
            let window = self.core.store.ids(noun, Uuid::nil()..=Uuid::max(), FIND_WINDOW).await?;
            ids.extend(window.into_iter().filter(|id| part.ends(*id)).take(MOST + 1));
            if noun != Noun::RunningRun {
                ids.extend(self.core.store.ids(noun, part.first_of(), MOST + 1).await?);
            }
        }
        if kinds.contains(&Findable::Replica) {
            let replicas = self.core.store.replicas().await?;
            ids.extend(
                replicas.into_iter().map(|replica| replica.id.0).filter(|id| part.begins(*id) || part.ends(*id)),
            );
        }
        if kinds.contains(&Findable::Worker) {
            let workers = self.workers().into_iter().map(|worker| worker.id.0);
            ids.extend(workers.filter(|id| part.begins(*id) || part.ends(*id)));
        }
        Ok(ids)
    }

    /// What these ids stand for; an id that nothing of these kinds has is left out.
    async fn identify(&self, ids: &BTreeSet<Uuid>, kinds: &BTreeSet<Findable>) -> Result<Vec<Match>> {
        let mut found = Vec::new();
        let replicas = match kinds.contains(&Findable::Replica) {
            true => self.core.store.replicas().await?,
            false => Vec::new(),
        };
        for id in ids {
            let run = self.core.store.run(RunId(*id)).await?.map(run_match);
            if let Some(run) = run {
                found.extend(Some(run).filter(|run| kinds.contains(&run.kind)));
                continue;
            }
            if kinds.contains(&Findable::Execution)
                && let Some(view) = self.core.store.execution(ExecutionId(*id)).await?
            {
                let state = if view.execution.archived_at.is_some() { "archived" } else { "open" }.into();
                let (name, at) = (view.graph.name.clone(), view.created_at);
                found.push(Match { id: *id, kind: Findable::Execution, name, state, at });
            }
            if kinds.contains(&Findable::Verdict)
                && let Some(verdict) = self.core.store.verdict(VerdictId(*id)).await?
            {
                let name = verdict.reason;
                let state = verdict.judgement.as_str().into();
                found.push(Match { id: *id, kind: Findable::Verdict, name, state, at: verdict.at });
            }
            if kinds.contains(&Findable::Worker)
                && let Some(worker) = self.any_worker(WorkerId(*id)).await?
            {
                let (name, state) = (worker.pool.unwrap_or(worker.host), worker.state);
                found.push(Match { id: *id, kind: Findable::Worker, name, state, at: worker.started_at });
            }
            if let Some(replica) = replicas.iter().find(|replica| replica.id == ReplicaId(*id)) {
                let (name, state) = (replica.host.clone(), replica.state.as_str().into());
                found.push(Match { id: *id, kind: Findable::Replica, name, state, at: replica.started_at });
            }
        }
        Ok(found)
    }

    async fn jobs_named(&self, name: &str) -> Result<Vec<Match>> {
        // As canonical JSON writes the name; where else the text stands in an input is found out below.
        let text = format!("\"name\":{}", serde_json::Value::from(name));
        let ids = self.core.store.jobs_with(text, FIND_WINDOW).await?;
        let mut jobs = Vec::new();
        for id in ids.into_iter().take(MOST + 1) {
            jobs.extend(self.core.store.run(id).await?);
        }
        jobs.retain(|job| named(job).as_deref() == Some(name));
        let mut open = jobs.iter().filter(|job| !job.state.finished());
        if let (Some(only), None) = (open.next(), open.next()) {
            return Ok(vec![run_match(only.clone())]);
        }
        Ok(jobs.into_iter().map(run_match).collect())
    }
}

fn run_match(run: Run) -> Match {
    let kind = if run.spec.kind == Kind::Job { Findable::Job } else { Findable::Run };
    let name = named(&run).unwrap_or_else(|| run.spec.task.clone());
    Match { id: run.id.0, kind, name, state: run.state.as_str().into(), at: run.created_at }
}

/// What people call a job: its name, or else its program.
fn named(run: &Run) -> Option<String> {
    if run.spec.kind != Kind::Job {
        return None;
    }
    let command: Command = serde_json::from_str(run.spec.input.as_str()).ok()?;
    command.name.or_else(|| command.command.into_iter().next())
}

/// Some hexadecimal digits of an id.
struct Part(Vec<u8>);

const DIGITS: usize = 32;

impl Part {
    fn read(text: &str) -> Option<Part> {
        let digits: Option<Vec<u8>> = text
            .chars()
            .filter(|c| *c != '-')
            .map(|c| c.to_digit(16).and_then(|digit| u8::try_from(digit).ok()))
            .collect();
        digits.filter(|digits| (SHORTEST_PART..DIGITS).contains(&digits.len())).map(Part)
    }

    fn number(&self) -> u128 {
        self.0.iter().fold(0, |number, digit| number << 4 | u128::from(*digit))
    }

    fn ends(&self, id: Uuid) -> bool {
        id.as_u128() & ((1 << (4 * self.0.len())) - 1) == self.number()
    }

    fn begins(&self, id: Uuid) -> bool {
        self.first_of().contains(&id)
    }

    /// All ids that begin with these digits.
    fn first_of(&self) -> RangeInclusive<Uuid> {
        let open = 4 * (DIGITS - self.0.len());
        let first = self.number() << open;
        Uuid::from_u128(first)..=Uuid::from_u128(first | ((1 << open) - 1))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn parts_of_an_id_are_told_from_names() {
        let id: Uuid = "0197a1b2-c3d4-7e5f-8a9b-0c1d2e3f4a5b".parse().expect("an id");
        let check = |text: &str, begins: bool, ends: bool| {
            let part = Part::read(text).expect(text);
            assert_eq!((part.begins(id), part.ends(id)), (begins, ends), "{text}");
        };
        check("0197", true, false);
        check("0197A1B2-C3", true, false);
        check("2e3f4a5b", false, true);
        check("8a9b-0c1d2e3f4a5b", false, true);
        check("0197a1b2-c3d4-7e5f-8a9b-0c1d2e3f4a5", true, false);
        check("197a1b2-c3d4-7e5f-8a9b-0c1d2e3f4a5b", false, true);
        check("ffff", false, false);
        for text in ["", "abc", "nightly", "0197a1b2-c3d4-7e5f-8a9b-0c1d2e3f4a5b", "12 34"] {
            assert!(Part::read(text).is_none(), "{text}");
        }
    }
}
