//! Values between JSON and databases.

use serde_json::{Number, Value};

const DIGITS: &[u8; 64] = b"ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz0123456789+/";

/// Bytes as base64.
pub(super) fn base64(bytes: &[u8]) -> String {
    let mut text = String::with_capacity(bytes.len().div_ceil(3) * 4);
    for chunk in bytes.chunks(3) {
        let group = chunk.iter().fold(0_u32, |group, byte| group << 8 | u32::from(*byte)) << (8 * (3 - chunk.len()));
        for place in 0..4 {
            let digit = DIGITS[(group >> (18 - 6 * place)) as usize & 63];
            text.push(if place <= chunk.len() { char::from(digit) } else { '=' });
        }
    }
    text
}

/// The bytes that base64 stands for; none if it is not base64.
pub(super) fn unbase64(text: &str) -> Option<Vec<u8>> {
    let digits = text.trim_end_matches('=').as_bytes();
    if !text.len().is_multiple_of(4) || text.len() - digits.len() > 2 {
        return None;
    }
    let mut bytes = Vec::with_capacity(text.len() / 4 * 3);
    for chunk in digits.chunks(4) {
        let mut group = 0_u32;
        for digit in chunk {
            group = group << 6 | DIGITS.iter().position(|known| known == digit)? as u32;
        }
        group <<= 6 * (4 - chunk.len());
        bytes.extend_from_slice(&group.to_be_bytes()[1..chunk.len()]);
    }
    Some(bytes)
}

/// A decimal number as JSON's, if that loses nothing; else as text.
pub(super) fn decimal(text: &str) -> Value {
    let exact = |number: &f64| number.is_finite() && same_decimal(&format!("{number}"), text);
    if let Ok(integer) = text.parse::<i64>() {
        return Value::from(integer);
    }
    if let Ok(integer) = text.parse::<u64>() {
        return Value::from(integer);
    }
    let number = text.parse::<f64>().ok().filter(exact).and_then(Number::from_f64);
    number.map_or_else(|| Value::String(text.to_string()), Value::Number)
}

/// Whether two plain decimal texts are the same number.
fn same_decimal(one: &str, other: &str) -> bool {
    fn plain(text: &str) -> (bool, &str, &str) {
        let (negative, text) = text.strip_prefix('-').map_or((false, text), |rest| (true, rest));
        let (whole, fraction) = text.split_once('.').unwrap_or((text, ""));
        (negative, whole.trim_start_matches('0'), fraction.trim_end_matches('0'))
    }
    plain(one) == plain(other)
}

/// What a value is, for people.
pub(super) fn kind(value: &Value) -> &'static str {
    match value {
        Value::Null => "null",
        Value::Bool(_) => "true or false",
        Value::Number(_) => "a number",
        Value::String(_) => "text",
        Value::Array(_) => "a list",
        Value::Object(_) => "an object",
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use serde_json::json;

    #[test]
    fn base64_is_what_others_write() {
        for (bytes, text) in [("", ""), ("f", "Zg=="), ("fo", "Zm8="), ("foo", "Zm9v"), ("~\u{7f}?>", "fn8/Pg==")] {
            assert_eq!(base64(bytes.as_bytes()), text);
            assert_eq!(unbase64(text).as_deref(), Some(bytes.as_bytes()));
        }
        for text in ["a", "ab=c", "====", "é===", "ab c"] {
            assert_eq!(unbase64(text), None, "{text}");
        }
    }

    #[test]
    fn a_decimal_that_json_cannot_hold_stays_text() {
        for (text, value) in [
            ("12", json!(12)),
            ("9007199254740993", json!(9_007_199_254_740_993_u64)),
            ("1.50", json!(1.5)),
            ("-0.1", json!(-0.1)),
            ("12345678901234567890123", json!("12345678901234567890123")),
            ("0.1234567890123456789", json!("0.1234567890123456789")),
            ("NaN", json!("NaN")),
        ] {
            assert_eq!(decimal(text), value);
        }
    }
}
