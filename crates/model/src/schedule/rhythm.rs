//! The due times of a schedule.

use crate::error::{Invalid, nearest};
use crate::time::{StoreTime, duration_from, format_duration};
use croner::parser::{CronParser, Seconds, Year};
use jiff::tz::TimeZone;
use jiff::{Timestamp, Zoned};
use serde_json::{Value, json};
use std::time::Duration;

/// When something is due, again and again.
#[derive(Clone, Debug, PartialEq)]
pub enum Rhythm {
    /// At its beginning, and then always one such span after the due time before, however late that one was found.
    Every(Duration),
    Cron(Box<Cron>),
}

/// A cron expression, by the clock on the wall of a time zone. Where that clock is put forward, what would be due in the
/// hour that does not exist is due at its end; where it is put back, a time of day is due once.
#[derive(Clone, Debug, PartialEq)]
pub struct Cron {
    expression: String,
    zone: String,
    pattern: croner::Cron,
    clock: TimeZone,
}

/// Nothing is due more often.
const SHORTEST: Duration = Duration::from_secs(1);
/// Due times of cron expressions are found one by one, so that they are not counted for ever.
pub const MOST_COUNTED: u64 = 1000;
/// An expression is no longer.
const MOST_BYTES: usize = 200;
const HINT: &str = "write {\"every\": \"15m\"}, or {\"cron\": \"30 2 * * *\", \"tz\": \"Europe/Berlin\"}";

impl Rhythm {
    /// Reads `{"every": …}` or `{"cron": …, "tz"?: …}`.
    pub fn parse(value: &Value) -> Result<Rhythm, Invalid> {
        let Value::Object(fields) = value else { return Err(Invalid::new("", value, "is not a schedule", HINT)) };
        if let Some(unknown) = fields.keys().find(|name| !["every", "cron", "tz"].contains(&name.as_str())) {
            let hint = nearest(unknown, ["every", "cron", "tz"])
                .map_or(HINT.to_string(), |near| format!("did you mean {near:?}?"));
            return Err(Invalid::new(unknown, &fields[unknown], "is unknown", hint));
        }
        match (fields.get("every"), fields.get("cron"), fields.get("tz")) {
            (Some(every), None, None) => Rhythm::every(every).map_err(|invalid| invalid.within("every")),
            (None, Some(cron), zone) => Ok(Rhythm::Cron(Box::new(Cron::of(cron, zone)?))),
            (Some(_), None, Some(zone)) => Err(Invalid::new(
                "tz",
                zone,
                "belongs to a cron expression",
                "leave it out: an interval has no time zone",
            )),
            (Some(_), Some(cron), _) => Err(Invalid::new("cron", cron, "stands beside every", "give one of them")),
            (None, None, _) => Err(Invalid::new("", value, "says neither every nor cron", HINT)),
        }
    }

    fn every(value: &Value) -> Result<Rhythm, Invalid> {
        let span = duration_from(value)?;
        if span < SHORTEST {
            return Err(Invalid::new("", value, "is too short", "the shortest interval is 1s"));
        }
        Ok(Rhythm::Every(span))
    }

    /// The way it is read.
    pub fn to_json(&self) -> Value {
        match self {
            Rhythm::Every(span) => json!({ "every": format_duration(*span) }),
            Rhythm::Cron(cron) => json!({ "cron": cron.expression, "tz": cron.zone }),
        }
    }

    /// In words for people.
    pub fn describe(&self) -> String {
        match self {
            Rhythm::Every(span) => format!("every {}", format_duration(*span)),
            Rhythm::Cron(cron) => format!("{} {}", cron.expression, cron.zone),
        }
    }

    /// The first due time of a schedule that begins now.
    pub fn first(&self, now: StoreTime) -> Option<StoreTime> {
        match self {
            Rhythm::Every(_) => Some(now),
            Rhythm::Cron(_) => self.after(now),
        }
    }

    /// The due time after this one. None: there is none before the calendar ends.
    pub fn after(&self, due: StoreTime) -> Option<StoreTime> {
        match self {
            Rhythm::Every(span) => Some(due.plus(*span)),
            Rhythm::Cron(cron) => cron.after(due),
        }
    }

