//! The performer of commands: each attempt is a watch over a shim, which outlives this replica.

use super::absent::{self, Absent};
use super::shims::Shims;
use super::watch::{self, attempt_of};
use super::{adopt, check, clean, strays};
use crate::Liveness;
use crate::attempts::{Capacity, Conclusion, Line, Offer, Performer, Post, Terms, Work};
use crate::engine::lock;
use crate::replica::Phase;
use crate::settings::JobSettings;
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
    /// Without them this replica performs no commands, and only gives up those of hosts that stay away.
    pub(crate) shims: Option<Arc<dyn Shims>>,
    pub(crate) slots: usize,
    seen: Mutex<Seen>,
}

/// What sweeps of this life have seen.
#[derive(Default)]
struct Seen {
    absent: Absent,
    sweeps: u32,
}

impl Commands {
    pub(crate) fn new(shims: Option<Arc<dyn Shims>>, settings: &JobSettings) -> Commands {
        Commands { shims, slots: settings.slots, seen: Mutex::default() }
    }
}

#[async_trait]
impl Performer for Commands {
    fn name(&self) -> &'static str {
        "jobs"
    }

    fn tasks(&self) -> BTreeSet<String> {
        self.shims.iter().map(|_| COMMAND.to_string()).collect()
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
        if self.shims.is_none() {
            return Offer::default();
        }
        if post.life.phase() == Phase::Active {
            core.jobs.shortages.look(&post.life).await;
        }
        // What an earlier replica left comes first.
        let most = match core.jobs.recovered() {
            true => core.jobs.shortages.allowance(&post.works()),
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
        Some(match &self.shims {
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
        if let Some(shims) = self.shims.as_ref().filter(|_| counts) {
            shims.acknowledge(&attempt_of(&work.claimed)).await;
        }
    }

    fn settled(&self, outcome: Outcome) {
        metrics::counter!("everbeat_job_exits_total", "outcome" => outcome.as_str()).increment(1);
    }

    async fn recover(&self, post: &Post) -> Result<(), StoreError> {
        match &self.shims {
            Some(shims) if !post.life.core.jobs.recovered() => adopt::recover(post, shims).await,
            _ => Ok(()),
        }
    }

    fn joined(&self, post: &Post) {
        post.life.core.jobs.begin();
        *lock(&self.seen) = Seen::default();
    }

    async fn sweep(&self, post: &Post, whole: bool) -> Result<(), StoreError> {
        let life = &post.life;
        if self.shims.is_some() && life.phase() == Phase::Active {
            adopt::adopt(post).await?;
        }
        let mut seen = std::mem::take(&mut *lock(&self.seen));
        let given_up = absent::give_up(life, &mut seen.absent).await;
        seen.sweeps += u32::from(whole);
        let strays = whole && seen.sweeps.is_multiple_of(STRAYS_EVERY) && life.core.jobs.recovered();
        *lock(&self.seen) = seen;
        given_up?;
        match &self.shims {
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

    fn hindrance(&self, post: &Post) -> Option<(String, String)> {
        let core = &post.life.core;
        let (lack, left) = core.jobs.shortages.lack(&*core.env)?;
        let reason = format!("no jobs are begun on this host: {}", lack.describe(left));
        Some((reason, lack.what.hint().to_string()))
    }
}
