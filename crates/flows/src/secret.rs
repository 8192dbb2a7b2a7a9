use crate::Trouble;
use crate::settings::hidden;
use everbeat_model::Invalid;
use serde_json::Value;
use std::fmt;
use std::io::Read;
use std::path::{Path, PathBuf};

/// A text that is never shown. It is read when it is needed, so that it may change.
#[derive(Clone)]
pub enum Secret {
    Given(String),
    Environment(String),
    File(PathBuf),
}

/// A file with a secret is small; a larger one was named by mistake.
const MOST_BYTES: u64 = 64 << 10;

impl Secret {
    /// Reads `"text"`, `{"env": "NAME"}` or `{"file": "/path"}`. No message shows the value.
    pub fn parse(field: &str, value: &Value) -> Result<Secret, Invalid> {
        const HINT: &str = r#"write it as text, {"env": "NAME"} or {"file": "/path"}"#;
        let inner = |key: &str| if field.is_empty() { key.to_string() } else { format!("{field}.{key}") };
        let text = |key: &str, value: &Value| match value.as_str() {
            Some(text) if !text.is_empty() && !text.contains('\0') => Ok(text.to_string()),
            _ => Err(hidden(&inner(key), "is not text", "write it as text in quotes")),
        };
        match value {
            Value::String(text) if !text.is_empty() => Ok(Secret::Given(text.clone())),
            Value::Object(fields) if fields.len() == 1 => match fields.iter().next() {
                Some((key, value)) if key == "env" => match text(key, value)? {
                    name if name.contains('=') => {
                        Err(hidden(&inner(key), "is no name of a variable", "leave out the ="))
                    }
                    name => Ok(Secret::Environment(name)),
                },
                Some((key, value)) if key == "file" => Ok(Secret::File(PathBuf::from(text(key, value)?))),
                _ => Err(hidden(field, "is not text, env or file", HINT)),
            },
            _ => Err(hidden(field, "is not text, env or file", HINT)),
        }
    }

    /// The text, without line ends after it.
    pub fn read(&self) -> Result<String, Trouble> {
        let text = match self {
            Secret::Given(text) => return Ok(text.clone()),
            Secret::Environment(name) => match std::env::var(name) {
                Ok(text) => text,
                Err(std::env::VarError::NotPresent) => {
                    return Err(Trouble::permanent(format!(
                        "the environment variable {name} is not set: set it where the server runs"
                    )));
                }
                Err(std::env::VarError::NotUnicode(_)) => {
                    return Err(Trouble::permanent(format!("the environment variable {name} is not UTF-8 text")));
                }
            },
            Secret::File(path) => read_file(path)?,
        };
        match text.trim_end_matches(['\r', '\n']) {
            "" => Err(Trouble::permanent(format!("{self} is empty: write the value there"))),
            text => Ok(text.to_string()),
        }
    }
}

fn read_file(path: &Path) -> Result<String, Trouble> {
    let shown = path.display();
    let refuse =
        |error: std::io::Error| Trouble::permanent(format!("cannot read the file {shown} with a secret: {error}"));
    // A pipe would block whoever opens it.
    if !std::fs::metadata(path).map_err(refuse)?.is_file() {
        return Err(Trouble::permanent(format!("{shown} is not a file: a secret is read from a regular file only")));
    }
    let mut bytes = Vec::new();
    let file = std::fs::File::open(path).map_err(refuse)?;
    file.take(MOST_BYTES + 1).read_to_end(&mut bytes).map_err(refuse)?;
    if bytes.len() as u64 > MOST_BYTES {
        return Err(Trouble::permanent(format!(
            "the file {shown} is larger than {MOST_BYTES} bytes: name another one"
        )));
    }
    String::from_utf8(bytes).map_err(|_| Trouble::permanent(format!("the file {shown} is not UTF-8 text")))
}

/// Where the secret is, not what it is.
impl fmt::Display for Secret {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Secret::Given(_) => f.write_str("a secret"),
            Secret::Environment(name) => write!(f, "the environment variable {name}"),
            Secret::File(path) => write!(f, "the file {}", path.display()),
        }
    }
}

impl fmt::Debug for Secret {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Secret::Given(_) => f.write_str("Given(…)"),
            Secret::Environment(name) => write!(f, "Environment({name:?})"),
            Secret::File(path) => write!(f, "File({path:?})"),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::Class;

    #[test]
    fn a_secret_is_read_anew_from_its_file_each_time() {
        let folder = tempfile::tempdir().unwrap();
        let secret = Secret::File(folder.path().join("password"));
        std::fs::write(folder.path().join("password"), "one\r\n").unwrap();
        assert_eq!(secret.read().unwrap(), "one");
        std::fs::write(folder.path().join("password"), "two").unwrap();
        assert_eq!(secret.read().unwrap(), "two");
    }

    #[test]
    fn what_is_missing_or_unfit_is_named_for_good() {
        let folder = tempfile::tempdir().unwrap();
        let file = |name: &str, content: &[u8]| {
            std::fs::write(folder.path().join(name), content).unwrap();
            Secret::File(folder.path().join(name))
        };
        for (secret, named) in [
            (Secret::Environment("EVERBEAT_NO_SUCH_VARIABLE".into()), "EVERBEAT_NO_SUCH_VARIABLE"),
            (Secret::File(folder.path().join("absent")), "absent"),
            (Secret::File(folder.path().into()), "not a file"),
            (file("empty", b"\n"), "empty"),
            (file("large", &vec![b'x'; MOST_BYTES as usize + 1]), "large"),
            (file("binary", &[0xff]), "binary"),
        ] {
            let trouble = secret.read().unwrap_err();
            assert_eq!(trouble.class, Class::Permanent);
            assert!(trouble.message.contains(named), "{trouble}");
        }
    }

    #[test]
    fn no_way_to_print_a_secret_shows_it() {
        let secret = Secret::Given("hunter2".into());
        assert!(!format!("{secret} {secret:?} {secret:#?}").contains("hunter2"));
    }
}
