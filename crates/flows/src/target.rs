use crate::guard::REMEDY;
use crate::settings::hidden;
use crate::{Fields, Guard, Secret, Settings, Trouble};
use everbeat_model::Invalid;
use everbeat_model::error::nearest;
use std::path::{Path, PathBuf};
use url::Url;

/// What a connector connects to: an address with its secrets, and where it may lead. Secrets are read at each use.
#[derive(Clone, Debug)]
pub struct Target {
    url: Secret,
    password: Option<Secret>,
    ca: Option<PathBuf>,
    guard: Guard,
    elsewhere: Guard,
}

/// Reads where a connector connects to: the flow's own `url`, the connection that the flow names, or else the connection
/// of the first of these names that the server's configuration has.
pub fn target(fields: &mut Fields<'_>, settings: &Settings, default_names: &[&str]) -> Result<Target, Invalid> {
    let elsewhere = if settings.allow_private_targets { Guard::Any } else { Guard::Public };
    let url = fields.get("url");
    let password = fields.get("password");
    let named = fields.text("connection")?;
    let (name, connection) = match (url, named) {
        (Some(_), Some(name)) => {
            return Err(Invalid::new("connection", name, "stands beside a url", "give one of them"));
        }
        (Some(url), None) => {
            let url = Secret::parse("url", url)?;
            let password = password.map(|value| Secret::parse("password", value)).transpose()?;
            refuse_plain_passwords(&url, password.as_ref())?;
            return Ok(Target { url, password, ca: None, guard: elsewhere, elsewhere });
        }
        (None, Some(name)) => (name, settings.connections.get(name)),
        (None, None) => {
            let found = default_names.iter().find_map(|name| Some((*name, settings.connections.get(*name)?)));
            let Some((name, connection)) = found else { return Err(missing(default_names)) };
            (name, Some(connection))
        }
    };
    if password.is_some() {
        return Err(hidden("password", "stands beside a connection", "a connection brings its own password"));
    }
    let Some(connection) = connection else {
        let known = || settings.connections.keys().map(String::as_str);
        let hint = match nearest(name, known()) {
            Some(near) => format!("did you mean {near:?}?"),
            None => format!("the operator adds it to [flows.connections] as {name} = \"…\""),
        };
        return Err(Invalid::new("connection", name, "is not a connection of this server", hint));
    };
    let (url, password, ca) = (connection.url.clone(), connection.password.clone(), connection.ca.clone());
    Ok(Target { url, password, ca, guard: Guard::Operator, elsewhere })
}

fn missing(default_names: &[&str]) -> Invalid {
    let names = default_names.join(" or ");
    let hint = format!("write a url, name a connection, or let the operator add {names} to [flows.connections]");
    Invalid::new("url", "nothing", "is missing", hint)
}

/// What a flow says of itself is shown to everybody who may read flows.
fn refuse_plain_passwords(url: &Secret, password: Option<&Secret>) -> Result<(), Invalid> {
    const REMEDY: &str =
        r#"name a connection of the server, or write {"env": "NAME"} or {"file": "/path"} in place of the text"#;
    if let Some(Secret::Given(_)) = password {
        return Err(hidden("password", "is written in the flow", REMEDY));
    }
    let Secret::Given(text) = url else { return Ok(()) };
    let Ok(url) = Url::parse(text) else { return Ok(()) };
    if url.password().is_some() || url.query_pairs().any(|(name, _)| name.eq_ignore_ascii_case("password")) {
        return Err(Invalid::new("url", shown(text), "holds a password", REMEDY));
    }
    Ok(())
}

