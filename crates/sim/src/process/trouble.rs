//! What goes wrong with a process, and why it ends.

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Death {
    pub(crate) at: u64,
    pub(crate) cause: Cause,
}

/// Why a process ended.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Cause {
    /// Somebody killed it.
    Killed,
    OutOfMemory,
    /// Its work took it along.
    Panicked,
    /// It was not pinged for its time to live.
    NoPing,
    /// Nobody vouched for its work any more.
    Isolated,
    ServerGone,
    /// It was not let in.
    Refused,
    GuardianGone,
    /// Its guardian ended it, after its server's death or on request.
    Guardian,
    /// Its server signalled it.
    Signalled,
    /// It had nothing left to do.
    Drained,
    Swept,
    Reboot,
}

/// What a process does.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Condition {
    Well,
    /// As by SIGSTOP.
    Stopped,
    /// It sleeps, and nothing in it goes on.
    Hung,
    /// It computes, and nothing else in it gets a turn.
    Busy,
    /// It wants a processor, and gets none.
    Starved,
}

/// Trouble of its own, or of its link.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Kind {
    Did(Condition),
    Cut,
}

#[derive(Clone, Copy, Debug)]
pub(crate) struct Trouble {
    pub(crate) kind: Kind,
    pub(crate) from: u64,
    /// When it was over.
    pub(crate) to: u64,
}

impl Cause {
    pub(super) fn word(self) -> &'static str {
        match self {
            Cause::Killed | Cause::Reboot => "killed",
            Cause::OutOfMemory => "out of memory",
            Cause::Panicked => "taken along by its work",
            Cause::NoPing => "not pinged",
            Cause::Isolated => "isolated",
            Cause::ServerGone => "without its server",
            Cause::Refused => "not let in",
            Cause::GuardianGone => "without its guardian",
            Cause::Guardian => "ended by its guardian",
            Cause::Signalled => "ended by its server",
            Cause::Drained => "drained",
            Cause::Swept => "swept",
        }
    }
}
