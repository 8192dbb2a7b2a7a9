//! What is known of one thing that can be set: its path, its type, and what fits.

use super::Config;
use super::keys::KEYS;
use everbeat_model::Invalid;
use serde_json::Value;

/// One thing that can be set.
pub(crate) struct Key {
    /// `section.name`; a list of tables has its section alone.
    pub(crate) path: &'static str,
    pub(crate) kind: Kind,
    /// As it would be written.
    pub(crate) default: &'static str,
    pub(crate) help: &'static str,
    pub(crate) set: fn(&mut Config, &Value) -> Result<(), Invalid>,
}

#[derive(Clone, Copy)]
pub(crate) enum Kind {
    Text,
    Duration,
    Size,
    Whole,
    Flag,
    Table(&'static [Field]),
    List(&'static [Field]),
}

/// One field of a table, or of each entry of a list.
pub(crate) struct Field {
    pub(crate) name: &'static str,
    pub(crate) help: &'static str,
}

impl Key {
    pub(crate) fn find(path: &str) -> Option<&'static Key> {
        KEYS.iter().find(|key| key.path == path)
    }

    pub(crate) fn section(&self) -> &'static str {
        self.path.split('.').next().unwrap_or(self.path)
    }

    pub(crate) fn sections() -> Vec<&'static str> {
        let mut sections: Vec<&str> = KEYS.iter().map(Key::section).collect();
        sections.dedup();
        sections
    }

    /// The names that may stand in a section.
    pub(crate) fn names(section: &str) -> Vec<&'static str> {
        let within = |key: &&Key| key.section() == section;
        KEYS.iter().filter(within).filter_map(|key| key.path.split_once('.')).map(|(_, name)| name).collect()
    }
}

impl Key {
    /// Refuses a value of another type, before anybody reads it as something that it is not.
    pub(crate) fn check_type(&self, value: &Value) -> Result<(), Invalid> {
        let fits = match self.kind {
            Kind::Text => value.is_string(),
            Kind::Duration | Kind::Size => value.is_string() || value.is_number(),
            // `"off"` for those that can be.
            Kind::Whole => value.is_number() || value == "off",
            Kind::Flag => value.is_boolean(),
            Kind::Table(_) => value.is_object(),
            Kind::List(_) => value.is_array(),
        };
        if fits {
            return Ok(());
        }
        let is = match value {
            Value::Null => "nothing",
            Value::Bool(_) => "true or false",
            Value::Number(_) => "a number",
            Value::String(_) => "text",
            Value::Array(_) => "a list",
            Value::Object(_) => "a table",
        };
        let problem = format!("has the wrong type: it is {is}, and should be of type {}", self.kind.name());
        Err(Invalid::new("", value, problem, self.example()))
    }

    fn example(&self) -> String {
        match self.kind {
            Kind::Text => format!("write it in quotes, like {:?}", self.default),
            Kind::Duration => "write it like \"30s\", \"10m\" or \"2h\", or as a number of seconds".to_string(),
            Kind::Size => "write it like \"4MiB\", or as a number of bytes".to_string(),
            Kind::Whole => "write a whole number, without quotes".to_string(),
            Kind::Flag => "use true or false, without quotes".to_string(),
            Kind::Table(_) => "write it like {name = value}".to_string(),
            Kind::List(_) if !self.path.contains('.') => {
                format!("write [[{}]], with two brackets, above each", self.path)
            }
            Kind::List(_) => "write it in brackets, like [\"…\", \"…\"]".to_string(),
        }
    }
}

impl Kind {
    pub(crate) fn fields(self) -> &'static [Field] {
        match self {
            Kind::Table(fields) | Kind::List(fields) => fields,
            _ => &[],
        }
    }

    pub(crate) fn name(self) -> &'static str {
        match self {
            Kind::Text => "text",
            Kind::Duration => "duration",
            Kind::Size => "size",
            Kind::Whole => "whole number",
            Kind::Flag => "true or false",
            Kind::Table(_) => "table",
            Kind::List(_) => "list",
        }
    }
}
