use crate::error::Invalid;
use serde::de::DeserializeOwned;
use serde::{Deserialize, Deserializer, Serialize, Serializer};
use serde_json::value::RawValue;
use std::fmt;
use std::sync::Arc;

/// A JSON document as compact text. The text is what is stored: no store reinterprets numbers,
/// key order or escapes, so all of them answer alike.
#[derive(Clone, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Json(Arc<str>);

/// Deeper documents are refused where they enter; later readers may then recurse.
const DEPTH_LIMIT: usize = 100;

impl Json {
    pub fn null() -> Json {
        Json("null".into())
    }

    /// Accepts any JSON text and removes the white space between its tokens.
    pub fn parse(text: &str) -> Result<Json, Invalid> {
        let raw: &RawValue = serde_json::from_str(text)
            .map_err(|error| Invalid::new("", text, format!("is not valid JSON: {error}"), "send one JSON value"))?;
        Json::compact(raw)
    }

    fn compact(raw: &RawValue) -> Result<Json, Invalid> {
        let text = raw.get();
        let (mut depth, mut in_string, mut escaped, mut spaces) = (0_usize, false, false, 0_usize);
        for byte in text.bytes() {
            match byte {
                _ if escaped => escaped = false,
                b'\\' if in_string => escaped = true,
                b'"' => in_string = !in_string,
                _ if in_string => {}
                b'{' | b'[' => {
                    depth += 1;
                    if depth > DEPTH_LIMIT {
                        return Err(Invalid::new("", text, "is nested too deeply", "nest at most 100 levels"));
                    }
                }
                b'}' | b']' => depth -= 1,
                b' ' | b'\n' | b'\r' | b'\t' => spaces += 1,
                _ => {}
            }
        }
        if spaces == 0 {
            return Ok(Json(text.into()));
        }
        let mut compact = String::with_capacity(text.len() - spaces);
        (in_string, escaped) = (false, false);
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
        Json::compact(&raw).map_err(serde::de::Error::custom)
    }
}

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
    fn depth_is_bounded() {
        assert!(Json::parse(&format!("{}{}", "[".repeat(100), "]".repeat(100))).is_ok());
        let error = Json::parse(&format!("{}{}", "[".repeat(101), "]".repeat(101))).expect_err("too deep");
        assert_eq!(error.problem, "is nested too deeply");
    }

    #[test]
    fn a_damaged_stored_text_reads_as_a_string() {
        assert_eq!(Json::stored("{oops").as_str(), "\"{oops\"");
    }
}
