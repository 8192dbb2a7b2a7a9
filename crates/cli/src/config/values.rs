//! How one value is read. Complaints name no field: the caller knows it.

use everbeat_engine::QueueLimit;
use everbeat_model::Invalid;
use everbeat_model::error::nearest;
use everbeat_model::run::check_name;
use everbeat_model::time::duration_from;
use everbeat_server::{Scope, Token};
use ipnet::IpNet;
use serde_json::{Map, Value};
use std::collections::BTreeMap;
use std::net::{IpAddr, SocketAddr};
use std::path::Path;
use std::time::Duration;

use super::keys::{Field, QUEUE_FIELDS, TASK_FIELDS, TOKEN_FIELDS};

pub(super) type Result<T> = std::result::Result<T, Invalid>;

fn refuse<T>(value: &Value, problem: &str, hint: impl Into<String>) -> Result<T> {
    Err(Invalid::new("", value, problem, hint))
}

pub(super) fn text(value: &Value, example: &str) -> Result<String> {
    match value.as_str() {
        Some(text) if !text.is_empty() => Ok(text.to_string()),
        _ => refuse(value, "is not text", format!("write it like {example:?}")),
    }
}

pub(super) fn address(value: &Value) -> Result<SocketAddr> {
    let given = text(value, "127.0.0.1:7117")?;
    let numeric = match given.strip_prefix("localhost:") {
        Some(port) => format!("127.0.0.1:{port}"),
        None => given,
    };
    let hint = "write it like \"127.0.0.1:7117\" or \"[::1]:7117\"; port 0 takes a free one";
    numeric.parse().or_else(|_| refuse(value, "is not an address with a port", hint))
}

pub(super) fn store_url(value: &Value) -> Result<String> {
    let hint = "write it like \"sqlite://everbeat-data/everbeat.db\", \"postgres://user@host/database\" or \"memory:\"";
    let url = text(value, "sqlite://everbeat-data/everbeat.db")?;
    let known = ["sqlite://", "postgres://", "postgresql://"];
    match known.into_iter().any(|scheme| url.len() > scheme.len() && url.starts_with(scheme)) || url == "memory:" {
        true => Ok(url),
        false => Err(Invalid::new("", format!("{:?}", mask(&url)), "is not a store", hint)),
    }
}

/// Values of these options of a URL are no secret; all others may be.
const SHOWN_OPTIONS: [&str; 10] = [
    "sslmode",
    "sslrootcert",
    "host",
    "hostaddr",
    "port",
    "dbname",
    "user",
    "application_name",
    "connect_timeout",
    "target_session_attrs",
];

/// The password of a URL is nobody's business in logs and messages.
pub(crate) fn mask(url: &str) -> String {
    let Some((scheme, rest)) = url.split_once("://") else {
        return if url.contains('@') { "…".to_string() } else { url.to_string() };
    };
    let (head, options) = rest.split_once('?').map_or((rest, None), |(head, options)| (head, Some(options)));
    // A password with a ? or an @ in it: nobody can tell where it ends.
    if options.is_some_and(|options| options.contains('@')) {
        return format!("{scheme}://…");
    }
    // The last @, whatever stands before it: a password may hold any sign.
    let place = match head.rsplit_once('@').map(|(who, place)| (who.split_once(':'), place)) {
        Some((Some((user, _)), place)) => format!("{user}:…@{place}"),
        _ => head.to_string(),
    };
    let shown = |option: &str| match option.split_once('=') {
        Some((name, _)) if SHOWN_OPTIONS.contains(&name) => option.to_string(),
        Some((name, _)) if name.bytes().all(|byte| byte.is_ascii_lowercase() || byte == b'_') => format!("{name}=…"),
        _ => "…".to_string(),
    };
    let options = options.map(|options| options.split('&').map(shown).collect::<Vec<_>>().join("&"));
    format!("{scheme}://{place}{}", options.map(|options| format!("?{options}")).unwrap_or_default())
}

/// The URL that stands in a file, which may be a secret that a service manager provides.
pub(super) fn store_url_in(path: &Path) -> Result<String> {
    let shown = || format!("{:?}", path.display().to_string());
    let text = std::fs::read_to_string(path).map_err(|error| {
        Invalid::new("", shown(), format!("cannot be read: {error}"), "name a file with the store's URL in it")
    })?;
    store_url(&Value::String(text.trim().to_string()))
}

pub(super) fn span(value: &Value) -> Result<Duration> {
    duration_from(value)
}

