use crate::error::Invalid;
use serde::de::DeserializeOwned;
use serde::{Deserialize, Deserializer, Serialize, Serializer};
use serde_json::value::RawValue;
use std::fmt;
use std::sync::Arc;

/// A JSON document as compact text. The text is what is stored: no store reinterprets numbers,
/// key order or escapes, so all of them answer alike.
///
/// Whatever comes from outside becomes one through [`Json::parse`] or by deserialisation, and so keeps the same
/// bounds wherever it enters: see [`NotJson`]. Of several fields with one name all are kept as they were sent; whoever
/// reads the document takes the last.
#[derive(Clone, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Json(Arc<str>);

/// Deeper documents are refused where they enter; later readers may then recurse.
pub const DEEPEST: usize = 100;

/// Why a text is not taken as JSON. All but the first are JSON that a reader somewhere could not hold.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum NotJson {
    Syntax(String),
    TooDeep,
    NumberTooLarge,
    LoneSurrogate,
}

impl NotJson {
    /// Those that are JSON, and still not taken.
    pub const BEYOND: [NotJson; 3] = [NotJson::TooDeep, NotJson::NumberTooLarge, NotJson::LoneSurrogate];

    pub fn problem(&self) -> String {
        match self {
            NotJson::Syntax(why) => format!("is not valid JSON: {why}"),
            NotJson::TooDeep => "is nested too deeply".to_string(),
            NotJson::NumberTooLarge => "has a number that is too large".to_string(),
            NotJson::LoneSurrogate => "has half of a surrogate pair, which is no character".to_string(),
        }
    }

    pub fn hint(&self) -> &'static str {
        match self {
            NotJson::Syntax(_) => "send one JSON value",
            NotJson::TooDeep => "nest at most 100 levels",
            NotJson::NumberTooLarge => "use numbers below 1.8e308, or send it as text",
            NotJson::LoneSurrogate => "write both halves, like \\ud83e\\udd80, or the character itself",
        }
    }

    /// The complaint about a field.
    pub fn about(&self, field: &str, text: &str) -> Invalid {
        Invalid::new(field, text, self.problem(), self.hint())
    }
}

impl Json {
    pub fn null() -> Json {
        Json("null".into())
    }

    /// Accepts any JSON text within the bounds and removes the white space between its tokens.
    pub fn parse(text: &str) -> Result<Json, Invalid> {
        Json::read_text(text).map_err(|error| error.about("", text))
    }

    /// The same, for whoever must tell apart why a text is refused.
    pub fn read_text(text: &str) -> Result<Json, NotJson> {
        let raw: &RawValue = serde_json::from_str(text).map_err(|error| NotJson::Syntax(error.to_string()))?;
        Json::compact(raw)
    }

    /// Whether it keeps the bounds: what was made here by [`Json::of`] need not.
    pub fn check(&self) -> Result<(), NotJson> {
        scan(&self.0).map(|_spaces| ())
    }

    fn compact(raw: &RawValue) -> Result<Json, NotJson> {
        let text = raw.get();
        let spaces = scan(text)?;
        if spaces == 0 {
            return Ok(Json(text.into()));
        }
        let mut compact = String::with_capacity(text.len() - spaces);
        let (mut in_string, mut escaped) = (false, false);
        for character in text.chars() {
            match character {
                _ if escaped => escaped = false,
                '\\' if in_string => escaped = true,
                '"' => in_string = !in_string,
                ' ' | '\n' | '\r' | '\t' if !in_string => continue,
                _ => {}
            }
            compact.push(character);
        }
        Ok(Json(compact.into()))
    }

    /// Text that a store wrote earlier. It is trusted to be JSON no further than display: a damaged
    /// row reads as a JSON string that shows the damage.
    pub fn stored(text: impl Into<Arc<str>>) -> Json {
        let text = text.into();
        match serde_json::from_str::<&RawValue>(&text) {
            Ok(_) => Json(text),
            Err(_) => Json::of(&*text),
        }
    }

    /// Any serialisable value. Values whose serialisation fails become `null`; those of this
    /// workspace do not fail.
    pub fn of<T: Serialize + ?Sized>(value: &T) -> Json {
        serde_json::to_string(value).map_or_else(|_| Json::null(), |text| Json(text.into()))
    }

    pub fn read<T: DeserializeOwned>(&self) -> Result<T, serde_json::Error> {
        serde_json::from_str(&self.0)
    }

    pub fn value(&self) -> serde_json::Value {
        self.read().unwrap_or(serde_json::Value::Null)
    }

    pub fn as_str(&self) -> &str {
        &self.0
    }

    pub fn is_null(&self) -> bool {
        &*self.0 == "null"
    }
}

impl Default for Json {
    fn default() -> Json {
        Json::null()
    }
}

impl fmt::Display for Json {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.0)
    }
}

impl fmt::Debug for Json {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.0)
    }
}

impl Serialize for Json {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        serde_json::from_str::<&RawValue>(&self.0).map_err(serde::ser::Error::custom)?.serialize(serializer)
    }
}

impl<'de> Deserialize<'de> for Json {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Json, D::Error> {
        let raw = Box::<RawValue>::deserialize(deserializer)?;
        Json::compact(&raw).map_err(|error| serde::de::Error::custom(error.problem()))
    }
}

