//! Progress, checkpoints and heartbeats by hand, gathered in memory and written in batches.

use super::work::Work;
use crate::Stop;
use crate::env::Env;
use crate::replica::{Life, Phase, fence};
use everbeat_model::{BootInstant, Json, Token};
use everbeat_store::{Class, Error as StoreError, Sign, Signed};
use std::collections::BTreeMap;
use std::future::Future;
use std::sync::Arc;
use std::time::Duration;
use tokio::sync::{mpsc, oneshot};

/// Progress is written this often at most; a checkpoint at once.
const PROGRESS_PAUSE: Duration = Duration::from_millis(500);
const RETRY_PAUSE: Duration = Duration::from_millis(100);
const BATCH: usize = 1000;
const FIRST_HOLD: Duration = Duration::from_millis(250);
const LONGEST_HOLD: Duration = Duration::from_secs(10);

type Acknowledge = oneshot::Sender<Result<(), Stop>>;

pub(crate) enum Request {
    Progress(Arc<Work>),
    Checkpoint(Arc<Work>, Json, Acknowledge),
}

/// A performer's way to the signing loop.
#[derive(Clone)]
pub(crate) struct Signer {
    env: Arc<dyn Env>,
    requests: mpsc::Sender<Request>,
}

impl Signer {
    pub(crate) fn new(env: Arc<dyn Env>, capacity: usize) -> (Signer, mpsc::Receiver<Request>) {
        let (requests, received) = mpsc::channel(capacity);
        (Signer { env, requests }, received)
    }

    pub(crate) fn now(&self) -> BootInstant {
        self.env.boot()
    }

    pub(crate) fn sleep(&self, span: Duration) -> impl Future<Output = ()> + use<> {
        self.env.sleep_until(self.env.boot() + span)
    }

    /// Queues the work unless it already waits. A full queue drops the hint: the next one follows.
    pub(crate) fn nudge(&self, work: &Arc<Work>) {
        if !std::mem::replace(&mut work.vital().queued, true)
            && self.requests.try_send(Request::Progress(work.clone())).is_err()
        {
            work.vital().queued = false;
        }
    }

    pub(crate) async fn checkpoint(&self, work: &Arc<Work>, value: Json) -> Result<(), Stop> {
        let (acknowledge, acknowledged) = oneshot::channel();
        let request = Request::Checkpoint(work.clone(), value, acknowledge);
        // The store is slow, not the attempt: whoever waits here is not silent.
        let _waiting = work.awaits_store();
        self.requests.send(request).await.map_err(|_| Stop::Fenced)?;
        acknowledged.await.unwrap_or(Err(Stop::Fenced))
    }
}

struct Pending {
    work: Arc<Work>,
    checkpoint: Option<Json>,
    acknowledge: Vec<Acknowledge>,
}

pub(crate) async fn run(life: Arc<Life>, mut requests: mpsc::Receiver<Request>) {
    let mut pending: BTreeMap<Token, Pending> = BTreeMap::new();
    let mut held = Held::default();
    let mut received = Vec::new();
    let mut written = life.core.env.boot();
    loop {
        if matches!(life.phase(), Phase::Fenced | Phase::Left) {
            return;
        }
        let urgent = pending.values().any(|pending| !pending.acknowledge.is_empty());
        if !urgent {
            let pause = life.core.env.sleep_until(written + PROGRESS_PAUSE);
            let try_again = life.core.env.sleep_until(held.until);
            let (gathered, holds) = (!pending.is_empty(), !held.signs.is_empty());
            tokio::select! {
                biased;
                count = requests.recv_many(&mut received, BATCH) => if count == 0 { return },
                () = pause, if gathered => {}
                () = try_again, if holds => {}
            }
        }
        while received.len() < BATCH
            && let Ok(request) = requests.try_recv()
        {
            received.push(request);
        }
        received.drain(..).for_each(|request| gather(&mut pending, request));
        if life.core.env.boot() >= held.until {
            std::mem::take(&mut held.signs).into_values().for_each(|sign| put_back(&mut pending, sign));
        }
        let urgent = pending.values().any(|pending| !pending.acknowledge.is_empty());
        if urgent || life.core.env.boot() >= written + PROGRESS_PAUSE {
            write(&life, &mut pending, &mut held).await;
            written = life.core.env.boot();
        }
    }
}

/// Checkpoints that the store could not take, although each stood alone: those who wait for them go on waiting.
struct Held {
    signs: BTreeMap<Token, Pending>,
    /// When the signs are tried again.
    until: BootInstant,
    pause: Duration,
}

impl Default for Held {
    fn default() -> Held {
        Held { signs: BTreeMap::new(), until: BootInstant(Duration::ZERO), pause: FIRST_HOLD }
    }
}

