//! A PostgreSQL server that a test may stop, start and lie to about the time.
#![allow(dead_code, reason = "each test file uses a part")]

use std::fs;
use std::net::TcpListener;
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};

pub(crate) struct Postgres {
    folder: tempfile::TempDir,
    port: u16,
    clock: Option<PathBuf>,
}

impl Postgres {
    /// A new server on a free loopback port.
    pub(crate) fn start() -> Postgres {
        Postgres::with_clock(false)
    }

    /// A new server whose clock the test can shift.
    pub(crate) fn start_with_clock() -> Postgres {
        Postgres::with_clock(true)
    }

    fn with_clock(faked: bool) -> Postgres {
        let folder = crate::common::scratch();
        // PostgreSQL does not run as root; its own user must reach the folder.
        run(Command::new("chmod").arg("755").arg(folder.path()));
        let data = folder.path().join("data");
        fs::create_dir(&data).unwrap();
        let clock = faked.then(|| folder.path().join("clock"));
        if let Some(clock) = &clock {
            fs::write(clock, "+0").unwrap();
        }
        if is_root() {
            run(Command::new("chown").arg("-R").arg("postgres").arg(folder.path()));
        }
        let port = TcpListener::bind("127.0.0.1:0").unwrap().local_addr().unwrap().port();
        let server = Postgres { folder, port, clock };
        run(as_postgres(&binary("initdb"))
            .args(["-U", "postgres", "-A", "trust", "-E", "UTF8", "--locale=C", "--no-sync", "-D"])
            .arg(&data));
        server.begin();
        server
    }

    pub(crate) fn url(&self) -> String {
        format!("postgres://postgres@127.0.0.1:{}/postgres", self.port)
    }

    pub(crate) fn port(&self) -> u16 {
        self.port
    }

    /// Starts the server again. Without autovacuum: what it writes is not what these tests measure. Without waiting for the
    /// disk: no test takes the machine's power away, and others may keep its disk busy.
    pub(crate) fn begin(&self) {
        let options = format!(
            "-p {} -c listen_addresses=127.0.0.1 -c unix_socket_directories={} -c autovacuum=off -c fsync=off",
            self.port,
            self.folder.path().display()
        );
        let mut command = as_postgres(&binary("pg_ctl"));
        if let Some(clock) = &self.clock {
            command.env("LD_PRELOAD", libfaketime());
            command
                .env("FAKETIME_TIMESTAMP_FILE", clock)
                .env("FAKETIME_NO_CACHE", "1")
                .env("FAKETIME_DONT_FAKE_MONOTONIC", "1");
        }
        run(self.control(&mut command).args(["-w", "-o", &options, "start"]));
    }

    /// Stops the server as a crash would.
    pub(crate) fn stop(&self) {
        run(self.control(&mut as_postgres(&binary("pg_ctl"))).args(["-m", "immediate", "-w", "stop"]));
    }

    /// Stops the server after its connections were ended.
    pub(crate) fn stop_in_order(&self) {
        run(self.control(&mut as_postgres(&binary("pg_ctl"))).args(["-m", "fast", "-w", "stop"]));
    }

    /// Puts all tables that are made from now on into an empty folder of its user.
    pub(crate) fn keep_tables_in(&self, folder: &Path) {
        self.query(&format!("create tablespace kept location '{}'", folder.display()));
        self.query("alter database postgres set default_tablespace = kept");
    }

    /// Where the tables are.
    pub(crate) fn schema(&self) -> String {
        self.query("select table_schema from information_schema.tables where table_name = 'ready'")
    }

    /// Shifts the server's clock, such as `+1h`.
    pub(crate) fn shift_clock(&self, by: &str) {
        fs::write(self.clock.as_ref().expect("started with a clock"), by).unwrap();
    }

    /// Runs one query and answers its first value.
    pub(crate) fn query(&self, sql: &str) -> String {
        let output = Command::new(binary("psql")).args(["-XAtqc", sql]).arg(self.url()).output().unwrap();
        assert!(output.status.success(), "{sql}: {}", String::from_utf8_lossy(&output.stderr));
        String::from_utf8_lossy(&output.stdout).trim().to_string()
    }

    fn control<'a>(&self, command: &'a mut Command) -> &'a mut Command {
        command.arg("-D").arg(self.folder.path().join("data")).arg("-l").arg(self.folder.path().join("data/server.log"))
    }
}

impl Drop for Postgres {
    fn drop(&mut self) {
        let mut command = as_postgres(&binary("pg_ctl"));
        let _already_stopped = self
            .control(&mut command)
            .args(["-m", "immediate", "stop"])
            .stdout(Stdio::null())
            .stderr(Stdio::null())
            .status();
    }
}

pub(crate) fn libfaketime() -> PathBuf {
    let known = [
        "/usr/lib/x86_64-linux-gnu/faketime",
        "/usr/lib/aarch64-linux-gnu/faketime",
        "/usr/lib/faketime",
        "/usr/lib64/faketime",
    ];
    let found = known.iter().map(|folder| Path::new(folder).join("libfaketime.so.1")).find(|path| path.exists());
    found.expect("libfaketime is not installed: run scripts/test, which installs it")
}

fn binary(name: &str) -> PathBuf {
    let mut versions: Vec<PathBuf> =
        fs::read_dir("/usr/lib/postgresql").into_iter().flatten().flatten().map(|entry| entry.path()).collect();
    versions.sort();
    let installed = versions.iter().rev().map(|version| version.join("bin").join(name)).find(|path| path.exists());
    installed.unwrap_or_else(|| PathBuf::from(name))
}

fn is_root() -> bool {
    let output = Command::new("id").arg("-u").output().unwrap();
    output.stdout.starts_with(b"0\n")
}

fn as_postgres(program: &Path) -> Command {
    if !is_root() {
        return Command::new(program);
    }
    let mut command = Command::new("runuser");
    command.args(["-u", "postgres", "--"]).arg(program);
    command
}

fn run(command: &mut Command) {
    let status = command.stdin(Stdio::null()).stdout(Stdio::null()).status().unwrap();
    assert!(status.success(), "{command:?} ended with {status}");
}
