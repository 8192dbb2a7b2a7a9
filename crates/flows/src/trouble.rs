/// Whether trying again may help.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Class {
    /// The other side is away, busy or slow.
    Transient,
    /// It will fail the same way again: no such table, wrong password, refused target.
    Permanent,
    /// Another attempt of the same run has taken over: this one must stop.
    Fenced,
}

/// Why a source or a sink cannot go on. The message names the system, the thing and the remedy, and never a secret.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("{message}")]
pub struct Trouble {
    pub class: Class,
    pub message: String,
}

impl Trouble {
    pub fn transient(message: impl Into<String>) -> Trouble {
        Trouble { class: Class::Transient, message: message.into() }
    }

    pub fn permanent(message: impl Into<String>) -> Trouble {
        Trouble { class: Class::Permanent, message: message.into() }
    }

    pub fn fenced(message: impl Into<String>) -> Trouble {
        Trouble { class: Class::Fenced, message: message.into() }
    }
}