    /// The last due time until then, of those from `due` on, which is one itself.
    pub fn latest(&self, due: StoreTime, until: StoreTime) -> StoreTime {
        match self {
            Rhythm::Every(span) => {
                let steps = until.since(due).as_micros() / span.as_micros();
                let passed = span.as_micros().saturating_mul(steps);
                due.plus(Duration::from_micros(u64::try_from(passed).unwrap_or(u64::MAX)))
            }
            Rhythm::Cron(cron) => cron.until(until).filter(|latest| *latest > due).unwrap_or(due),
        }
    }

    /// The due time before this one, which is one itself.
    pub fn before(&self, due: StoreTime) -> Option<StoreTime> {
        match self {
            Rhythm::Every(span) => Some(StoreTime(due.0.saturating_sub(i64::try_from(span.as_micros()).ok()?))),
            Rhythm::Cron(cron) => cron.until(StoreTime(due.0 - 1)),
        }
    }

    /// How many due times lie from one to another, both included. Those of a cron expression are counted up to
    /// `MOST_COUNTED`.
    pub fn count(&self, from: StoreTime, to: StoreTime) -> u64 {
        match self {
            Rhythm::Every(span) => {
                let steps = u64::try_from(to.since(from).as_micros() / span.as_micros()).unwrap_or(u64::MAX);
                steps.saturating_add(1)
            }
            Rhythm::Cron(_) => {
                let mut count = 1;
                let mut due = from;
                while count < MOST_COUNTED {
                    match self.after(due).filter(|next| *next <= to) {
                        Some(next) => (due, count) = (next, count + 1),
                        None => break,
                    }
                }
                count
            }
        }
    }
}

impl Cron {
    fn of(expression: &Value, zone: Option<&Value>) -> Result<Cron, Invalid> {
        let text = |field: &str, value: &Value| match value {
            Value::String(text) if text.len() <= MOST_BYTES => Ok(text.trim().to_string()),
            Value::String(_) => Err(Invalid::new(field, value, format!("is longer than {MOST_BYTES} bytes"), HINT)),
            _ => Err(Invalid::new(field, value, "is not text", HINT)),
        };
        let zone = zone.filter(|zone| !zone.is_null()).map_or(Ok("UTC".to_string()), |zone| text("tz", zone))?;
        Cron::new(&text("cron", expression)?, &zone)
    }

    /// Five fields, or six with seconds first, or a nickname such as `@daily`.
    pub fn new(expression: &str, zone: &str) -> Result<Cron, Invalid> {
        let refused = |problem: String| {
            let hint = "write minute, hour, day of the month, month and day of the week, like \"30 2 * * *\"";
            Invalid::new("cron", format!("{expression:?}"), problem, hint)
        };
        // The copy that the program carries, and not that of the machine: it is the same on each replica.
        let clock = jiff::tz::TimeZoneDatabase::bundled().get(zone).map_err(|_| {
            let hint = "write a name of the time zone database, like \"Europe/Berlin\" or \"UTC\"";
            Invalid::new("tz", format!("{zone:?}"), "is no time zone", hint)
        })?;
        let parser = CronParser::builder().seconds(Seconds::Optional).year(Year::Disallowed).build();
        let pattern =
            parser.parse(expression).map_err(|error| refused(format!("is not a cron expression: {error}")))?;
        let cron = Cron { expression: expression.to_string(), zone: zone.to_string(), pattern, clock };
        // Any time does to find out whether it ever comes: the calendar repeats.
        match cron.after(StoreTime(0)) {
            Some(_) => Ok(cron),
            None => Err(refused("never comes".to_string())),
        }
    }

    fn at(&self, time: StoreTime) -> Option<Zoned> {
        Some(Timestamp::from_microsecond(time.0).ok()?.to_zoned(self.clock.clone()))
    }

    fn after(&self, time: StoreTime) -> Option<StoreTime> {
        let next = self.pattern.find_next_occurrence(&self.at(time)?, false).ok()?;
        Some(StoreTime(next.timestamp().as_microsecond()))
    }

