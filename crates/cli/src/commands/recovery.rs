use super::To;
use super::find::WORK;
use super::show::amount;
use crate::args::RecoveryAction;
use crate::client::{Answer, escape};
use crate::exit::{self, Failure};
use crate::output::{age, fields, moment, plain, rough, state, table};
use crate::term;
use comfy_table::Cell;
use everbeat_model::time::format_duration;
use serde_json::{Value, json};
use std::time::Duration;

const JOBS: &str = "/api/admin/recovery/jobs";

/// What the administrator of a host's jobs sees and does.
pub(crate) fn act(to: &To, action: RecoveryAction) -> Result<u8, Failure> {
    let report = |name: &str| to.client.get(&format!("{JOBS}/{name}"), &[]);
    match action {
        RecoveryAction::Status => show(to, &report("status")?, |status| fields(&named(status, &STATUS))),
        RecoveryAction::Metrics => show(to, &report("metrics")?, |metrics| fields(&named(metrics, &METRICS))),
        RecoveryAction::Sentinels => show(to, &report("sentinels")?, |found| {
            let headers = ["JOB", "STATUS", "BEAT", "SEQ", "LOCK", "EXIT RECORD", "VALID", "ERROR"];
            rows(&headers, &found["sentinels"], sentinel)
        }),
        RecoveryAction::Heartbeats => show(to, &report("heartbeats")?, |found| {
            let summary = named(&found["summary"], &SUMMARY).into_iter().map(|(name, count)| format!("{name} {count}"));
            let summary = summary.collect::<Vec<_>>().join(", ");
            format!("{}\n\n{summary}", rows(&["JOB", "STATUS", "AGE", "BEAT", "ENGINE"], &found["jobs"], heartbeat))
        }),
        RecoveryAction::Stale => show(to, &report("stale")?, |found| {
            rows(&["JOB", "AGE", "BEAT", "ACTION", "WORKSPACE"], &found["staleJobs"], stale)
        }),
        RecoveryAction::Failed => show(to, &report("failed")?, all_failed),
        RecoveryAction::Health { id } => {
            let id = to.id(&id, WORK)?;
            let health = to.client.get(&format!("/api/admin/jobs/{}/health", escape(&id)), &[])?;
            show(to, &health, |health| fields(&named(health, &HEALTH)))
        }
        RecoveryAction::Resume { ids, all: false } if ids.is_empty() => would_resume(to, &report("failed")?),
        RecoveryAction::Resume { ids, all: _ } => {
            let ids = ids.iter().map(|id| to.id(id, WORK)).collect::<Result<Vec<_>, _>>()?;
            let body = if ids.is_empty() { json!({}) } else { json!({ "jobIds": ids }) };
            let resumed = to.client.post(&format!("{JOBS}/resume"), Some(&body.to_string()), &[])?;
            show(to, &resumed, |done| rows(&["JOB", "OUTCOME", "DETAIL"], &done["results"], outcome))
        }
        RecoveryAction::Clean { dry_run, older_than } => {
            let mut body = json!({ "dryRun": dry_run });
            if let Some(span) = older_than {
                body["olderThan"] = format_duration(span).into();
            }
            let cleaned = to.client.post(&format!("{JOBS}/clean"), Some(&body.to_string()), &[])?;
            show(to, &cleaned, |done| rows(&["JOB", "OUTCOME", "DETAIL"], list(done), outcome))
        }
        RecoveryAction::StartupLog => {
            let log = to.client.get("/api/admin/startup-log", &[])?;
            show(to, &log, |log| {
                let headers = ["STARTED", "REPLICA", "VERSION", "REATTACHED", "RECOVERED", "LOST", "FAILED", "TOOK"];
                rows(&headers, list(log), start)
            })
        }
    }
}

/// What `resume --all` would open again. Nothing is opened by asking.
fn would_resume(to: &To, failed: &Answer) -> Result<u8, Failure> {
    let jobs = failed.value["failedJobs"].as_array().map(Vec::as_slice).unwrap_or_default();
    let resumable = jobs.iter().filter(|job| job["resumable"] == true).count();
    if !jobs.is_empty() {
        to.print(failed.raw.get(), || all_failed(&failed.value));
    } else if to.json() {
        to.print(failed.raw.get(), String::new);
    }
    term::say(&match jobs.len() {
        0 => "no job has failed: there is nothing to resume".to_string(),
        count => format!(
            "nothing was changed: {count} failed, {resumable} with a workspace to resume in\n  \
             to resume some: everbeat recovery resume ID…\n  to resume all:  everbeat recovery resume --all"
        ),
    });
    Ok(exit::DONE)
}

