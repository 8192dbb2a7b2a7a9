//! A program that embeds the engine becomes the shims of its commands and the guardians of its pools. It has a `main` of
//! its own, since the one of the test harness would not.

use everbeat::{Engine, Env, Error, PoolSettings, Protocol, System};
use everbeat_engine::within;
use serde_json::{Value, json};
use std::process::ExitCode;
use std::sync::Arc;
use std::time::Duration;

/// Answers every line of work with the number of its own process.
const WORKER: &str = r#"while read -r line; do echo "{\"result\": $$}"; done"#;

/// Whoever waits for something that must happen gives up after this.
const PATIENCE: Duration = Duration::from_secs(60);

fn main() -> ExitCode {
    if let Some(ended) = everbeat::become_helper() {
        return ended;
    }
    let runtime = tokio::runtime::Runtime::new().expect("a runtime");
    runtime.block_on(async {
        let whole = async {
            a_pool_and_a_command_of_an_embedded_engine_are_performed().await;
            pools_need_a_data_folder().await;
        };
        let env: Arc<dyn Env> = System::new();
        within(&*env, PATIENCE, whole).await.expect("in time");
    });
    println!("test result: ok. 2 passed; 0 failed");
    ExitCode::SUCCESS
}

fn pool(name: &str) -> PoolSettings {
    PoolSettings {
        name: name.to_string(),
        command: ["sh", "-c", WORKER].map(ToString::to_string).to_vec(),
        size: 1,
        tasks: vec!["number".to_string()],
        protocol: Protocol::Lines,
        ..PoolSettings::default()
    }
}

async fn a_pool_and_a_command_of_an_embedded_engine_are_performed() {
    let folder = tempfile::tempdir().expect("a folder");
    let engine = Engine::open("memory:").data_dir(folder.path()).pool(pool("numbers")).commands().start().await;
    let engine = engine.expect("it starts");
    assert!(engine.worker_socket().is_some(), "workers that do not speak lines could be served");
    assert!(engine.worker_socket().is_none(), "once");
    let number: u32 = engine.submit("number", &()).await.expect("submitted").result().await.expect("a result");
    let again: u32 = engine.submit("number", &()).await.expect("submitted").result().await.expect("a result");
    assert_eq!(number, again, "one process performs both");
    let job: Value = engine.run_command(["true"]).await.expect("submitted").result().await.expect("an end");
    assert_eq!(job["exit_code"], json!(0), "{job}");
    engine.drain().await;
    assert!(!std::path::Path::new(&format!("/proc/{number}")).exists(), "the worker ends with its engine");
}

async fn pools_need_a_data_folder() {
    let refused = Engine::open("memory:").pool(pool("numbers")).start().await;
    assert!(matches!(refused, Err(Error::DataDir(_))), "pools without a data folder");
    let folder = tempfile::tempdir().expect("a folder");
    let echo = PoolSettings { tasks: vec!["echo".to_string()], ..pool("numbers") };
    let refused = Engine::open("memory:").data_dir(folder.path()).pool(echo).start().await.err();
    assert!(refused.as_ref().is_some_and(|error| error.to_string().contains("echo")), "{refused:?}");
}
