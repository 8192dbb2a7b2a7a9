//! How the process ends. These codes are a contract with scripts.

use std::fmt;

pub(crate) const DONE: u8 = 0;
/// The work failed, or a check found something.
pub(crate) const FAILED: u8 = 1;
pub(crate) const USAGE: u8 = 2;
/// The server, the API or the way to it.
pub(crate) const SERVER: u8 = 3;
/// The work failed, and its last attempt was lost.
pub(crate) const LOST: u8 = 4;
pub(crate) const CANCELLED: u8 = 5;
pub(crate) const TIMED_OUT: u8 = 124;
/// Of `everbeat run`, whose other codes are its command's: an error of Everbeat's own.
pub(crate) const OWN: u8 = 125;
/// Whoever read our output has closed it: as if SIGPIPE had ended us.
pub(crate) const UNREAD: u8 = 128 + 13;

/// Why a command could not do what it was asked: what happened, and what to do about it.
#[derive(Debug)]
pub(crate) struct Failure {
    pub(crate) code: u8,
    message: String,
    hint: Option<String>,
}

impl Failure {
    pub(crate) fn new(code: u8, message: impl Into<String>, hint: impl Into<String>) -> Failure {
        Failure { code, message: message.into(), hint: Some(hint.into()).filter(|hint| !hint.is_empty()) }
    }

    pub(crate) fn server(message: impl Into<String>, hint: impl Into<String>) -> Failure {
        Failure::new(SERVER, message, hint)
    }

    /// Tells the log, for whoever reads nothing else.
    pub(crate) fn log(&self) {
        match &self.hint {
            Some(hint) => tracing::error!(hint, "{}", self.message),
            None => tracing::error!("{}", self.message),
        }
    }

    /// The same, with another exit code.
    pub(crate) fn with_code(self, code: u8) -> Failure {
        Failure { code, ..self }
    }

    pub(crate) fn usage(invalid: &everbeat_model::Invalid) -> Failure {
        Failure::new(USAGE, invalid.to_string(), invalid.hint.clone())
    }
}

impl From<crate::config::Refused> for Failure {
    fn from(refused: crate::config::Refused) -> Failure {
        Failure::new(USAGE, format!("the configuration cannot be used\n{refused}"), "")
    }
}

impl fmt::Display for Failure {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "error: {}", self.message)?;
        match &self.hint {
            Some(hint) => write!(f, "\n  hint: {hint}"),
            None => Ok(()),
        }
    }
}
