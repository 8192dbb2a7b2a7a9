//! Workers without an SDK: each piece of work is a line of JSON on their standard input, and each answer a line on their
//! standard output. Their life is judged by their process alone.

use super::guardian::{OutputLine, WorkerProcess};
use super::link::{Assignment, Ended, FromWorker, Hello, LeaseShown, ToWorker};
use super::pool::Pool;
use super::settings::Protocol;
use super::telemetry;
use super::worker::{Line, TO_WORKER, Worker};
use crate::engine::{Core, lock};
use everbeat_model::RunId;
use futures_util::FutureExt;
use serde::Deserialize;
use serde_json::json;
use serde_json::value::RawValue;
use std::sync::{Arc, Mutex};
use tokio::sync::mpsc;

/// Where the lines of one worker are heard.
pub(super) struct Heard {
    core: Arc<Core>,
    pool: Arc<Pool>,
    worker: Arc<Worker>,
    performs: Performs,
}

/// What the worker was given and has not answered, oldest first.
type Performs = Arc<Mutex<Vec<LeaseShown>>>;

/// One line of a worker. One that names no run is about the oldest.
#[derive(Deserialize)]
struct Answer<'a> {
    run_id: Option<RunId>,
    #[serde(borrow)]
    result: Option<&'a RawValue>,
    error: Option<String>,
    #[serde(default)]
    permanent: bool,
    #[serde(default)]
    detail: String,
    #[serde(borrow)]
    output: Option<&'a RawValue>,
    progress: Option<Progress>,
    #[serde(borrow)]
    checkpoint: Option<&'a RawValue>,
}

#[derive(Default, Deserialize)]
struct Progress {
    done: Option<u64>,
    total: Option<u64>,
    note: Option<String>,
}

/// Begins to speak lines with a worker, if its pool does. Such a worker says no hello: it serves from its start on.
pub(super) fn start(core: &Arc<Core>, pool: &Arc<Pool>, worker: &Arc<Worker>) -> Option<Heard> {
    let process = worker.process.clone().filter(|_| pool.settings.protocol == Protocol::Lines)?;
    let (to, words) = mpsc::channel(TO_WORKER);
    let hello = Hello {
        pool: Some(pool.settings.name.clone()),
        sdk: "lines".to_string(),
        tasks: pool.settings.tasks.clone(),
        slots: pool.settings.slots,
        ..Hello::default()
    };
    let performs = Performs::default();
    let speak = speak(worker.clone(), process, words, performs.clone()).boxed();
    worker.own(core.env.spawn("worker lines", speak));
    worker.connected(&hello, Line { to, epoch: core.pools.next_epoch() }, core.env.boot());
    worker.state().keys.confirm();
    telemetry::ready(pool, worker, worker.uptime(core.env.boot()));
    if let Some(life) = core.life() {
        life.all_freed();
    }
    Some(Heard { core: core.clone(), pool: pool.clone(), worker: worker.clone(), performs })
}

async fn speak(
    worker: Arc<Worker>,
    process: Arc<dyn WorkerProcess>,
    mut words: mpsc::Receiver<ToWorker>,
    performs: Performs,
) {
    while let Some(word) = words.recv().await {
        match word {
            ToWorker::Work(assignment) => {
                lock(&performs).push(assignment.lease);
                if let Err(error) = process.write(line_of(&assignment).as_bytes()).await {
                    tracing::warn!(worker = %worker.id, %error, "a worker does not read its lines");
                }
            }
            ToWorker::Cancel { lease, .. } => {
                let line = format!("{}\n", json!({ "cancel": lease.run_id }));
                let _it_need_not_listen = process.write(line.as_bytes()).await;
            }
            // It reads the end of its input, and goes.
            ToWorker::Drain { .. } => process.close_input().await,
            _ => {}
        }
    }
}

fn line_of(assignment: &Assignment) -> String {
    let Assignment { lease, task, input, checkpoint, args, parent, session, .. } = assignment;
    let session = session.as_ref();
    let line = json!({
        "run_id": lease.run_id,
        "attempt": lease.attempt,
        "task": task,
        "input": input,
        "checkpoint": checkpoint,
        "args": args,
        "execution_id": parent.as_ref().map(|parent| parent.execution),
        "node": parent.as_ref().map(|parent| &parent.node),
        "session": session.map(|shown| json!({ "key": shown.key, "id": shown.id, "is_new": shown.is_new })),
    });
    format!("{line}\n")
}

impl Heard {
    /// A line on its standard output. What is no answer goes into the log.
    pub(super) async fn line(&self, line: &OutputLine) {
        let now = self.core.env.boot();
        self.worker.state().pulse.heard(now);
        let answer = match serde_json::from_str::<Answer<'_>>(&line.text) {
            Ok(answer) if !line.cut => answer,
            Ok(_) => return self.odd("it is too long", &line.text),
            Err(error) => return self.odd(&error.to_string(), &line.text),
        };
        let Some(lease) = self.lease(answer.run_id) else {
            return self.odd("it names no run that the worker performs", &line.text);
        };
        let text = |raw: &RawValue| raw.get().to_string();
        if answer.progress.is_some() || answer.checkpoint.is_some() {
            let Progress { done, total, note } = answer.progress.unwrap_or_default();
            let checkpoint = answer.checkpoint.map(text);
            let beat = FromWorker::Heartbeat { lease, done, total, note, checkpoint, next_within: None, sequence: 0 };
            self.pass_on(lease, beat).await;
        }
        if let Some(output) = answer.output {
            self.pass_on(lease, FromWorker::Output { lease, sequence: 0, item: text(output) }).await;
        }
        let how = match (answer.result, answer.error) {
            (_, Some(message)) => Ended::Failure { message, permanent: answer.permanent, detail: answer.detail },
            (Some(result), None) => Ended::Result(text(result)),
            (None, None) => return,
        };
        lock(&self.performs).retain(|performed| *performed != lease);
        self.worker.says_ended(lease.token);
        self.pass_on(lease, FromWorker::Ended { lease, how }).await;
    }

    fn lease(&self, run: Option<RunId>) -> Option<LeaseShown> {
        let performs = lock(&self.performs);
        match run {
            Some(run) => performs.iter().find(|lease| lease.run_id == run).copied(),
            None => performs.first().copied(),
        }
    }

    async fn pass_on(&self, lease: LeaseShown, word: FromWorker) {
        if let Some(route) = self.worker.route(&lease) {
            let _nobody_awaits_it = route.send(word).await;
        }
    }

    fn odd(&self, why: &str, text: &str) {
        tracing::warn!(target: "everbeat::worker", worker = %self.worker.id, pool = self.pool.settings.name,
            stream = "stdout", why, "not an answer: {text}");
        self.worker.spoke(text.to_string());
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_line_is_read_as_it_is_written() {
        let answer: Answer<'_> = serde_json::from_str(r#"{"result": {"a": 1.0}}"#).expect("read");
        assert_eq!(answer.result.map(RawValue::get), Some(r#"{"a": 1.0}"#));
        let answer: Answer<'_> = serde_json::from_str(r#"{"error":"no","permanent":true}"#).expect("read");
        assert!(answer.permanent && answer.result.is_none());
        assert!(serde_json::from_str::<Answer<'_>>("3").is_err());
    }
}
