//! A real server process for tests, and the real client against it.
#![allow(dead_code, reason = "every test file uses its own part of this")]

use serde_json::{Value, json};
use std::fmt::Display;
use std::fs::{self, File};
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Output, Stdio};
use std::sync::Arc;
use std::sync::atomic::{AtomicU8, Ordering};
use std::time::{Duration, Instant};
use tempfile::TempDir;
use ureq::http::Response;
use ureq::{Agent, Body};

pub(crate) const BINARY: &str = env!("CARGO_BIN_EXE_everbeat");

/// How a server is started. Clones share the data folder, so that a clone is the same host again.
#[derive(Clone)]
pub(crate) struct Options {
    pub(crate) env: Vec<(String, String)>,
    /// SQLite in the data folder unless given.
    pub(crate) store: Option<String>,
    pub(crate) listen: String,
    pub(crate) data_dir: PathBuf,
    pub(crate) args: Vec<String>,
    /// The program that serves.
    pub(crate) binary: PathBuf,
    /// The user that runs it, if it is another one. Only root can say so.
    pub(crate) user: Option<u32>,
    folder: Arc<TempDir>,
}

impl Default for Options {
    fn default() -> Options {
        let folder = scratch();
        let data_dir = folder.path().join("data");
        let listen = format!("{}:0", own_address());
        Options {
            env: Vec::new(),
            store: None,
            listen,
            data_dir,
            args: Vec::new(),
            binary: BINARY.into(),
            user: None,
            folder: Arc::new(folder),
        }
    }
}

impl Options {
    pub(crate) fn env(mut self, name: &str, value: impl Display) -> Options {
        self.env.push((name.to_string(), value.to_string()));
        self
    }

    pub(crate) fn store(mut self, url: impl Into<String>) -> Options {
        self.store = Some(url.into());
        self
    }

    pub(crate) fn listen(mut self, address: &str) -> Options {
        self.listen = address.to_string();
        self
    }

    /// The user that runs it, who may look into its folder then.
    pub(crate) fn user(mut self, user: u32) -> Options {
        let open = std::os::unix::fs::PermissionsExt::from_mode(0o755);
        fs::set_permissions(self.folder.path(), open).expect("its own folder");
        self.user = Some(user);
        self
    }

    pub(crate) fn data_dir(mut self, path: &Path) -> Options {
        self.data_dir = path.to_path_buf();
        self
    }

    pub(crate) fn arg(mut self, arg: &str) -> Options {
        self.args.push(arg.to_string());
        self
    }

    pub(crate) fn command(&self) -> Command {
        let mut command = match self.user {
            None => program(&self.binary),
            Some(user) => {
                let mut command = program(Path::new("setpriv"));
                command.arg(format!("--reuid={user}")).arg(format!("--regid={user}")).arg("--clear-groups");
                command.arg("--").arg(&self.binary);
                command
            }
        };
        command.current_dir(self.folder.path());
        command.args(["serve", "--listen", &self.listen, "--data-dir"]).arg(&self.data_dir).args(&self.args);
        if let Some(store) = &self.store {
            command.args(["--store", store]);
        }
        command.envs(self.env.iter().map(|(name, value)| (name, value)));
        command.stdin(Stdio::null()).stdout(Stdio::null());
        command
    }
}

/// A loopback address of its own for every server: whoever is started again where it was finds that nobody has taken its
/// port meanwhile, neither another test nor one end of somebody's connection.
fn own_address() -> std::net::Ipv4Addr {
    static NUMBERS: AtomicU8 = AtomicU8::new(0);
    let [_, _, high, low] = std::process::id().to_be_bytes();
    std::net::Ipv4Addr::new(127, high.max(1), low, NUMBERS.fetch_add(1, Ordering::SeqCst).max(1))
}

/// A folder in memory, where there is room for a database and programs: no test waits for a disk that others keep busy.
pub(crate) fn scratch() -> TempDir {
    const MEMORY: &str = "/dev/shm";
    const LEAST_BYTES: u64 = 2 << 30;
    let found = rustix::fs::statvfs(MEMORY).ok().filter(|found| {
        let programs = !found.f_flag.contains(rustix::fs::StatVfsMountFlags::NOEXEC);
        programs && found.f_bavail * found.f_frsize >= LEAST_BYTES
    });
    match found {
        Some(_) => tempfile::tempdir_in(MEMORY).or_else(|_| TempDir::new()).expect("a temporary folder"),
        None => TempDir::new().expect("a temporary folder"),
    }
}

