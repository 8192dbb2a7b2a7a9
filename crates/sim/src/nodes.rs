//! The work of nodes: each carries on what it was given.

use crate::executor::Owner;
use crate::graphs::SPINS;
use crate::handler::Performing;
use crate::rng::Rng;
use crate::shared::Shared;
use async_trait::async_trait;
use everbeat_engine::{Ctx, Failure, Handler};
use everbeat_model::{Json, StoreTime};
use serde_json::{Value, json};
use std::sync::Arc;
use std::time::Duration;

pub(crate) struct NodeWork {
    pub(crate) shared: Arc<Shared>,
    pub(crate) owner: Owner,
}

#[async_trait]
impl Handler for NodeWork {
    async fn perform(&self, ctx: Ctx, input: Json) -> Result<Json, Failure> {
        let _performing = Performing::begin(&self.shared, self.owner, &ctx, false);
        let (run, attempt) = (ctx.run_id(), ctx.attempt());
        let mut rng = Rng::new(self.shared.seed ^ run.0.as_u128() as u64, u64::from(attempt));
        let longest = if rng.chance(0.1) { 700 } else { 80 };
        ctx.sleep(Duration::from_millis(rng.between(1, longest))).await?;
        let node = ctx.parent().map(|parent| parent.node.as_str());
        let value = input.value();
        let result = match node {
            None => json!("called"),
            Some("once" | "pulse") => self.due(node == Some("pulse"), &value, &mut rng),
            Some("picky") if rng.chance(0.3) => {
                return Err(Failure { permanent: rng.chance(0.2), ..Failure::new("picky") });
            }
            Some("doomed") if value["y"].as_u64().is_some_and(dooms) => return Err(Failure::permanent("doomed")),
            Some(node) => carried(node, &value),
        };
        let result = Json::of(&result);
        let made = (self.owner, result.clone());
        self.shared.truth().made.entry((run, attempt)).or_default().push(made);
        Ok(result)
    }
}

/// Inputs that one node fails on for good.
pub(crate) fn dooms(y: u64) -> bool {
    y.is_multiple_of(3)
}

impl NodeWork {
    /// When a tick is due. The recurring one fires a few times for each `go`, then pauses.
    fn due(&self, recurring: bool, input: &Value, rng: &mut Rng) -> Value {
        let counted = &input["counted"];
        if recurring && counted["go"] == input["go"] && counted["n"].as_u64() >= Some(PULSES) {
            return Value::Null;
        }
        let StoreTime(now) = self.shared.clocks.store(self.shared.now());
        let due = now + rng.between(20, 400) as i64 * 1000;
        json!(due as f64 / 1e6)
    }
}

/// Firings for each `go`, and then as many more as are under way.
const PULSES: u64 = 3;

/// What a node's value is when it was computed from this input.
fn carried(node: &str, input: &Value) -> Value {
    match node {
        "a" | "b" => json!({ "x": input["x"] }),
        "join" => json!({ "left": input["a"]["x"], "right": input["b"]["x"] }),
        "after" | "extra" => json!({ "x": input["join"]["left"] }),
        "note" | "c" => json!({ "x": input["a"]["x"] }),
        "d" => json!({ "x": input["c"]["x"] }),
        "echo" => json!({ "memo": input["memo"] }),
        "picky" | "doomed" => json!({ "y": input["y"] }),
        "either" => json!({ "x": input["x"], "flag": input["flag"] }),
        "rung" => json!({ "tick": input["once"] }),
        "roused" => json!({ "tick": input["dawn"] }),
        "counted" => {
            let same = input["counted"]["go"] == input["go"];
            let before = if same { input["counted"]["n"].as_u64().unwrap_or(0) } else { 0 };
            json!({ "go": input["go"], "pulse": input["pulse"], "n": before + 1 })
        }
        "spin" => {
            // What the last iteration handed on, unless it is the value of an earlier computation.
            let handed = &input["spin"];
            let (done, began) = match handed["n"].as_u64() {
                Some(done) => (done, handed["began"].clone()),
                None => (0, input["x"].clone()),
            };
            if done + 1 < SPINS {
                json!({ "continue": { "n": done + 1, "began": began } })
            } else {
                json!({ "done": { "x": input["x"], "began": began } })
            }
        }
        other => json!({ "unknown": other }),
    }
}
