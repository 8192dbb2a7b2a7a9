//! What attempts stream while they go on.

use crate::spelled::spelled;
use std::sync::Arc;

spelled! {
    /// What an attempt streams while it goes on.
    pub enum OutputKind {
        /// A piece of its result: JSON text.
        Output = "output",
        /// A line of its log.
        Log = "log",
    }
}

/// One thing that an attempt streamed. Copies share the text.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Item {
    pub kind: OutputKind,
    pub text: Arc<str>,
}
