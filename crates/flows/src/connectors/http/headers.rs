use crate::settings::hidden;
use crate::{Fields, Secret, Trouble};
use everbeat_model::Invalid;
use hyper::header::{HeaderMap, HeaderName, HeaderValue};
use serde_json::Value;

/// Headers that a flow wants to be sent. Their values may be secret.
#[derive(Clone)]
pub(super) struct Headers(Vec<(HeaderName, Secret)>);

/// More is a mistake, and servers refuse it.
const MOST_HEADERS: usize = 50;

/// These say how a request is carried, or tell repeats, and are written by the connector.
const OWN: [&str; 9] = [
    "connection",
    "content-length",
    "content-type",
    "expect",
    "host",
    "idempotency-key",
    "te",
    "transfer-encoding",
    "upgrade",
];

/// These are always secret.
const SECRET: [&str; 3] = ["authorization", "cookie", "proxy-authorization"];

impl Headers {
    pub(super) fn parse(fields: &mut Fields<'_>) -> Result<Headers, Invalid> {
        const HINT: &str = r#"write it like {"x-api-key": {"env": "NAME"}}"#;
        let Some(value) = fields.get("headers") else { return Ok(Headers(Vec::new())) };
        let Value::Object(entries) = value else { return Err(hidden("headers", "is not an object", HINT)) };
        if entries.len() > MOST_HEADERS {
            let hint = format!("use at most {MOST_HEADERS}");
            return Err(Invalid::new("headers", entries.len(), "are too many headers", hint));
        }
        let one = |(name, value): (&String, &Value)| {
            let field = format!("headers.{name}");
            let Ok(header) = HeaderName::try_from(name.as_str()) else {
                return Err(hidden(&field, "is not the name of a header", HINT));
            };
            if OWN.contains(&header.as_str()) {
                return Err(hidden(&field, "is written by the connector itself", "leave it out"));
            }
            let secret = Secret::parse(&field, value)?;
            if let Secret::Given(text) = &secret {
                if SECRET.contains(&header.as_str()) {
                    let hint = r#"write {"env": "NAME"} or {"file": "/path"} in place of the text"#;
                    return Err(hidden(&field, "is a secret that is written in the flow", hint));
                }
                if HeaderValue::from_str(text).is_err() {
                    return Err(hidden(&field, "holds characters that no header can have", "leave them out"));
                }
            }
            Ok((header, secret))
        };
        Ok(Headers(entries.iter().map(one).collect::<Result<_, _>>()?))
    }

    /// The headers with their values of now.
    pub(super) fn read(&self) -> Result<HeaderMap, Trouble> {
        let mut headers = HeaderMap::new();
        for (name, secret) in &self.0 {
            let mut value = HeaderValue::try_from(secret.read()?)
                .map_err(|_| Trouble::permanent(format!("{secret} holds characters that no header can have")))?;
            value.set_sensitive(true);
            headers.insert(name, value);
        }
        Ok(headers)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use serde_json::json;

    #[test]
    fn headers_that_cannot_be_sent_are_refused_without_showing_them() {
        for (headers, field) in [
            (json!({"authorization": "hunter2"}), "headers.authorization"),
            (json!({"Host": "hunter2"}), "headers.Host"),
            (json!({"a b": "hunter2"}), "headers.a b"),
            (json!({"a": "hunter2\n"}), "headers.a"),
            (json!({"a": ["hunter2"]}), "headers.a"),
            (json!("hunter2"), "headers"),
        ] {
            let value = json!({"headers": headers});
            let invalid = Headers::parse(&mut Fields::of(&value, "").unwrap()).map(|_| ()).unwrap_err();
            assert_eq!(invalid.field, field);
            assert!(!format!("{invalid} {}", invalid.hint).contains("hunter2"), "{invalid}");
        }
        let value = json!({"headers": {"X-Version": "2", "authorization": {"env": "EVERBEAT_NO_SUCH_VARIABLE"}}});
        let headers = Headers::parse(&mut Fields::of(&value, "").unwrap()).unwrap();
        assert!(headers.read().unwrap_err().message.contains("EVERBEAT_NO_SUCH_VARIABLE"));
    }
}
