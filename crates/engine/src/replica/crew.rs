//! A performer in one life of a replica: its claims, and when its slots become free.

use crate::attempts::Performer;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use tokio::sync::Notify;

pub(crate) struct Crew {
    pub(crate) performer: Arc<dyn Performer>,
    /// A slot became free, or there may be something to claim.
    pub(crate) freed: Notify,
    claims_begun: AtomicU64,
    claims_ended: AtomicU64,
    /// When its claim loop turned last, in microseconds of the boot clock.
    pub(super) turned: AtomicU64,
    /// Nothing more is begun or taken up: what goes on waits for another replica.
    closed: AtomicBool,
}

/// How many claims had been sent by then, by performer.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Begun(Vec<u64>);

impl Crew {
    pub(super) fn new(performer: Arc<dyn Performer>, now: u64) -> Crew {
        Crew {
            performer,
            freed: Notify::new(),
            claims_begun: AtomicU64::new(0),
            claims_ended: AtomicU64::new(0),
            turned: AtomicU64::new(now),
            closed: AtomicBool::new(false),
        }
    }

    pub(crate) fn claim_begins(&self) {
        self.claims_begun.fetch_add(1, Ordering::SeqCst);
    }

    /// After what was granted is being performed.
    pub(crate) fn claim_ends(&self) {
        self.claims_ended.fetch_add(1, Ordering::SeqCst);
    }

    pub(super) fn close(&self) {
        self.closed.store(true, Ordering::SeqCst);
    }

    pub(crate) fn is_closed(&self) -> bool {
        self.closed.load(Ordering::SeqCst)
    }
}

impl Begun {
    pub(super) fn by_now(crews: &[Crew]) -> Begun {
        Begun(crews.iter().map(|crew| crew.claims_begun.load(Ordering::SeqCst)).collect())
    }

    /// Whether all claims that had begun by then are over.
    pub(super) fn over(&self, crews: &[Crew]) -> bool {
        crews.iter().zip(&self.0).all(|(crew, begun)| crew.claims_ended.load(Ordering::SeqCst) >= *begun)
    }
}
