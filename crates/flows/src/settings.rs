//! What the server's configuration says for all flows.

use crate::{Fields, Secret};
use everbeat_model::Invalid;
use serde_json::Value;
use std::collections::BTreeMap;
use std::path::PathBuf;

/// Settings of all flows of a server.
#[derive(Clone, Debug, Default)]
pub struct Settings {
    /// Addresses by name. A flow names one instead of an address of its own; those of the operator may be private.
    pub connections: BTreeMap<String, Connection>,
    /// Flows may name addresses of loopback, private and link-local networks themselves.
    pub allow_private_targets: bool,
}

/// An address with its secrets.
#[derive(Clone, Debug)]
pub struct Connection {
    pub url: Secret,
    /// Is put into the URL when it is used.
    pub password: Option<Secret>,
    /// A file of certificates (PEM) of authorities that are trusted beside the public ones.
    pub ca: Option<PathBuf>,
}

const EXAMPLE: &str = r#"{redis = "redis://cache.example:6379", billing = {env = "BILLING_URL"}}"#;
const CONNECTION_EXAMPLE: &str =
    r#""redis://cache.example:6379", {env = "NAME"}, {file = "/path"} or {url = …, password = {env = "NAME"}}"#;

impl Settings {
    /// Reads `[flows.connections]`, given as JSON. No message shows a value of it.
    pub fn parse_connections(value: &Value) -> Result<BTreeMap<String, Connection>, Invalid> {
        let Value::Object(entries) = value else {
            return Err(hidden("", "is not a table of connections", &format!("write it like {EXAMPLE}")));
        };
        let mut connections = BTreeMap::new();
        for (name, value) in entries {
            let connection = Connection::parse(value).map_err(|invalid| invalid.within(name))?;
            connections.insert(name.clone(), connection);
        }
        Ok(connections)
    }
}

impl Connection {
    pub fn new(url: Secret) -> Connection {
        Connection { url, password: None, ca: None }
    }

    fn parse(value: &Value) -> Result<Connection, Invalid> {
        match value {
            Value::String(_) => Ok(Connection::new(Secret::parse("", value)?)),
            Value::Object(fields) if fields.contains_key("url") => Connection::parse_table(value),
            Value::Object(_) => Ok(Connection::new(Secret::parse("", value)?)),
            _ => Err(hidden("", "is not a connection", &format!("write it like {CONNECTION_EXAMPLE}"))),
        }
    }

    fn parse_table(value: &Value) -> Result<Connection, Invalid> {
        let mut fields = Fields::of(value, CONNECTION_EXAMPLE)?;
        let url = match fields.get("url") {
            Some(value) => Secret::parse("url", value)?,
            None => return Err(hidden("url", "is missing", &format!("write it like {CONNECTION_EXAMPLE}"))),
        };
        let password = fields.get("password").map(|value| Secret::parse("password", value)).transpose()?;
        let ca = fields.text("ca")?.map(PathBuf::from);
        // A misspelt field may hold a secret.
        fields.done("a connection").map_err(|invalid| Invalid { value: "…".to_string(), ..invalid })?;
        Ok(Connection { url, password, ca })
    }
}

/// A complaint about a value that may be secret.
pub(crate) fn hidden(field: &str, problem: &str, hint: &str) -> Invalid {
    Invalid::new(field, "…", problem, hint)
}

#[cfg(test)]
mod tests {
    use super::*;
    use serde_json::json;

    #[test]
    fn connections_are_written_in_four_ways() {
        let value = json!({
            "redis": "redis://cache:6379",
            "nats": {"env": "NATS_URL"},
            "http": {"file": "/run/secrets/http"},
            "database": {"url": "postgres://me@host/db", "password": {"env": "PASSWORD"}, "ca": "/etc/ca.pem"},
        });
        let connections = Settings::parse_connections(&value).unwrap();
        assert!(matches!(&connections["redis"].url, Secret::Given(url) if url == "redis://cache:6379"));
        assert!(matches!(&connections["nats"].url, Secret::Environment(name) if name == "NATS_URL"));
        assert!(matches!(&connections["http"].url, Secret::File(path) if path.ends_with("http")));
        assert!(matches!(&connections["database"].password, Some(Secret::Environment(_))));
        assert_eq!(connections["database"].ca.as_deref(), Some(std::path::Path::new("/etc/ca.pem")));
    }

    #[test]
    fn a_refused_connection_is_named_and_its_value_is_not_shown() {
        for (value, field) in [
            (json!(["hunter2"]), ""),
            (json!({"a": 5}), "a"),
            (json!({"a": ["hunter2"]}), "a"),
            (json!({"a": {"env": 7}}), "a.env"),
            (json!({"a": {"env": "A", "file": "hunter2"}}), "a"),
            (json!({"a": {"evn": "hunter2"}}), "a"),
            (json!({"a": {"url": "redis://x", "pasword": "hunter2"}}), "a.pasword"),
            (json!({"a": {"url": null}}), "a.url"),
            (json!({"a": {"url": "x", "password": {"env": ""}}}), "a.password.env"),
        ] {
            let invalid = Settings::parse_connections(&value).unwrap_err();
            assert_eq!(invalid.field, field, "{value}");
            assert!(!format!("{invalid} {}", invalid.hint).contains("hunter2"), "{invalid}");
        }
    }
}
