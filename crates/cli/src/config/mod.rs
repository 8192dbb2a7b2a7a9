//! `everbeat.toml`, the environment and the flags, read into one checked configuration.
//!
//! [`keys::KEYS`] is the one list of what can be set: parsing, environment names, suggestions and the
//! reference page all come from it.

mod key;
mod keys;
mod layers;
mod reference;
mod strangers;
mod suggest;
#[cfg(test)]
mod tests;
mod values;

pub(crate) use key::Key;
pub(crate) use keys::KEYS;
pub(crate) use layers::{Flags, Origin};
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
use std::path::PathBuf;

/// All that `everbeat serve` can be told, checked.
#[derive(Debug)]
pub(crate) struct Config {
    pub(crate) data_dir: PathBuf,
    pub(crate) listen: SocketAddr,
    pub(crate) http: everbeat_server::Config,
    pub(crate) store: Store,
    pub(crate) telemetry: Telemetry,
    pub(crate) settings: Settings,
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

#[derive(Debug)]
pub(crate) struct Telemetry {
    pub(crate) log: String,
    pub(crate) json: bool,
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
        // Rules between keys are checked only when each key by itself is good: half a
        // configuration would be blamed for what the other half says.
        if complaints.is_empty()
            && let Err(invalid) = config.agree()
        {
            let origin = config.given.get(invalid.field.as_str()).map_or(Origin::Default, |given| given.origin.clone());
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
            telemetry: Telemetry { log: "info".to_string(), json: false },
            settings,
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
        match self.settings.check() {
            Ok(()) => {}
            Err(everbeat_engine::Error::Invalid(invalid)) => return Err(invalid),
            Err(other) => return Err(Invalid::new("replica", "these settings", other.to_string(), other.hint())),
        }
        self.http.listen = vec![self.listen];
        self.http.check()
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