/// Looks through valid JSON for what goes beyond the bounds; counts the white space between tokens.
fn scan(text: &str) -> Result<usize, NotJson> {
    let bytes = text.as_bytes();
    let (mut at, mut depth, mut spaces) = (0, 0_usize, 0);
    while let Some(byte) = bytes.get(at) {
        at += 1;
        match byte {
            b'"' => at = scan_string(bytes, at)?,
            b'{' | b'[' if depth == DEEPEST => return Err(NotJson::TooDeep),
            b'{' | b'[' => depth += 1,
            b'}' | b']' => depth = depth.saturating_sub(1),
            b' ' | b'\n' | b'\r' | b'\t' => spaces += 1,
            b'-' | b'0'..=b'9' => at = scan_number(text, at - 1)?,
            _ => {}
        }
    }
    Ok(spaces)
}

/// From behind the opening quote to behind the closing one.
fn scan_string(bytes: &[u8], mut at: usize) -> Result<usize, NotJson> {
    let unit = |at: usize| {
        let digits = bytes.get(at..at + 6)?.strip_prefix(b"\\u")?;
        u32::from_str_radix(std::str::from_utf8(digits).ok()?, 16).ok()
    };
    while let Some(byte) = bytes.get(at) {
        match byte {
            b'"' => return Ok(at + 1),
            b'\\' => match (unit(at), unit(at + 6)) {
                (Some(0xd800..=0xdbff), Some(0xdc00..=0xdfff)) => at += 12,
                (Some(0xd800..=0xdfff), _) => return Err(NotJson::LoneSurrogate),
                _ => at += 2,
            },
            _ => at += 1,
        }
    }
    Ok(at)
}

/// From the beginning of a number to behind its end.
fn scan_number(text: &str, from: usize) -> Result<usize, NotJson> {
    let rest = &text[from..];
    let length = rest.bytes().take_while(|byte| matches!(byte, b'0'..=b'9' | b'+' | b'-' | b'.' | b'e' | b'E')).count();
    let number = &rest[..length];
    // Few numbers are written so that they could be too large.
    let suspect = length > LONGEST_SAFE || number.contains(['e', 'E']);
    if suspect && !number.parse::<f64>().is_ok_and(f64::is_finite) {
        return Err(NotJson::NumberTooLarge);
    }
    Ok(from + length)
}

/// Digits without an exponent that every double can hold.
const LONGEST_SAFE: usize = 300;

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn text_is_compacted_and_otherwise_untouched() {
        let json = Json::parse("{ \"b\" : 1.0,\n\t\"a\": \" x \\\" \\u0000\", \"n\": 123456789012345678901234567890 }");
        assert_eq!(
            json.expect("valid").as_str(),
            "{\"b\":1.0,\"a\":\" x \\\" \\u0000\",\"n\":123456789012345678901234567890}"
        );
    }

    #[test]
    fn what_a_reader_somewhere_could_not_hold_is_refused_in_the_same_words() {
        let nested = |levels: usize| format!("{}{}", "[".repeat(levels), "]".repeat(levels));
        let long = |zeros: usize| format!("1{}", "0".repeat(zeros));
        for text in [
            nested(100),
            long(308),
            format!("{}.5e-300", long(400)),
            "[1e308, -1.7e308, 1E-400, 0.1e+5]".to_string(),
            r#""\ud83e\udd80 \\ud800 \\\\ud800 \" \u0000""#.to_string(),
            r#"{"a": 1, "a": 2}"#.to_string(),
        ] {
            assert!(Json::parse(&text).is_ok(), "{text}");
        }
        for (text, why) in [
            (nested(101), NotJson::TooDeep),
            (nested(100_000), NotJson::TooDeep),
            (format!("{{\"a\":{}}}", nested(100)), NotJson::TooDeep),
            ("1e999".to_string(), NotJson::NumberTooLarge),
            ("[-1E+309]".to_string(), NotJson::NumberTooLarge),
            (long(309), NotJson::NumberTooLarge),
            (r#""\ud800""#.to_string(), NotJson::LoneSurrogate),
            (r#""\ud800\ud800""#.to_string(), NotJson::LoneSurrogate),
            (r#""\udc00""#.to_string(), NotJson::LoneSurrogate),
            (r#"{"\uDBFFx": 1}"#.to_string(), NotJson::LoneSurrogate),
            (r#""\\\ud800""#.to_string(), NotJson::LoneSurrogate),
        ] {
            assert_eq!(Json::read_text(&text), Err(why.clone()), "{text}");
            let as_field: Result<Json, _> = serde_json::from_str(&text);
            assert!(as_field.is_err_and(|error| error.to_string().starts_with(&why.problem())), "{text}");
        }
        for text in ["", "{", "nonsense", "NaN", "01", r#""\ud80""#, r#"["\ud800""#] {
            assert!(matches!(Json::read_text(text), Err(NotJson::Syntax(_))), "{text}");
        }
    }

    #[test]
    fn of_several_fields_with_one_name_the_last_counts_and_all_are_kept() {
        let json = Json::parse(r#"{"a": 1, "a": 2}"#).expect("valid");
        assert_eq!((json.as_str(), &json.value()["a"]), (r#"{"a":1,"a":2}"#, &serde_json::json!(2)));
    }

    #[test]
    fn a_damaged_stored_text_reads_as_a_string() {
        assert_eq!(Json::stored("{oops").as_str(), "\"{oops\"");
    }
}
