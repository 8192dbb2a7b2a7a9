use super::To;
use super::list;
use crate::args::{PageArgs, PoolAction};
use crate::client::{Trouble, escape};
use crate::exit::{self, Failure};
use crate::output::{age, fields, moment, plain, state};
use comfy_table::Cell;
use serde_json::{Value, json};

pub(crate) fn act(to: &To, action: PoolAction) -> Result<u8, Failure> {
    let (name, verb, body, said) = match action {
        PoolAction::Scale { name, size } => {
            (name, "scale", Some(json!({ "size": size }).to_string()), format!("has the size {size} now"))
        }
        PoolAction::Drain { name } => (name, "drain", None, "takes no more work".to_string()),
        PoolAction::Resume { name } => (name, "resume", None, "takes work".to_string()),
        PoolAction::Restart { name } => (name, "restart", None, "replaces its workers, a few at a time".to_string()),
        PoolAction::Sessions { name, page } => return sessions(to, &name, &page),
        PoolAction::EndSession { name, key } => return end_session(to, &name, &key),
    };
    let answer = to.client.post(&format!("/api/v1/pools/{}/{verb}", escape(&name)), body.as_deref(), &[])?;
    to.print(answer.raw.get(), || format!("pool {name} {said}"));
    Ok(exit::DONE)
}

fn sessions(to: &To, name: &str, page: &PageArgs) -> Result<u8, Failure> {
    let path = format!("/api/v1/pools/{}/sessions", escape(name));
    let headers = ["KEY", "WORKER", "AFFINITY", "BEGUN", "USED", "EXPIRES"];
    list::print(to, &path, Vec::new(), page, &headers, |session| {
        let expires = match &session["expires_at"] {
            Value::Null => "in use".to_string(),
            at => moment(at),
        };
        vec![
            Cell::new(plain(&session["key"])),
            Cell::new(plain(&session["worker_id"])),
            Cell::new(plain(&session["affinity"])),
            Cell::new(age(&session["begun_at"])),
            Cell::new(age(&session["last_used_at"])),
            Cell::new(expires),
        ]
    })
}

fn end_session(to: &To, name: &str, key: &str) -> Result<u8, Failure> {
    let ended = to.client.delete(&format!("/api/v1/pools/{}/sessions/{}", escape(name), escape(key)), &[])?;
    to.print(ended.raw.get(), || match &ended.value["expires_at"] {
        Value::Null => format!("session {key:?} ends when what is performed in it has ended"),
        _ => format!("session {key:?} is over"),
    });
    Ok(exit::DONE)
}

/// Shows the pool of that name. None: there is none.
pub(super) fn show(to: &To, name: &str) -> Result<Option<u8>, Failure> {
    let pool = match to.client.get(&format!("/api/v1/pools/{}", escape(name)), &[]) {
        Ok(pool) => pool,
        Err(Trouble::Refused { .. }) => return Ok(None),
        Err(trouble) => return Err(trouble.into()),
    };
    to.print(pool.raw.get(), || described(&pool.value));
    Ok(Some(exit::DONE))
}

pub(super) fn row(pool: &Value) -> Vec<Cell> {
    let cell = |name: &str| Cell::new(plain(&pool[name]));
    vec![
        cell("name"),
        state(&plain(&pool["state"])),
        cell("size"),
        cell("ready"),
        cell("busy"),
        cell("slots"),
        cell("restarts"),
        cell("containment"),
        cell("degraded_reason"),
    ]
}

fn described(pool: &Value) -> String {
    let names = |name: &str| {
        let names: Vec<String> = pool[name].as_array().into_iter().flatten().map(plain).collect();
        names.join(", ")
    };
    let complete = if pool["contained"] == true { "complete" } else { "something may escape" };
    let containment = plain(&pool["containment"]);
    let all = [
        ("pool", plain(&pool["name"])),
        ("state", state(&plain(&pool["state"])).content()),
        ("trouble", plain(&pool["degraded_reason"])),
        ("size", plain(&pool["size"])),
        ("ready", plain(&pool["ready"])),
        ("busy", plain(&pool["busy"])),
        ("slots each", plain(&pool["slots"])),
        ("queues", names("queues")),
        ("tasks", names("tasks")),
        ("containment", if containment.is_empty() { containment } else { format!("{containment}, {complete}") }),
        ("restarts", plain(&pool["restarts"])),
        ("last exit", plain(&pool["last_exit"])),
        ("sessions", plain(&pool["sessions"])),
        ("replica", plain(&pool["replica_id"])),
    ];
    fields(&all.into_iter().filter(|(_, value)| !value.is_empty()).collect::<Vec<_>>())
}
