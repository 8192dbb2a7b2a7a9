//! Flows and checks of files: written to the server, and compared with what it has.

use super::To;
use super::graph::read;
use super::schedule::Noun;
use crate::client::Trouble;
use crate::exit::{self, Failure};
use crate::output::table;
use comfy_table::Cell;
use everbeat_model::Invalid;
use serde_json::{Map, Value, json};

/// A definition of a file, with its name.
pub(super) struct Named {
    pub(super) name: String,
    pub(super) definition: Value,
}

/// The definitions of a file: one, or several as a list under the noun.
pub(super) fn of_file(noun: Noun, file: &str) -> Result<Vec<Named>, Failure> {
    let refuse = |field: &str, value: &Value, problem: &str, hint: &str| {
        Failure::usage(&Invalid::new(format!("{file}: {field}"), value, problem, hint))
    };
    let whole = read(file)?;
    let one = noun.one;
    let items = match whole.get(one).or_else(|| whole.get(format!("{one}s"))) {
        Some(Value::Array(items)) => items.clone(),
        Some(other) => {
            return Err(refuse(one, other, "is not a list", &format!("write each {one} under [[{one}]]")));
        }
        None => vec![whole],
    };
    let named = |definition: Value| match definition["name"].as_str() {
        Some(name) => Ok(Named { name: name.to_string(), definition: definition.clone() }),
        None => Err(refuse("name", &definition["name"], "is not a name", "write name = \"…\"")),
    };
    items.into_iter().map(named).collect()
}

fn all_of(noun: Noun, files: &[String]) -> Result<Vec<Named>, Failure> {
    let mut all: Vec<Named> = Vec::new();
    for file in files {
        for one in of_file(noun, file)? {
            if all.iter().any(|known| known.name == one.name) {
                let problem = format!("is the name of two {}s", noun.one);
                return Err(Failure::usage(&Invalid::new(file, &one.name, problem, "keep one of them")));
            }
            all.push(one);
        }
    }
    Ok(all)
}

/// Writes what is in files, each with these fields besides; `standing` says how one stands then.
pub(super) fn apply(
    to: &To,
    noun: Noun,
    files: &[String],
    besides: &Map<String, Value>,
    standing: fn(&Value) -> String,
) -> Result<u8, Failure> {
    // All files are read before the first definition is written.
    let all = all_of(noun, files)?;
    let mut written = Vec::new();
    for Named { name, mut definition } in all {
        if let Value::Object(fields) = &mut definition {
            fields.extend(besides.clone());
        }
        let before = found(to, noun, &name)?.map(|there| there["version"].clone());
        let answer = to.client.put(&noun.at(&name), &definition.to_string())?;
        let said = match before {
            None => "new",
            Some(version) if version == answer.value["version"] => "unchanged",
            Some(_) => "changed",
        };
        written.push((name, said, answer.value));
    }
    let one = noun.one;
    let json: Vec<Value> = written.iter().map(|(_, said, value)| json!({ "became": said, one: value })).collect();
    to.print(&json!({ "items": json }).to_string(), || {
        let lines = written.iter().map(|(name, said, value)| format!("{one} {name} is {said}; {}", standing(value)));
        lines.collect::<Vec<_>>().join("\n")
    });
    Ok(exit::DONE)
}

/// What the server has under that name, if anything.
fn found(to: &To, noun: Noun, name: &str) -> Result<Option<Value>, Failure> {
    match to.client.get(&noun.at(name), &[]) {
        Ok(there) => Ok(Some(there.value)),
        Err(trouble @ Trouble::Refused { .. }) if trouble.is("not-found") => Ok(None),
        Err(trouble) => Err(trouble.into()),
    }
}

/// Compares what is in files with what the server has.
pub(super) fn diff(to: &To, noun: Noun, files: &[String]) -> Result<u8, Failure> {
    let mut rows = Vec::new();
    let mut json = Vec::new();
    let one = noun.one;
    for Named { name, definition } in all_of(noun, files)? {
        let there = found(to, noun, &name)?;
        let fields = definition.as_object().into_iter().flatten();
        let mut differing: Vec<(String, Value, Value)> = match &there {
            None => vec![("(new)".to_string(), Value::Null, Value::Null)],
            Some(there) => {
                let differs = |(field, value): (&String, &Value)| {
                    let known = there.get(field).cloned().unwrap_or(Value::Null);
                    (!same(field, &known, value)).then(|| (field.clone(), known, value.clone()))
                };
                fields.filter_map(differs).collect()
            }
        };
        differing.retain(|(field, ..)| field != "name");
        for (field, server, file) in differing {
            let cell = |value: &Value| Cell::new(if value.is_null() { String::new() } else { value.to_string() });
            rows.push(vec![Cell::new(&name), Cell::new(&field), cell(&server), cell(&file)]);
            json.push(json!({ one: name, "field": field, "server": server, "file": file }));
        }
    }
    let differ = !rows.is_empty();
    if !differ && !to.json() {
        crate::term::say("nothing differs");
    } else {
        to.print(&json!({ "items": json }).to_string(), || {
            table(&[&one.to_uppercase(), "FIELD", "SERVER", "FILE"], rows)
        });
    }
    Ok(if differ { exit::FAILED } else { exit::DONE })
}

/// Whether two ways to write a field mean the same.
fn same(field: &str, server: &Value, file: &Value) -> bool {
    let span = |value: &Value| everbeat_model::time::duration_from(value).ok();
    match field {
        "schedule" => {
            match (everbeat_model::schedule::Rhythm::parse(server), everbeat_model::schedule::Rhythm::parse(file)) {
                (Ok(server), Ok(file)) => server == file,
                _ => server == file,
            }
        }
        "late_after" | "period" | "grace" => span(server) == span(file),
        _ => server == file,
    }
}
