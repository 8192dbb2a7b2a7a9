//! A program that performs commands, which outlive it: start it, kill it, start it again.
//!
//! `cargo run -p everbeat --example command`

use everbeat::Engine;
use serde_json::Value;
use std::error::Error;
use std::process::ExitCode;

fn main() -> ExitCode {
    // The shim of a command is this very program, started again.
    if let Some(ended) = everbeat::become_helper() {
        return ended;
    }
    match tokio::runtime::Runtime::new().map_err(Into::into).and_then(|runtime| runtime.block_on(live())) {
        Ok(()) => ExitCode::SUCCESS,
        Err(error) => {
            eprintln!("{error}");
            ExitCode::FAILURE
        }
    }
}

async fn live() -> Result<(), Box<dyn Error>> {
    let folder = std::env::temp_dir().join("everbeat-example-command");
    std::fs::create_dir_all(&folder)?;
    let store = format!("sqlite://{}", folder.join("everbeat.db").display());
    let engine = Engine::open(store).data_dir(&folder).commands().start().await?;
    let job = engine.run_command(["sh", "-c", "echo working; sleep 1"]).await?;
    println!("job {} has begun", job.id());
    let ended: Value = job.result().await?;
    println!("it ended: {ended}");
    engine.drain().await;
    Ok(())
}