impl Held {
    fn hold(&mut self, life: &Life, sign: Pending, error: &StoreError) {
        let lease = &sign.work.claimed.lease;
        if self.signs.is_empty() && self.until < life.core.env.boot() {
            self.until = life.core.env.boot() + self.pause;
            if self.pause == FIRST_HOLD {
                tracing::warn!(run = %lease.run_id, bytes = sign.bytes(), %error,
                    "a checkpoint cannot be stored yet; its attempt waits");
            }
            self.pause = (self.pause * 2).min(LONGEST_HOLD);
        }
        self.signs.insert(sign.work.token(), sign);
    }
}

fn gather(pending: &mut BTreeMap<Token, Pending>, request: Request) {
    let (Request::Progress(work) | Request::Checkpoint(work, ..)) = &request;
    let slot = slot(pending, work);
    if let Request::Checkpoint(_, value, acknowledge) = request {
        slot.checkpoint = Some(value);
        slot.acknowledge.push(acknowledge);
    }
}

/// What has come meanwhile is newer.
fn put_back(pending: &mut BTreeMap<Token, Pending>, sign: Pending) {
    let slot = slot(pending, &sign.work);
    slot.checkpoint = slot.checkpoint.take().or(sign.checkpoint);
    slot.acknowledge.extend(sign.acknowledge);
}

fn slot<'a>(pending: &'a mut BTreeMap<Token, Pending>, work: &Arc<Work>) -> &'a mut Pending {
    pending.entry(work.token()).or_insert_with(|| Pending {
        work: work.clone(),
        checkpoint: None,
        acknowledge: Vec::new(),
    })
}

/// Writes what is pending, in batches of bounded size. What could not be written stays pending, or is held.
async fn write(life: &Life, pending: &mut BTreeMap<Token, Pending>, held: &mut Held) {
    let mut most = BATCH;
    while let Some(batch) = next_batch(pending, most) {
        let signs = batch.iter().map(|pending| {
            let mut vital = pending.work.vital();
            vital.queued = false;
            vital.dirty = false;
            Sign {
                shown: pending.work.claimed.lease.shown(),
                progress: vital.progress.clone(),
                checkpoint: pending.checkpoint.clone(),
            }
        });
        match life.call(life.core.store.sign(signs.collect())).await {
            Ok(answers) => {
                most = (most * 2).min(BATCH);
                for (answer, pending) in answers.into_iter().zip(batch) {
                    held.pause = if pending.checkpoint.is_some() { FIRST_HOLD } else { held.pause };
                    answered(life, answer, pending);
                }
            }
            Err(error) if error.may_be_content() && batch.len() > 1 => {
                // The fault may lie in one sign, or in the size of all: fewer at a time, until that sign is alone.
                most = batch.len() / 2;
                batch.into_iter().for_each(|sign| put_back(pending, sign));
            }
            Err(error) if error.may_be_content() => {
                for sign in batch {
                    alone(life, sign, &error, held);
                }
            }
            Err(error) => {
                tracing::debug!(%error, "progress and checkpoints wait for the store");
                batch.into_iter().for_each(|sign| put_back(pending, sign));
                life.core.env.sleep(RETRY_PAUSE).await;
                return;
            }
        }
    }
}

/// Handles a sign that cannot be stored although it stands alone, so that it holds back no other.
fn alone(life: &Life, sign: Pending, error: &StoreError, held: &mut Held) {
    if error.class() == Class::Bug {
        tracing::error!(%error, "a checkpoint cannot be stored");
        answered(life, Signed::Unstorable, sign);
    } else if sign.checkpoint.is_some() {
        held.hold(life, sign, error);
    } else {
        // Progress is for people: the next one follows, or the ending takes it along.
        tracing::debug!(%error, "progress cannot be stored now");
        sign.work.vital().dirty = true;
    }
}

/// So much text in one write, besides the first item.
const BATCH_BYTES: usize = 8 << 20;

fn next_batch(pending: &mut BTreeMap<Token, Pending>, most: usize) -> Option<Vec<Pending>> {
    let mut batch = vec![pending.pop_first()?.1];
    let mut bytes = batch[0].bytes();
    while batch.len() < most
        && let Some(next) = pending.first_entry()
    {
        bytes += next.get().bytes();
        if bytes > BATCH_BYTES {
            break;
        }
        batch.push(next.remove());
    }
    Some(batch)
}

impl Pending {
    fn bytes(&self) -> usize {
        self.checkpoint.as_ref().map_or(0, |checkpoint| checkpoint.as_str().len())
    }
}

fn answered(life: &Life, answer: Signed, pending: Pending) {
    let answer = match answer {
        Signed::Accepted { cancel_asked } => {
            if cancel_asked && pending.work.ask_cancel(life.core.env.boot()) {
                life.rearm(&pending.work);
            }
            Ok(())
        }
        Signed::Unstorable => Err(Stop::Unstorable),
        Signed::Fenced => {
            fence::one(life, &pending.work);
            Err(Stop::Fenced)
        }
    };
    pending.acknowledge.into_iter().for_each(|acknowledge| _ = acknowledge.send(answer));
}
