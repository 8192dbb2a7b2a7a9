//! Steps that change fields.

use super::Transform;
use everbeat_model::StoreTime;
use serde_json::Value;

/// What a field is set to.
#[derive(Clone, Debug, PartialEq)]
pub enum Addition {
    /// The time of the batch.
    Now,
    Value(Value),
}

pub(super) fn changed(step: &Transform, value: &mut Value, now: StoreTime) -> Result<(), String> {
    let Value::Object(fields) = value else {
        return Err("is not an object: it has no fields to change".to_string());
    };
    match step {
        Transform::Add(additions) => {
            for (name, addition) in additions {
                let value = match addition {
                    Addition::Now => Value::String(now.to_string()),
                    Addition::Value(value) => value.clone(),
                };
                fields.insert(name.clone(), value);
            }
        }
        Transform::Drop(names) => {
            for name in names {
                fields.remove(name);
            }
        }
        Transform::Rename(names) => {
            // All at once, so that two fields may change places.
            let taken: Vec<_> = names.iter().map(|(from, to)| (to, fields.remove(from))).collect();
            for (to, value) in taken {
                let Some(value) = value else { continue };
                if fields.insert(to.clone(), value).is_some() {
                    return Err(format!("has a field {to:?} already, which another one was to be renamed to"));
                }
            }
        }
        Transform::Jq(_) | Transform::Task(_) => {}
    }
    Ok(())
}
