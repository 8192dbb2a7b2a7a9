//! `everbeat.toml`, the environment and the flags, read into one checked configuration.
//!
//! [`keys::KEYS`] is the one list of what can be set: parsing, environment names, suggestions and the
//! reference page all come from it.

mod key;
mod keys;
mod layers;
mod pools;
mod reference;
mod strangers;
mod suggest;
#[cfg(test)]
mod tests;
mod values;

pub(crate) use key::Key;
pub(crate) use keys::KEYS;
pub(crate) use layers::{Flags, Origin};
pub(crate) use pools::masked as masked_pools;
pub(crate) use reference::markdown;
pub(crate) use strangers::{strange_keys, strangers};
pub(crate) use values::mask;

use everbeat_engine::Settings;
use everbeat_model::{Invalid, Policy, PolicyPatch};
use layers::{Given, Layers};
use serde_json::{Map, Value};
use std::collections::BTreeMap;
use std::fmt;
use std::net::SocketAddr;
use std::path::{Path, PathBuf};

/// All that `everbeat serve` can be told, checked.
#[derive(Debug)]
pub(crate) struct Config {
    pub(crate) data_dir: PathBuf,
    pub(crate) listen: SocketAddr,
    pub(crate) http: everbeat_server::Config,
    pub(crate) store: Store,
    pub(crate) telemetry: Telemetry,
    pub(crate) workers: Workers,
    pub(crate) settings: Settings,
    pub(crate) flows: everbeat_flows::Settings,
    /// What was set, and where; the rest has its default.
    pub(crate) given: BTreeMap<&'static str, Given>,
    /// The policy fields that were set, laid over the baseline once all are known.
    policy: Map<String, Value>,
}

#[derive(Debug)]
pub(crate) struct Store {
    /// None: a SQLite file in the data folder.
    url: Option<String>,
    /// Where the URL is read from instead.
    url_file: Option<PathBuf>,
    pub(crate) pool_size: usize,
}

#[derive(Clone, Debug)]
pub(crate) struct Telemetry {
    pub(crate) log: String,
    pub(crate) json: bool,
    pub(crate) heartbeat_events: bool,
    pub(crate) process_events: bool,
    pub(crate) watchdog_events: bool,
}

impl Default for Telemetry {
    fn default() -> Telemetry {
        Telemetry {
            log: "info".to_string(),
            json: false,
            heartbeat_events: true,
            process_events: true,
            watchdog_events: true,
        }
    }
}

/// Where workers from elsewhere come in.
#[derive(Debug, Default)]
pub(crate) struct Workers {
    pub(crate) listen: Option<SocketAddr>,
    tls_cert: Option<PathBuf>,
    tls_key: Option<PathBuf>,
}

impl Workers {
    /// The files of the certificate and of its key.
    pub(crate) fn tls(&self) -> Option<(&Path, &Path)> {
        self.tls_cert.as_deref().zip(self.tls_key.as_deref())
    }
}

impl Config {
    /// Reads every layer: defaults, then the file, then the environment, then the flags.
    pub(crate) fn load(flags: &Flags, env: impl IntoIterator<Item = (String, String)>) -> Result<Config, Refused> {
        let mut layers = Layers::default();
        layers.file(flags.config.as_deref());
        layers.env(env);
        layers.flags(flags);
        let Layers { given, mut complaints } = layers;
        let json = given.get("telemetry.log_format").is_some_and(|given| given.value == "json");
        let mut config = Config::initial();
        for key in KEYS {
            let Some(Given { value, origin }) = given.get(key.path) else { continue };
            let taken = key.check_type(value).and_then(|()| (key.set)(&mut config, value));
            if let Err(invalid) = taken {
                complaints.push(Complaint { invalid: invalid.within(key.path), origin: origin.clone() });
            }
        }
        config.given = given;
        config.place_pools(flags);
        // Rules between keys are checked only when each key by itself is good: half a
        // configuration would be blamed for what the other half says.
        if complaints.is_empty()
            && let Err(invalid) = config.agree()
        {
            let section = invalid.field.split('.').next().unwrap_or_default();
            let given = config.given.get(invalid.field.as_str()).or_else(|| config.given.get(section));
            let origin = given.map_or(Origin::Default, |given| given.origin.clone());
            complaints.push(Complaint { invalid, origin });
        }
        if complaints.is_empty() { Ok(config) } else { Err(Refused { complaints, json }) }
    }

    /// Everything at its default.
    fn initial() -> Config {
        let settings = Settings { version: env!("CARGO_PKG_VERSION").to_string(), ..Settings::default() };
        Config {
            data_dir: PathBuf::from("everbeat-data"),
            listen: SocketAddr::from(([127, 0, 0, 1], 7117)),
            http: everbeat_server::Config::default(),
            store: Store { url: None, url_file: None, pool_size: 4 },
            telemetry: Telemetry::default(),
            workers: Workers::default(),
            settings,
            flows: everbeat_flows::Settings::default(),
            given: BTreeMap::new(),
            policy: Map::new(),
        }
    }

