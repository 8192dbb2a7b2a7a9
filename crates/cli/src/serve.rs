use crate::config::{self, Config, Flags, Telemetry, mask};
use crate::exit::{self, Failure};
use crate::flows::Flows;
use crate::{logging, notify, opening, tasks};
use everbeat::System;
use everbeat_engine::pools::Guardians;
use everbeat_engine::{Engine, Env, Host, Locks, Shims};
use everbeat_server::{Tls, WorkerDoors};
use everbeat_store::Store;
use everbeat_supervisor::{HostGuardians, HostLocks, HostShims, Place, descriptors};
use std::fs;
use std::io::{self, ErrorKind, IsTerminal, Write};
use std::net::SocketAddr;
use std::os::unix::fs::OpenOptionsExt;
use std::os::unix::net::UnixListener;
use std::path::Path;
use std::sync::Arc;
use std::time::Duration;
use tokio::net::TcpListener;
use tokio::signal::unix::{Signal, SignalKind, signal};
use tokio::sync::watch;

/// Runs a server until it is told to leave.
pub(crate) fn serve(flags: &Flags, adopt_data: bool) -> Result<u8, Failure> {
    let loaded = Config::load(flags, environment());
    let json = match &loaded {
        Ok(config) => config.telemetry.json,
        Err(refused) => refused.json,
    };
    let ended = loaded.map_err(Failure::from).and_then(|config| {
        logging::start(&config.telemetry);
        config::strangers(environment()).iter().for_each(|stranger| tracing::warn!("{stranger}"));
        begin(config, adopt_data)
    });
    match ended {
        // Whoever asks for JSON reads nothing else, from the first line to the last.
        Err(failure) if json => {
            logging::start(&Telemetry { log: "error".to_string(), json, ..Telemetry::default() });
            failure.log();
            Ok(failure.code)
        }
        ended => ended,
    }
}

fn begin(mut config: Config, adopt_data: bool) -> Result<u8, Failure> {
    everbeat_server::measure();
    config.http.connections = connections(&config, raise_descriptors()).min(config.http.connections);
    let runtime = tokio::runtime::Builder::new_multi_thread()
        .enable_all()
        .build()
        .map_err(|error| Failure::server(format!("the runtime cannot be started: {error}"), ""))?;
    let ended = runtime.block_on(live(config, adopt_data));
    // What is left has no say in when the process ends.
    runtime.shutdown_background();
    ended
}

/// The variables of this process. One that is not text is no configuration of ours.
pub(crate) fn environment() -> impl Iterator<Item = (String, String)> {
    std::env::vars_os().filter_map(|(name, value)| Some((name.into_string().ok()?, value.into_string().ok()?)))
}

async fn live(config: Config, adopt_data: bool) -> Result<u8, Failure> {
    let mut signals = Signals::new()?;
    // First the address: a second server started by mistake is told so before it touches anything.
    let listener = bind(config.listen, "--listen").await?;
    let remote = match config.workers.listen {
        Some(address) => Some(bind(address, "server.worker_listen").await?),
        None => None,
    };
    let tls = tls(&config)?;
    let address = listener.local_addr().unwrap_or(config.listen);
    // Then the place: on a copy of a data folder nothing may be opened, examined or signalled.
    let place = opening::place(&config.data_dir, adopt_data)?;
    let env: Arc<dyn Env> = System::new();
    let store = tokio::select! {
        biased;
        code = signals.next() => return Ok(code),
        store = opening::store(&config, &env) => store?,
    };
    let (guardians, pools) = guardians(&place).map_err(|error| unusable(&config, &error))?;
    let engine = engine(&config, &place, env.clone(), store, guardians)?;
    engine.answers_at(reachable(address));
    engine.start();
    write_address(&config.data_dir, address);

    let (close, closing) = watch::channel(false);
    let closed = |mut closing: watch::Receiver<bool>| async move {
        let _nobody_is_left_to_close_it = closing.wait_for(|closing| *closing).await;
    };
    let workers = remote.as_ref().and_then(|listener| listener.local_addr().ok());
    let doors = WorkerDoors { pools: Some(pools), remote, tls };
    let server = everbeat_server::serve(engine.clone(), config.http.clone(), listener, closed(closing.clone()));
    let links = everbeat_server::serve_workers(engine.clone(), config.http.clone(), doors, closed(closing));
    let server = async { tokio::try_join!(server, links).map(|((), ())| ()) };
    tokio::pin!(server);
    let code = tokio::select! {
        biased;
        code = leave(&engine, &mut signals) => code,
        served = &mut server => return Err(broken(served)),
        () = announce(&engine, &env, &config, address, workers) => exit::DONE,
    };
    close.send_replace(true);
    if code == exit::DONE {
        // Answers under way are finished; the server bounds how long that takes.
        tokio::select! {
            biased;
            again = signals.next() => return Ok(again),
            _it_ends_either_way = server => {}
        }
    }
    Ok(code)
}

