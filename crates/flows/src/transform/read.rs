use super::Transform;
use super::fields::Addition;
use crate::Fields;
use everbeat_model::Invalid;
use everbeat_model::error::nearest;
use serde_json::{Map, Value};

const TYPES: [&str; 5] = ["add", "drop", "rename", "jq", "task"];
const EXAMPLE: &str = r#"{"type": "add", "fields": {"processed_at": "now"}}"#;
const MOST_STEPS: usize = 32;
const LONGEST_PROGRAM: usize = 64 << 10;

/// One step or a list of them.
pub(crate) fn read(value: &Value) -> Result<Vec<Transform>, Invalid> {
    match value {
        Value::Array(steps) if steps.len() > MOST_STEPS => {
            Err(Invalid::new("", steps.len(), "has too many steps", format!("use at most {MOST_STEPS}")))
        }
        Value::Array(steps) => {
            let step = |(place, value)| one(value).map_err(|invalid| invalid.within(&format!("{place}")));
            steps.iter().enumerate().map(step).collect()
        }
        value => Ok(vec![one(value)?]),
    }
}

fn one(value: &Value) -> Result<Transform, Invalid> {
    let mut fields = Fields::of(value, EXAMPLE)?;
    let name = fields.required_text("type")?;
    let step = match name {
        "add" => Transform::Add(additions(&mut fields)?),
        "drop" => {
            let names = fields.texts("fields")?;
            Transform::Drop(names.ok_or_else(|| missing("fields", "name them like [\"secret\"]"))?)
        }
        "rename" => Transform::Rename(names(&mut fields)?),
        "jq" => {
            let program = fields.required_text("program")?;
            if program.len() > LONGEST_PROGRAM {
                return Err(Invalid::new("program", program, "is too long", "use at most 64 KiB"));
            }
            // Nothing else is looked at here: even to parse a stranger's program is left to a process of its own.
            Transform::Jq(program.to_string())
        }
        "task" => Transform::Task(fields.required_text("task")?.to_string()),
        name => {
            let hint = match nearest(name, TYPES) {
                Some(near) => format!("did you mean {near:?}?"),
                None => format!("use one of {}", TYPES.join(", ")),
            };
            return Err(Invalid::new("type", name, "is not a type of transform", hint));
        }
    };
    fields.done(&format!("a transform of type {name:?}"))?;
    Ok(step)
}

fn missing(field: &str, hint: &str) -> Invalid {
    Invalid::new(field, "nothing", "is missing", hint)
}

fn object<'a>(fields: &mut Fields<'a>, hint: &str) -> Result<&'a Map<String, Value>, Invalid> {
    let value = fields.get("fields").ok_or_else(|| missing("fields", hint))?;
    let found = value.as_object().filter(|fields| !fields.is_empty());
    found.ok_or_else(|| Invalid::new("fields", value, "is not an object with fields", hint))
}

fn additions(fields: &mut Fields<'_>) -> Result<Vec<(String, Addition)>, Invalid> {
    let addition = |value: &Value| match value {
        Value::String(text) if text == "now" => Addition::Now,
        // So that a field can be set to the text "now", too.
        Value::Object(one) if one.len() == 1 && one.contains_key("value") => Addition::Value(one["value"].clone()),
        value => Addition::Value(value.clone()),
    };
    let given = object(fields, "write them like {\"processed_at\": \"now\"}")?;
    Ok(given.iter().map(|(name, value)| (name.clone(), addition(value))).collect())
}

fn names(fields: &mut Fields<'_>) -> Result<Vec<(String, String)>, Invalid> {
    let given = object(fields, "write them like {\"old\": \"new\"}")?;
    let name = |(from, to): (&String, &Value)| match to.as_str() {
        Some(to) if !to.is_empty() => Ok((from.clone(), to.to_string())),
        _ => Err(Invalid::new(from, to, "is not a name", "write it as text in quotes").within("fields")),
    };
    given.iter().map(name).collect()
}