/// After how long [`quick`] servers judge: no test of it waits for minutes, and no busy machine lets a process wait as
/// long. A third of it bounds each call of the store.
pub(crate) const TIMEOUT: Duration = Duration::from_secs(3);

/// Judges death after three seconds.
pub(crate) fn quick() -> Options {
    Options::default()
        .env("EVERBEAT_REPLICA__HEARTBEAT_INTERVAL", "200ms")
        .env("EVERBEAT_REPLICA__HEARTBEAT_TIMEOUT", format!("{}s", TIMEOUT.as_secs()))
        .env("EVERBEAT_REPLICA__SWEEP_INTERVAL", "300ms")
        .env("EVERBEAT_REPLICA__POLL_INTERVAL", "100ms")
        .env("EVERBEAT_REPLICA__DRAIN_GRACE", "2s")
        .env("EVERBEAT_RUNS__BACKOFF", "{\"initial\":\"20ms\",\"max\":\"100ms\"}")
}

/// The binary, without what the caller's environment would tell it.
pub(crate) fn client() -> Command {
    program(Path::new(BINARY))
}

fn program(path: &Path) -> Command {
    let mut command = Command::new(path);
    for (name, _) in std::env::vars_os() {
        if ["EVERBEAT_", "PG"].iter().any(|prefix| name.to_string_lossy().starts_with(prefix)) {
            command.env_remove(name);
        }
    }
    command.env_remove("NOTIFY_SOCKET");
    command
}

/// A server of this test's own, killed when it is dropped.
pub(crate) struct Server {
    pub(crate) url: String,
    pub(crate) options: Options,
    child: Child,
    log: PathBuf,
    agent: Agent,
}

impl Server {
    /// Starts a server and waits until it is ready.
    pub(crate) fn start(options: Options) -> Server {
        let mut server = Server::spawn(options);
        server.wait_ready();
        server
    }

    /// Starts a server without waiting; `wait_ready` must follow before it is used.
    pub(crate) fn spawn(options: Options) -> Server {
        let mut number = 0;
        let log = loop {
            let path = options.folder.path().join(format!("server-{number}.log"));
            match File::create_new(&path) {
                Ok(_) => break path,
                Err(_) => number += 1,
            }
        };
        let stderr = File::create(&log).expect("a log file");
        let child = patiently(|| options.command().stderr(stderr.try_clone().expect("a log file")).spawn());
        // No connection is kept: a server that was killed and replaced answers on a new one.
        let config = Agent::config_builder()
            .http_status_as_error(false)
            .proxy(None)
            .max_idle_connections(0)
            .timeout_global(Some(FINISH));
        Server { url: String::new(), options, child, log, agent: config.build().new_agent() }
    }

    /// Runs a server that is expected to end by itself.
    pub(crate) fn run_to_end(options: Options) -> Output {
        patiently(|| options.command().output())
    }

    pub(crate) fn wait_ready(&mut self) {
        let log = self.log.clone();
        self.url = until(START, "the ready line", || {
            let ended = self.child.try_wait().expect("the child can be asked");
            let said = fs::read_to_string(&log).unwrap_or_default();
            assert!(ended.is_none(), "the server ended with {ended:?}:\n{said}");
            ready_at(&said)
        });
        until(START, "/readyz", || (self.status("/readyz") == 200).then_some(()));
    }

    pub(crate) fn pid(&self) -> u32 {
        self.child.id()
    }

    /// What it has written to stderr so far.
    pub(crate) fn log(&self) -> String {
        fs::read_to_string(&self.log).unwrap_or_default()
    }

    /// Where it listens, to start another one in its place.
    pub(crate) fn address(&self) -> String {
        self.url.trim_start_matches("http://").to_string()
    }

    /// Kills it without warning and waits until it is gone.
    pub(crate) fn kill9(&mut self) {
        let _it_may_be_gone = self.child.kill();
        self.forget();
    }

    /// Kills it while others still use it; `forget` must follow.
    pub(crate) fn kill9_shared(&self) {
        self.signal("KILL");
    }

    /// Waits until a killed server is gone.
    pub(crate) fn forget(&mut self) {
        self.child.wait().expect("the child can be waited for");
    }

    /// Kills it and starts it again, with the same data folder and address.
    pub(crate) fn restart(mut self) -> Server {
        self.kill9();
        Server::start(self.options.clone().listen(&self.address()))
    }

