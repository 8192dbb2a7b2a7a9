//! Which page comes next.

use super::line::Answer;
use everbeat_model::Invalid;
use hyper::header;
use serde_json::{Value, json};
use url::Url;

/// How answers name the next page.
#[derive(Clone, Debug, PartialEq)]
pub(super) enum Next {
    /// There is one page only.
    Nothing,
    /// `Link: <url>; rel="next"`.
    Link,
    /// The answer holds the URL of the next page here.
    Pointer(String),
    /// The answer holds a token here, which is asked for with this parameter.
    Cursor { pointer: String, parameter: String },
    /// Pages are numbered; the first without records is the end.
    Page { parameter: String, from: u64 },
}

/// Where a page is, as cursors hold it.
#[derive(Clone, Debug, PartialEq)]
pub(super) enum Place {
    First,
    /// A URL, without what the target's own URL says already, which may be secret.
    Url(String),
    Token(String),
    Number(u64),
}

const EXAMPLES: &str = r#"write it like {"link": true}, {"pointer": "/next"}, {"cursor": "/next_cursor", "parameter": "cursor"} or {"page": "page", "from": 1}"#;

impl Next {
    pub(super) fn parse(value: Option<&Value>) -> Result<Next, Invalid> {
        let Some(value) = value else { return Ok(Next::Nothing) };
        let refuse = || Err(Invalid::new("next", value, "does not say how pages are found", EXAMPLES));
        let Value::Object(fields) = value else { return refuse() };
        let text = |name: &str| fields.get(name).and_then(Value::as_str).filter(|text| !text.is_empty());
        let pointer = |name: &str| match text(name) {
            Some(text) if text.starts_with('/') => Ok(text.to_string()),
            _ => Err(Invalid::new(format!("next.{name}"), value, "is not a JSON pointer", "write it like \"/next\"")),
        };
        let only = |names: &[&str]| fields.keys().all(|key| names.contains(&key.as_str()));
        if only(&["link"]) && fields.get("link") == Some(&Value::Bool(true)) {
            return Ok(Next::Link);
        }
        if only(&["pointer"]) && fields.contains_key("pointer") {
            return Ok(Next::Pointer(pointer("pointer")?));
        }
        if only(&["cursor", "parameter"]) && fields.contains_key("cursor") {
            let parameter = text("parameter").unwrap_or("cursor").to_string();
            return Ok(Next::Cursor { pointer: pointer("cursor")?, parameter });
        }
        if let (true, Some(parameter)) = (only(&["page", "from"]), text("page")) {
            let from = match fields.get("from") {
                None => Some(1),
                Some(from) => from.as_u64(),
            };
            let Some(from) = from else { return refuse() };
            return Ok(Next::Page { parameter: parameter.to_string(), from });
        }
        refuse()
    }

    /// The URL of a page.
    pub(super) fn url(&self, base: &Url, place: &Place) -> Option<Url> {
        match (self, place) {
            (Next::Page { parameter, from }, Place::First) => Some(with(base, parameter, &from.to_string())),
            (Next::Page { parameter, .. }, Place::Number(number)) => Some(with(base, parameter, &number.to_string())),
            (Next::Cursor { parameter, .. }, Place::Token(token)) => Some(with(base, parameter, token)),
            (Next::Link | Next::Pointer(_), Place::Url(url)) => restored(base, url),
            (_, Place::First) => Some(base.clone()),
            _ => None,
        }
    }

