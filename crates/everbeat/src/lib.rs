//! Durable work that always knows what is alive.
//!
//! A program opens an [`Engine`] on a store, registers tasks, starts it, and submits runs. Everything
//! that works holds a lease; whatever loses its pulse is detected, fenced, explained and recovered.
//!
//! ```no_run
//! use everbeat::{Ctx, Engine, Failure};
//!
//! #[tokio::main]
//! async fn main() -> Result<(), everbeat::Error> {
//!     let engine = Engine::open("sqlite://everbeat.db")
//!         .task("greet", |_ctx: Ctx, name: String| async move { Ok::<_, Failure>(format!("Hello, {name}!")) })
//!         .start()
//!         .await?;
//!     let run = engine.submit("greet", &"world").await?;
//!     let greeting: String = run.result().await?;
//!     println!("{greeting}");
//!     engine.drain().await;
//!     Ok(())
//! }
//! ```
//!
//! A task may stream while it works: [`Ctx::output`] for items of its result, [`Ctx::log`] for lines of its log. Both are
//! stored before the attempt ends, and whoever follows the run sees them as they come, on any replica.
//!
//! ```no_run
//! use everbeat::{Ctx, Engine, Failure};
//!
//! # async fn start() -> Result<(), everbeat::Error> {
//! let engine = Engine::open("sqlite://everbeat.db")
//!     .task("count", |ctx: Ctx, to: u32| async move {
//!         for number in 1..=to {
//!             ctx.output(&number).await?;
//!         }
//!         ctx.log("counted all").await?;
//!         Ok::<_, Failure>(to)
//!     })
//!     .start()
//!     .await?;
//! # Ok(())
//! # }
//! ```
//!
//! A task may carry a schedule, which is written to the store when the engine starts: it is made or changed, or left alone
//! if the code says the same as before, so that what somebody has changed meanwhile stands. Replicas that start at once
//! make it once. Whether it is enabled is decided at the store alone, and one that the code no longer declares stays, since
//! another program may declare it: disable or delete it there.
//!
//! ```no_run
//! use everbeat::model::schedule::Overlap;
//! use everbeat::{Ctx, Engine, Failure, Schedule};
//! use std::time::Duration;
//!
//! # async fn start() -> Result<(), everbeat::Error> {
//! let engine = Engine::open("sqlite://everbeat.db")
//!     .task("report", |_ctx: Ctx, kind: String| async move { Ok::<_, Failure>(format!("a {kind} report")) })
//!     .schedule("report", Schedule::every(Duration::from_secs(15 * 60)).input(&"short"))
//!     .schedule(
//!         "report",
//!         Schedule::cron("30 2 * * *", "Europe/Berlin").named("nightly").input(&"full").overlap(Overlap::Queue),
//!     )
//!     .start()
//!     .await?;
//! # Ok(())
//! # }
//! ```

mod engine;
mod execution;
mod graph;
mod helper;
#[doc(hidden)]
pub mod jq;
mod key;
mod open;
mod schedule;
mod system;
mod task;

pub use engine::{Builder, Engine, Error, RunHandle};
pub use everbeat_engine::pools::{PoolSettings, Protocol, WantedContainment};
pub use everbeat_engine::{
    Beat, Ctx, Env, ExecutionView, Failure, Handler, Liveness, RunView, Settings, Stop, Submit, Tasks, Wait,
};
pub use everbeat_model as model;
pub use execution::Execution;
pub use graph::{GraphBuilder, GraphDefinition, Iteration, Saved};
pub use helper::become_helper;
pub use key::{IntoGate, Key, Values, all, always, any, not};
pub use open::{StoreOptions, open_store};
pub use schedule::Schedule;
pub use system::System;

/// The tasks that need no worker: `noop`, `echo`, `sleep` and `fail`. The server has `jq` besides, which
/// it evaluates in processes of its own executable; a program that uses the library is another one.
pub fn tasks() -> Tasks {
    everbeat_engine::builtin()
}
