//! A server that runs out of disk, descriptors, processes or memory under load, and is relieved: what it had accepted
//! ends rightly, nothing fails for it, and its readiness told. `EVERBEAT_ATTACK_SECONDS=60` makes each last twenty seconds.

mod attack;
mod common;
mod job;
mod postgres;

use attack::{Ask, Clients, REST, Sent, attack_time, reckon, steady};
use common::{Options, Server, pause, stopwatch, until};
use postgres::Postgres;
use serde_json::json;
use std::collections::BTreeSet;
use std::fs;
use std::io::Write;
use std::os::unix::fs::{PermissionsExt, chown};
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};
use std::time::Duration;

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Store {
    Sqlite,
    Postgres,
}

#[test]
fn a_full_disk_fails_nothing_on_sqlite() {
    full_disk(Store::Sqlite);
}

#[test]
fn a_full_disk_fails_nothing_on_postgres() {
    full_disk(Store::Postgres);
}

#[test]
fn a_lack_of_descriptors_fails_nothing_on_sqlite() {
    no_descriptors(Store::Sqlite);
}

#[test]
fn a_lack_of_descriptors_fails_nothing_on_postgres() {
    no_descriptors(Store::Postgres);
}

#[test]
fn a_lack_of_processes_fails_nothing_on_sqlite() {
    no_processes(Store::Sqlite);
}

#[test]
fn a_lack_of_processes_fails_nothing_on_postgres() {
    no_processes(Store::Postgres);
}

#[test]
fn a_lack_of_memory_fails_nothing_on_sqlite() {
    little_memory(Store::Sqlite);
}

#[test]
fn a_lack_of_memory_fails_nothing_on_postgres() {
    little_memory(Store::Postgres);
}

fn full_disk(store: Store) {
    let Some(bench) = Bench::new(store) else { return };
    let server = bench.start();
    // SQLite's database is in the data folder; PostgreSQL's has a disk of its own.
    let disks: Vec<&Disk> = bench.disks.iter().collect();
    let expected = Expected { checks: &["store", "settling", "jobs"], may_end: false };
    bench.withstand(server, &expected, |_| {
        disks.iter().for_each(|disk| disk.fill());
        move || disks.iter().for_each(|disk| disk.relieve())
    });
}

fn no_descriptors(store: Store) {
    let Some(bench) = Bench::with(store, ROOMY_MIB, 20_000) else { return };
    let (server, user) = (bench.start(), bench.user);
    let expected = Expected { checks: &["jobs", "store", "settling"], may_end: false };
    bench.withstand(server, &expected, |pid| {
        let usual = limit(user, pid, "nofile");
        let open = fs::read_dir(format!("/proc/{pid}/fd")).unwrap().count();
        set_limit(user, pid, "nofile", &format!("{open}:{}", usual.1));
        move || set_limit(user, pid, "nofile", &format!("{}:{}", usual.0, usual.1))
    });
}

fn no_processes(store: Store) {
    let Some(bench) = Bench::with(store, ROOMY_MIB, 20_000) else { return };
    let (server, user) = (bench.start(), bench.user);
    let expected = Expected { checks: &["jobs"], may_end: false };
    bench.withstand(server, &expected, |pid| {
        let usual = limit(user, pid, "nproc");
        set_limit(user, pid, "nproc", &format!("1:{}", usual.1));
        move || set_limit(user, pid, "nproc", &format!("{}:{}", usual.0, usual.1))
    });
}

fn little_memory(store: Store) {
    let Some(bench) = Bench::with(store, ROOMY_MIB, 1_000_000) else { return };
    let (server, user) = (bench.start(), bench.user);
    let expected = Expected { checks: &["store", "settling", "jobs"], may_end: true };
    bench.withstand(server, &expected, |pid| {
        // Of what it may write to: address space alone is set aside long before it is used.
        let status = fs::read_to_string(format!("/proc/{pid}/status")).unwrap();
        let used = status.lines().find_map(|line| line.strip_prefix("VmData:")).unwrap();
        let kib: u64 = used.trim().trim_end_matches(" kB").parse().unwrap();
        set_limit(user, pid, "data", &format!("{}:unlimited", kib << 10));
        move || set_limit(user, pid, "data", "unlimited:unlimited")
    });
}