impl Target {
    /// Refuses what will never work, where the URL is known already: its form, its scheme, a private address.
    pub fn check(&self, schemes: &[&str]) -> Result<(), Invalid> {
        let Secret::Given(text) = &self.url else { return Ok(()) };
        let refuse = |problem: String, hint: String| Err(Invalid::new("url", shown(text), problem, hint));
        let hint = || format!("write it like {}://host", schemes[0]);
        let Ok(url) = Url::parse(text) else { return refuse("is not a URL".into(), hint()) };
        if !schemes.contains(&url.scheme()) {
            return refuse(format!("has the scheme {:?}", url.scheme()), format!("use {}", schemes.join(", ")));
        }
        if url.scheme() == "unix" && !self.guard.allows_unix_sockets() {
            return refuse("is a Unix socket, which only connections of the operator may name".into(), REMEDY.into());
        }
        let address = url.host_str().and_then(|host| host.trim_matches(['[', ']']).parse().ok());
        match address.map(|address| self.guard.check(address)) {
            Some(Err(kind)) => refuse(format!("is {kind}, which flows may not connect to"), REMEDY.into()),
            _ => Ok(()),
        }
    }

    /// The URL as text, with its password.
    pub fn text(&self) -> Result<String, Trouble> {
        match &self.password {
            None => self.url.read(),
            Some(_) => Ok(self.parse()?.to_string()),
        }
    }

    /// The URL, with its password.
    pub fn url(&self, schemes: &[&str]) -> Result<Url, Trouble> {
        let url = self.parse()?;
        if !schemes.contains(&url.scheme()) {
            let (shown, scheme) = (shown(url.as_str()), url.scheme());
            let known = schemes.join(", ");
            return Err(Trouble::permanent(format!("{shown} has the scheme {scheme:?}: use one of {known}")));
        }
        if url.scheme() == "unix" && !self.guard.allows_unix_sockets() {
            return Err(Trouble::permanent(format!("a flow may not name a Unix socket: {REMEDY}")));
        }
        Ok(url)
    }

    fn parse(&self) -> Result<Url, Trouble> {
        let text = self.url.read()?;
        let Ok(mut url) = Url::parse(&text) else {
            return Err(Trouble::permanent(format!("{} is not a URL: write it like scheme://host/path", self.url)));
        };
        if let Some(password) = &self.password {
            let password = password.read()?;
            if url.set_password(Some(&password)).is_err() {
                let shown = shown(&text);
                return Err(Trouble::permanent(format!("{shown} cannot hold a password: leave out the password")));
            }
        }
        Ok(url)
    }

    /// Where a connection to the host of the URL may lead.
    pub fn guard(&self) -> Guard {
        self.guard
    }

    /// Where a connection to another host may lead, which that of the URL names.
    pub fn elsewhere(&self) -> Guard {
        self.elsewhere
    }

    /// Certificates of authorities that are trusted beside the public ones.
    pub fn ca(&self) -> Option<&Path> {
        self.ca.as_deref()
    }
}

/// A URL for people: without user, password, query and fragment, which may be secret.
pub fn shown(url: &str) -> String {
    let Ok(mut url) = Url::parse(url) else { return "an address that is not a URL".to_string() };
    url.set_query(None);
    url.set_fragment(None);
    // Both fail for URLs that have no host, and so no user either.
    let _ = url.set_username("");
    let _ = url.set_password(None);
    if url.cannot_be_a_base() { format!("{}:…", url.scheme()) } else { url.to_string() }
}