    /// The rules that bind several keys to each other.
    fn agree(&mut self) -> Result<(), Invalid> {
        self.read_store_url()?;
        let policy = Value::Object(std::mem::take(&mut self.policy));
        self.settings.runs = PolicyPatch::parse(&policy)
            .and_then(|patch| patch.over(&Policy::BASELINE))
            .map_err(|invalid| invalid.within("runs"))?;
        let set = |path| self.given.contains_key(path);
        if set("replica.heartbeat_timeout") && !set("replica.heartbeat_interval") {
            // A shorter timeout alone brings its interval along, as it does in a policy.
            let settings = &mut self.settings;
            settings.heartbeat_interval = settings.heartbeat_interval.min(settings.heartbeat_timeout / 6);
        }
        if set("jobs.stale_after") && !set("jobs.heartbeat_interval") {
            let jobs = &mut self.settings.jobs;
            jobs.heartbeat_interval = jobs.heartbeat_interval.min(jobs.stale_after / 4);
        }
        let remote = &mut self.settings.remote_workers;
        if set("workers.ping_timeout") && !set("workers.ping_interval") {
            remote.ping_interval = remote.ping_interval.min(remote.ping_timeout / 5);
        }
        pools::check_times("workers.", remote)?;
        match self.settings.check() {
            Ok(()) => {}
            Err(everbeat_engine::Error::Invalid(invalid)) => return Err(invalid),
            Err(other) => return Err(Invalid::new("replica", "these settings", other.to_string(), other.hint())),
        }
        self.http.listen = vec![self.listen];
        self.http.check()?;
        self.check_workers()
    }

    fn check_workers(&self) -> Result<(), Invalid> {
        let Workers { listen, tls_cert, tls_key } = &self.workers;
        if let Some(address) = listen {
            self.http.check_address("server.worker_listen", *address)?;
        }
        let shown = |path: &Path| format!("{:?}", path.display().to_string());
        match (tls_cert, tls_key) {
            (Some(cert), None) => {
                let problem = "is set, and server.tls_key is not";
                Err(Invalid::new("server.tls_cert", shown(cert), problem, "set both, or none"))
            }
            (None, Some(key)) => {
                let problem = "is set, and server.tls_cert is not";
                Err(Invalid::new("server.tls_key", shown(key), problem, "set both, or none"))
            }
            (Some(cert), Some(_)) if listen.is_none() => {
                let problem = "is set, and server.worker_listen is not: nothing else is served with TLS";
                let hint = "set server.worker_listen; for the HTTP interface, put a proxy with TLS in front of it";
                Err(Invalid::new("server.tls_cert", shown(cert), problem, hint))
            }
            _ => Ok(()),
        }
    }

    /// Where the workers of a pool run is said from where the file stands.
    fn place_pools(&mut self, flags: &Flags) {
        let file = flags.config.as_deref().unwrap_or(Path::new(layers::DEFAULT_FILE));
        let base = file.parent().unwrap_or(Path::new(""));
        for cwd in self.settings.pools.iter_mut().filter_map(|pool| pool.cwd.as_mut()) {
            let placed = base.join(&*cwd);
            *cwd = std::path::absolute(&placed).unwrap_or(placed);
        }
    }

    fn read_store_url(&mut self) -> Result<(), Invalid> {
        let Some(path) = &self.store.url_file else { return Ok(()) };
        if self.store.url.is_some() {
            let (path, hint) = (format!("{:?}", path.display().to_string()), "keep one of the two");
            return Err(Invalid::new("store.url_file", path, "is set, and store.url as well", hint));
        }
        self.store.url = Some(values::store_url_in(path).map_err(|invalid| invalid.within("store.url_file"))?);
        Ok(())
    }

    /// Whether the command line, which every user of the machine can read, has a password in it.
    pub(crate) fn password_is_shown(&self) -> bool {
        let url = self.store_url();
        let by_flag = self.given.get("store.url").is_some_and(|given| matches!(given.origin, Origin::Flag(_)));
        let option = url.split_once('?').is_some_and(|(_, options)| options.contains("password="));
        by_flag && (option || mask(&url).contains(":…@") || mask(&url).ends_with("://…"))
    }

    pub(crate) fn store_url(&self) -> String {
        let default = || format!("sqlite://{}", self.data_dir.join("everbeat.db").display());
        self.store.url.clone().unwrap_or_else(default)
    }
}

/// A configuration that cannot be used, with everything that is wrong with it.
#[derive(Debug)]
pub(crate) struct Refused {
    pub(crate) complaints: Vec<Complaint>,
    /// As far as it could be read, it asks for a log in JSON.
    pub(crate) json: bool,
}

#[derive(Debug)]
pub(crate) struct Complaint {
    pub(crate) invalid: Invalid,
    pub(crate) origin: Origin,
}

impl fmt::Display for Refused {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        for (place, Complaint { invalid, origin }) in self.complaints.iter().enumerate() {
            if place > 0 {
                writeln!(f)?;
            }
            write!(f, "{invalid}")?;
            if *origin != Origin::Default {
                write!(f, "\n  from: {origin}")?;
            }
            write!(f, "\n  hint: {}", invalid.hint)?;
        }
        Ok(())
    }
}
