use crate::error::Invalid;
use serde::{Deserialize, Deserializer, Serialize, Serializer};
use std::fmt;
use std::ops::{Add, Sub};
use std::time::Duration;

/// A point in time by the store's clock, in microseconds since 1970. For display, ordering and due
/// times; never for a verdict.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct StoreTime(pub i64);

/// A point in time by this observer's own boot clock, which wall-clock changes do not move.
/// The only time that verdicts are made from.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct BootInstant(pub Duration);

impl StoreTime {
    pub fn parse(text: &str) -> Result<StoreTime, Invalid> {
        let time: jiff::Timestamp = text
            .parse()
            .map_err(|_| Invalid::new("", text, "is not an RFC 3339 time", "write it like 2026-11-15T08:00:00Z"))?;
        Ok(StoreTime(time.as_microsecond()))
    }

    pub fn since(self, earlier: StoreTime) -> Duration {
        Duration::from_micros(u64::try_from(self.0.saturating_sub(earlier.0)).unwrap_or(0))
    }

    pub fn plus(self, span: Duration) -> StoreTime {
        StoreTime(self.0.saturating_add(i64::try_from(span.as_micros()).unwrap_or(i64::MAX)))
    }

    pub fn millis(self) -> u64 {
        u64::try_from(self.0 / 1000).unwrap_or(0)
    }
}

impl BootInstant {
    /// How long ago `earlier` was; nothing if it lies ahead.
    pub fn since(self, earlier: BootInstant) -> Duration {
        self.0.saturating_sub(earlier.0)
    }
}

impl Add<Duration> for BootInstant {
    type Output = BootInstant;

    fn add(self, span: Duration) -> BootInstant {
        BootInstant(self.0.saturating_add(span))
    }
}

impl Sub<Duration> for BootInstant {
    type Output = BootInstant;

    fn sub(self, span: Duration) -> BootInstant {
        BootInstant(self.0.saturating_sub(span))
    }
}

impl fmt::Display for StoreTime {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match jiff::Timestamp::from_microsecond(self.0) {
            Ok(time) => write!(f, "{time:.6}"),
            Err(_) => write!(f, "{}us", self.0),
        }
    }
}

impl fmt::Debug for StoreTime {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{self}")
    }
}

impl Serialize for StoreTime {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        serializer.collect_str(self)
    }
}

impl<'de> Deserialize<'de> for StoreTime {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<StoreTime, D::Error> {
        let text = String::deserialize(deserializer)?;
        StoreTime::parse(&text).map_err(serde::de::Error::custom)
    }
}

const DURATION_HINT: &str = "write it like \"250ms\", \"30s\", \"5m\", \"2h\", \"1d\", or as a number of seconds";

/// Spans beyond this are refused, so that no sum with a time can overflow.
const LONGEST: Duration = Duration::from_secs(100 * 365 * 86_400);

/// Reads `"30s"`, `"1h30m"`, `"1.5m"` or `"20min"`.
pub fn parse_duration(text: &str) -> Result<Duration, Invalid> {
    let refuse = |problem: &str| Invalid::new("", format!("{text:?}"), problem, DURATION_HINT);
    let trimmed = text.trim();
    if trimmed.is_empty() {
        return Err(refuse("is empty"));
    }
    if let Ok(seconds) = trimmed.parse::<f64>() {
        return seconds_duration(seconds);
    }
    let mut total = 0.0;
    let mut rest = trimmed;
    while !rest.is_empty() {
        let digits = rest.find(|c: char| !c.is_ascii_digit() && c != '.').ok_or_else(|| refuse("lacks a unit"))?;
        let number: f64 = rest[..digits].parse().map_err(|_| refuse("is not a duration"))?;
        rest = &rest[digits..];
        let end = rest.find(|c: char| c.is_ascii_digit() || c == ' ').unwrap_or(rest.len());
        let unit = match &rest[..end] {
            "us" => 1e-6,
            "ms" => 1e-3,
            "s" | "sec" => 1.0,
            "m" | "min" => 60.0,
            "h" => 3600.0,
            "d" => 86_400.0,
            _ => return Err(refuse("is not a duration")),
        };
        total += number * unit;
        rest = rest[end..].trim_start();
    }
    seconds_duration(total).map_err(|error| Invalid { value: format!("{text:?}"), ..error })
}

/// Reads a JSON duration: a string as above, or a number of seconds.
pub fn duration_from(value: &serde_json::Value) -> Result<Duration, Invalid> {
    match value {
        serde_json::Value::String(text) => parse_duration(text),
        serde_json::Value::Number(number) => seconds_duration(number.as_f64().unwrap_or(f64::NAN)),
        other => Err(Invalid::new("", other, "is not a duration", DURATION_HINT)),
    }
}

fn seconds_duration(seconds: f64) -> Result<Duration, Invalid> {
    let refuse = |problem: &str| Invalid::new("", seconds, problem, DURATION_HINT);
    if seconds < 0.0 {
        return Err(refuse("is negative"));
    }
    match Duration::try_from_secs_f64(seconds) {
        Ok(span) if span <= LONGEST => Ok(span),
        _ => Err(refuse("is not a duration of at most 100 years")),
    }
}

/// Writes a span the way `parse_duration` reads it, in the largest unit that loses nothing.
pub fn format_duration(span: Duration) -> String {
    let micros = span.as_micros();
    for (unit, size) in [("d", 86_400_000_000), ("h", 3_600_000_000), ("m", 60_000_000), ("s", 1_000_000), ("ms", 1000)]
    {
        if micros >= size && micros.is_multiple_of(size) {
            return format!("{}{unit}", micros / size);
        }
    }
    if micros == 0 { "0s".to_string() } else { format!("{micros}us") }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn durations_are_read_in_every_documented_form() {
        for (text, millis) in [
            ("250ms", 250),
            ("30s", 30_000),
            ("20min", 1_200_000),
            ("1h30m", 5_400_000),
            ("1.5m", 90_000),
            ("2", 2000),
            ("1h 5s", 3_605_000),
        ] {
            assert_eq!(parse_duration(text).expect(text), Duration::from_millis(millis), "{text}");
        }
        for text in ["", "abc", "5 parsecs", "-1s", "-3", "1e400", "s", "9999999d", "1..5s", "nan"] {
            let error = parse_duration(text).expect_err(text);
            assert!(error.hint.contains("30s"), "{text}");
        }
    }

    #[test]
    fn a_duration_survives_being_written_and_read() {
        for micros in [0, 1, 999, 1000, 250_000, 1_000_000, 90_000_000, 3_600_000_000, 86_400_000_000] {
            let span = Duration::from_micros(micros);
            assert_eq!(parse_duration(&format_duration(span)).expect("own format"), span);
        }
    }

    #[test]
    fn store_time_is_rfc_3339_in_utc() {
        let time = StoreTime::parse("2026-11-15T09:00:00.25+01:00").expect("valid");
        assert_eq!(time.to_string(), "2026-11-15T08:00:00.250000Z");
    }
}