/// Text of a URL's part, without its percent signs.
pub(crate) fn decoded(part: &str) -> String {
    percent_encoding::percent_decode_str(part).decode_utf8_lossy().into_owned()
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::{Class, Connection};
    use serde_json::{Value, json};

    fn read(value: &Value, settings: &Settings) -> Result<Target, Invalid> {
        let mut fields = Fields::of(value, "").unwrap();
        let target = target(&mut fields, settings, &["Rafka", "redis"])?;
        fields.done("a source")?;
        target.check(&["redis", "rediss", "unix"])?;
        Ok(target)
    }

    fn operator() -> Settings {
        let url = |text: &str| Connection::new(Secret::Given(text.to_string()));
        let connections = [("redis", url("redis://10.0.0.1")), ("other", url("redis://:hunter2@10.0.0.2?x=hunter2"))];
        let connections = connections.into_iter().map(|(name, one)| (name.to_string(), one)).collect();
        Settings { connections, allow_private_targets: false }
    }

    #[test]
    fn a_target_is_a_url_a_named_connection_or_the_one_of_its_type() {
        let text = |value: Value| read(&value, &operator()).unwrap().text().unwrap();
        assert_eq!(text(json!({"url": "redis://cache.example"})), "redis://cache.example");
        assert_eq!(text(json!({"connection": "other"})), "redis://:hunter2@10.0.0.2?x=hunter2");
        assert_eq!(text(json!({})), "redis://10.0.0.1");
        assert_eq!(read(&json!({}), &operator()).unwrap().guard(), Guard::Operator);
        assert_eq!(read(&json!({"url": "redis://a.example"}), &operator()).unwrap().guard(), Guard::Public);
    }

    #[test]
    fn a_target_that_cannot_work_is_refused_with_the_remedy_and_without_secrets() {
        for (value, field, said) in [
            (json!({"url": "redis://u:hunter2@h.example"}), "url", "connection of the server"),
            (json!({"url": "redis://h.example?password=hunter2"}), "url", "connection of the server"),
            (json!({"url": "redis://u@h.example", "password": "hunter2"}), "password", "{\"env\""),
            (json!({"url": "redis://h.example", "connection": "redis"}), "connection", "one of them"),
            (json!({"connection": "rediss"}), "connection", "\"redis\""),
            (json!({"connection": "nothing-like-it"}), "connection", "[flows.connections]"),
            (json!({"connection": "other", "password": {"env": "X"}}), "password", "its own"),
            (json!({"url": "http://h.example"}), "url", "redis, rediss"),
            (json!({"url": "hunter2"}), "url", "redis://host"),
            (json!({"url": "redis://127.0.0.1"}), "url", "allow_private_targets"),
            (json!({"url": "redis://[::ffff:10.0.0.1]:1"}), "url", "allow_private_targets"),
            (json!({"url": "unix:///run/redis.sock"}), "url", "[flows.connections]"),
            (json!({"url": 5}), "url", "{\"env\""),
        ] {
            let invalid = read(&value, &operator()).map(|_| ()).unwrap_err();
            let message = format!("{invalid} {}", invalid.hint);
            assert_eq!(invalid.field, field, "{message}");
            assert!(message.contains(said), "{message}");
            assert!(!message.contains("hunter2"), "{message}");
        }
        let invalid = read(&json!({}), &Settings::default()).map(|_| ()).unwrap_err();
        assert!(invalid.hint.contains("Rafka or redis"), "{}", invalid.hint);
    }

    #[test]
    fn secrets_are_read_at_use_and_a_missing_one_is_named() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("password");
        let value = json!({"url": "redis://u@h.example/2", "password": {"file": path}});
        let target = read(&value, &Settings::default()).unwrap();
        let trouble = target.text().unwrap_err();
        assert_eq!(trouble.class, Class::Permanent);
        assert!(trouble.message.contains("password"), "{trouble}");
        std::fs::write(&path, "hun:ter/2\n").unwrap();
        let url = target.url(&["redis"]).unwrap();
        assert_eq!(decoded(url.password().unwrap()), "hun:ter/2");
        assert!(!format!("{target:?}").contains("hun:ter"));
    }

    #[test]
    fn a_url_for_people_holds_no_secret() {
        for url in [
            "redis://u:hunter2@h.example:1/2?a=hunter2#hunter2",
            "https://hunter2@h.example/?hunter2",
            "mailto:hunter2",
            "hunter2",
            "unix:///run/redis.sock?pass=hunter2",
        ] {
            assert!(!shown(url).contains("hunter2"), "{}", shown(url));
        }
        assert_eq!(shown("redis://u:p@h.example:1/2?a=b"), "redis://h.example:1/2");
    }
}
