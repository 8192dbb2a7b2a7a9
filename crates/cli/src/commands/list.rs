use super::find::{SUBJECTS, WORK};
use super::show::{exit_of, tries};
use super::{To, check, pool, schedule, worker};
use crate::args::{Ls, PageArgs};
use crate::client::Trouble;
use crate::exit::{self, Failure};
use crate::output::{self, age, plain, state};
use crate::term;
use comfy_table::Cell;
use serde::Deserialize;
use serde_json::Value;
use serde_json::value::RawValue;
use std::collections::BTreeSet;

/// How one item becomes a row.
pub(super) type Row = fn(&Value) -> Vec<Cell>;

pub(crate) fn list(to: &To, what: Ls) -> Result<u8, Failure> {
    let filter = |pairs: Vec<(&'static str, Option<String>)>| -> Vec<(&'static str, String)> {
        pairs.into_iter().filter_map(|(name, value)| value.map(|value| (name, value))).collect()
    };
    match what {
        Ls::Runs { state, task, queue, kind, page } => {
            let filter = filter(vec![("state", state), ("task", task), ("queue", queue), ("kind", kind)]);
            let headers = ["ID", "TASK", "QUEUE", "STATE", "TRIES", "PROGRESS", "BEAT", "CREATED"];
            print(to, "/api/v1/runs", filter, &page, &headers, run)
        }
        Ls::Jobs { state, queue, page } => {
            let filter = filter(vec![("state", state), ("queue", queue)]);
            let headers = ["ID", "NAME", "STATE", "EXIT", "HEARTBEAT", "TRIES", "PROGRESS", "CREATED"];
            print(to, "/api/v1/jobs", filter, &page, &headers, job)
        }
        Ls::Graphs { page } => {
            let headers = ["NAME", "VERSION", "NODES", "SINGLETON", "SHAPE", "APPLIED"];
            print(to, "/api/v1/graphs", Vec::new(), &page, &headers, graph)
        }
        Ls::Executions { graph, conditions, sort, archived, page } => {
            let mut filter = filter(vec![("graph", graph), ("sort", sort)]);
            filter.extend(conditions.into_iter().map(|condition| ("where", condition)));
            filter.extend(archived.then(|| ("archived", "true".to_string())));
            let headers = ["ID", "GRAPH", "VERSION", "REVISION", "SET", "COMPUTING", "FAILED", "UPDATED"];
            print(to, "/api/v1/executions", filter, &page, &headers, execution)
        }
        Ls::Flows { page } => print(to, "/api/v1/flows", Vec::new(), &page, &schedule::HEADERS, schedule::row),
        Ls::Schedules { page } => print(to, "/api/v1/schedules", Vec::new(), &page, &schedule::HEADERS, schedule::row),
        Ls::Checks { which } => check::ls(to, which),
        Ls::Replicas { state, page } => {
            let headers = ["ID", "HOST", "VERSION", "STATE", "RUNNING", "BEAT", "STARTED"];
            print(to, "/api/v1/replicas", filter(vec![("state", state)]), &page, &headers, replica)
        }
        Ls::Pools { page } => {
            let headers = ["NAME", "STATE", "SIZE", "READY", "BUSY", "SLOTS", "RESTARTS", "CONTAINMENT", "TROUBLE"];
            print(to, "/api/v1/pools", Vec::new(), &page, &headers, pool::row)
        }
        Ls::Workers { pool, state, page } => {
            let filter = filter(vec![("pool", pool), ("state", state)]);
            print(to, "/api/v1/workers", filter, &page, &worker::HEADERS, worker::row)
        }
        Ls::Verdicts { run, subject, page } => {
            let run = run.map(|run| to.id(&run, WORK)).transpose()?;
            let subject = subject.map(|subject| to.id(&subject, SUBJECTS)).transpose()?;
            let filter = filter(vec![("run_id", run), ("subject", subject)]);
            let headers = ["ID", "SUBJECT", "JUDGEMENT", "REASON", "THEN", "AT"];
            print(to, "/api/v1/verdicts", filter, &page, &headers, verdict)
        }
        Ls::Queues { page } => {
            let headers = ["NAME", "STATE", "SCHEDULED", "READY", "RUNNING"];
            print(to, "/api/v1/queues", Vec::new(), &page, &headers, queue)
        }
        Ls::Tasks { page } => print(to, "/api/v1/tasks", Vec::new(), &page, &["NAME"], task),
    }
}

