use super::To;
use crate::args::GraphAction;
use crate::client::escape;
use crate::exit::{self, Failure};
use crate::output::{fields, moment, plain, rough, table};
use comfy_table::Cell;
use everbeat_model::Invalid;
use serde_json::{Map, Number, Value, json};
use std::io::Read;
use std::path::Path;
use std::time::Duration;

pub(crate) fn act(to: &To, action: GraphAction) -> Result<u8, Failure> {
    match action {
        GraphAction::Apply { file, accept_unknown } => apply(to, &file, accept_unknown),
        GraphAction::Show { name, version, mermaid } => show(to, &name, version.as_deref(), mermaid),
        GraphAction::Analytics { name } => analytics(to, &name),
    }
}

fn apply(to: &To, file: &str, accept_unknown: bool) -> Result<u8, Failure> {
    let mut definition = read(file)?;
    if accept_unknown && let Value::Object(fields) = &mut definition {
        fields.insert("accept_unknown".to_string(), true.into());
    }
    let applied = to.client.post("/api/v1/graphs", Some(&definition.to_string()), &[])?;
    to.print(applied.raw.get(), || {
        let said = if applied.status == 201 { "new" } else { "unchanged" };
        format!("graph {} version {} is {said}", plain(&applied.value["name"]), plain(&applied.value["version"]))
    });
    Ok(exit::DONE)
}

fn show(to: &To, name: &str, version: Option<&str>, mermaid: bool) -> Result<u8, Failure> {
    let path = format!("/api/v1/graphs/{}", escape(name));
    let query: Vec<(&str, &str)> = version.map(|version| ("version", version)).into_iter().collect();
    if mermaid {
        return draw(to, &format!("{path}/mermaid"), &query);
    }
    let graph = to.client.get(&path, &query)?;
    to.print(graph.raw.get(), || described(&graph.value));
    Ok(exit::DONE)
}

/// Prints a chart: as it is, or as JSON.
pub(super) fn draw(to: &To, path: &str, query: &[(&str, &str)]) -> Result<u8, Failure> {
    let chart = to.client.text(path, query)?;
    to.print(&json!({ "mermaid": chart }).to_string(), || chart.trim_end().to_string());
    Ok(exit::DONE)
}

fn described(graph: &Value) -> String {
    let all = [
        ("graph", plain(&graph["name"])),
        ("version", plain(&graph["version"])),
        ("singleton", if graph["singleton"] == true { "yes".to_string() } else { String::new() }),
        ("on save", plain(&graph["on_save"])),
        ("shape", plain(&graph["shape"])),
        ("applied", moment(&graph["applied_at"])),
    ];
    let head: Vec<(&str, String)> = all.into_iter().filter(|(_, value)| !value.is_empty()).collect();
    let rows = graph["nodes"].as_array().into_iter().flatten().map(|node| {
        let cell = |field: &str| Cell::new(plain(&node[field]));
        vec![cell("name"), cell("kind"), cell("task"), cell("gate"), cell("mutates")]
    });
    format!("{}\n\n{}", fields(&head), table(&["NODE", "KIND", "TASK", "GATE", "MUTATES"], rows.collect()))
}

fn analytics(to: &To, name: &str) -> Result<u8, Failure> {
    let answer = to.client.get(&format!("/api/v1/graphs/{}/analytics", escape(name)), &[])?;
    to.print(answer.raw.get(), || {
        let said = &answer.value;
        let head = [
            ("graph", plain(&said["graph"])),
            ("executions", plain(&said["executions"])),
            ("archived", plain(&said["archived"])),
        ];
        let rows = said["nodes"].as_object().into_iter().flatten().map(|(name, node)| {
            let share =
                |of: &str| Cell::new(format!("{} ({}%)", plain(&node[of]), plain(&node[format!("{of}_percent")])));
            let average =
                node["average_ms"].as_f64().map(|millis| rough(Duration::from_secs_f64(millis.max(0.0) / 1e3)));
            let kind = Cell::new(plain(&node["kind"]));
            vec![
                Cell::new(name),
                kind,
                share("reached"),
                Cell::new(average.unwrap_or_default()),
                share("flow_ends_here"),
            ]
        });
        let headers = ["NODE", "KIND", "REACHED", "AFTER", "ENDS HERE"];
        format!("{}\n\n{}", fields(&head), table(&headers, rows.collect()))
    });
    Ok(exit::DONE)
}

/// A definition from a file, or from stdin as `-`.
pub(super) fn read(file: &str) -> Result<Value, Failure> {
    let text = match file {
        "-" => {
            let mut text = String::new();
            std::io::stdin().read_to_string(&mut text).map(|_| text)
        }
        file => std::fs::read_to_string(file),
    };
    let refuse = |problem: String, hint: &str| Failure::usage(&Invalid::new("FILE", file, problem, hint));
    let text =
        text.map_err(|error| refuse(format!("cannot be read: {error}"), "name a readable file, or - for stdin"))?;
    let from_json = || serde_json::from_str::<Value>(&text).map_err(|error| format!("is not valid JSON: {error}"));
    let from_toml = || {
        let table = toml::from_str::<toml::Table>(&text).map_err(|error| format!("is not valid TOML: {error}"))?;
        translated(toml::Value::Table(table))
    };
    let extension = Path::new(file).extension().and_then(|extension| extension.to_str()).map(str::to_ascii_lowercase);
    // Without a known extension the first character tells: a JSON definition is an object.
    let definition = match extension.as_deref() {
        Some("json") => from_json(),
        Some("toml") => from_toml(),
        _ if text.trim_start().starts_with('{') => from_json(),
        _ => from_toml(),
    };
    definition.map_err(|problem| refuse(problem, "write the definition in JSON or TOML"))
}

/// TOML as JSON; a date becomes a text.
fn translated(value: toml::Value) -> Result<Value, String> {
    Ok(match value {
        toml::Value::String(text) => text.into(),
        toml::Value::Integer(number) => number.into(),
        toml::Value::Boolean(boolean) => boolean.into(),
        toml::Value::Datetime(time) => time.to_string().into(),
        toml::Value::Float(number) => {
            Number::from_f64(number).ok_or_else(|| format!("holds {number}, which no JSON number is"))?.into()
        }
        toml::Value::Array(items) => Value::Array(items.into_iter().map(translated).collect::<Result<_, _>>()?),
        toml::Value::Table(fields) => {
            let pair = |(name, value): (String, toml::Value)| Ok::<_, String>((name, translated(value)?));
            Value::Object(fields.into_iter().map(pair).collect::<Result<Map<_, _>, _>>()?)
        }
    })
}
