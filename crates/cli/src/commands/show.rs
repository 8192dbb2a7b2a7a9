use super::find::ANYTHING;
use super::list::progress;
use super::{To, execution, pool, worker};
use crate::client::{Answer, escape};
use crate::exit::{self, Failure};
use crate::output::{age, fields, message, moment, plain, state, table, took, whole_message};
use crate::waiting;
use comfy_table::Cell;
use serde_json::Value;

/// Shows whatever is meant.
pub(crate) fn show(to: &To, given: &str) -> Result<u8, Failure> {
    let found = match to.find(given, ANYTHING) {
        Ok(found) => found,
        // A pool has a name and no id; what has both is meant by its id.
        Err(failure) => return pool::show(to, given)?.ok_or(failure),
    };
    let id = found.id.as_str();
    let get = |nouns: &str| to.client.get(&format!("/api/v1/{nouns}/{}", escape(id)), &[]);
    match found.kind.as_str() {
        "job" => return show_run(to, id, &get("jobs")?),
        "execution" => {
            let execution = get("executions")?;
            to.print(execution.raw.get(), || execution::described(&execution.value));
        }
        "verdict" => {
            let verdict = get("verdicts")?;
            to.print(verdict.raw.get(), || verdict_fields(&verdict.value));
        }
        "worker" => {
            let worker = get("workers")?;
            to.print(worker.raw.get(), || worker::described(&worker.value));
        }
        "replica" => {
            let replica = get("replicas")?;
            to.print(replica.raw.get(), || replica_fields(&replica.value));
        }
        _ => return show_run(to, id, &get("runs")?),
    }
    Ok(exit::DONE)
}

fn show_run(to: &To, id: &str, run: &Answer) -> Result<u8, Failure> {
    let attempts = waiting::attempts(&to.client, id)?;
    let whole = run.raw.get().trim_end();
    let open = whole.strip_suffix('}').unwrap_or(whole);
    let json = format!("{open},\"attempts\":{}}}", Value::Array(attempts.clone()));
    to.print(&json, || {
        let rows: Vec<Vec<Cell>> = attempts.iter().map(attempt_row).collect();
        let head = fields(&run_fields(&run.value));
        if rows.is_empty() {
            return format!("{head}\n\nno attempt yet");
        }
        let headers = ["ATTEMPT", "OUTCOME", "REPLICA", "STARTED", "TOOK", "ERROR", "VERDICT"];
        format!("{head}\n\n{}{}", table(&headers, rows), last_detail(&attempts))
    });
    Ok(exit::DONE)
}

/// The error of the last attempt that has more to say than its message.
fn last_detail(attempts: &[Value]) -> String {
    let told = attempts.iter().rev().find(|attempt| attempt["error"]["detail"].is_string());
    let told = told.map(|attempt| (plain(&attempt["attempt"]), whole_message(&attempt["error"])));
    told.map(|(number, error)| format!("\n\nattempt {number} ended with\n{error}")).unwrap_or_default()
}

/// What people call a run of this kind.
pub(crate) fn noun(run: &Value) -> &'static str {
    if run["kind"] == "job" { "job" } else { "run" }
}

/// How a job's command ended, as far as it is known.
pub(super) fn exit_of(job: &Value) -> String {
    match (job["exit_code"].as_i64(), job["exit_signal"].as_i64()) {
        (Some(code), _) => code.to_string(),
        (None, Some(signal)) => format!("signal {signal}"),
        (None, None) if job["finished_at"].is_null() => String::new(),
        (None, None) => "unknown".to_string(),
    }
}

/// Tries used up, of those that there may be. Attempts are numbered apart: not each uses up a try.
pub(super) fn tries(run: &Value, of: &str) -> String {
    format!("{}{of}{}", plain(&run["tries"]), plain(&run["max_attempts"]))
}

/// How much a removal took away, if it says so.
pub(super) fn amount(removed: &Value) -> String {
    match (removed["entries"].as_u64(), removed["bytes"].as_u64()) {
        (Some(entries), Some(bytes)) if entries > 0 => format!(" ({entries} files and folders, {bytes} bytes)"),
        _ => String::new(),
    }
}

/// The line that says how a run ended, and why if it failed.
pub(super) fn brief(run: &Value) -> String {
    let took = took(&run["started_at"], &run["finished_at"]).map(|span| format!(", took {span}")).unwrap_or_default();
    let attempt = format!("attempt {}, tries {}", plain(&run["attempt"]), tries(run, " of "));
    let (id, ended) = (plain(&run["id"]), state(&plain(&run["state"])).content());
    let first = format!("{} {id} {ended} ({attempt}{took})", noun(run));
    match &run["error"] {
        Value::Null if run["kind"] == "job" => format!("{first}\nexit code {}", exit_of(run)),
        Value::Null => first,
        error => format!("{first}\n{}", whole_message(error)),
    }
}