    /// The page after this one: none at the end, an error if what names it is not understood.
    pub(super) fn after(
        &self,
        base: &Url,
        at: (&Place, &Url),
        answer: &Answer,
        page: &Value,
        records: usize,
    ) -> Result<Option<Place>, String> {
        let (place, url) = at;
        let next = match self {
            Next::Nothing => None,
            Next::Link => link(answer).map(|next| shortened(base, url, &next)).transpose()?,
            Next::Pointer(pointer) => match page.pointer(pointer) {
                None | Some(Value::Null) => None,
                Some(Value::String(next)) if next.is_empty() => None,
                Some(Value::String(next)) => Some(shortened(base, url, next)?),
                Some(_) => return Err(format!("{pointer} is not the URL of a page")),
            },
            Next::Cursor { pointer, .. } => match page.pointer(pointer) {
                None | Some(Value::Null) => None,
                Some(Value::String(token)) if token.is_empty() => None,
                Some(Value::String(token)) => Some(Place::Token(token.clone())),
                Some(Value::Number(token)) => Some(Place::Token(token.to_string())),
                Some(_) => return Err(format!("{pointer} is neither text nor a number")),
            },
            Next::Page { .. } if records == 0 => None,
            Next::Page { from, .. } => Some(Place::Number(match place {
                Place::Number(number) => number.saturating_add(1),
                _ => from.saturating_add(1),
            })),
        };
        if next.as_ref() == Some(place) {
            return Err("the next page is this page again".to_string());
        }
        Ok(next)
    }
}

impl Place {
    pub(super) fn to_value(&self) -> Value {
        match self {
            Place::First => json!("first"),
            Place::Url(url) => json!({"url": url}),
            Place::Token(token) => json!({"token": token}),
            Place::Number(number) => json!({"page": number}),
        }
    }

    pub(super) fn from_value(value: &Value) -> Option<Place> {
        if value == "first" {
            return Some(Place::First);
        }
        let text = |name: &str| value.get(name)?.as_str().map(str::to_string);
        let number = || value.get("page")?.as_u64();
        text("url").map(Place::Url).or_else(|| text("token").map(Place::Token)).or_else(|| number().map(Place::Number))
    }
}

fn with(base: &Url, name: &str, value: &str) -> Url {
    let mut url = base.clone();
    let kept: Vec<(String, String)> =
        base.query_pairs().filter(|(key, _)| key != name).map(|(key, value)| (key.into(), value.into())).collect();
    url.query_pairs_mut().clear().extend_pairs(kept).append_pair(name, value);
    url
}

/// The `rel="next"` of a `Link` header.
fn link(answer: &Answer) -> Option<String> {
    let values = answer.headers.get_all(header::LINK).iter().filter_map(|value| value.to_str().ok());
    values.flat_map(split_links).find_map(|(url, parameters)| {
        let next = parameters.split(';').any(|parameter| {
            let (name, value) = parameter.split_once('=').unwrap_or_default();
            let rels = value.trim().trim_matches('"');
            name.trim().eq_ignore_ascii_case("rel") && rels.split(' ').any(|rel| rel.eq_ignore_ascii_case("next"))
        });
        next.then(|| url.to_string())
    })
}

/// URLs may hold commas: a link begins with `<`, and its parameters go to the comma before the next `<`.
fn split_links(value: &str) -> impl Iterator<Item = (&str, &str)> {
    let links = value.split('<').skip(1).filter_map(|link| link.split_once('>'));
    links.map(|(url, parameters)| (url, parameters.trim_end().trim_end_matches(',')))
}

/// A URL as cursors hold it: what the target's own query says is left out, for it may be secret.
fn shortened(base: &Url, at: &Url, next: &str) -> Result<Place, String> {
    let Ok(mut url) = at.join(next) else { return Err("what names the next page is not a URL".to_string()) };
    if !super::SCHEMES.contains(&url.scheme()) || (at.scheme() == "https" && url.scheme() == "http") {
        return Err("the next page is not secured".to_string());
    }
    let _ = url.set_username("");
    let _ = url.set_password(None);
    url.set_fragment(None);
    if url.origin() == base.origin() && base.query().is_some() {
        let pairs: Vec<(String, String)> = url
            .query_pairs()
            .filter(|pair| !base.query_pairs().any(|own| own == *pair))
            .map(|(name, value)| (name.into(), value.into()))
            .collect();
        url.set_query(None);
        if !pairs.is_empty() {
            url.query_pairs_mut().extend_pairs(pairs);
        }
    }
    Ok(Place::Url(url.into()))
}