/// Waits until the replica has left: asked by a signal, or by somebody else through the store.
async fn leave(engine: &Engine, signals: &mut Signals) -> u8 {
    tokio::select! {
        biased;
        () = engine.stopped() => {}
        _first = signals.next() => {
            tracing::info!(running = engine.slots_taken(), "draining; a second signal stops at once");
        }
    }
    notify::tell("STOPPING=1");
    // A replica that has left by itself still has its workers.
    tokio::select! {
        biased;
        () = engine.drain() => exit::DONE,
        code = signals.next() => code,
    }
}

/// Says once that the server is ready, and then nothing, forever.
async fn announce(
    engine: &Engine,
    env: &Arc<dyn Env>,
    config: &Config,
    address: SocketAddr,
    workers: Option<SocketAddr>,
) {
    while !engine.readiness().ready() {
        env.sleep(READY_LOOK).await;
    }
    let replica = engine.replica_id().map(|id| id.to_string()).unwrap_or_default();
    let (version, store) = (env!("CARGO_PKG_VERSION"), mask(&config.store_url()));
    let json = config.telemetry.json;
    match json {
        true => tracing::info!(version, url = format!("http://{address}"), store, replica, "ready"),
        false => eprintln!("everbeat {version} is ready at http://{address} (store {store}, replica {replica})"),
    }
    if let Some(workers) = workers {
        let veiled = if config.workers.tls().is_some() { "with TLS" } else { "without TLS" };
        match json {
            true => tracing::info!(address = %workers, tls = config.workers.tls().is_some(), "workers may dial"),
            false => eprintln!("workers from elsewhere may dial {workers}, {veiled}"),
        }
    }
    if let Some(other) = engine.estranged().await {
        if !json {
            // On stderr whatever the log shows: who starts a server sees it.
            eprintln!(
                "note: another server of this store runs on this machine with another data folder ({})",
                other.host
            );
            eprintln!("  when one of them is killed, the other cannot take its jobs over");
            eprintln!("  hint: give both the same --data-dir");
        }
        tracing::warn!(other = %other.id, "two data folders on one machine: neither server can take the other's jobs over");
    }
    if io::stderr().is_terminal() && !json {
        eprintln!("try in another terminal: everbeat run -- sh -c 'echo hello; sleep 60; echo done'");
        eprintln!("then kill this server, start it again, and see that the command never stopped");
    }
    notify::tell("READY=1");
    std::future::pending().await
}

const READY_LOOK: Duration = Duration::from_millis(5);

fn broken(served: io::Result<()>) -> Failure {
    match served {
        Err(error) => Failure::server(format!("the server cannot go on: {error}"), ""),
        Ok(()) => Failure::server("the server ended before it was told to", ""),
    }
}

/// Every connection, file and job takes a descriptor. Answers how many there may be.
fn raise_descriptors() -> u64 {
    descriptors::raise().unwrap_or_else(|error| {
        tracing::warn!(%error, "the limit of open files could not be raised");
        u64::from(DESCRIPTORS)
    })
}

/// What every system allows.
const DESCRIPTORS: u16 = 1024;
/// Descriptors of the server itself: its files, its store, its runtime.
const OWN_DESCRIPTORS: usize = 64;
/// A job that is started or watched over takes so many.
const PER_JOB: usize = 3;
/// A worker of a pool takes so many: its link, its outputs, its input, and what its process is watched by.
const PER_WORKER: usize = 6;

/// How many connections clients may hold: renewals, the store and jobs find descriptors all the same.
fn connections(config: &Config, descriptors: u64) -> usize {
    let all = usize::try_from(descriptors).unwrap_or(usize::MAX);
    let workers: usize = config.settings.pools.iter().map(|pool| pool.size).sum();
    let processes = PER_JOB * config.settings.jobs.slots + PER_WORKER * workers;
    let reserve = OWN_DESCRIPTORS + config.store.pool_size + processes;
    all - reserve.clamp(all / 4, all / 2)
}

async fn bind(address: SocketAddr, setting: &str) -> Result<TcpListener, Failure> {
    TcpListener::bind(address).await.map_err(|error| match error.kind() {
        ErrorKind::AddrInUse => Failure::server(
            format!("the address {address} is taken by another process"),
            format!("stop that one, or choose another address with {setting} (port 0 takes a free one)"),
        ),
        _ => Failure::server(
            format!("cannot listen on {address}: {error}"),
            format!("choose an address of this machine, and a port that this user may use, with {setting}"),
        ),
    })
}