pub(super) fn positive(value: &Value) -> Result<Duration> {
    match duration_from(value)? {
        Duration::ZERO => refuse(value, "is zero", "use a duration above zero"),
        span => Ok(span),
    }
}

const UNITS: [(&str, u64); 7] = [
    ("KiB", 1 << 10),
    ("MiB", 1 << 20),
    ("GiB", 1 << 30),
    ("kB", 1000),
    ("MB", 1_000_000),
    ("GB", 1_000_000_000),
    ("B", 1),
];

/// `"4MiB"`, `"500kB"`, `"1024B"`, or a number of bytes.
pub(super) fn size(value: &Value, least: u64, most: u64) -> Result<usize> {
    let bytes = match value {
        Value::Number(number) => number.as_u64(),
        Value::String(text) => bytes(text.trim()),
        _ => None,
    };
    let fitting = bytes.filter(|bytes| (least..=most).contains(bytes)).and_then(|bytes| usize::try_from(bytes).ok());
    match (fitting, bytes) {
        (Some(size), _) => Ok(size),
        (None, Some(_)) => refuse(value, "is out of range", format!("use {least} to {most} bytes")),
        (None, None) => refuse(value, "is not a size", "write it like \"4MiB\", \"500kB\", or as a number of bytes"),
    }
}

fn bytes(text: &str) -> Option<u64> {
    let (number, unit) = UNITS
        .into_iter()
        .find_map(|(name, unit)| text.strip_suffix(name).map(|number| (number.trim_end(), unit)))
        .unwrap_or((text, 1));
    number.parse::<u64>().ok()?.checked_mul(unit)
}

pub(super) fn whole(value: &Value, least: u64, most: u64) -> Result<u64> {
    match value.as_u64().filter(|number| (least..=most).contains(number)) {
        Some(number) => Ok(number),
        None => refuse(value, "is out of range", format!("use a whole number from {least} to {most}")),
    }
}

pub(super) fn count(value: &Value, most: u64) -> Result<usize> {
    whole(value, 1, most).map(|number| usize::try_from(number).unwrap_or(usize::MAX))
}

/// A number, or `"off"`.
pub(super) fn rate_limit(value: &Value) -> Result<Option<u32>> {
    if value == "off" {
        return Ok(None);
    }
    match value.as_u64().and_then(|rate| u32::try_from(rate).ok()).filter(|rate| *rate > 0) {
        Some(rate) => Ok(Some(rate)),
        None => refuse(value, "is not a rate", "use a whole number of requests per second and address, or \"off\""),
    }
}

pub(super) fn flag(value: &Value) -> Result<bool> {
    match value.as_bool() {
        Some(flag) => Ok(flag),
        None => refuse(value, "is neither true nor false", "use true or false"),
    }
}

pub(super) fn choice(value: &Value, names: &[&str]) -> Result<String> {
    match value.as_str().filter(|name| names.contains(name)) {
        Some(name) => Ok(name.to_string()),
        None => refuse(value, "is not one of the known values", format!("use one of {}", names.join(", "))),
    }
}

pub(super) fn log_filter(value: &Value) -> Result<String> {
    let hint = "use error, warn, info, debug or trace, or a list like \"info,everbeat_engine=debug\"";
    let filter = text(value, "info")?;
    match tracing_subscriber::EnvFilter::try_new(&filter) {
        Ok(_) => Ok(filter),
        Err(_) => refuse(value, "is not a log filter", hint),
    }
}

pub(super) fn networks(value: &Value) -> Result<Vec<IpNet>> {
    let hint = "write it like [\"10.0.0.0/8\", \"192.168.1.7\"]";
    let Value::Array(items) = value else { return refuse(value, "is not a list", hint) };
    let network = |item: &Value| -> Option<IpNet> {
        let text = item.as_str()?;
        text.parse().ok().or_else(|| text.parse::<IpAddr>().ok().map(IpNet::from))
    };
    items.iter().map(|item| network(item).ok_or_else(|| Invalid::new("", item, "is not a network", hint))).collect()
}

pub(super) fn queues(value: &Value) -> Result<BTreeMap<String, QueueLimit>> {
    entries(value, "queue", QUEUE_FIELDS, |fields| {
        let mut limit = QueueLimit::default();
        if let Some(value) = fields.get("concurrency") {
            limit.concurrency = Some(count(value, MOST).map_err(|invalid| invalid.within("concurrency"))?);
        }
        if let Some(value) = fields.get("rate") {
            let hint = "use a number of starts per second above zero";
            let rate = value.as_f64().filter(|rate| *rate > 0.0);
            limit.rate = Some(rate.ok_or_else(|| Invalid::new("rate", value, "is not a rate", hint))?);
        }
        Ok(limit)
    })
}

