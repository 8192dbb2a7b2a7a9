//! What the engine answers when it cannot do what was asked.

use everbeat_model::Invalid;
use everbeat_store::Class;
use std::collections::BTreeSet;

/// Why the engine refuses or cannot do what was asked. A failure of user code is an outcome, never
/// one of these.
#[derive(Clone, Debug, thiserror::Error)]
pub enum Error {
    #[error("{0}")]
    Invalid(#[from] Invalid),
    #[error("task {task:?} is unknown")]
    UnknownTask {
        task: String,
        known: BTreeSet<String>,
        /// Pools of this server that have not said yet what they perform.
        unheard: Vec<String>,
    },
    #[error("{what} {id} does not exist")]
    NotFound { what: &'static str, id: String },
    #[error("{problem}")]
    Conflict { problem: String, hint: String },
    /// Somebody else has changed what was to be changed.
    #[error("{problem}")]
    Precondition { problem: String, hint: String },
    #[error(transparent)]
    Store(#[from] everbeat_store::Error),
    #[error("{0}")]
    Refused(String),
}

impl Error {
    pub fn class(&self) -> Class {
        match self {
            Error::Invalid(_)
            | Error::UnknownTask { .. }
            | Error::NotFound { .. }
            | Error::Conflict { .. }
            | Error::Precondition { .. }
            | Error::Refused(_) => Class::Rejected,
            Error::Store(error) => error.class(),
        }
    }

    /// What to do about the error.
    pub fn hint(&self) -> String {
        match self {
            Error::Invalid(invalid) => invalid.hint.clone(),
            Error::UnknownTask { known, unheard, .. } => {
                let known: Vec<&str> = known.iter().map(String::as_str).collect();
                format!(
                    "{}known tasks are {}; say \"accept_unknown\": true (--accept-unknown) if a worker will offer it later",
                    unheard_hint(unheard),
                    if known.is_empty() { "none yet".to_string() } else { known.join(", ") }
                )
            }
            Error::NotFound { what: "node", .. } => "look at the nodes of the execution's graph".to_string(),
            Error::NotFound { what: "session", .. } => {
                "check the key; `everbeat pool sessions NAME` lists those of a pool".to_string()
            }
            Error::NotFound { what, .. } => format!("check the id; `everbeat ls {what}s` lists what there is"),
            Error::Conflict { hint, .. } | Error::Precondition { hint, .. } => hint.clone(),
            Error::Store(everbeat_store::Error::Unavailable { cause, .. }) => {
                format!("{}; nothing is lost, try again with the same Idempotency-Key", cause.remedy())
            }
            Error::Store(everbeat_store::Error::KeyReused { .. }) => {
                "use a new Idempotency-Key for a different request".to_string()
            }
            Error::Store(error @ everbeat_store::Error::Refused(..)) => {
                let remedy = error.remedy().unwrap_or("look at the server's log for the cause");
                format!("{remedy}; whoever runs the server has to do it")
            }
            Error::Store(_) => "look at the server's log for the cause".to_string(),
            Error::Refused(_) => "correct the configuration and start again".to_string(),
        }
    }
}

/// What to look at if the task may be one of a pool that has no worker yet.
pub(crate) fn unheard_hint(unheard: &[String]) -> String {
    let [first, others @ ..] = unheard else { return String::new() };
    let named: Vec<String> = unheard.iter().map(|name| format!("{name:?}")).collect();
    let (noun, verb) = if others.is_empty() { ("pool", "has") } else { ("pools", "have") };
    format!(
        "the {noun} {} {verb} no worker yet that says what it performs: see `everbeat show {first}`, or try again in a \
         moment; ",
        named.join(", ")
    )
}
