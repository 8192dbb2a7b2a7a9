use crate::connectors::{self, Known};
use crate::{Fields, MaxRejected, OpenSink, OpenSource, Settings, Transform, transform};
use everbeat_model::Invalid;
use everbeat_model::error::nearest;
use serde_json::Value;
use std::sync::Arc;

/// What a flow says of its source, transforms and sink, checked.
#[derive(Clone)]
pub struct Configuration {
    pub source: Arc<dyn OpenSource>,
    /// What happens to records between them, in order.
    pub transforms: Vec<Transform>,
    pub sink: Arc<dyn OpenSink>,
    /// Where rejected records go. Without one they are counted, and the first are kept in the result.
    pub dead_letter: Option<Arc<dyn OpenSink>>,
    /// The run fails if more records are rejected.
    pub max_rejected: Option<MaxRejected>,
    /// So many records at most are read, transformed and written together.
    pub batch_size: usize,
}

const DEFAULT_BATCH: usize = 1000;
const MOST_BATCH: u64 = 100_000;
const EXAMPLE: &str =
    r#"{"source": {"type": "file", "path": "in.ndjson"}, "sink": {"type": "file", "path": "out.ndjson"}}"#;

impl Configuration {
    pub fn parse(value: &Value, settings: &Settings) -> Result<Configuration, Invalid> {
        let mut fields = Fields::of(value, EXAMPLE)?;
        let source = connect(&mut fields, "source", connectors::SOURCES, settings)?;
        let transforms = match fields.get("transform") {
            Some(value) => transform::read(value).map_err(|invalid| invalid.within("transform"))?,
            None => Vec::new(),
        };
        let sink = connect(&mut fields, "sink", connectors::SINKS, settings)?;
        let dead_letter = match fields.get("dead_letter") {
            Some(_) => Some(connect(&mut fields, "dead_letter", connectors::SINKS, settings)?),
            None => None,
        };
        let max_rejected = fields.get("max_rejected").map(MaxRejected::read).transpose()?;
        let batch_size = fields.count("batch_size", MOST_BATCH)?.map_or(DEFAULT_BATCH, |size| size as usize);
        fields.done("a configuration")?;
        Ok(Configuration { source, transforms, sink, dead_letter, max_rejected, batch_size })
    }
}

/// Reads one end of a flow by its type.
fn connect<T: ?Sized>(
    fields: &mut Fields<'_>,
    end: &'static str,
    known: &[Known<T>],
    settings: &Settings,
) -> Result<Arc<T>, Invalid> {
    let example = format!("{{\"type\": {:?}, …}}", known[0].names[0]);
    let Some(value) = fields.get(end) else {
        return Err(Invalid::new(end, "nothing", "is missing", format!("write it like {example}")));
    };
    let read = || {
        let mut fields = Fields::of(value, &example)?;
        let name = fields.required_text("type")?;
        let Some(found) = known.iter().find(|known| known.names.contains(&name)) else {
            let names = || known.iter().flat_map(|known| known.names.iter().copied());
            let hint = match nearest(name, names()) {
                Some(near) => format!("did you mean {near:?}?"),
                None => format!("use one of {}", names().collect::<Vec<_>>().join(", ")),
            };
            return Err(Invalid::new("type", name, format!("is not a type of {end}"), hint));
        };
        let connector = (found.read)(name, &mut fields, settings)?;
        fields.done(&format!("a {end} of type {name:?}"))?;
        Ok(connector)
    };
    read().map_err(|invalid: Invalid| invalid.within(end))
}
