//! What answers of the server hold. A server may send anything: what is not understood is an error, never a panic.

use super::id::Id;
use crate::connectors::parts::object;
use crate::{Record, Rejected};
use redis::Value;
use serde_json::Map;

/// One message of a stream. Its fields are gone if somebody deleted it.
#[derive(Debug, PartialEq)]
pub(super) struct Message {
    pub(super) id: Id,
    pub(super) fields: Option<Vec<(Vec<u8>, Vec<u8>)>>,
}

impl Message {
    /// How much room it takes.
    pub(super) fn bytes(&self) -> usize {
        self.fields.iter().flatten().map(|(name, value)| name.len() + value.len()).sum()
    }

    /// The record: what the payload field holds; else the object that the only field holds; else the fields themselves.
    pub(super) fn record(&self, stream: &str, payload: Option<&str>) -> Result<Record, Rejected> {
        let position = || format!("{stream}:{}", self.id);
        let Some(fields) = &self.fields else {
            return Err(Rejected::new(position(), "was deleted from the stream before it was read", b""));
        };
        let rejected = |reason: String| Rejected::new(position(), reason, &raw(fields));
        let value = match payload {
            Some(name) => {
                let Some((_, value)) = fields.iter().find(|(field, _)| field == name.as_bytes()) else {
                    return Err(rejected(format!("has no field {name:?}")));
                };
                serde_json::from_slice(value)
                    .map_err(|error| rejected(format!("field {name:?} is not JSON: {error}")))?
            }
            None => match fields.as_slice() {
                [(_, value)] => match object(value) {
                    Some(object) => object.into(),
                    None => texts(fields).map_err(rejected)?.into(),
                },
                fields => texts(fields).map_err(rejected)?.into(),
            },
        };
        Ok(Record { value, position: position().into() })
    }
}

fn texts(fields: &[(Vec<u8>, Vec<u8>)]) -> Result<Map<String, serde_json::Value>, String> {
    let mut record = Map::new();
    for (name, value) in fields {
        let name = std::str::from_utf8(name).map_err(|_| "the name of a field is not UTF-8 text".to_string())?;
        let value = std::str::from_utf8(value).map_err(|_| format!("field {name:?} is not UTF-8 text"))?;
        if record.insert(name.to_string(), value.into()).is_some() {
            return Err(format!("field {name:?} is there twice"));
        }
    }
    Ok(record)
}

fn raw(fields: &[(Vec<u8>, Vec<u8>)]) -> Vec<u8> {
    let mut raw = Vec::new();
    for (name, value) in fields {
        raw.extend_from_slice(name);
        raw.push(b'=');
        raw.extend_from_slice(value);
        raw.push(b'\n');
    }
    raw
}

/// The messages that XRANGE found.
pub(super) fn of_range(answer: Value) -> Option<Vec<Message>> {
    messages(answer)
}

/// The messages of the one stream that XREADGROUP was asked for. Nothing for an answer of another form.
pub(super) fn of_streams(answer: Value) -> Option<Vec<Message>> {
    match answer {
        Value::Nil => Some(Vec::new()),
        Value::Array(streams) => {
            let Some(Value::Array(stream)) = streams.into_iter().next() else { return None };
            messages(stream.into_iter().nth(1)?)
        }
        _ => None,
    }
}

/// What XAUTOCLAIM answers: where to go on, messages, and ids of deleted ones (which Redis 6 does not tell apart).
pub(super) fn of_claim(answer: Value) -> Option<(Id, Vec<Message>, Vec<Id>)> {
    let Value::Array(parts) = answer else { return None };
    let mut parts = parts.into_iter();
    let next = id(&parts.next()?)?;
    // A message that is gone is told without its id by Redis 6, which keeps it pending: whoever owned it finds it.
    let Value::Array(entries) = parts.next()? else { return None };
    let entries = entries.into_iter().filter(|entry| *entry != Value::Nil).collect();
    let found = messages(Value::Array(entries))?;
    let deleted = match parts.next() {
        Some(Value::Array(ids)) => ids.iter().map(id).collect::<Option<Vec<Id>>>()?,
        _ => Vec::new(),
    };
    Some((next, found, deleted))
}

