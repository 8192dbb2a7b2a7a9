use crate::args::{ConfigArgs, Output};
use crate::config::{Config, KEYS, Key, markdown, mask, masked_pools};
use crate::exit::{self, Failure};
use crate::output;
use comfy_table::Cell;
use serde_json::{Map, Value, json};

/// Shows what is in force and where it comes from, or refuses as the server would.
pub(crate) fn show(asked: &ConfigArgs, output: Output) -> Result<u8, Failure> {
    if asked.markdown {
        output::print(markdown().trim_end());
        return Ok(exit::DONE);
    }
    let config = Config::load(&asked.flags, crate::serve::environment())?;
    let text = match output {
        Output::Json => {
            let entry = |key: &Key| {
                let (value, origin) = in_force(&config, key);
                (key.path.to_string(), json!({ "value": value, "from": origin }))
            };
            output::pretty(&Value::Object(KEYS.iter().map(entry).collect::<Map<_, _>>()).to_string())
        }
        Output::Table => {
            let row = |key: &Key| {
                let (value, origin) = in_force(&config, key);
                vec![Cell::new(key.path), Cell::new(output::plain(&value)), Cell::new(origin)]
            };
            output::table(&["KEY", "VALUE", "FROM"], KEYS.iter().map(row).collect())
        }
    };
    output::print(&text);
    Ok(exit::DONE)
}

fn in_force(config: &Config, key: &Key) -> (Value, String) {
    match (config.given.get(key.path), key.path) {
        (Some(given), "store.url") => (mask(&config.store_url()).into(), given.origin.to_string()),
        (None, "store.url") => {
            let origin = if config.given.contains_key("store.url_file") { "store.url_file" } else { "default" };
            (mask(&config.store_url()).into(), origin.to_string())
        }
        (Some(given), "flows.connections") => (masked_connections(&given.value), given.origin.to_string()),
        (Some(given), "pool") => (masked_pools(&given.value), given.origin.to_string()),
        (Some(given), _) => (given.value.clone(), given.origin.to_string()),
        (None, _) => (key.default.into(), "default".to_string()),
    }
}

/// The names of connections: what they hold may be secret.
fn masked_connections(connections: &Value) -> Value {
    let names = connections.as_object().into_iter().flatten();
    Value::Object(names.map(|(name, _)| (name.clone(), "…".into())).collect())
}
