//! What a program of this library becomes when the library has started the program again.

use std::process::ExitCode;

/// What a program is told to become the shim of a job, or the guardian of a pool.
pub(crate) const SHIM: &str = "shim";
pub(crate) const GUARDIAN: &str = "guardian";

/// To be called first thing in `main` by a program that performs commands or keeps pools, before any thread or runtime is
/// started. If this process was started to be the shim of a job or the guardian of a pool, it is that, and this answers
/// how it ended.
///
/// ```no_run
/// use everbeat::{Engine, PoolSettings, Protocol};
/// use std::process::ExitCode;
///
/// fn main() -> ExitCode {
///     if let Some(ended) = everbeat::become_helper() {
///         return ended;
///     }
///     let runtime = tokio::runtime::Runtime::new().expect("a runtime");
///     runtime.block_on(async {
///         let resize = PoolSettings {
///             name: "resize".to_string(),
///             command: vec!["./resize".to_string()],
///             tasks: vec!["resize".to_string()],
///             protocol: Protocol::Lines,
///             ..PoolSettings::default()
///         };
///         let engine = Engine::open("sqlite://everbeat.db").data_dir("data").pool(resize).commands().start().await?;
///         engine.submit("resize", &serde_json::json!({ "width": 80 })).await?.wait().await?;
///         engine.drain().await;
///         Ok::<_, everbeat::Error>(())
///     })
///     .map_or(ExitCode::FAILURE, |()| ExitCode::SUCCESS)
/// }
/// ```
pub fn become_helper() -> Option<ExitCode> {
    let mut arguments = std::env::args_os().skip(1);
    match arguments.next()?.to_str()? {
        SHIM => Some(everbeat_supervisor::job::shim::main(arguments)),
        GUARDIAN => Some(everbeat_supervisor::pool::guardian::main(arguments)),
        _ => None,
    }
}