struct Expected {
    /// One of these checks of readiness at least must tell.
    checks: &'static [&'static str],
    /// A program to which the system gives no memory ends at once, as if it were killed.
    may_end: bool,
}

/// A server of a user of its own on small disks of its own.
struct Bench {
    options: Options,
    disks: Vec<Disk>,
    marks: PathBuf,
    user: u32,
    /// How large some inputs and results are.
    bytes: usize,
    _folder: tempfile::TempDir,
    _postgres: Option<Postgres>,
}

/// What is needed to begin with, and room for what the load leaves there.
const DATA_MIB: u64 = 256;
const ROOMY_MIB: u64 = 1024;
/// Not even a small file fits.
const LEFT_BYTES: u64 = 16 << 10;

impl Bench {
    /// None: this user may not mount or limit anything.
    fn new(store: Store) -> Option<Bench> {
        Bench::with(store, DATA_MIB, 20_000)
    }

    fn with(store: Store, mib: u64, bytes: usize) -> Option<Bench> {
        if !rustix::process::geteuid().is_root() {
            eprintln!("not tested: only root can make small disks and be another user");
            return None;
        }
        let folder = common::scratch();
        fs::set_permissions(folder.path(), fs::Permissions::from_mode(0o755)).unwrap();
        // The limit on processes counts those of a user. This one has no other.
        let user = 400_000_000 + std::process::id() * 16 + store as u32 + 2 * folder_number();
        let data = Disk::mount(folder.path(), "data", mib, user);
        let (postgres, tables) = match store {
            Store::Sqlite => (None, None),
            Store::Postgres => {
                let postgres = Postgres::start();
                let tables = Disk::mount(folder.path(), "tables", mib, postgres_user());
                postgres.keep_tables_in(&tables.path);
                (Some(postgres), Some(tables))
            }
        };
        // It must be able to read the program, wherever that was built.
        let binary = folder.path().join("everbeat");
        // By a program: a file that this process has open to write to cannot be executed, and others of its threads start
        // programs, which have it open too for a moment.
        run(Command::new("cp").arg(common::BINARY).arg(&binary));
        let marks = folder.path().join("marks");
        fs::write(&marks, "").unwrap();
        chown(&marks, Some(user), Some(user)).unwrap();
        let mut options = steady().data_dir(&data.path.join("everbeat")).env("HOME", data.path.display()).user(user);
        options.binary = binary;
        if let Some(postgres) = &postgres {
            options = options.store(postgres.url());
        }
        let disks = [Some(data), tables].into_iter().flatten().collect();
        Some(Bench { options, disks, marks, user, bytes, _folder: folder, _postgres: postgres })
    }

    fn start(&self) -> Server {
        Server::start(self.options.clone())
    }

    /// `shorten` begins the shortage for the process and answers how it is ended.
    fn withstand<R: FnOnce()>(&self, server: Server, expected: &Expected, shorten: impl FnOnce(u32) -> R) {
        let clients = Clients::keeping_connections(&server);
        let what = |key: &str, number: u64| match number % 4 {
            0 => Ask::job(key, &self.marks, "0.3"),
            1 => Ask::echo(self.bytes),
            _ => Ask::task(number % 7 * 50, &json!({})),
        };
        let address = server.address();
        let mut server = Some(server);
        let mut told = BTreeSet::new();
        let (mut ended, mut last_words) = (false, String::new());
        let mut sent = clients.load_during(what, || {
            let pid = server.as_ref().unwrap().pid();
            pause(Duration::from_secs(3));
            let relieve = shorten(pid);
            let begun = stopwatch();
            while begun.elapsed() < attack_time().min(Duration::from_secs(20)) && !ended {
                told.extend(clients.unwell());
                ended = server.as_mut().unwrap().has_ended();
                pause(Duration::from_millis(100));
            }
            match ended {
                // Whoever watches over servers starts it again, where there is enough.
                true => {
                    last_words = server.take().unwrap().log();
                    server = Some(Server::start(self.options.clone().listen(&address)));
                }
                false => relieve(),
            }
        });
        let server = server.unwrap();
        assert!(!ended || expected.may_end, "the server ended:\n{last_words}");
        until(REST, "it is ready again", || (server.status("/readyz") == 200).then_some(()));
        clients.settle_unanswered(&mut sent);
        let runs = reckon(&server, &sent);
        let jobs = attack::assert_each_ran_once(&self.marks, &sent, is_job);
        assert_none_failed(&server, &sent, ended);
        let checks = expected.checks;
        assert!(
            ended || checks.iter().any(|check| told.contains(*check)),
            "readiness told of {told:?}, not {checks:?}"
        );
        eprintln!(
            "{} runs ({jobs} of them jobs), {} requests unanswered; told by {told:?}; ended: {ended}",
            runs.len(),
            sent.failures
        );
    }
}