fn run(run: &Value) -> Vec<Cell> {
    let doubtful = |life: &&str| matches!(*life, "suspect" | "stalled");
    vec![
        Cell::new(plain(&run["id"])),
        Cell::new(plain(&run["task"])),
        Cell::new(plain(&run["queue"])),
        state(run["liveness"].as_str().filter(doubtful).unwrap_or(&plain(&run["state"]))),
        Cell::new(tries(run, "/")),
        Cell::new(progress(&run["progress"])),
        Cell::new(if run["state"] == "running" { age(&run["last_heartbeat_at"]) } else { String::new() }),
        Cell::new(age(&run["created_at"])),
    ]
}

fn job(job: &Value) -> Vec<Cell> {
    let doubtful = |life: &&str| matches!(*life, "suspect" | "stalled");
    let program = || plain(&job["command"][0]);
    vec![
        Cell::new(plain(&job["id"])),
        Cell::new(Some(plain(&job["name"])).filter(|name| !name.is_empty()).unwrap_or_else(program)),
        state(job["liveness"].as_str().filter(doubtful).unwrap_or(&plain(&job["state"]))),
        Cell::new(exit_of(job)),
        // Its sentinel comes with its command.
        Cell::new(if job["starting"] == true { "starting".to_string() } else { plain(&job["heartbeat_status"]) }),
        Cell::new(tries(job, "/")),
        Cell::new(progress(&job["progress"])),
        Cell::new(age(&job["created_at"])),
    ]
}

/// `531/1000 note`, as far as known.
pub(crate) fn progress(progress: &Value) -> String {
    let (done, total) = (plain(&progress["done"]), plain(&progress["total"]));
    let count = match (done.is_empty(), total.is_empty()) {
        (true, _) => String::new(),
        (false, true) => done,
        (false, false) => format!("{done}/{total}"),
    };
    format!("{count} {}", plain(&progress["note"])).trim().to_string()
}

fn graph(graph: &Value) -> Vec<Cell> {
    let singleton = if graph["singleton"] == true { "yes" } else { "" };
    vec![
        Cell::new(plain(&graph["name"])),
        Cell::new(plain(&graph["version"])),
        Cell::new(graph["nodes"].as_array().map_or(0, Vec::len)),
        Cell::new(singleton),
        Cell::new(plain(&graph["shape"])),
        Cell::new(age(&graph["applied_at"])),
    ]
}

fn execution(execution: &Value) -> Vec<Cell> {
    let in_state = |state: &str| {
        let nodes = execution["nodes"].as_object();
        Cell::new(nodes.map_or(0, |nodes| nodes.values().filter(|node| node["state"] == state).count()))
    };
    vec![
        Cell::new(plain(&execution["id"])),
        Cell::new(plain(&execution["graph"])),
        Cell::new(plain(&execution["version"])),
        Cell::new(plain(&execution["revision"])),
        Cell::new(execution["values"].as_object().map_or(0, |values| values.len())),
        in_state("computing"),
        in_state("failed"),
        Cell::new(age(&execution["updated_at"])),
    ]
}

fn replica(replica: &Value) -> Vec<Cell> {
    vec![
        Cell::new(plain(&replica["id"])),
        Cell::new(plain(&replica["host"])),
        Cell::new(plain(&replica["version"])),
        state(&plain(&replica["state"])),
        Cell::new(plain(&replica["running"])),
        Cell::new(age(&replica["last_heartbeat_at"])),
        Cell::new(age(&replica["started_at"])),
    ]
}

fn verdict(verdict: &Value) -> Vec<Cell> {
    let subject = &verdict["subject"];
    vec![
        Cell::new(plain(&verdict["id"])),
        Cell::new(format!("{} {}", plain(&subject["kind"]), plain(&subject["id"]))),
        state(&plain(&verdict["judgement"])),
        Cell::new(plain(&verdict["reason"])),
        Cell::new(plain(&verdict["then"])),
        Cell::new(age(&verdict["at"])),
    ]
}

fn queue(queue: &Value) -> Vec<Cell> {
    let count = |name: &str| Cell::new(plain(&queue[name]));
    let paused = if queue["paused"] == true { state("paused") } else { Cell::new("open") };
    vec![count("name"), paused, count("scheduled"), count("ready"), count("running")]
}

/// A task is listed by its name alone, or as an object that has one.
fn task(task: &Value) -> Vec<Cell> {
    vec![Cell::new(plain(task.get("name").unwrap_or(task)))]
}

