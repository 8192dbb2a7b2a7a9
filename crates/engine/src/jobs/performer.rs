//! The performer of commands: each attempt is a watch over a shim, which outlives this replica.

use super::absent::{self, Absent};
use super::watch::{self, attempt_of};
use super::{Jobs, adopt, check, clean, strays};
use crate::attempts::{Capacity, Conclusion, Hindrance, Line, Offer, Performer, Post, Terms, Work};
use crate::engine::lock;
use crate::replica::Phase;
use crate::settings::JobSettings;
use crate::{Env, Liveness};
use async_trait::async_trait;
use everbeat_model::run::{COMMAND, Spec, lane_on};
use everbeat_model::{Ending, Outcome, Reason};
use everbeat_store::{Error as StoreError, Held};
use futures_util::FutureExt;
use futures_util::future::BoxFuture;
use std::collections::BTreeSet;
use std::sync::{Arc, Mutex};
use std::time::Duration;

/// Strays are looked for in every so many whole sweeps.
const STRAYS_EVERY: u32 = 10;
/// Hints come in floods, and hardly one of them is about a job.
const HINT_PAUSE: Duration = Duration::from_millis(10);

pub(crate) struct Commands {
    jobs: Arc<Jobs>,
    slots: usize,
    dead_after: Duration,
    seen: Mutex<Seen>,
}

/// What sweeps of this life have seen.
#[derive(Default)]
struct Seen {
    absent: Absent,
    sweeps: u32,
}

impl Commands {
    pub(crate) fn new(jobs: Arc<Jobs>, settings: &JobSettings) -> Commands {
        Commands { jobs, slots: settings.slots, dead_after: settings.dead_after, seen: Mutex::default() }
    }
}

#[async_trait]
impl Performer for Commands {
    fn name(&self) -> &'static str {
        "jobs"
    }

    fn tasks(&self) -> BTreeSet<String> {
        self.jobs.shims.iter().map(|_| COMMAND.to_string()).collect()
    }

    fn performs(&self, spec: &Spec) -> bool {
        spec.detached()
    }

    fn terms(&self, spec: &Spec) -> Terms {
        Terms::outliving(&spec.policy)
    }

    fn capacity(&self) -> Capacity {
        Capacity { slots: self.slots, setting: "jobs.slots" }
    }

    async fn offer(&self, post: &Post) -> Offer {
        let core = &post.life.core;
        let Some(shims) = &self.jobs.shims else { return Offer::default() };
        if post.life.phase() == Phase::Active {
            self.jobs.shortages.look(&post.life, &**shims).await;
        }
        // What an earlier replica left comes first.
        let most = match self.jobs.recovered() {
            true => self.jobs.shortages.allowance(&post.works()),
            false => 0,
        };
        // Those that belong nowhere yet, and those that belong here.
        let lines = [COMMAND.to_string(), lane_on(COMMAND, &core.settings.host)];
        let lines = lines.map(|name| Line { name, task: COMMAND.to_string(), most: usize::MAX });
        Offer { most, lines: lines.into(), queues: None, pause: HINT_PAUSE }
    }

    /// One that is started here is not looked for before its start is over; one that was somewhere is.
    fn entered(&self, work: &Work) {
        let mut vital = work.vital();
        vital.doubt = work.taken_over.then_some(Liveness::Unknown);
        vital.starting = !work.taken_over;
    }

    async fn perform(&self, post: &Post, work: &Arc<Work>) -> Option<Conclusion> {
        Some(match &self.jobs.shims {
            Some(shims) => watch::perform(&post.life, shims, work).await,
            None => {
                let why = "this replica performs no commands";
                Ending::because(Outcome::Released, Reason::TaskUnknown, why).into()
            }
        })
    }

    /// The shim of an attempt is told when its end is stored.
    async fn afterwards(&self, work: &Arc<Work>) {
        let stored = tokio::select! {
            biased;
            () = work.settled() => true,
            () = work.killed() => false,
        };
        let counts = stored && !work.vital().fenced;
        if let Some(shims) = self.jobs.shims.as_ref().filter(|_| counts) {
            shims.acknowledge(&attempt_of(&work.claimed)).await;
        }
    }

    fn settled(&self, outcome: Outcome) {
        metrics::counter!("everbeat_job_exits_total", "outcome" => outcome.as_str()).increment(1);
    }

    async fn recover(&self, post: &Post) -> Result<(), StoreError> {
        match &self.jobs.shims {
            Some(shims) if !self.jobs.recovered() => adopt::recover(post, shims).await,
            _ => Ok(()),
        }
    }

    fn joined(&self, _post: &Post) {
        self.jobs.begin();
        *lock(&self.seen) = Seen::default();
    }

    async fn sweep(&self, post: &Post, whole: bool) -> Result<(), StoreError> {
        let life = &post.life;
        if self.jobs.shims.is_some() && life.phase() == Phase::Active {
            adopt::adopt(post).await?;
        }
        let mut seen = std::mem::take(&mut *lock(&self.seen));
        let given_up = absent::give_up(life, &mut seen.absent).await;
        seen.sweeps += u32::from(whole);
        let strays = whole && seen.sweeps.is_multiple_of(STRAYS_EVERY) && self.jobs.recovered();
        *lock(&self.seen) = seen;
        given_up?;
        match &self.jobs.shims {
            Some(shims) if strays => strays::stop(life, shims).await,
            _ => Ok(()),
        }
    }

    fn resume(&self, post: &Post, held: Held) -> Option<Held> {
        adopt::resume(post, held);
        None
    }

    fn loops(&self, post: &Post) -> Vec<(&'static str, BoxFuture<'static, ()>)> {
        vec![("check jobs", check::run(post.clone()).boxed()), ("clean jobs", clean::run(post.life.clone()).boxed())]
    }

    fn noun(&self) -> Option<&'static str> {
        Some("job")
    }

    fn starts_unseen(&self) -> bool {
        true
    }

    fn patience(&self) -> Option<Duration> {
        Some(self.dead_after)
    }

    fn hindrance(&self, env: &dyn Env) -> Option<Hindrance> {
        let (lack, left) = self.jobs.shortages.lack(env)?;
        Some(Hindrance { reason: lack.describe(left), remedy: lack.what.hint().to_string() })
    }
}
