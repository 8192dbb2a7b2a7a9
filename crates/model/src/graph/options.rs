use crate::error::{Invalid, nearest};
use crate::policy::{self, Policy, PolicyPatch};
use serde_json::{Map, Value};

/// What a node's `options` say beyond the policy of its runs.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct NodeOptions {
    /// The policy fields as they were given; laid over the configured policy when a run is made.
    pub policy: Map<String, Value>,
    /// How many entries a historian keeps; `Some(None)` keeps all.
    pub max_entries: Option<Option<usize>>,
    /// A mutation that changes something bumps the revision.
    pub update_revision_on_change: bool,
    pub max_iterations: Option<u32>,
    /// What a loop gives when its iterations are used up.
    pub fallback: Option<Value>,
    /// A task to call after a value of the node was saved.
    pub on_save: Option<String>,
    /// How many changes of its value the history keeps.
    pub keep_latest: Option<usize>,
}

const FIELDS: [&str; 6] =
    ["max_entries", "update_revision_on_change", "max_iterations", "fallback", "on_save", "keep_latest"];
const MOST_ENTRIES: u64 = 1_000_000;
const MOST_ITERATIONS: u64 = 1_000_000;

/// Entries of a historian that says nothing.
pub(super) const DEFAULT_ENTRIES: usize = 1000;

/// Changes in the history of a node that says nothing.
pub(super) const DEFAULT_KEEP: usize = 1000;

impl NodeOptions {
    /// Reads `options`. Policy fields are checked against the built-in policy, so that a mistake shows
    /// when the graph is defined and not when a node runs.
    pub fn parse(value: Option<&Value>) -> Result<NodeOptions, Invalid> {
        let fields = match value {
            None | Some(Value::Null) => return Ok(NodeOptions::default()),
            Some(Value::Object(fields)) => fields,
            Some(other) => {
                return Err(Invalid::new("options", other, "is not an object", "write it like {\"max_attempts\": 5}"));
            }
        };
        let mut options = NodeOptions::default();
        for (name, value) in fields {
            let within = |error: Invalid| error.within(&format!("options.{name}"));
            let count = |most: u64| {
                let hint = format!("use a whole number from 1 to {most}");
                value
                    .as_u64()
                    .filter(|n| (1..=most).contains(n))
                    .ok_or_else(|| within(Invalid::new("", value, "is out of range", hint)))
            };
            match name.as_str() {
                "max_entries" if value.is_null() || value == "none" => options.max_entries = Some(None),
                "max_entries" => {
                    options.max_entries = Some(Some(usize::try_from(count(MOST_ENTRIES)?).unwrap_or(usize::MAX)))
                }
                "max_iterations" => options.max_iterations = u32::try_from(count(MOST_ITERATIONS)?).ok(),
                "keep_latest" => options.keep_latest = usize::try_from(count(MOST_ENTRIES)?).ok(),
                "update_revision_on_change" => {
                    let hint = "use true or false";
                    options.update_revision_on_change = value
                        .as_bool()
                        .ok_or_else(|| within(Invalid::new("", value, "is neither true nor false", hint)))?;
                }
                "fallback" => options.fallback = Some(value.clone()),
                "on_save" => {
                    let hint = "use the name of a task";
                    let task = value.as_str().ok_or_else(|| within(Invalid::new("", value, "is not a name", hint)))?;
                    options.on_save = Some(task.to_string());
                }
                _ => _ = options.policy.insert(name.clone(), value.clone()),
            }
        }
        PolicyPatch::parse(&Value::Object(options.policy.clone()))
            .and_then(|patch| patch.over(&Policy::BASELINE))
            .map_err(|error| suggest(error).within("options"))?;
        Ok(options)
    }

    pub fn to_value(&self) -> Value {
        let mut fields = self.policy.clone();
        if let Some(entries) = self.max_entries {
            fields.insert("max_entries".to_string(), entries.into());
        }
        if self.update_revision_on_change {
            fields.insert("update_revision_on_change".to_string(), true.into());
        }
        if let Some(iterations) = self.max_iterations {
            fields.insert("max_iterations".to_string(), iterations.into());
        }
        if let Some(fallback) = &self.fallback {
            fields.insert("fallback".to_string(), fallback.clone());
        }
        if let Some(task) = &self.on_save {
            fields.insert("on_save".to_string(), task.as_str().into());
        }
        if let Some(latest) = self.keep_latest {
            fields.insert("keep_latest".to_string(), latest.into());
        }
        Value::Object(fields)
    }
}

/// An unknown option may also be meant as one that only nodes have.
fn suggest(error: Invalid) -> Invalid {
    if error.problem != "is not a policy field" {
        return error;
    }
    let known: Vec<&str> = FIELDS.iter().chain(policy::FIELDS.iter()).copied().collect();
    let hint = match nearest(&error.field, known.iter().copied()) {
        Some(name) => format!("did you mean {name:?}?"),
        None => format!("the known ones are {}", known.join(", ")),
    };
    Invalid { problem: "is not an option of a node".to_string(), hint, ..error }
}
