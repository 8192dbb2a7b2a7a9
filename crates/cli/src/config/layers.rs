use super::Complaint;
use super::key::{Key, Kind};
use super::keys::KEYS;
use super::suggest::{meant, unknown};
use super::values::mask;
use everbeat_model::Invalid;
use serde_json::{Map, Value};
use std::collections::BTreeMap;
use std::fmt;
use std::path::{Path, PathBuf};

/// What was said on the command line.
#[derive(Clone, Debug, Default, clap::Args)]
pub(crate) struct Flags {
    /// Configuration file [default: ./everbeat.toml if it exists]
    #[arg(long, value_name = "FILE", env = "EVERBEAT_CONFIG")]
    pub(crate) config: Option<PathBuf>,
    /// Where runs are kept: sqlite://PATH, postgres://…, or memory: (nothing outlives the process)
    #[arg(long, value_name = "URL")]
    pub(crate) store: Option<String>,
    /// Address and port to listen on; port 0 takes a free one [default: 127.0.0.1:7117]
    #[arg(long, value_name = "ADDRESS")]
    pub(crate) listen: Option<String>,
    /// Folder of this host's own files, and of the SQLite file [default: ./everbeat-data]
    #[arg(long, value_name = "FOLDER")]
    pub(crate) data_dir: Option<String>,
}

#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) enum Origin {
    Default,
    File(PathBuf),
    Env(String),
    Flag(&'static str),
}

impl fmt::Display for Origin {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Origin::Default => f.write_str("default"),
            Origin::File(path) => write!(f, "file {}", path.display()),
            Origin::Env(name) => write!(f, "environment variable {name}"),
            Origin::Flag(name) => write!(f, "flag {name}"),
        }
    }
}

#[derive(Clone, Debug)]
pub(crate) struct Given {
    pub(crate) value: Value,
    pub(crate) origin: Origin,
}

/// The values by key; a later layer overrides an earlier one.
#[derive(Default)]
pub(crate) struct Layers {
    pub(crate) given: BTreeMap<&'static str, Given>,
    pub(crate) complaints: Vec<Complaint>,
}

pub(super) const DEFAULT_FILE: &str = "everbeat.toml";
const PREFIX: &str = "EVERBEAT_";

impl Layers {
    pub(crate) fn file(&mut self, asked: Option<&Path>) {
        let path = asked.unwrap_or(Path::new(DEFAULT_FILE));
        if asked.is_none() && !path.exists() {
            return;
        }
        let origin = Origin::File(path.to_path_buf());
        match read_file(path) {
            Ok(table) => table.into_iter().for_each(|(name, value)| self.section(&name, value, &origin)),
            Err(invalid) => self.complain(invalid, &origin),
        }
    }

    fn section(&mut self, section: &str, value: Value, origin: &Origin) {
        if let Some(key) = Key::find(section) {
            self.give(key, value, origin.clone());
            return;
        }
        if !Key::sections().contains(&section) {
            return self.complain(unknown(section, &value), origin);
        }
        let Value::Object(fields) = value else {
            let hint = format!("write [{section}] on a line of its own, and its keys below");
            return self.complain(Invalid::new(section, value, "is not a section", hint), origin);
        };
        for (name, value) in fields {
            let path = format!("{section}.{name}");
            match Key::find(&path) {
                Some(key) => self.give(key, value, origin.clone()),
                None => self.complain(unknown(&path, &value), origin),
            }
        }
    }

    /// `EVERBEAT_SECTION__KEY`, `EVERBEAT_RUNS__BACKOFF__INITIAL`, `EVERBEAT_QUEUE__NAME__CONCURRENCY`.
    /// Names without a double underscore are not configuration.
    pub(crate) fn env(&mut self, variables: impl IntoIterator<Item = (String, String)>) {
        // Sorted, so that EVERBEAT_RUNS__BACKOFF comes before the fields that refine it.
        let variables: BTreeMap<String, String> = variables.into_iter().collect();
        for (variable, text) in variables {
            let Some(path) = path_of(&variable) else { continue };
            let origin = Origin::Env(variable.clone());
            if let Some(key) = Key::find(&path) {
                self.give(key, key.read_env(&text), origin);
            } else if let Some((key, entry, field)) = nested(&path) {
                self.give_field(key, entry, field, env_value(&text), origin);
            } else {
                let invalid = unknown(&path, &Value::String(text));
                let hint = meant_variable(&path).map_or(invalid.hint, |name| format!("did you mean {name}?"));
                self.complain(Invalid { field: variable, hint, ..invalid }, &Origin::Default);
            }
        }
    }

    pub(crate) fn flags(&mut self, flags: &Flags) {
        let said = [
            ("--store", "store.url", &flags.store),
            ("--listen", "server.listen", &flags.listen),
            ("--data-dir", "server.data_dir", &flags.data_dir),
        ];
        for (flag, path, value) in said {
            if let (Some(value), Some(key)) = (value, Key::find(path)) {
                self.give(key, Value::String(value.clone()), Origin::Flag(flag));
            }
        }
    }

    fn give(&mut self, key: &'static Key, value: Value, origin: Origin) {
        self.given.insert(key.path, Given { value, origin });
    }