/// Items are kept as they came, for `-o json`.
#[derive(Deserialize)]
struct Page {
    items: Vec<Box<RawValue>>,
    next_cursor: Option<String>,
}

pub(super) fn print(
    to: &To,
    path: &str,
    filter: Vec<(&'static str, String)>,
    asked: &PageArgs,
    headers: &[&str],
    row: Row,
) -> Result<u8, Failure> {
    let mut page = fetch(to, path, &filter, asked, asked.cursor.as_deref())?;
    while asked.all
        && let Some(cursor) = page.next_cursor.take()
    {
        let next = fetch(to, path, &filter, asked, Some(&cursor))?;
        page.items.extend(next.items);
        page.next_cursor = next.next_cursor;
    }
    let items: Vec<&str> = page.items.iter().map(|item| item.get()).collect();
    let cursor = page.next_cursor.map_or(Value::Null, Value::String);
    let json = format!("{{\"items\":[{}],\"next_cursor\":{cursor}}}", items.join(","));
    if items.is_empty() && !to.json() {
        term::say(&none(path, !filter.is_empty() || asked.cursor.is_some()));
        return Ok(exit::DONE);
    }
    to.print(&json, || {
        let read = |item: &&str| serde_json::from_str(item).unwrap_or(Value::Null);
        let rows = items.iter().map(read).map(|item| row(&item)).collect();
        if asked.wide { output::wide_table(headers, rows) } else { output::table(headers, rows) }
    });
    for problem in problems(&items).into_iter().filter(|_| !to.json()) {
        term::say(&format!("note: {problem}"));
    }
    if let (Value::String(cursor), false) = (&cursor, to.json()) {
        term::say(&format!("more: --cursor {cursor}, or --all"));
    }
    Ok(exit::DONE)
}

/// What is wrong with what was listed, each once.
fn problems(items: &[&str]) -> BTreeSet<String> {
    let problem = |item: &&str| Some(serde_json::from_str::<Value>(item).ok()?["problem"].as_str()?.to_string());
    items.iter().filter_map(problem).collect()
}

/// There is nothing to list, and what could be tried.
fn none(path: &str, filtered: bool) -> String {
    if filtered {
        return "none that fit\n  hint: leave a filter out to see more".to_string();
    }
    let what = path.rsplit('/').next().unwrap_or_default();
    let hint = match what {
        "runs" if path.contains("/flows/") => "ask for one with `everbeat flow trigger NAME`",
        "runs" if path.contains("/schedules/") => "ask for one with `everbeat schedule trigger NAME`",
        "runs" => "make one with `everbeat submit echo --input 1 --wait`",
        "jobs" => "start one with `everbeat run -- sh -c 'echo hello'`",
        "graphs" => "apply one with `everbeat graph apply FILE`",
        "executions" => "start one with `everbeat execution start GRAPH`, or try --archived",
        "flows" => "write one with `everbeat flow apply FILE`",
        "schedules" => "write one with `everbeat schedule put NAME --task TASK --every 15m`",
        "checks" => "ping one with `everbeat ping NAME`, or write one with `everbeat check put NAME --period 1d`",
        "pings" => "ping with `everbeat ping NAME`",
        "pools" => "name one in everbeat.toml: [[pool]]",
        "workers" => "a pool starts them, or they dial server.worker_listen",
        "sessions" => "a run begins one: `everbeat submit TASK --session KEY`",
        "verdicts" => "nothing was lost, stalled or timed out",
        "queues" => "a queue is there once something stands in it: `everbeat submit noop`",
        "tasks" => "a task is there once a server or a worker offers it",
        _ => return "none".to_string(),
    };
    format!("none: no {what} yet\n  hint: {hint}")
}

fn fetch(
    to: &To,
    path: &str,
    filter: &[(&'static str, String)],
    asked: &PageArgs,
    cursor: Option<&str>,
) -> Result<Page, Failure> {
    let limit = asked.limit.map(|limit| limit.to_string());
    let mut query: Vec<(&str, &str)> = filter.iter().map(|(name, value)| (*name, value.as_str())).collect();
    query.extend(limit.as_deref().map(|limit| ("limit", limit)));
    query.extend(cursor.map(|cursor| ("cursor", cursor)));
    let answer = to.client.get(path, &query)?;
    serde_json::from_str(answer.raw.get()).map_err(|_| {
        Trouble::Refused {
            status: answer.status,
            problem: Value::String("the server answers with no list".to_string()),
        }
        .into()
    })
}
