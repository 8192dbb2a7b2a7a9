use super::To;
use super::find::EXPLAINED;
use crate::client::escape;
use crate::exit::{self, Failure};
use crate::output::{age, plain};
use serde_json::{Value, json};

pub(crate) fn explain(to: &To, given: &str) -> Result<u8, Failure> {
    let found = to.find(given, EXPLAINED)?;
    let (kind, id) = (found.kind.as_str(), found.id.as_str());
    let get = |path: String| to.client.get(&path, &[]);
    match kind {
        "execution" => {
            let summary = get(format!("/api/v1/executions/{}/summary", escape(id)))?;
            to.print(summary.raw.get(), || plain(&summary.value["text"]).trim_end().to_string());
        }
        "replica" => {
            let replica = get(format!("/api/v1/replicas/{}", escape(id)))?.value;
            let verdicts = to.client.get("/api/v1/verdicts", &[("subject", id)])?.value;
            tell(to, &of_replica(&replica, &verdicts["items"]));
        }
        "verdict" => tell(to, &of_verdict(&get(format!("/api/v1/verdicts/{}", escape(id)))?.value)),
        _ => {
            let answer = get(format!("/api/v1/runs/{}/explain", escape(id)))?;
            to.print(answer.raw.get(), || worded(&answer.value));
        }
    }
    Ok(exit::DONE)
}

fn tell(to: &To, said: &Value) {
    to.print(&said.to_string(), || worded(said));
}

fn worded(said: &Value) -> String {
    let mut lines = vec![plain(&said["summary"])];
    lines.extend(said["history"].as_array().into_iter().flatten().map(plain));
    if let Some(remedy) = said["remedy"].as_str() {
        lines.push(format!("fix: {remedy}"));
    }
    lines.join("\n")
}

/// In the shape of the server's explanation of a run.
fn of_replica(replica: &Value, verdicts: &Value) -> Value {
    let [id, host, state, every, after] =
        ["id", "host", "state", "heartbeat_interval", "heartbeat_timeout"].map(|name| plain(&replica[name]));
    let life = replica["liveness"].as_str().map(|life| format!(", {life}")).unwrap_or_default();
    let runs = match replica["running"].as_u64() {
        Some(1) => "1 run".to_string(),
        count => format!("{} runs", count.unwrap_or_default()),
    };
    let beat = age(&replica["last_heartbeat_at"]);
    let summary = format!(
        "replica {id} on host {host} is {state}{life}: last heartbeat {beat}, one is due every {every}, \
         judged dead after {after} of silence; it holds {runs}"
    );
    let remedy = match (state.as_str(), replica["liveness"].as_str()) {
        ("active", Some("suspect")) => Some("wait; if its server hangs, continue or restart it"),
        ("dead", _) if replica["running"] != 0 => {
            Some("start a replica on its host, or wait until its work is taken over")
        }
        ("draining", _) => Some("wait until its work is done; it leaves by itself"),
        _ => None,
    };
    let history: Vec<String> = verdicts.as_array().into_iter().flatten().rev().map(judged).collect();
    json!({ "summary": summary, "history": history, "remedy": remedy, "replica": replica })
}

fn of_verdict(verdict: &Value) -> Value {
    let evidence = verdict["evidence"].as_object().into_iter().flatten();
    let history: Vec<String> = evidence.map(|(name, value)| format!("seen: {name} {}", plain(value))).collect();
    let remedy = verdict["run_id"].as_str().map(|run| format!("everbeat explain {run}"));
    json!({ "summary": judged(verdict), "history": history, "remedy": remedy, "verdict": verdict })
}

fn judged(verdict: &Value) -> String {
    let (subject, attempt) = (&verdict["subject"], verdict["attempt"].as_u64());
    let attempt = attempt.map(|attempt| format!("attempt {attempt} of ")).unwrap_or_default();
    let [judgement, reason, judge, at, then] =
        ["judgement", "reason", "judged_by", "at", "then"].map(|name| plain(&verdict[name]));
    let (kind, id) = (plain(&subject["kind"]), plain(&subject["id"]));
    format!("{attempt}{kind} {id} was judged {judgement} ({reason}) by replica {judge} at {at}; then: {then}")
}