fn run_fields(run: &Value) -> Vec<(&'static str, String)> {
    let known = run["state"].as_str().unwrap_or_default();
    let life = match run["liveness"].as_str() {
        Some("alive") if run["starting"] == true => ", starting".to_string(),
        life => life.map(|life| format!(", {life}")).unwrap_or_default(),
    };
    let json = |name: &str| if run[name].is_null() { String::new() } else { run[name].to_string() };
    let is_job = run["kind"] == "job";
    // A job's own fields tell what its input and result are made of.
    let inner = |name: &str| if is_job { String::new() } else { json(name) };
    let all = vec![
        (noun(run), plain(&run["id"])),
        ("name", plain(&run["name"])),
        ("state", format!("{}{life}", state(known).content())),
        ("exit", if is_job { exit_of(run) } else { String::new() }),
        ("command", json("command")),
        ("folder", plain(&run["cwd"])),
        ("workspace", plain(&run["workspace_path"])),
        ("session", plain(&run["session_id"])),
        ("agent engine", plain(&run["agent_engine"])),
        ("host", plain(&run["host"])),
        ("heartbeat", if run["starting"] == true { String::new() } else { plain(&run["heartbeat_status"]) }),
        ("beat trouble", plain(&run["heartbeat_error"])),
        ("reattached", if run["reattached"] == true { "yes".to_string() } else { String::new() }),
        ("kind", if is_job { String::new() } else { plain(&run["kind"]) }),
        ("execution", plain(&run["parent"]["execution"])),
        ("node", plain(&run["parent"]["node"])),
        ("task", if is_job { String::new() } else { plain(&run["task"]) }),
        ("queue", plain(&run["queue"])),
        ("priority", plain(&run["priority"])),
        ("attempt", plain(&run["attempt"])),
        ("tries used", tries(run, " of ")),
        ("unique key", plain(&run["unique_key"])),
        ("progress", progress(&run["progress"])),
        ("created", moment(&run["created_at"])),
        ("due", moment(&run["run_at"])),
        ("started", moment(&run["started_at"])),
        ("cancel asked", moment(&run["cancel_requested_at"])),
        ("finished", moment(&run["finished_at"])),
        ("replica", plain(&run["replica_id"])),
        ("worker", plain(&run["worker_id"])),
        ("last beat", moment(&run["last_heartbeat_at"])),
        ("beat due by", moment(&run["heartbeat_deadline"])),
        ("deadline", moment(&run["deadline"])),
        ("input", inner("input")),
        ("args", json("args")),
        ("checkpoint", json("checkpoint")),
        ("result", inner("result")),
        ("error", message(&run["error"])),
    ];
    all.into_iter().filter(|(_, value)| !value.is_empty()).collect()
}

fn attempt_row(attempt: &Value) -> Vec<Cell> {
    vec![
        Cell::new(plain(&attempt["attempt"])),
        state(attempt["outcome"].as_str().unwrap_or("running")),
        Cell::new(plain(&attempt["replica_id"])),
        Cell::new(age(&attempt["started_at"])),
        Cell::new(took(&attempt["started_at"], &attempt["ended_at"]).unwrap_or_default()),
        Cell::new(message(&attempt["error"])),
        Cell::new(plain(&attempt["verdict_id"])),
    ]
}

fn replica_fields(replica: &Value) -> String {
    let life = replica["liveness"].as_str().map(|life| format!(", {life}")).unwrap_or_default();
    let skew = plain(&replica["clock_skew_ms"]);
    let all = [
        ("replica", plain(&replica["id"])),
        ("state", format!("{}{life}", state(&plain(&replica["state"])).content())),
        ("host", plain(&replica["host"])),
        ("version", plain(&replica["version"])),
        ("running", plain(&replica["running"])),
        ("started", moment(&replica["started_at"])),
        ("last beat", moment(&replica["last_heartbeat_at"])),
        ("beats every", plain(&replica["heartbeat_interval"])),
        ("lost after", plain(&replica["heartbeat_timeout"])),
        ("problem", plain(&replica["problem"])),
        ("clock skew", if skew.is_empty() { skew } else { format!("{skew}ms") }),
    ];
    fields(&all.into_iter().filter(|(_, value)| !value.is_empty()).collect::<Vec<_>>())
}

fn verdict_fields(verdict: &Value) -> String {
    let subject = &verdict["subject"];
    let evidence = crate::output::pretty(&verdict["evidence"].to_string());
    let all = [
        ("verdict", plain(&verdict["id"])),
        ("at", moment(&verdict["at"])),
        ("subject", format!("{} {}", plain(&subject["kind"]), plain(&subject["id"]))),
        ("judgement", state(&plain(&verdict["judgement"])).content()),
        ("reason", plain(&verdict["reason"])),
        ("judged by", format!("replica {}", plain(&verdict["judged_by"]))),
        ("run", plain(&verdict["run_id"])),
        ("attempt", plain(&verdict["attempt"])),
        ("then", plain(&verdict["then"])),
        ("evidence", evidence),
    ];
    fields(&all.into_iter().filter(|(_, value)| !value.is_empty()).collect::<Vec<_>>())
}

#[cfg(test)]
mod tests {
    use super::*;
    use serde_json::json;

    #[test]
    fn a_traceback_is_told_once_with_its_message() {
        let check = |error: Value, expected: &str| assert_eq!(whole_message(&error), expected, "{error}");
        check(json!({"message": "no"}), "no");
        check(json!({"message": "E: no", "detail": "Traceback:\n  here\nE: no\n"}), "Traceback:\n  here\nE: no");
        check(json!({"message": "E: no", "detail": "at line 1"}), "E: no\nat line 1");
        let attempts = [json!({"attempt": 1, "error": {"message": "a", "detail": "b"}}), json!({"attempt": 2})];
        assert_eq!(last_detail(&attempts), "\n\nattempt 1 ended with\na\nb");
        assert_eq!(last_detail(&attempts[1..]), "");
    }

    #[test]
    fn a_job_that_starts_is_told_so_unless_there_is_a_doubt() {
        let check = |liveness: &str, starting: bool, expected: &str| {
            let job = json!({"kind": "job", "state": "running", "liveness": liveness, "starting": starting, "heartbeat_status": "unknown"});
            let told = run_fields(&job);
            let field = |name: &str| told.iter().find(|(known, _)| *known == name).map(|(_, value)| value.as_str());
            assert_eq!((field("state"), field("heartbeat").is_none()), (Some(expected), starting), "{job}");
        };
        check("alive", true, "running, starting");
        check("alive", false, "running, alive");
        check("suspect", true, "running, suspect");
    }
}
