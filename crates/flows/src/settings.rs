//! What the server's configuration says for all flows.

use std::collections::BTreeMap;

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
}

/// A text that is never shown. It is read when it is needed, so that it may change.
#[derive(Clone)]
pub enum Secret {
    Given(String),
    Environment(String),
    File(std::path::PathBuf),
}

impl std::fmt::Debug for Secret {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        match self {
            Secret::Given(_) => f.write_str("Given(…)"),
            Secret::Environment(name) => write!(f, "Environment({name:?})"),
            Secret::File(path) => write!(f, "File({path:?})"),
        }
    }
}