pub(super) fn tasks(value: &Value) -> Result<BTreeMap<String, usize>> {
    entries(value, "task", TASK_FIELDS, |fields| match fields.get("concurrency") {
        Some(value) => count(value, MOST).map_err(|invalid| invalid.within("concurrency")),
        None => Err(Invalid::new("concurrency", "nothing", "is missing", "add concurrency = N")),
    })
}

const MOST: u64 = 1_000_000;

/// A list of tables, each with a name of its own.
pub(super) fn entries<T>(
    value: &Value,
    section: &str,
    known: &[Field],
    read: impl Fn(&Map<String, Value>) -> Result<T>,
) -> Result<BTreeMap<String, T>> {
    let Value::Array(items) = value else {
        return refuse(value, "is not a list", format!("write [[{section}]], with two brackets, above each"));
    };
    let mut all = BTreeMap::new();
    for (place, item) in items.iter().enumerate() {
        let within = |invalid: Invalid| Invalid { field: format!("{place}.{}", invalid.field), ..invalid };
        let fields = object(item, known).map_err(within)?;
        let name = fields.get("name").and_then(Value::as_str).unwrap_or_default();
        check_name("name", name).map_err(within)?;
        if all.insert(name.to_string(), read(fields).map_err(within)?).is_some() {
            let hint = format!("put all that is said of it into one [[{section}]]");
            return Err(within(Invalid::new("name", format!("{name:?}"), "stands there twice", hint)));
        }
    }
    Ok(all)
}

/// An object that has only known fields.
fn object<'a>(value: &'a Value, known: &[Field]) -> Result<&'a Map<String, Value>> {
    let names = || known.iter().map(|field| field.name);
    let listed = names().collect::<Vec<_>>().join(", ");
    let Value::Object(fields) = value else {
        return refuse(value, "is not a table", format!("give it the fields {listed}"));
    };
    if let Some((name, value)) = fields.iter().find(|(name, _)| names().all(|known| known != name.as_str())) {
        let hint = match nearest(name, names()) {
            Some(near) => format!("did you mean {near}?"),
            None => format!("the known ones are {listed}"),
        };
        return Err(Invalid::new(name, value, "is not a known key", hint));
    }
    Ok(fields)
}

pub(super) fn tokens(value: &Value) -> Result<Vec<Token>> {
    let hint = "write it like [{name = \"ci\", sha256 = \"…\", scopes = [\"submit\", \"read\"]}]";
    let Value::Array(items) = value else { return refuse(value, "is not a list", hint) };
    let mut tokens: Vec<Token> = Vec::new();
    for (place, item) in items.iter().enumerate() {
        let token =
            token(item).map_err(|invalid| Invalid { field: format!("{place}.{}", invalid.field), ..invalid })?;
        tokens.push(token);
    }
    Ok(tokens)
}

fn token(item: &Value) -> Result<Token> {
    let fields = object(item, TOKEN_FIELDS)?;
    let nothing = Value::Null;
    let field = |name: &str| fields.get(name).unwrap_or(&nothing);
    let name = text(field("name"), "ci").map_err(|invalid| invalid.within("name"))?;
    let hash_hint = "write the 64 hex digits that `printf %s TOKEN | sha256sum` prints";
    let hash = field("sha256").as_str().filter(|hash| hash.len() == 64 && hash.bytes().all(|c| c.is_ascii_hexdigit()));
    let sha256 = hash.ok_or_else(|| Invalid::new("sha256", field("sha256"), "is not a SHA-256 hash", hash_hint))?;
    let scope_hint = format!("write a list of {}", Scope::ALL.map(Scope::as_str).join(", "));
    let bad = |value: &Value, problem: &str| Invalid::new("scopes", value, problem, scope_hint.clone());
    let listed = field("scopes").as_array().filter(|scopes| !scopes.is_empty());
    let mut scopes = Vec::new();
    for scope in listed.ok_or_else(|| bad(field("scopes"), "is not a list of scopes"))? {
        let known = Scope::ALL.into_iter().find(|known| scope == known.as_str());
        scopes.push(known.ok_or_else(|| bad(scope, "is not a known scope"))?);
    }
    let allow = match fields.get("allow") {
        Some(value) => networks(value).map_err(|invalid| invalid.within("allow"))?,
        None => Vec::new(),
    };
    Ok(Token { name, sha256: sha256.to_string(), scopes, allow })
}