    /// Sets one field of a table, or of the entry of a list that has this name.
    fn give_field(&mut self, key: &'static Key, entry: Option<&str>, field: &str, value: Value, origin: Origin) {
        let empty = if entry.is_some() { Value::Array(Vec::new()) } else { Value::Object(Map::new()) };
        let given = self.given.entry(key.path).or_insert_with(|| Given { value: empty, origin: origin.clone() });
        let fields = match (entry, &mut given.value) {
            (None, Value::Object(fields)) => fields,
            (Some(entry), Value::Array(entries)) => match named(entries, entry) {
                Some(fields) => fields,
                None => return,
            },
            // The file's value is of a wrong kind; its own complaint follows.
            _ => return,
        };
        fields.insert(field.to_string(), value);
        given.origin = origin;
    }

    fn complain(&mut self, invalid: Invalid, origin: &Origin) {
        self.complaints.push(Complaint { invalid, origin: origin.clone() });
    }
}

impl Key {
    pub(crate) fn env_name(&self) -> String {
        format!("{PREFIX}{}", self.path.to_ascii_uppercase().replace('.', "__"))
    }

    /// Variables are text; what is a number, a switch or a list is written there as JSON.
    fn read_env(&self, text: &str) -> Value {
        match self.kind {
            Kind::Text | Kind::Duration | Kind::Size => Value::String(text.to_string()),
            _ => env_value(text),
        }
    }
}

fn env_value(text: &str) -> Value {
    serde_json::from_str(text).unwrap_or_else(|_| Value::String(text.to_string()))
}

/// The path that a variable stands for: `runs.backoff` for `EVERBEAT_RUNS__BACKOFF`. None if it is no configuration.
fn path_of(variable: &str) -> Option<String> {
    let rest = variable.strip_prefix(PREFIX).filter(|rest| rest.contains("__"))?;
    Some(rest.to_ascii_lowercase().replace("__", "."))
}

/// The path of a variable that looks like configuration and sets nothing that is known.
pub(super) fn unknown_path(variable: &str) -> Option<String> {
    path_of(variable).filter(|path| Key::find(path).is_none() && nested(path).is_none())
}

/// The variable that was probably meant: a complaint answers in the spelling that was used.
pub(super) fn meant_variable(path: &str) -> Option<String> {
    meant(path).and_then(|known| Key::find(&known)).map(Key::env_name)
}

/// `runs.backoff.initial`, or `queue.mail.concurrency`: the key, the entry's name, the field.
fn nested(path: &str) -> Option<(&'static Key, Option<&str>, &str)> {
    let (outer, field) = path.rsplit_once('.')?;
    let has = |key: &Key| key.kind.fields().iter().any(|known| known.name == field);
    // A table without known fields takes any.
    let open = |key: &Key| key.kind.fields().is_empty() || has(key);
    if let Some(key) = Key::find(outer).filter(|key| matches!(key.kind, Kind::Table(_)) && open(key)) {
        return Some((key, None, field));
    }
    let (list, entry) = outer.split_once('.')?;
    let key = KEYS.iter().find(|key| key.path == list && matches!(key.kind, Kind::List(_)))?;
    (has(key) && !entry.is_empty()).then_some((key, Some(entry), field))
}

/// The entry of a list that a variable means. Variables cannot spell every name, so case and signs
/// do not count; one that is not there yet is added.
fn named<'a>(entries: &'a mut Vec<Value>, name: &str) -> Option<&'a mut Map<String, Value>> {
    let plain = |name: &str| -> String {
        name.chars().map(|c| if c.is_alphanumeric() { c.to_ascii_lowercase() } else { '_' }).collect()
    };
    let same = |entry: &Value| entry["name"].as_str().is_some_and(|known| plain(known) == plain(name));
    let place = entries.iter().position(same).unwrap_or_else(|| {
        entries.push(serde_json::json!({ "name": name }));
        entries.len() - 1
    });
    entries.get_mut(place)?.as_object_mut()
}

fn read_file(path: &Path) -> Result<Map<String, Value>, Invalid> {
    let shown = format!("{:?}", path.display().to_string());
    let text = std::fs::read_to_string(path).map_err(|error| {
        Invalid::new("--config", &shown, format!("cannot be read: {error}"), "check the path and its permissions")
    })?;
    let table: toml::Table = text.parse().map_err(|error: toml::de::Error| {
        let start = error.span().map_or(0, |span| span.start.min(text.len()));
        let line = text.as_bytes()[..start].iter().filter(|byte| **byte == b'\n').count();
        let wrong = mask(text.lines().nth(line).unwrap_or_default().trim());
        let problem = format!("is not valid TOML: {}", error.message());
        Invalid::new(format!("line {}", line + 1), format!("{wrong:?}"), problem, "correct that line")
    })?;
    Ok(table.into_iter().map(|(name, value)| (name, json(value))).collect())
}

/// What stands in the file, as JSON has it. A time is a text there.
fn json(value: toml::Value) -> Value {
    match value {
        toml::Value::String(text) => text.into(),
        toml::Value::Integer(number) => number.into(),
        toml::Value::Float(number) => number.into(),
        toml::Value::Boolean(flag) => flag.into(),
        toml::Value::Datetime(time) => time.to_string().into(),
        toml::Value::Array(items) => items.into_iter().map(json).collect(),
        toml::Value::Table(fields) => {
            Value::Object(fields.into_iter().map(|(name, value)| (name, json(value))).collect())
        }
    }
}