/// The certificate for workers from elsewhere, if they should see one.
fn tls(config: &Config) -> Result<Option<Tls>, Failure> {
    let Some((cert, key)) = config.workers.tls() else { return Ok(None) };
    let read = |path: &Path, setting: &str| {
        fs::read(path).map_err(|error| {
            let hint = format!("give a file that this user may read with {setting}");
            Failure::server(format!("{} cannot be read: {error}", path.display()), hint)
        })
    };
    let (certificates, secret) = (read(cert, "server.tls_cert")?, read(key, "server.tls_key")?);
    let tls = Tls::from_pem(&certificates, &secret).map_err(|problem| {
        let message = format!("{} and {} cannot be used for TLS: {problem}", cert.display(), key.display());
        Failure::server(message, "give a certificate and its own key, both in PEM format")
    })?;
    Ok(Some(tls))
}

fn unusable(config: &Config, error: &io::Error) -> Failure {
    let hint = "give a folder that this user may write to with --data-dir or server.data_dir";
    Failure::server(format!("the data folder {} cannot be used: {error}", config.data_dir.display()), hint)
}

/// Whoever starts the workers of pools on this host, and the socket that those workers dial. This is the one place
/// where guardians come from.
fn guardians(place: &Place) -> io::Result<(Arc<dyn Guardians>, UnixListener)> {
    let guardians = HostGuardians::open(place, "/proc/self/exe".into(), vec!["guardian".into()])?;
    let socket = guardians.bind()?;
    Ok((Arc::new(guardians), socket))
}

fn engine(
    config: &Config,
    place: &Place,
    env: Arc<dyn Env>,
    store: Arc<dyn Store>,
    guardians: Arc<dyn Guardians>,
) -> Result<Engine, Failure> {
    let locks = HostLocks::open(place).map_err(|error| unusable(config, &error))?;
    let mut settings = config.settings.clone();
    settings.host = locks.host().to_string();
    settings.machine = everbeat_supervisor::machine();
    settings.former_hosts = place.former_hosts().clone();
    tasks::limit(&mut settings);
    let locks: Arc<dyn Locks> = Arc::new(locks);
    let shims = shims(place).map_err(|error| {
        let hint = "give a folder that this user may write to with --data-dir or server.data_dir";
        Failure::server(format!("jobs cannot be kept in {}: {error}", config.data_dir.display()), hint)
    })?;
    let flows = Flows::new(config.flows.clone());
    let tasks = tasks::tasks(&flows);
    let host = Host {
        locks: Some(locks),
        shims: Some(shims),
        guardians: Some(guardians),
        flows: Some(Arc::new(flows.clone())),
        ..Host::default()
    };
    let engine = Engine::new(env, store, settings, tasks, host)
        .map_err(|error| Failure::server(error.to_string(), error.hint()))?;
    flows.belong_to(&engine);
    Ok(engine)
}

/// This very program becomes a job's shim, also when its file was replaced since it started.
fn shims(place: &Place) -> io::Result<Arc<dyn Shims>> {
    Ok(Arc::new(HostShims::open(place, "/proc/self/exe".into(), vec!["shim".into()])?))
}

/// The address by which others may find this server: one that listens everywhere is known by the name of its machine.
fn reachable(address: SocketAddr) -> String {
    let name = fs::read_to_string("/proc/sys/kernel/hostname").ok().filter(|_| address.ip().is_unspecified());
    match name.as_deref().map(str::trim).filter(|name| !name.is_empty()) {
        Some(name) => format!("{name}:{}", address.port()),
        None => address.to_string(),
    }
}

/// Where the server listens, for whoever knows the data folder only. Written aside and renamed, so
/// that nobody reads half of it.
fn write_address(data_dir: &Path, address: SocketAddr) {
    let fresh = data_dir.join(format!("listen.{}", std::process::id()));
    let open = fs::OpenOptions::new().write(true).create(true).truncate(true).mode(0o600).open(&fresh);
    let written = open
        .and_then(|mut file| writeln!(file, "{address}"))
        .and_then(|()| fs::rename(&fresh, data_dir.join("listen")));
    if let Err(error) = written {
        tracing::warn!(%error, "the address could not be written to the data folder");
    }
}

/// The signals that ask the server to leave.
struct Signals {
    terminate: Signal,
    interrupt: Signal,
}

impl Signals {
    fn new() -> Result<Signals, Failure> {
        let listen =
            |kind| signal(kind).map_err(|error| Failure::server(format!("signals cannot be received: {error}"), ""));
        Ok(Signals { terminate: listen(SignalKind::terminate())?, interrupt: listen(SignalKind::interrupt())? })
    }

    /// The exit code that the next signal stands for.
    async fn next(&mut self) -> u8 {
        tokio::select! {
            biased;
            _ = self.terminate.recv() => 128 + 15,
            _ = self.interrupt.recv() => 128 + 2,
        }
    }
}
