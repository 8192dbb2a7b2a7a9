//! A task that counts through its work, keeps a checkpoint, breaks in the middle, and goes on from
//! where it was on the next attempt.
//!
//! `cargo run -p everbeat --example checkpoints`

use everbeat::{Beat, Ctx, Engine, Failure};
use serde::{Deserialize, Serialize};
use std::time::Duration;

#[derive(Serialize, Deserialize)]
struct Order {
    items: Vec<String>,
}

#[derive(Serialize, Deserialize, Debug)]
struct Receipt {
    shipped: u64,
    attempt: u32,
    resumed_at: u64,
}

async fn ship(ctx: Ctx, order: Order) -> Result<Receipt, Failure> {
    let total = order.items.len() as u64;
    // The last checkpoint of whichever attempt came before; zero on the first.
    let resumed_at: u64 = ctx.resume().unwrap_or(0);
    println!("attempt {} begins at item {resumed_at}", ctx.attempt());
    for (place, item) in (0..).zip(&order.items).skip(resumed_at as usize) {
        // `?` stops the work when it is cancelled or has lost its lease.
        ctx.heartbeat(Beat { done: Some(place), total: Some(total), note: Some(item.clone()), next_within: None })?;
        ctx.sleep(Duration::from_millis(20)).await?;
        // Hand the fence to whatever is written outside, so that an earlier attempt cannot write after
        // a later one: `UPDATE parcel SET … WHERE id = $1 AND fence <= $2`.
        let _fence = ctx.fence();
        ctx.checkpoint(&(place + 1)).await?;
        if place == 2 && ctx.attempt() == 1 {
            return Err(Failure::new("the conveyor belt broke"));
        }
    }
    Ok(Receipt { shipped: total, attempt: ctx.attempt(), resumed_at })
}

#[tokio::main]
async fn main() -> Result<(), everbeat::Error> {
    let folder = std::env::temp_dir().join(format!("everbeat-example-{}", std::process::id()));
    std::fs::create_dir_all(&folder)?;
    let engine = Engine::open(format!("sqlite://{}", folder.join("everbeat.db").display()))
        .task("ship", ship)
        .policy(&serde_json::json!({ "max_attempts": 3, "backoff": { "initial": "200ms" }, "stall_timeout": "30s" }))?
        .start()
        .await?;
    let order = Order { items: ["mug", "book", "lamp", "rug", "pen"].map(String::from).to_vec() };
    let run = engine.submit("ship", &order).await?;
    let receipt: Receipt = run.result().await?;
    println!("{receipt:?}");
    for line in engine.inner().explain(run.id()).await?.history {
        println!("{line}");
    }
    engine.drain().await;
    std::fs::remove_dir_all(&folder)?;
    Ok(())
}
