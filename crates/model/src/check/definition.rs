//! What somebody writes of a check.

use crate::error::{Invalid, nearest};
use crate::run::check_name;
use crate::schedule::Rhythm;
use crate::time::{duration_from, format_duration};
use serde_json::{Map, Value, json};
use std::time::Duration;

/// A job outside that is expected to say again and again that it has succeeded.
#[derive(Clone, Debug, PartialEq)]
pub struct Check {
    pub name: String,
    pub description: Option<String>,
    /// When a success is expected: one period after the last one, or at the next time of a cron expression after it.
    pub rhythm: Rhythm,
    /// How much later than expected a success may come, and how long it may take from start to end.
    pub grace: Duration,
}

const FIELDS: [&str; 6] = ["name", "description", "period", "cron", "tz", "grace"];

const PERIOD: Duration = Duration::from_secs(86_400);
const GRACE: Duration = Duration::from_secs(3600);
const SHORTEST: Duration = Duration::from_secs(1);
const LONGEST: Duration = Duration::from_secs(366 * 86_400);
/// Lists show descriptions whole, so that one is no longer.
const MOST_TEXT: usize = 1000;

impl Check {
    /// What the first ping of an unknown name makes.
    pub fn by_default(name: &str) -> Result<Check, Invalid> {
        Check::parse(name, &json!({}))
    }

    /// Reads what somebody wrote.
    pub fn parse(name: &str, value: &Value) -> Result<Check, Invalid> {
        check_name("name", name)?;
        let Value::Object(fields) = value else {
            return Err(Invalid::new("", value, "is not an object", "write it like {\"period\": \"1d\", …}"));
        };
        if let Some(strange) = fields.keys().find(|field| !FIELDS.contains(&field.as_str())) {
            let hint = match nearest(strange, FIELDS) {
                Some(near) => format!("did you mean {near}?"),
                None => format!("use {}", FIELDS.join(", ")),
            };
            return Err(Invalid::new(strange, &fields[strange], "is not a field of a check", hint));
        }
        if let Some(other) = text(fields, "name")?.filter(|given| given != name) {
            return Err(Invalid::new("name", other, format!("is not {name:?}"), "leave it out, or give the same name"));
        }
        let description = text(fields, "description")?;
        Ok(Check { name: name.to_string(), description, rhythm: rhythm(fields)?, grace: grace(fields)? })
    }

    /// The way it is read, with every field but the name.
    pub fn to_value(&self) -> Value {
        let (period, cron) = match &self.rhythm {
            Rhythm::Every(span) => (json!(format_duration(*span)), json!({})),
            Rhythm::Cron(_) => (Value::Null, self.rhythm.to_json()),
        };
        json!({
            "description": self.description,
            "period": period,
            "cron": cron.get("cron"),
            "tz": cron.get("tz"),
            "grace": format_duration(self.grace),
        })
    }

    pub fn to_stored(&self) -> String {
        self.to_value().to_string()
    }

    /// Reads the stored form. None if another version wrote what this one cannot read.
    pub fn from_stored(name: &str, text: &str) -> Option<Check> {
        let Ok(Value::Object(mut fields)) = serde_json::from_str(text) else { return None };
        fields.retain(|field, _| FIELDS.contains(&field.as_str()));
        Check::parse(name, &Value::Object(fields)).ok()
    }
}

/// Null is as good as nothing.
fn given<'a>(fields: &'a Map<String, Value>, name: &str) -> Option<&'a Value> {
    fields.get(name).filter(|value| !value.is_null())
}

fn text(fields: &Map<String, Value>, name: &str) -> Result<Option<String>, Invalid> {
    match given(fields, name) {
        None => Ok(None),
        Some(Value::String(text)) if text.len() <= MOST_TEXT && !text.contains('\0') => Ok(Some(text.clone())),
        Some(other) => {
            let hint = format!("write at most {MOST_TEXT} bytes in quotes");
            Err(Invalid::new(name, other, "is not a text that can be kept", hint))
        }
    }
}

fn rhythm(fields: &Map<String, Value>) -> Result<Rhythm, Invalid> {
    match (given(fields, "period"), given(fields, "cron"), given(fields, "tz")) {
        (Some(_), Some(cron), _) => Err(Invalid::new("cron", cron, "stands beside period", "give one of them")),
        (None, Some(cron), tz) => Rhythm::parse(&json!({ "cron": cron, "tz": tz })),
        (_, None, Some(tz)) => {
            Err(Invalid::new("tz", tz, "belongs to a cron expression", "leave it out: a period has no time zone"))
        }
        (Some(period), None, None) => span("period", period).map(Rhythm::Every),
        (None, None, None) => Ok(Rhythm::Every(PERIOD)),
    }
}

fn grace(fields: &Map<String, Value>) -> Result<Duration, Invalid> {
    given(fields, "grace").map_or(Ok(GRACE), |value| span("grace", value))
}

fn span(field: &str, value: &Value) -> Result<Duration, Invalid> {
    let span = duration_from(value).map_err(|invalid| invalid.within(field))?;
    if (SHORTEST..=LONGEST).contains(&span) {
        return Ok(span);
    }
    Err(Invalid::new(field, value, "is out of range", "use a duration from 1s to 366d"))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_is_written_is_read_back_the_same() {
        for given in [
            json!({"description": "Backup", "period": "1h", "grace": "5m"}),
            json!({"cron": "30 2 * * *", "tz": "Europe/Berlin", "grace": 90}),
            json!({}),
        ] {
            let check = Check::parse("backup", &given).expect("fine");
            assert_eq!(Check::parse("backup", &check.to_value()), Ok(check.clone()));
            assert_eq!(Check::from_stored("backup", &check.to_stored()), Some(check));
        }
        let check = Check::by_default("backup").expect("fine");
        assert_eq!((check.rhythm, check.grace), (Rhythm::Every(PERIOD), GRACE));
    }

    #[test]
    fn what_is_no_check_is_refused_by_its_field() {
        for (value, field) in [
            (json!("hourly"), ""),
            (json!({"perod": "1h"}), "perod"),
            (json!({"name": "other"}), "name"),
            (json!({"period": "500ms"}), "period"),
            (json!({"period": "1h", "cron": "* * * * *"}), "cron"),
            (json!({"period": "1h", "tz": "UTC"}), "tz"),
            (json!({"tz": "UTC"}), "tz"),
            (json!({"cron": "61 * * * *"}), "cron"),
            (json!({"cron": "* * * * *", "tz": "Europe/Atlantis"}), "tz"),
            (json!({"grace": "-1s"}), "grace"),
            (json!({"grace": "400d"}), "grace"),
            (json!({"description": "x".repeat(1001)}), "description"),
            (json!({"description": "\u{0}"}), "description"),
        ] {
            let refused = Check::parse("backup", &value).expect_err(&value.to_string());
            assert_eq!(refused.field, field, "{value}: {refused}");
            assert!(!refused.hint.is_empty());
        }
        assert_eq!(Check::by_default("a b").expect_err("a space").field, "name");
    }
}
