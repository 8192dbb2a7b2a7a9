//! A password that the URL does not give: from `PGPASSWORD`, or from a file of libpq's form.

use super::address::Variable;
use std::fs;
use std::io::Read;
use std::os::unix::ffi::OsStrExt;
use std::os::unix::fs::MetadataExt;
use std::path::{Path, PathBuf};
use tokio_postgres::Config;
use tokio_postgres::config::Host;

/// More than any file of passwords has.
const MOST_BYTES: u64 = 1 << 20;

pub(super) fn find(config: &Config, file: Option<PathBuf>, variable: Variable<'_>) -> Option<Vec<u8>> {
    if let Some(password) = variable("PGPASSWORD").filter(|password| !password.is_empty()) {
        return Some(password.as_bytes().to_vec());
    }
    let named = file.or_else(|| variable("PGPASSFILE").filter(|path| !path.is_empty()).map(PathBuf::from));
    let asked_for = named.is_some();
    let path = named.or_else(|| Some(Path::new(&variable("HOME")?).join(".pgpass")))?;
    match read(&path) {
        Ok(text) => lookup(&text, &key(config, variable)),
        Err(problem) if asked_for || path.exists() => {
            tracing::warn!(file = %path.display(), "{problem}; it is not used");
            None
        }
        Err(_) => None,
    }
}

/// A file that others can read keeps no secret; libpq does not use it either.
fn read(path: &Path) -> Result<String, String> {
    let unreadable = |error: std::io::Error| format!("the file of passwords cannot be read: {error}");
    let file = fs::metadata(path).map_err(unreadable)?;
    if !file.is_file() {
        return Err("the file of passwords is no regular file".to_string());
    }
    if file.mode() & 0o077 != 0 {
        let mode = file.mode() & 0o777;
        return Err(format!(
            "the file of passwords is open to other users (mode {mode:04o}): chmod 600 {}",
            path.display()
        ));
    }
    let mut text = String::new();
    fs::File::open(path).and_then(|file| file.take(MOST_BYTES).read_to_string(&mut text)).map_err(unreadable)?;
    Ok(text)
}

/// Host, port, database and user, as a line of the file begins with them.
fn key(config: &Config, variable: Variable<'_>) -> [String; 4] {
    let host = match config.get_hosts().first() {
        Some(Host::Tcp(name)) => name.clone(),
        Some(Host::Unix(path)) if *path != *Path::new("/tmp") && *path != *Path::new("/var/run/postgresql") => {
            path.display().to_string()
        }
        Some(Host::Unix(_)) => "localhost".to_string(),
        None => config.get_hostaddrs().first().map_or("localhost".to_string(), ToString::to_string),
    };
    let port = config.get_ports().first().copied().unwrap_or(5432).to_string();
    let own = || variable("USER").and_then(|user| user.into_string().ok()).unwrap_or_default();
    let user = config.get_user().map_or_else(own, ToString::to_string);
    let database = config.get_dbname().unwrap_or(&user).to_string();
    [host, port, database, user]
}

/// The first line that fits.
fn lookup(text: &str, key: &[String; 4]) -> Option<Vec<u8>> {
    text.lines().filter(|line| !line.starts_with('#')).find_map(|line| {
        let mut fields = fields(line);
        let password = fields.pop()?;
        let fits = |(field, wanted): (&String, &String)| field == "*" || field == wanted;
        (fields.len() == 4 && fields.iter().zip(key).all(fits)).then(|| password.into_bytes())
    })
}

/// The five fields of a line, with colons between them; `\:` and `\\` stand for the signs themselves.
fn fields(line: &str) -> Vec<String> {
    let mut fields = vec![String::new()];
    let mut signs = line.chars();
    while let Some(sign) = signs.next() {
        let last = fields.len() - 1;
        match sign {
            ':' if last < 4 => fields.push(String::new()),
            '\\' => fields[last].extend(signs.next()),
            sign => fields[last].push(sign),
        }
    }
    fields
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::os::unix::fs::PermissionsExt;

    fn config(url: &str) -> Config {
        url.parse().unwrap()
    }

    #[test]
    fn the_first_line_that_fits_gives_the_password() {
        let text = "# hosts\nother:*:*:*:no\ndb:5433:*:*:no\ndb:*:app:*:se\\:c\\\\ret:x\n*:*:*:*:last\n";
        let of = |url: &str| lookup(text, &key(&config(url), &|_| None)).unwrap();
        assert_eq!(of("postgres://u@db/app"), b"se:c\\ret:x");
        assert_eq!(of("postgres://u@db:5433/app"), b"no");
        assert_eq!(of("postgres://u@db/else"), b"last");
        assert_eq!(lookup("db:*:*:u\n", &key(&config("postgres://u@db/app"), &|_| None)), None);
    }

    #[test]
    fn a_file_that_others_can_read_is_not_used() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("pass");
        fs::write(&path, "*:*:*:*:word\n").unwrap();
        let variable = |name: &str| (name == "PGPASSFILE").then(|| path.clone().into_os_string());
        for (mode, found) in [(0o644, None), (0o640, None), (0o600, Some(b"word".to_vec()))] {
            fs::set_permissions(&path, fs::Permissions::from_mode(mode)).unwrap();
            assert_eq!(find(&config("postgres://u@db/app"), None, &variable), found, "{mode:o}");
        }
    }
}