    fn until(&self, time: StoreTime) -> Option<StoreTime> {
        let last = self.pattern.find_previous_occurrence(&self.at(time)?, true).ok()?;
        Some(StoreTime(last.timestamp().as_microsecond()))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn at(text: &str) -> StoreTime {
        StoreTime::parse(text).expect(text)
    }

    fn cron(expression: &str, zone: &str) -> Rhythm {
        Rhythm::Cron(Box::new(Cron::new(expression, zone).expect(expression)))
    }

    fn dues(rhythm: &Rhythm, after: &str, count: usize) -> Vec<String> {
        let mut due = at(after);
        let next = std::iter::from_fn(|| {
            due = rhythm.after(due)?;
            Some(due.to_string().replace(".000000", ""))
        });
        next.take(count).collect()
    }

    #[test]
    fn an_interval_does_not_drift() {
        let rhythm = Rhythm::Every(Duration::from_secs(60));
        assert_eq!(rhythm.first(at("2026-03-01T00:00:07Z")), Some(at("2026-03-01T00:00:07Z")));
        let (first, late) = (at("2026-03-01T00:00:07Z"), at("2026-03-01T00:05:06Z"));
        assert_eq!(rhythm.latest(first, late), at("2026-03-01T00:04:07Z"));
        assert_eq!(rhythm.latest(first, first), first);
        assert_eq!(rhythm.count(first, rhythm.latest(first, late)), 5);
    }

    #[test]
    fn a_time_of_day_is_due_once_a_day_when_clocks_change() {
        let rhythm = cron("30 2 * * *", "Europe/Berlin");
        // On 29 March there is no half past two: it is due when that hour would have ended.
        assert_eq!(
            dues(&rhythm, "2026-03-27T12:00:00Z", 3),
            ["2026-03-28T01:30:00Z", "2026-03-29T01:00:00Z", "2026-03-30T00:30:00Z"]
        );
        // On 25 October there are two.
        assert_eq!(dues(&rhythm, "2026-10-24T12:00:00Z", 2), ["2026-10-25T00:30:00Z", "2026-10-26T01:30:00Z"]);
    }

    #[test]
    fn what_comes_every_half_hour_comes_in_both_hours_when_a_clock_is_put_back() {
        let rhythm = cron("*/30 * * * *", "Europe/Berlin");
        assert_eq!(
            dues(&rhythm, "2026-10-24T23:59:00Z", 5),
            [
                "2026-10-25T00:00:00Z",
                "2026-10-25T00:30:00Z",
                "2026-10-25T01:00:00Z",
                "2026-10-25T01:30:00Z",
                "2026-10-25T02:00:00Z"
            ]
        );
    }

    #[test]
    fn the_latest_due_time_is_found_without_walking_there() {
        let rhythm = cron("* * * * * *", "UTC");
        let due = at("2020-01-01T00:00:00Z");
        assert_eq!(rhythm.latest(due, at("2026-01-01T00:00:00.5Z")), at("2026-01-01T00:00:00Z"));
        assert_eq!(rhythm.latest(due, at("2020-01-01T00:00:00.9Z")), due);
        assert_eq!(rhythm.count(due, at("2026-01-01T00:00:00Z")), MOST_COUNTED);
        assert_eq!(rhythm.before(due), Some(at("2019-12-31T23:59:59Z")));
    }

    #[test]
    fn what_is_written_is_read_again() {
        for value in [json!({"every": "15m"}), json!({"cron": "0 3 * * MON-FRI", "tz": "America/New_York"})] {
            assert_eq!(Rhythm::parse(&value).expect("fine").to_json(), value);
        }
        let seconds = Rhythm::parse(&json!({"every": 90})).expect("seconds");
        assert_eq!(seconds.to_json(), json!({"every": "90s"}));
        let utc = Rhythm::parse(&json!({"cron": "@daily"})).expect("a nickname");
        assert_eq!(utc.to_json(), json!({"cron": "@daily", "tz": "UTC"}));
    }

    #[test]
    fn what_is_no_schedule_is_refused_by_its_field() {
        for (value, field) in [
            (json!("hourly"), ""),
            (json!({}), ""),
            (json!({"every": "500ms"}), "every"),
            (json!({"every": "-1s"}), "every"),
            (json!({"every": "1h", "cron": "* * * * *"}), "cron"),
            (json!({"every": "1h", "tz": "UTC"}), "tz"),
            (json!({"crom": "* * * * *"}), "crom"),
            (json!({"cron": 5}), "cron"),
            (json!({"cron": "61 * * * *"}), "cron"),
            (json!({"cron": "* * *"}), "cron"),
            (json!({"cron": ""}), "cron"),
            (json!({"cron": "0 0 30 2 *"}), "cron"),
            (json!({"cron": "* * * * *", "tz": "Europe/Atlantis"}), "tz"),
            (json!({"cron": "* ".repeat(200)}), "cron"),
        ] {
            let refused = Rhythm::parse(&value).expect_err(&value.to_string());
            assert_eq!(refused.field, field, "{value}: {refused}");
            assert!(!refused.hint.is_empty());
        }
    }
}