fn restored(base: &Url, url: &str) -> Option<Url> {
    let mut url = Url::parse(url).ok().filter(|url| super::SCHEMES.contains(&url.scheme()))?;
    if url.origin() == base.origin() {
        let names: Vec<String> = url.query_pairs().map(|(name, _)| name.into()).collect();
        let own: Vec<(String, String)> = base
            .query_pairs()
            .filter(|(name, _)| !names.iter().any(|known| known == name))
            .map(|(name, value)| (name.into(), value.into()))
            .collect();
        if !own.is_empty() {
            url.query_pairs_mut().extend_pairs(own);
        }
    }
    Some(url)
}

#[cfg(test)]
mod tests {
    use super::*;
    use hyper::header::HeaderMap;

    fn answer(link: &str) -> Answer {
        let mut headers = HeaderMap::new();
        headers.insert(header::LINK, link.parse().unwrap());
        Answer { status: hyper::StatusCode::OK, headers, body: bytes::Bytes::new() }
    }

    #[test]
    fn the_ways_to_the_next_page_are_read() {
        let parse = |value| Next::parse(Some(&value)).ok();
        assert_eq!(Next::parse(None), Ok(Next::Nothing));
        assert_eq!(parse(json!({"link": true})), Some(Next::Link));
        assert_eq!(parse(json!({"pointer": "/a/b"})), Some(Next::Pointer("/a/b".into())));
        assert_eq!(parse(json!({"page": "p"})), Some(Next::Page { parameter: "p".into(), from: 1 }));
        assert_eq!(parse(json!({"page": "p", "from": 0})), Some(Next::Page { parameter: "p".into(), from: 0 }));
        for wrong in [json!({}), json!(5), json!({"link": false}), json!({"pointer": "a"}), json!({"page": 1})] {
            assert_eq!(parse(wrong), None);
        }
        assert_eq!(parse(json!({"link": true, "page": "p"})), None);
    }

    #[test]
    fn a_secret_of_the_target_is_in_no_cursor_and_in_each_request() {
        let base = Url::parse("https://api.example/v1/items?key=hunter2&size=5").unwrap();
        let header = r#"<https://api.example/v1/items?key=hunter2&size=5&after=a,b>; rel="next", <x>; rel=last"#;
        let after = Next::Link.after(&base, (&Place::First, &base), &answer(header), &Value::Null, 1);
        let place = after.unwrap().unwrap();
        assert!(!place.to_value().to_string().contains("hunter2"), "{place:?}");
        assert_eq!(Place::from_value(&place.to_value()), Some(place.clone()));
        let url = Next::Link.url(&base, &place).unwrap();
        let pairs: Vec<_> = url.query_pairs().map(|(name, value)| format!("{name}={value}")).collect();
        assert_eq!(pairs, ["after=a,b", "key=hunter2", "size=5"]);
    }

    #[test]
    fn another_host_gets_nothing_of_the_targets_query() {
        let base = Url::parse("https://api.example/?key=hunter2").unwrap();
        let page = json!({"next": "https://other.example/?page=2"});
        let next = Next::Pointer("/next".into());
        let after = next.after(&base, (&Place::First, &base), &answer("<x>"), &page, 1).unwrap().unwrap();
        assert_eq!(next.url(&base, &after).unwrap().as_str(), "https://other.example/?page=2");
    }

    #[test]
    fn pages_that_lead_nowhere_are_refused() {
        let base = Url::parse("https://api.example/").unwrap();
        let next = Next::Pointer("/next".into());
        let after = |place: &Place, page: Value| next.after(&base, (place, &base), &answer("<x>"), &page, 1);
        assert_eq!(after(&Place::First, json!({"next": null})), Ok(None));
        assert!(after(&Place::First, json!({"next": 5})).is_err());
        assert!(after(&Place::First, json!({"next": "http://api.example/2"})).is_err());
        assert!(after(&Place::First, json!({"next": "file:///etc/passwd"})).is_err());
        let place = Place::Url("https://api.example/2".into());
        assert!(after(&place, json!({"next": "/2"})).is_err());
    }
}
