//! The smallest graph: a greeting that computes itself as soon as there is a name, and again when the
//! name changes.
//!
//! `cargo run -p everbeat --example greeting`

use everbeat::{Ctx, Engine, Failure, GraphDefinition, Key, Values, Wait};
use std::time::Duration;

const NAME: Key<String> = Key::new("name");
const GREETING: Key<String> = Key::new("greeting");

async fn greet(_ctx: Ctx, values: Values) -> Result<String, Failure> {
    Ok(format!("Hello, {}!", values.get(NAME)?))
}

#[tokio::main]
async fn main() -> Result<(), everbeat::Error> {
    let graph = GraphDefinition::builder("greeting", "1").input(NAME).compute(GREETING, NAME, greet).build()?;
    let engine = Engine::open("memory:").graph(graph).start().await?;

    let execution = engine.start("greeting").await?;
    println!("{}", execution.summary().await?);

    execution.set(NAME, &"Ada".to_string()).await?;
    let (greeting, revision) =
        execution.wait(GREETING, Wait::Any, Duration::from_secs(10)).await?.expect("a greeting within ten seconds");
    println!("{greeting} (revision {revision})");

    execution.set(NAME, &"Grace".to_string()).await?;
    let newer = execution.wait(GREETING, Wait::NewerThan(revision), Duration::from_secs(10)).await?;
    let (greeting, revision) = newer.expect("a newer greeting within ten seconds");
    println!("{greeting} (revision {revision})");
    assert_eq!(greeting, "Hello, Grace!");

    engine.drain().await;
    Ok(())
}