    /// Sends a signal by name: `TERM`, `INT`, `STOP`, `CONT`.
    pub(crate) fn signal(&self, name: &str) {
        // The shell's own kill: the program of that name is not on every machine.
        let command = format!("kill -s {name} {}", self.pid());
        let status = Command::new("sh").args(["-c", &command]).status().expect("a shell");
        assert!(status.success(), "{command}");
    }

    pub(crate) fn has_ended(&mut self) -> bool {
        self.child.try_wait().expect("the child can be asked").is_some()
    }

    /// The exit code, once it has ended by itself; none if a signal ended it.
    pub(crate) fn exit_code(&mut self, limit: Duration) -> Option<i32> {
        until(limit, "the end of the server", || self.child.try_wait().expect("the child can be asked")).code()
    }

    /// The JSON at a path; a failure unless the status is one of success.
    pub(crate) fn get(&self, path: &str) -> Value {
        let answer = self.request(|agent, base| agent.get(format!("{base}{path}")).call());
        let (status, value) = answer.unwrap_or_else(|| panic!("GET {path}: no answer"));
        assert!((200..300).contains(&status), "GET {path}: {status} {value}");
        value
    }

    /// The status of a GET; 0 for no answer.
    pub(crate) fn status(&self, path: &str) -> u16 {
        self.request(|agent, base| agent.get(format!("{base}{path}")).call()).map_or(0, |(status, _)| status)
    }

    pub(crate) fn post(&self, path: &str, body: &Value) -> (u16, Value) {
        self.post_with(path, body, &[])
    }

    pub(crate) fn post_with(&self, path: &str, body: &Value, headers: &[(&str, &str)]) -> (u16, Value) {
        self.send(path, body, headers).unwrap_or_else(|| panic!("POST {path}: no answer"))
    }

    pub(crate) fn put(&self, path: &str, body: &Value) -> (u16, Value) {
        self.try_put(path, body).unwrap_or_else(|| panic!("PUT {path}: no answer"))
    }

    /// None: no answer, so that it may or may not have happened.
    pub(crate) fn try_put(&self, path: &str, body: &Value) -> Option<(u16, Value)> {
        self.request(|agent, base| {
            agent.put(format!("{base}{path}")).content_type("application/json").send(body.to_string())
        })
    }

    pub(crate) fn delete(&self, path: &str) -> (u16, Value) {
        let answer = self.request(|agent, base| agent.delete(format!("{base}{path}")).call());
        answer.unwrap_or_else(|| panic!("DELETE {path}: no answer"))
    }

    /// The status and the JSON at a path; none for no answer.
    pub(crate) fn try_get(&self, path: &str) -> Option<(u16, Value)> {
        self.request(|agent, base| agent.get(format!("{base}{path}")).call())
    }

    /// None: no answer, so that it may or may not have happened.
    pub(crate) fn try_post(&self, path: &str, body: &Value) -> Option<(u16, Value)> {
        self.send(path, body, &[])
    }

    fn send(&self, path: &str, body: &Value, headers: &[(&str, &str)]) -> Option<(u16, Value)> {
        self.request(|agent, base| {
            let mut request = agent.post(format!("{base}{path}")).content_type("application/json");
            for (name, value) in headers {
                request = request.header(*name, *value);
            }
            request.send(body.to_string())
        })
    }

    fn request(&self, ask: impl FnOnce(&Agent, &str) -> Result<Response<Body>, ureq::Error>) -> Option<(u16, Value)> {
        let mut response = ask(&self.agent, &self.url).ok()?;
        let text = response.body_mut().with_config().limit(1 << 30).read_to_string().ok()?;
        Some((response.status().as_u16(), serde_json::from_str(&text).unwrap_or(Value::String(text))))
    }

    /// Submits a run and answers its id.
    pub(crate) fn submit(&self, task: &str, input: Value, policy: Value) -> String {
        let (status, run) = self.post("/api/v1/runs", &json!({ "task": task, "input": input, "policy": policy }));
        assert_eq!(status, 201, "{run}");
        run["id"].as_str().expect("an id").to_string()
    }

    /// Waits until a run is finished.
    pub(crate) fn wait(&self, run: &str) -> Value {
        let path = format!("{}/api/v1/runs/{run}?wait=finished&timeout=10s", self.url);
        until(FINISH, "the end of a run", || {
            let (status, value) = self.request(|agent, _| agent.get(&path).call())?;
            assert!([200, 408, 503].contains(&status), "{status} {value}");
            (status == 200).then_some(value)
        })
    }

    pub(crate) fn until_state(&self, run: &str, state: &str) {
        let path = format!("/api/v1/runs/{run}");
        until(FINISH, state, || (self.get(&path)["state"] == state).then_some(()));
    }

