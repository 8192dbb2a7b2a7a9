use everbeat_model::Invalid;
use everbeat_model::error::nearest;
use everbeat_model::time::{duration_from, format_duration};
use serde_json::{Map, Value};
use std::collections::BTreeSet;
use std::time::Duration;

/// The fields of an object from outside, taken one by one. Those that nobody took are refused in the end, so that a
/// misspelt one is not overlooked.
pub struct Fields<'a> {
    fields: &'a Map<String, Value>,
    known: BTreeSet<&'static str>,
}

impl<'a> Fields<'a> {
    pub fn of(value: &'a Value, example: &str) -> Result<Fields<'a>, Invalid> {
        match value {
            Value::Object(fields) => Ok(Fields { fields, known: BTreeSet::new() }),
            other => Err(Invalid::new("", other, "is not an object", format!("write it like {example}"))),
        }
    }

    /// The field, if it is given; null is as good as nothing.
    pub fn get(&mut self, name: &'static str) -> Option<&'a Value> {
        self.known.insert(name);
        self.fields.get(name).filter(|value| !value.is_null())
    }

    pub fn text(&mut self, name: &'static str) -> Result<Option<&'a str>, Invalid> {
        let Some(value) = self.get(name) else { return Ok(None) };
        let text = value.as_str().filter(|text| !text.is_empty());
        text.map(Some).ok_or_else(|| Invalid::new(name, value, "is not text", "write it as text in quotes"))
    }

    pub fn required_text(&mut self, name: &'static str) -> Result<&'a str, Invalid> {
        self.text(name)?.ok_or_else(|| Invalid::new(name, "nothing", "is missing", "write it as text in quotes"))
    }

    pub fn flag(&mut self, name: &'static str) -> Result<Option<bool>, Invalid> {
        let Some(value) = self.get(name) else { return Ok(None) };
        value.as_bool().map(Some).ok_or_else(|| Invalid::new(name, value, "is not true or false", "use true or false"))
    }

    pub fn count(&mut self, name: &'static str, most: u64) -> Result<Option<u64>, Invalid> {
        let Some(value) = self.get(name) else { return Ok(None) };
        let hint = format!("use a whole number from 1 to {most}");
        let count = value.as_u64().filter(|count| (1..=most).contains(count));
        count.map(Some).ok_or_else(|| Invalid::new(name, value, "is out of range", hint))
    }

    /// One of a few words.
    pub fn choice<T: Copy>(&mut self, name: &'static str, known: &[(&'static str, T)]) -> Result<Option<T>, Invalid> {
        let Some(value) = self.get(name) else { return Ok(None) };
        let found = known.iter().find(|(word, _)| value.as_str() == Some(word));
        let words = || known.iter().map(|(word, _)| format!("{word:?}")).collect::<Vec<_>>().join(" or ");
        let hint = || format!("use {}", words());
        found.map(|(_, chosen)| Some(*chosen)).ok_or_else(|| Invalid::new(name, value, "is not known", hint()))
    }

    /// A list of texts that are not empty. One text alone is a list of one.
    pub fn texts(&mut self, name: &'static str) -> Result<Option<Vec<String>>, Invalid> {
        let Some(value) = self.get(name) else { return Ok(None) };
        let refused = || Invalid::new(name, value, "is not a list of texts", "write it like [\"id\"]");
        let text = |value: &Value| value.as_str().filter(|text| !text.is_empty()).map(str::to_string);
        let list = match value {
            Value::Array(list) => list.iter().map(text).collect::<Option<Vec<_>>>(),
            one => text(one).map(|text| vec![text]),
        };
        list.filter(|list| !list.is_empty()).map(Some).ok_or_else(refused)
    }

    /// A span of time, `"30s"` or a number of seconds.
    pub fn span(&mut self, name: &'static str, least: Duration, most: Duration) -> Result<Option<Duration>, Invalid> {
        let Some(value) = self.get(name) else { return Ok(None) };
        let span = duration_from(value).map_err(|invalid| invalid.within(name))?;
        if (least..=most).contains(&span) {
            return Ok(Some(span));
        }
        let hint = format!("use {} to {}", format_duration(least), format_duration(most));
        Err(Invalid::new(name, value, "is out of range", hint))
    }

    /// Refuses what nobody has asked for.
    pub fn done(self, what: &str) -> Result<(), Invalid> {
        let Some(strange) = self.fields.keys().find(|name| !self.known.contains(name.as_str())) else { return Ok(()) };
        let hint = match nearest(strange, self.known.iter().copied()) {
            Some(near) => format!("did you mean {near}?"),
            None => format!("use {}", self.known.iter().copied().collect::<Vec<_>>().join(", ")),
        };
        Err(Invalid::new(strange, &self.fields[strange], format!("is not a field of {what}"), hint))
    }
}