fn is_job(key: &str) -> bool {
    key.split_once('-').is_some_and(|(_, number)| number.parse::<u64>().unwrap().is_multiple_of(4))
}

/// Neither the end of a run nor one of its attempts is a failure; only a server that ended itself costs a try.
fn assert_none_failed(server: &Server, sent: &Sent, server_ended: bool) {
    for id in sent.accepted.values() {
        if server.get(&format!("/api/v1/runs/{id}"))["attempt"] == 1 {
            continue;
        }
        let attempts = server.get(&format!("/api/v1/runs/{id}/attempts"));
        for attempt in attempts["items"].as_array().unwrap() {
            let outcome = attempt["outcome"].as_str().unwrap();
            assert!(["succeeded", "released"].contains(&outcome) || (outcome == "lost" && server_ended), "{attempts}");
        }
    }
}

/// A small disk in memory.
struct Disk {
    path: PathBuf,
}

impl Disk {
    fn mount(folder: &Path, name: &str, mib: u64, owner: u32) -> Disk {
        let path = folder.join(name);
        fs::create_dir(&path).unwrap();
        let options = format!("size={mib}m,mode=755,uid={owner}");
        run(Command::new("mount").args(["-t", "tmpfs", "-o", &options, "tmpfs"]).arg(&path));
        Disk { path }
    }

    fn fill(&self) {
        let mut filler = fs::File::create(self.path.join("filler")).unwrap();
        // Others write meanwhile, and what is sparse takes no room: until there is none left, then a little less.
        while filler.write_all(&[1; 4096]).is_ok() {}
        let length = filler.metadata().unwrap().len();
        filler.set_len(length.saturating_sub(LEFT_BYTES)).unwrap();
    }

    fn relieve(&self) {
        fs::remove_file(self.path.join("filler")).unwrap();
    }
}

impl Drop for Disk {
    fn drop(&mut self) {
        // Lazily: a database may still be about to end.
        let _nothing_more_to_do = Command::new("umount").arg("-l").arg(&self.path).status();
    }
}

/// The soft and the hard limit, as `prlimit` takes them.
fn limit(user: u32, pid: u32, name: &str) -> (String, String) {
    let asked = ["--noheadings", "--raw", "--output", "SOFT,HARD", "--pid", &pid.to_string(), &format!("--{name}")];
    let text = prlimit(user).args(asked).output().unwrap();
    let text = String::from_utf8(text.stdout).unwrap();
    let mut values = text.split_ascii_whitespace().map(ToString::to_string);
    (values.next().unwrap(), values.next().unwrap())
}

fn set_limit(user: u32, pid: u32, name: &str, value: &str) {
    run(prlimit(user).args(["--pid", &pid.to_string(), &format!("--{name}={value}")]));
}

/// As the user whose process it is: not every root may limit others.
fn prlimit(user: u32) -> Command {
    let mut command = Command::new("setpriv");
    command.arg(format!("--reuid={user}")).arg(format!("--regid={user}")).args(["--clear-groups", "--", "prlimit"]);
    command
}

fn postgres_user() -> u32 {
    let output = Command::new("id").args(["-u", "postgres"]).output().unwrap();
    String::from_utf8(output.stdout).unwrap().trim().parse().unwrap()
}

fn folder_number() -> u32 {
    static NUMBERS: std::sync::atomic::AtomicU32 = std::sync::atomic::AtomicU32::new(0);
    NUMBERS.fetch_add(1, std::sync::atomic::Ordering::SeqCst)
}

fn run(command: &mut Command) {
    let status = command.stdin(Stdio::null()).status().unwrap();
    assert!(status.success(), "{command:?} ended with {status}");
}
