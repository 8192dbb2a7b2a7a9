//! The tasks that every server offers, enough to try the engine.

use crate::{Ctx, Failure, Handler, Tasks};
use async_trait::async_trait;
use everbeat_model::Json;
use serde::Deserialize;
use serde::de::DeserializeOwned;
use std::time::Duration;

/// The tasks that need no worker: enough to try the engine.
pub fn builtin() -> Tasks {
    let mut tasks = Tasks::default();
    tasks.add_builtin("noop", Noop);
    tasks.add_builtin("echo", Echo);
    tasks.add_builtin("sleep", Sleep);
    tasks.add_builtin("fail", Fail);
    tasks
}

struct Noop;
struct Echo;
struct Sleep;
struct Fail;

#[async_trait]
impl Handler for Noop {
    async fn perform(&self, _ctx: Ctx, _input: Json) -> Result<Json, Failure> {
        Ok(Json::null())
    }
}

#[async_trait]
impl Handler for Echo {
    async fn perform(&self, _ctx: Ctx, input: Json) -> Result<Json, Failure> {
        Ok(input)
    }
}

#[derive(Deserialize)]
struct SleepInput {
    ms: u64,
}

#[async_trait]
impl Handler for Sleep {
    async fn perform(&self, ctx: Ctx, _input: Json) -> Result<Json, Failure> {
        let SleepInput { ms } = read("sleep", "{\"ms\": 1000}", ctx.orders())?;
        ctx.sleep(Duration::from_millis(ms)).await?;
        Ok(Json::of(&serde_json::json!({ "slept_ms": ms })))
    }
}

#[derive(Deserialize)]
struct FailInput {
    #[serde(default)]
    message: Option<String>,
    #[serde(default)]
    times: Option<u32>,
}

#[async_trait]
impl Handler for Fail {
    async fn perform(&self, ctx: Ctx, _input: Json) -> Result<Json, Failure> {
        let input: FailInput = read("fail", "{\"message\": \"no\", \"times\": 2}", ctx.orders())?;
        match input.times {
            Some(times) if ctx.attempt() > times => Ok(Json::of(&serde_json::json!({ "failed_times": times }))),
            _ => Err(Failure::new(input.message.unwrap_or_else(|| "failed on request".to_string()))),
        }
    }
}

fn read<T: DeserializeOwned>(task: &str, example: &str, input: &Json) -> Result<T, Failure> {
    let text = if input.is_null() { "{}" } else { input.as_str() };
    serde_json::from_str(text).map_err(|error| {
        Failure::permanent(format!("input of task {task:?}: {error} (got {input}); write it like {example}"))
    })
}