/// The last id that XINFO STREAM tells.
pub(super) fn last_id(answer: Value) -> Option<Id> {
    let Value::Array(parts) = answer else { return None };
    let mut pairs = parts.chunks_exact(2);
    pairs.find(|pair| bytes(&pair[0]) == Some(b"last-generated-id")).and_then(|pair| id(&pair[1]))
}

fn messages(value: Value) -> Option<Vec<Message>> {
    let Value::Array(entries) = value else { return None };
    entries.into_iter().map(message).collect()
}

fn message(value: Value) -> Option<Message> {
    let Value::Array(parts) = value else { return None };
    let mut parts = parts.into_iter();
    let id = id(&parts.next()?)?;
    let fields = match parts.next()? {
        Value::Nil => None,
        Value::Array(flat) if flat.len().is_multiple_of(2) => {
            let mut fields = Vec::with_capacity(flat.len() / 2);
            let mut flat = flat.into_iter();
            while let (Some(name), Some(value)) = (flat.next(), flat.next()) {
                let (Value::BulkString(name), Value::BulkString(value)) = (name, value) else { return None };
                fields.push((name, value));
            }
            Some(fields)
        }
        _ => return None,
    };
    Some(Message { id, fields })
}

fn id(value: &Value) -> Option<Id> {
    std::str::from_utf8(bytes(value)?).ok()?.parse().ok()
}

fn bytes(value: &Value) -> Option<&[u8]> {
    match value {
        Value::BulkString(bytes) => Some(bytes),
        Value::SimpleString(text) => Some(text.as_bytes()),
        _ => None,
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use serde_json::json;

    fn with(fields: &[(&str, &[u8])]) -> Message {
        let fields = fields.iter().map(|(name, value)| (name.as_bytes().to_vec(), value.to_vec())).collect();
        Message { id: Id { time: 7, number: 1 }, fields: Some(fields) }
    }

    #[test]
    fn fields_become_a_record() {
        let record = |fields: &[(&str, &[u8])], payload| with(fields).record("s", payload).map(|record| record.value);
        assert_eq!(record(&[("data", br#" {"a": 1}"#)], None), Ok(json!({"a": 1})));
        assert_eq!(record(&[("data", b"[1]")], None), Ok(json!({"data": "[1]"})));
        assert_eq!(record(&[("data", b"{oops")], None), Ok(json!({"data": "{oops"})));
        assert_eq!(record(&[("a", b"1"), ("b", b"{}")], None), Ok(json!({"a": "1", "b": "{}"})));
        assert_eq!(record(&[("a", b"1"), ("b", b"[2]")], Some("b")), Ok(json!([2])));
        assert_eq!(&*with(&[("a", b"1")]).record("s", None).unwrap().position, "s:7-1");
    }

    #[test]
    fn what_cannot_be_a_record_is_rejected_with_its_reason() {
        let deleted = Message { id: Id::ZERO, fields: None };
        for (message, payload, reason) in [
            (with(&[("a", b"\xff")]), None, "\"a\" is not UTF-8"),
            (with(&[("a", b"1"), ("a", b"2")]), None, "\"a\" is there twice"),
            (with(&[("a", b"{oops")]), Some("a"), "is not JSON"),
            (with(&[("a", b"{}")]), Some("b"), "has no field \"b\""),
            (deleted, None, "deleted"),
        ] {
            let rejected = message.record("s", payload).unwrap_err();
            assert!(rejected.reason.contains(reason), "{rejected:?}");
        }
    }

    #[test]
    fn answers_of_another_form_are_not_understood() {
        let text = |text: &str| Value::BulkString(text.as_bytes().to_vec());
        for answer in [
            Value::Int(1),
            Value::Array(vec![]),
            Value::Array(vec![Value::Array(vec![text("s")])]),
            Value::Array(vec![Value::Array(vec![text("s"), Value::Array(vec![Value::Array(vec![text("1")])])])]),
            Value::Array(vec![text("no id"), Value::Array(vec![])]),
        ] {
            assert!(of_streams(answer.clone()).is_none(), "{answer:?}");
            assert!(of_claim(answer.clone()).is_none(), "{answer:?}");
            assert!(last_id(answer.clone()).is_none(), "{answer:?}");
        }
    }
}
