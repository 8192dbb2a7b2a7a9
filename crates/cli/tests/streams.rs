//! What runs stream, as the client prints it. No task of the server's own streams, so these servers are programs with
//! tasks of their own, as the library makes them.
#![allow(clippy::disallowed_methods, reason = "tests meet real time")]

mod common;

use common::BINARY;
use everbeat::{Ctx, Engine, Failure};
use everbeat_server::{Config, serve};
use serde_json::{Value, json};
use std::io::{BufRead, BufReader, Read};
use std::net::SocketAddr;
use std::path::Path;
use std::process::{Command, Output, Stdio};
use std::time::Duration;
use tokio::net::TcpListener;
use tokio::runtime::Runtime;
use tokio::sync::oneshot;
use tokio::task::JoinHandle;

/// A server in this process.
struct Server {
    runtime: Runtime,
    engine: Engine,
    address: SocketAddr,
    end: oneshot::Sender<()>,
    served: JoinHandle<std::io::Result<()>>,
}

impl Server {
    /// With the task `count`, which streams the numbers from one to its input and gives `"done"`; a number that ends in 0
    /// is the last of its attempt, which then waits for ever.
    fn start(folder: &Path, address: &str) -> Server {
        let runtime = Runtime::new().expect("a runtime");
        let url = format!("sqlite://{}", folder.join("everbeat.db").display());
        let (engine, listener) = runtime.block_on(async {
            let engine = Engine::open(url)
                .task("count", |ctx: Ctx, to: u32| async move {
                    ctx.log(&format!("attempt {} counts\nto {to}", ctx.attempt())).await?;
                    for number in 1..=to {
                        ctx.output(&json!({ "number": number })).await?;
                        if number % 10 == 0 && ctx.attempt() == 1 {
                            std::future::pending::<()>().await;
                        }
                    }
                    if to == 0 { Err(Failure::permanent("there is nothing to count")) } else { Ok("done") }
                })
                .settings(|settings| settings.drain_grace = Duration::from_millis(10))
                .start()
                .await
                .expect("an engine");
            (engine, TcpListener::bind(address).await.expect("bound"))
        });
        let address = listener.local_addr().expect("an address");
        let (end, ended) = oneshot::channel();
        let inner = engine.inner().clone();
        let served =
            runtime.spawn(async move { serve(inner, Config::default(), listener, async { _ = ended.await }).await });
        Server { runtime, engine, address, end, served }
    }

    fn stop(self) {
        let _it_serves_until_then = self.end.send(());
        self.runtime.block_on(async {
            self.engine.drain().await;
            self.served.await.expect("it served").expect("to its end");
        });
        drop(self.engine);
        self.runtime.shutdown_timeout(Duration::from_secs(5));
    }

    fn client(&self, args: &[&str]) -> Command {
        let mut command = Command::new(BINARY);
        command.args(args).env("EVERBEAT_URL", format!("http://{}", self.address)).env_remove("EVERBEAT_TOKEN");
        command.stdin(Stdio::null());
        command
    }

    fn ask(&self, args: &[&str]) -> Output {
        self.client(args).output().expect("the client ran")
    }
}

fn text(bytes: &[u8]) -> String {
    String::from_utf8_lossy(bytes).into_owned()
}

fn lines(output: &Output) -> Vec<Value> {
    text(&output.stdout).lines().map(|line| serde_json::from_str(line).expect("a line of JSON")).collect()
}

#[test]
fn a_followed_run_prints_each_item_and_then_its_result() {
    let folder = tempfile::tempdir().expect("a folder");
    let server = Server::start(folder.path(), "127.0.0.1:0");
    let followed = server.ask(&["submit", "count", "--input", "3", "--follow"]);
    assert_eq!(followed.status.code(), Some(0), "{}", text(&followed.stderr));
    assert_eq!(lines(&followed), [json!({"number": 1}), json!({"number": 2}), json!({"number": 3}), json!("done")]);
    let told = server.ask(&["submit", "count", "--input", "2", "--follow", "-o", "json"]);
    let told = lines(&told);
    assert_eq!(told.len(), 3);
    assert_eq!(told[1], json!({"seq": 4, "attempt": 1, "item": {"number": 2}}));
    assert_eq!((&told[2]["state"], &told[2]["result"]), (&json!("succeeded"), &json!("done")));
    let failed = server.ask(&["submit", "count", "--input", "0", "--follow"]);
    assert_eq!((failed.status.code(), lines(&failed)), (Some(1), vec![]), "{}", text(&failed.stderr));
    let late = server.ask(&["submit", "count", "--input", "10", "--follow", "--timeout", "1s"]);
    assert_eq!((late.status.code(), lines(&late).len()), (Some(124), 10), "{}", text(&late.stderr));
    server.stop();
}

#[test]
fn the_log_of_a_run_is_printed_and_followed() {
    let folder = tempfile::tempdir().expect("a folder");
    let server = Server::start(folder.path(), "127.0.0.1:0");
    let run = server.ask(&["submit", "count", "--input", "2", "--wait", "-o", "json"]);
    let run: Value = serde_json::from_slice(&run.stdout).expect("a run");
    let id = run["id"].as_str().expect("an id").to_string();
    for (args, expected) in [
        (&["logs", &id][..], "attempt 1 counts\nto 2\n"),
        (&["logs", "-f", &id], "attempt 1 counts\nto 2\n"),
        (&["logs", "--tail", "1", &id], "to 2\n"),
        (&["logs", "--tail", "1", "-f", "--exit-code", &id], "to 2\n"),
    ] {
        let output = server.ask(args);
        assert_eq!((output.status.code(), text(&output.stdout).as_str()), (Some(0), expected), "{args:?}");
    }
    let told = lines(&server.ask(&["logs", &id, "-o", "json"]));
    assert_eq!(told[1], json!({"stream": "log", "line": "to 2", "seq": 2, "attempt": 1}));
    let refused = server.ask(&["logs", "--stream", "stderr", &id]);
    assert_eq!(refused.status.code(), Some(2), "{}", text(&refused.stderr));
    server.stop();
}

#[test]
fn following_survives_a_restart_of_the_server() {
    let folder = tempfile::tempdir().expect("a folder");
    let server = Server::start(folder.path(), "127.0.0.1:0");
    let mut client = server.client(&["submit", "count", "--input", "12", "--follow"]);
    let mut client = client.stdout(Stdio::piped()).stderr(Stdio::piped()).spawn().expect("the client");
    let mut read = BufReader::new(client.stdout.take().expect("its stdout")).lines();
    let mut next = || read.next().map(|line| line.expect("text"));
    for number in 1..=10 {
        assert_eq!(next(), Some(json!({ "number": number }).to_string()));
    }
    let address = server.address.to_string();
    server.stop();
    let server = Server::start(folder.path(), &address);
    for number in 1..=12 {
        assert_eq!(next(), Some(json!({ "number": number }).to_string()), "of the second attempt");
    }
    assert_eq!((next(), next()), (Some("\"done\"".to_string()), None));
    assert_eq!(client.wait().expect("it ended").code(), Some(0));
    let mut said = String::new();
    client.stderr.take().expect("its stderr").read_to_string(&mut said).expect("text");
    assert!(said.contains("attempt 2 begins"), "{said}");
    server.stop();
}
