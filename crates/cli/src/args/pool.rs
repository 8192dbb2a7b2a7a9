//! What is asked of pools.

use super::PageArgs;
use clap::Subcommand;

#[derive(Debug, Subcommand)]
pub(crate) enum PoolAction {
    /// Give it another size, until its server ends
    Scale {
        /// Name of the pool
        name: String,
        /// How many workers there should be
        #[arg(value_parser = clap::value_parser!(u32).range(0..=10_000))]
        size: u32,
    },
    /// Let it take no more work; what it performs goes on, and its workers stay
    Drain {
        /// Name of the pool
        name: String,
    },
    /// Let it take work again
    Resume {
        /// Name of the pool
        name: String,
    },
    /// Replace all its workers, a few at a time, each when its work is done
    Restart {
        /// Name of the pool
        name: String,
    },
    /// The sessions that its workers hold
    Sessions {
        /// Name of the pool
        name: String,
        #[command(flatten)]
        page: PageArgs,
    },
    /// End a session: at once, or when what is performed in it has ended
    EndSession {
        /// Name of the pool
        name: String,
        /// Key of the session
        key: String,
    },
}
