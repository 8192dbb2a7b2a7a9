use super::fault::explain;
use crate::Trouble;
use std::path::PathBuf;
use tokio_postgres::Config;

/// A URL, read.
pub(super) struct Address {
    pub(super) config: Config,
    /// Certificates to trust beside the public ones (`sslrootcert`).
    pub(super) root_certificates: Option<PathBuf>,
}

impl Address {
    /// No message repeats a part of the URL: it may be a piece of a password.
    pub(super) fn read(url: &str) -> Result<Address, Trouble> {
        let refused = |said: &str| Trouble::permanent(format!("the URL of the PostgreSQL database {said}"));
        let (head, query) = url.split_once('?').unwrap_or((url, ""));
        if query.contains('@') {
            return Err(refused("has a ? before an @; in a password write %3F and %40 for them"));
        }
        let (mut passed, mut root_certificates) = (Vec::new(), None);
        for option in query.split('&').filter(|option| !option.is_empty()) {
            match option.split_once('=') {
                // Both check the server's certificate here, as libpq's verify-full does.
                Some(("sslmode", "verify-full")) => passed.push("sslmode=require"),
                Some(("sslrootcert", path)) if !path.contains('%') => root_certificates = Some(PathBuf::from(path)),
                Some(_) => passed.push(option),
                None => return Err(refused("has an option without a value; write NAME=VALUE&NAME=VALUE")),
            }
        }
        let config: Config = format!("{head}?{}", passed.join("&"))
            .parse()
            .map_err(|error: tokio_postgres::Error| refused(&format!("cannot be read: {}", explain(&error))))?;
        Ok(Address { config, root_certificates })
    }
}
