//! Where to connect: the URL, with a password from where libpq would take it.

use super::fault::explain;
use super::password;
use everbeat_model::error::nearest;
use everbeat_store::{Cause, Error, Result};
use std::ffi::OsString;
use std::path::PathBuf;
use tokio_postgres::Config;

/// A URL, read.
pub(super) struct Address {
    pub(super) config: Config,
    /// Certificates to trust beside the public ones (`sslrootcert`).
    pub(super) root_certificates: Option<PathBuf>,
}

/// Looks a variable of the environment up.
pub(super) type Variable<'a> = &'a dyn Fn(&str) -> Option<OsString>;

/// The options that the driver knows, and those that are read here.
const OPTIONS: [&str; 21] = [
    "user",
    "password",
    "passfile",
    "dbname",
    "options",
    "application_name",
    "sslmode",
    "sslrootcert",
    "sslnegotiation",
    "host",
    "hostaddr",
    "port",
    "connect_timeout",
    "tcp_user_timeout",
    "keepalives",
    "keepalives_idle",
    "keepalives_interval",
    "keepalives_retries",
    "target_session_attrs",
    "channel_binding",
    "load_balance_hosts",
];

impl Address {
    pub(super) fn read(url: &str, variable: Variable<'_>) -> Result<Address> {
        let (head, query) = parts(url)?;
        let mut passed = Vec::new();
        let (mut root_certificates, mut passfile) = (None, None);
        for option in query.split('&').filter(|option| !option.is_empty()) {
            let Some((name, value)) = option.split_once('=') else {
                return refused("an option of the store's URL has no value; write NAME=VALUE&NAME=VALUE");
            };
            match name {
                "sslmode" => passed.push(format!("sslmode={}", ssl_mode(value)?)),
                "sslrootcert" => root_certificates = Some(file(value)?),
                "passfile" => passfile = Some(file(value)?),
                name if OPTIONS.contains(&name) => passed.push(option.to_string()),
                name => return refused(&unknown(name)),
            }
        }
        let url = format!("{head}?{}", passed.join("&"));
        // The driver names the option that is wrong, and never its value.
        let mut config: Config =
            url.parse().or_else(|error| refused(&format!("the store's URL cannot be read: {}", explain(&error))))?;
        if config.get_password().is_none()
            && let Some(password) = password::find(&config, passfile, variable)
        {
            config.password(password);
        }
        Ok(Address { config, root_certificates })
    }
}

fn refused<T>(said: &str) -> Result<T> {
    Err(Error::Refused(Cause::Url, said.to_string()))
}

/// What stands before the options, and the options.
fn parts(url: &str) -> Result<(&str, &str)> {
    let Some((head, query)) = url.split_once('?') else { return Ok((url, "")) };
    // The driver would take all that stands before an @ for a name and a password.
    if query.contains('@') {
        return refused("the store's URL has a ? before an @; in a password or an option write %3F and %40 for them");
    }
    Ok((head, query))
}

/// What the driver calls an `sslmode`. The driver's `require` checks the certificate here, which libpq calls
/// `verify-full`.
fn ssl_mode(value: &str) -> Result<&str> {
    match value {
        "disable" | "prefer" | "require" => Ok(value),
        "verify-full" => Ok("require"),
        _ => {
            let known = "disable, prefer, require or verify-full (both check the server's certificate)";
            let said = format!("the store's URL asks for sslmode={value:?}, which is not offered; use {known}");
            Err(Error::Refused(Cause::Tls, said))
        }
    }
}

/// A piece of a password may stand where an option is expected: it is not repeated.
fn unknown(name: &str) -> String {
    match nearest(name, OPTIONS) {
        Some(near) => format!("the store's URL has an option that is not known; did you mean {near}?"),
        None => {
            let known = OPTIONS.join(", ");
            format!("the store's URL has an option that is not known; in a value write %26 for &; known are {known}")
        }
    }
}

fn file(value: &str) -> Result<PathBuf> {
    match value.contains('%') {
        true => refused("a path in an option of the store's URL has a %; give a plain path"),
        false => Ok(PathBuf::from(value)),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use tokio_postgres::config::SslMode;

    fn refusal(url: &str) -> (Cause, String) {
        match Address::read(url, &|_| None) {
            Err(Error::Refused(cause, said)) => (cause, said),
            _ => panic!("{url} was read"),
        }
    }

    #[test]
    fn what_is_wrong_is_named_and_no_secret_is_repeated() {
        for url in [
            "postgres://u:hush@h/d?sslmod=require",
            "postgres://u@h/d?password=hu&hush=x",
            "postgres://u@h/d?password=hu&hush",
            "postgres://u@h/d?password=hu@sh",
            "postgres://u:hu?sh@h/d",
            "postgres://u:hush@h:port/d",
            "postgres://u:hush@h/d?connect_timeout=hush",
            "postgres://u:hush@h/d%ff",
        ] {
            let (cause, said) = refusal(url);
            assert_eq!(cause, Cause::Url, "{said}");
            assert!(!said.contains("hu&") && !said.contains("hush") && !said.contains("hu@"), "{said}");
        }
        assert!(refusal("postgres://h/d?sslmod=require").1.contains("did you mean sslmode?"));
        let (cause, said) = refusal("postgres://h/d?sslmode=verify-ca");
        assert!(cause == Cause::Tls && said.contains("verify-ca") && said.contains("verify-full"), "{said}");
    }

    #[test]
    fn options_of_our_own_are_not_passed_on() {
        let read = Address::read("postgres://u@h/d?sslmode=verify-full&sslrootcert=/ca.pem", &|_| None).unwrap();
        assert_eq!(read.config.get_ssl_mode(), SslMode::Require);
        assert_eq!(read.root_certificates, Some(PathBuf::from("/ca.pem")));
        assert_eq!(read.config.get_password(), None);
        let given = Address::read("postgres://u@h/d?password=own", &|_| Some("other".into())).unwrap();
        assert_eq!(given.config.get_password(), Some(&b"own"[..]));
        let found = Address::read("postgres://u@h/d", &|name| (name == "PGPASSWORD").then(|| "other".into())).unwrap();
        assert_eq!(found.config.get_password(), Some(&b"other"[..]));
    }
}