    pub(crate) fn replica_id(&self) -> String {
        until(START, "a replica id", || self.try_replica_id())
    }

    /// The id of its present life, if it has one and answers.
    pub(crate) fn try_replica_id(&self) -> Option<String> {
        let (_, health) = self.request(|agent, base| agent.get(format!("{base}/livez")).call())?;
        health["replica_id"].as_str().map(ToString::to_string)
    }

    /// Waits until this server has seen that replica's pulse.
    pub(crate) fn until_observed(&self, replica: &str) {
        until(START, "the other replica's pulse", || {
            let replicas = self.get("/api/v1/replicas");
            let found = replicas["items"].as_array()?.iter().find(|found| found["id"] == replica)?.clone();
            (found["liveness"] == "alive").then_some(())
        });
    }

    /// No guarantee is broken; answers what was checked.
    pub(crate) fn assert_sound(&self) -> Value {
        let checked = self.get("/api/admin/invariants");
        assert_eq!(checked["violations"], json!([]), "{checked}");
        checked
    }

    /// Runs the client against this server.
    pub(crate) fn cli(&self, args: &[&str]) -> Output {
        self.command(args).output().expect("the binary runs")
    }

    pub(crate) fn command(&self, args: &[&str]) -> Command {
        let mut command = client();
        command.current_dir(self.options.folder.path()).env("EVERBEAT_URL", &self.url).args(args);
        command.stdin(Stdio::null());
        command
    }

    pub(crate) fn folder(&self) -> &Path {
        self.options.folder.path()
    }
}

impl Drop for Server {
    fn drop(&mut self) {
        self.kill9();
        if std::thread::panicking() {
            eprintln!("--- log of {} ---\n{}", self.url, self.log());
        }
    }
}

/// The address in the line that says that a server is ready, as text or as JSON.
pub(crate) fn ready_at(said: &str) -> Option<String> {
    if let Some((_, rest)) = said.split_once("is ready at ") {
        return rest.split_once(' ').map(|(address, _)| address.to_string());
    }
    let mut told = said.lines().filter_map(|line| serde_json::from_str::<Value>(line).ok());
    let ready = told.find(|line| line["message"] == "ready")?;
    ready["url"].as_str().map(ToString::to_string)
}

/// No test waits longer for a server to begin, or for what it was asked. The machine may be busy.
pub(crate) const START: Duration = Duration::from_secs(120);
pub(crate) const FINISH: Duration = Duration::from_secs(120);

/// Starts a program. A script that was written just now may still be open in a child that another thread is starting:
/// the kernel does not run it until that one has begun.
fn patiently<T>(mut start: impl FnMut() -> std::io::Result<T>) -> T {
    until(FINISH, "the binary may be run", || match start() {
        Err(error) if error.kind() == std::io::ErrorKind::ExecutableFileBusy => None,
        started => Some(started.expect("the binary starts")),
    })
}

/// Looks again and again until there is something; fails after the limit.
#[allow(clippy::disallowed_methods, reason = "processes are watched from outside, on the real clock")]
pub(crate) fn until<T>(limit: Duration, what: &str, mut look: impl FnMut() -> Option<T>) -> T {
    let begun = stopwatch();
    loop {
        if let Some(found) = look() {
            return found;
        }
        assert!(begun.elapsed() < limit, "waited {limit:?} in vain: {what}");
        std::thread::sleep(Duration::from_millis(10));
    }
}

#[allow(clippy::disallowed_methods, reason = "processes are watched from outside, on the real clock")]
pub(crate) fn stopwatch() -> Instant {
    Instant::now()
}

/// Lets time pass where the passing of time is what is tested.
#[allow(clippy::disallowed_methods, reason = "processes are watched from outside, on the real clock")]
pub(crate) fn pause(span: Duration) {
    std::thread::sleep(span);
}

pub(crate) fn code(output: &Output) -> i32 {
    output.status.code().unwrap_or(-1)
}

pub(crate) fn stdout(output: &Output) -> String {
    String::from_utf8_lossy(&output.stdout).into_owned()
}

pub(crate) fn stderr(output: &Output) -> String {
    String::from_utf8_lossy(&output.stderr).into_owned()
}

pub(crate) fn json(output: &Output) -> Value {
    serde_json::from_slice(&output.stdout)
        .unwrap_or_else(|error| panic!("no JSON: {error}\n{}\n{}", stdout(output), stderr(output)))
}
