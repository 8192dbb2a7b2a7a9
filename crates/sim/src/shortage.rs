//! The store cannot take what some runs want stored, while it takes everything else: there is no room, or it breaks
//! on it. It lasts beyond the healing, until only those runs are left: nobody else may wait for them.

use crate::agenda::Action;
use crate::rng::Rng;
use crate::world::World;
use everbeat_model::{Enqueue, Outcome, RunId, Settlement};
use everbeat_store::{Error, Obstacle, Piece, Result, Sign};

/// Of so many runs, one is too large.
const LARGE_OF: u128 = 4;

#[derive(Clone, Copy, Debug)]
pub(crate) struct Shortage {
    /// What there is not enough of; none: the store breaks on it, now and always.
    cause: Option<Obstacle>,
    refuses_new: bool,
    /// From now on there is no room for results only: whoever waits for its checkpoint keeps its slot, so that others
    /// wait for it rightly.
    pub(crate) healed: bool,
}

impl Shortage {
    /// What becomes of this seed: most know no shortage. Apart from all other plans, which it does not move.
    pub(crate) fn of(seed: u64) -> Option<(u64, Shortage)> {
        let mut rng = Rng::new(seed, 5);
        let cause = *rng.pick(&[Some(Obstacle::DiskFull), Some(Obstacle::NoMemory), Some(Obstacle::Io), None, None]);
        let shortage = Shortage { cause, refuses_new: rng.chance(0.5), healed: false };
        let begins = rng.between(500_000, 3_000_000);
        rng.chance(0.4).then_some((begins, shortage))
    }

    pub(crate) fn name(self) -> &'static str {
        if self.cause.is_some() { "no room for some" } else { "store that breaks on some" }
    }

    pub(crate) fn large(run: RunId) -> bool {
        run.0.as_u128().is_multiple_of(LARGE_OF)
    }

    pub(crate) fn settles(self, settlements: &[Settlement]) -> Result<()> {
        // Only results are large, and only those that nothing else waits for.
        let large = |one: &Settlement| {
            // How a command ended is known otherwise: it fails for no result.
            let alone = one.spec.parent.is_none() && one.spec.occurrence.is_none();
            let counts = alone && (self.cause.is_some() || !one.spec.detached());
            one.ending.outcome == Outcome::Succeeded && counts && Shortage::large(one.shown.run_id)
        };
        self.refuse(settlements.iter().any(large))
    }

    pub(crate) fn signs(self, signs: &[Sign]) -> Result<()> {
        let large = |sign: &Sign| sign.checkpoint.is_some() && Shortage::large(sign.shown.run_id);
        self.refuse(!self.healed && signs.iter().any(large))
    }

    pub(crate) fn appends(self, pieces: &[Piece]) -> Result<()> {
        let large = |piece: &Piece| !piece.items.is_empty() && Shortage::large(piece.shown.run_id);
        self.refuse(!self.healed && pieces.iter().any(large))
    }

    pub(crate) fn enqueues(self, requests: &[Enqueue]) -> Result<()> {
        let large = requests.iter().flat_map(|request| &request.runs).any(|run| Shortage::large(run.id));
        self.refuse(self.refuses_new && !self.healed && large)
    }

    fn refuse(self, refuses: bool) -> Result<()> {
        match self.cause {
            _ if !refuses => Ok(()),
            Some(cause) => Err(Error::unavailable(cause, "in the simulation")),
            None => Err(Error::Bug("in the simulation".to_string())),
        }
    }
}

impl World {
    pub(crate) fn plan_shortage(&mut self) {
        if let Some((at, shortage)) = Shortage::of(self.shared.seed) {
            self.agenda.plan(at, Action::Shortage(shortage));
        }
    }

    /// After the healing: there is room again as soon as only those are left that there was no room for.
    pub(crate) fn end_shortage(&mut self) {
        if self.shared.network().shortage.is_none() {
            return;
        }
        let others = self.shared.memory.inspect(|state| {
            let mut open = state.runs.iter().filter(|(id, _)| !state.done.contains_key(id));
            open.any(|(id, run)| run.spec.parent.is_some() || run.spec.occurrence.is_some() || !Shortage::large(*id))
        });
        if !others {
            self.shared.network().shortage = None;
            self.shared.trace(|_| "there is room again".to_string());
        }
    }
}