fn all_failed(found: &Value) -> String {
    let headers = ["JOB", "FAILED", "EXIT", "RESUMABLE", "REASON", "WORKSPACE"];
    rows(&headers, &found["failedJobs"], failed)
}

fn show(to: &To, answer: &Answer, table: impl FnOnce(&Value) -> String) -> Result<u8, Failure> {
    to.print(answer.raw.get(), || table(&answer.value));
    Ok(exit::DONE)
}

fn rows(headers: &[&str], items: &Value, row: fn(&Value) -> Vec<Cell>) -> String {
    table(headers, items.as_array().into_iter().flatten().map(row).collect())
}

/// The one list in an answer.
fn list(answer: &Value) -> &Value {
    let within = answer.as_object().and_then(|fields| fields.values().find(|value| value.is_array()));
    within.unwrap_or(answer)
}

const STATUS: [&str; 7] = ["running", "reattached", "recovered", "lost", "failed", "startedAt", "completedAt"];
const METRICS: [&str; 7] =
    ["heartbeatWrites", "heartbeatWriteFailures", "staleDetected", "deadDetected", "reattached", "lost", "checkMs"];
const SUMMARY: [&str; 5] = ["total", "fresh", "stale", "dead", "unknown"];
const HEALTH: [&str; 7] = [
    "jobId",
    "heartbeatStatus",
    "lastHeartbeat",
    "ageSeconds",
    "sentinelFileExists",
    "workspaceExists",
    "sessionDataExists",
];

/// These fields of an object; times with their age.
fn named<'a>(object: &Value, names: &[&'a str]) -> Vec<(&'a str, String)> {
    let said = |value: &Value| match age(value).is_empty() {
        true => plain(value),
        false => moment(value),
    };
    names.iter().map(|name| (*name, said(&object[*name]))).collect()
}

fn sentinel(sentinel: &Value) -> Vec<Cell> {
    vec![
        cell(&sentinel["jobId"]),
        cell(&sentinel["status"]),
        Cell::new(age(&sentinel["lastHeartbeat"])),
        cell(&sentinel["seq"]),
        cell(&sentinel["lock"]),
        yes(&sentinel["exitRecord"]),
        yes(&sentinel["valid"]),
        cell(&sentinel["error"]),
    ]
}

fn heartbeat(job: &Value) -> Vec<Cell> {
    vec![
        cell(&job["jobId"]),
        state(&plain(&job["status"])),
        span(&job["ageSeconds"], 1.0),
        Cell::new(age(&job["lastHeartbeat"])),
        cell(&job["agentEngine"]),
    ]
}

fn stale(job: &Value) -> Vec<Cell> {
    vec![
        cell(&job["jobId"]),
        span(&job["ageMinutes"], 60.0),
        Cell::new(age(&job["lastHeartbeat"])),
        cell(&job["recommendedAction"]),
        cell(&job["workspacePath"]),
    ]
}

fn failed(job: &Value) -> Vec<Cell> {
    let exit = match (&job["exitCode"], &job["exitSignal"]) {
        (Value::Null, Value::Null) => "unknown".to_string(),
        (Value::Null, signal) => format!("signal {signal}"),
        (code, _) => code.to_string(),
    };
    vec![
        cell(&job["jobId"]),
        Cell::new(age(&job["failedAt"])),
        Cell::new(exit),
        yes(&job["resumable"]),
        cell(&job["reason"]),
        cell(&job["workspacePath"]),
    ]
}

fn outcome(done: &Value) -> Vec<Cell> {
    let archived = done["archivedTo"].as_str().map(|place| format!("; archived in {place}")).unwrap_or_default();
    let detail = format!("{}{}{archived}", plain(&done["detail"]), amount(done));
    vec![cell(&done["jobId"]), cell(&done["outcome"]), Cell::new(detail.trim())]
}

fn start(start: &Value) -> Vec<Cell> {
    let took = crate::output::took(&start["startedAt"], &start["completedAt"]).unwrap_or_default();
    let mut row = vec![Cell::new(moment(&start["startedAt"]))];
    row.extend(["replicaId", "version", "reattached", "recovered", "lost", "failed"].map(|name| cell(&start[name])));
    row.push(Cell::new(took));
    row
}

fn cell(value: &Value) -> Cell {
    Cell::new(plain(value))
}

fn yes(value: &Value) -> Cell {
    match value {
        Value::Bool(true) => Cell::new("yes"),
        Value::Bool(false) => Cell::new("no"),
        other => cell(other),
    }
}

fn span(number: &Value, unit_seconds: f64) -> Cell {
    let span = number.as_f64().and_then(|number| Duration::try_from_secs_f64(number * unit_seconds).ok());
    Cell::new(span.map(rough).unwrap_or_default())
}
