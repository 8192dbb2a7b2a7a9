//! Known mistakes that the simulation plants, to show that it would find them.

/// The hole that is planted, if any. Without the feature `holes` this type is empty: no hole can be planted, and the
/// compiler drops whatever a hole would do. Tests switch the feature on; no build of a binary does.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Planted {
    #[cfg(feature = "holes")]
    hole: Option<Hole>,
}

#[cfg(feature = "holes")]
impl Planted {
    pub const fn one(hole: Hole) -> Planted {
        Planted { hole: Some(hole) }
    }

    pub const fn is(self, asked: Hole) -> bool {
        match self.hole {
            Some(hole) => hole as u8 == asked as u8,
            None => false,
        }
    }
}

#[cfg(not(feature = "holes"))]
impl Planted {
    pub const fn is(self, _asked: Hole) -> bool {
        false
    }
}

/// A known mistake.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum Hole {
    /// A settle is accepted whatever token it shows.
    SettleWithoutToken,
    /// A rescue returns the run whatever lease it is under by now.
    RescueWithoutCompare,
    /// Claims begin before the replica's row exists.
    ClaimBeforeReplica,
    /// After an outage of the store, old observations still count.
    NoGraceAfterOutage,
    /// Silence is measured by comparing another host's stored time with the own wall clock.
    ForeignClocks,
    /// The attempt number is the only proof of a lease.
    AttemptAsToken,
    /// Work is looked for only when a wake arrives.
    WakeIsTruth,
    /// After a stall of its own the detector judges at once.
    StalledDetector,
    /// A replica judges others while its own renewal is not acknowledged.
    UnrenewedJudge,
    /// A lease that its owner does not perform is never looked for.
    LeaseNobodyPerforms,
    /// A node is computed although something that it depends on is about to change.
    MixedInputs,
    /// A changed input does not stop the computation that runs on the old one.
    ResultOfOldInputs,
    /// The end of a node's run does not note its execution, and nobody looks for such.
    NoteForgotten,
    /// A tick that is due fires for whoever waits for it as long as it stands.
    TickTwice,
    /// The token alone proves a lease, although it stays when the lease passes to another owner.
    FormerOwner,
    /// An attempt of a command that is found not started is released without being forbidden first.
    UnfencedStart,
    /// A job is given up as soon as its host is seen without a replica.
    HastyGivingUp,
    /// Nobody vouches for jobs that stop when they are isolated.
    NeverVouched,
    /// A replica that has left still watches over its jobs, and vouches for them.
    LeftStillVouches,
    /// A job's folder that is gone is taken for one that never was.
    MissingIsNew,
    /// A job's folder keeps nothing of an attempt whose place another one has taken.
    PastForgotten,
    /// A host that came back between two looks, and went again, counts as away all the time.
    ReturnOverlooked,
    /// A shim that hangs is the only one to keep its command's time.
    NoLastTimer,
    /// Endings wait behind one that cannot be stored.
    WholeBatchWaits,
    /// A job that cannot begin since its host lacks something has failed.
    ShortageFails,
    /// A judgement that waits for the end of its performer is written before that has ended.
    EndUnawaited,
    /// What a worker said over a link that another has replaced still counts.
    ReplacedLink,
    /// After a stall of its own the watcher of a pool judges at once.
    StalledWatcher,
    /// Workers are started before what an earlier server left has ended.
    SweepUnawaited,
    /// A worker is signalled by its number, whoever has that by now.
    SignalByNumber,
    /// An ending is written before all that its attempt has streamed.
    OutputUnawaited,
    /// What a worker streams again after its link broke is taken again.
    OutputRepeated,
    /// A strict run begins elsewhere while the worker of its session is busy.
    StrictMoves,
    /// A strict session begins without a look at who keeps the session of that key.
    SessionUnasked,
    /// A schedule moves on in one write, and its runs are made in another.
    AdvanceApart,
    /// Whether a schedule is due is judged by the own wall clock.
    DueByOwnClock,
    /// What is due is read, and runs are made from that reading without a second look under the schedule's lock.
    DueByReading,
}

impl Hole {
    pub const ALL: [Hole; 37] = [
        Hole::SettleWithoutToken,
        Hole::RescueWithoutCompare,
        Hole::ClaimBeforeReplica,
        Hole::NoGraceAfterOutage,
        Hole::ForeignClocks,
        Hole::AttemptAsToken,
        Hole::WakeIsTruth,
        Hole::StalledDetector,
        Hole::UnrenewedJudge,
        Hole::LeaseNobodyPerforms,
        Hole::MixedInputs,
        Hole::ResultOfOldInputs,
        Hole::NoteForgotten,
        Hole::TickTwice,
        Hole::FormerOwner,
        Hole::UnfencedStart,
        Hole::HastyGivingUp,
        Hole::NeverVouched,
        Hole::LeftStillVouches,
        Hole::MissingIsNew,
        Hole::PastForgotten,
        Hole::ReturnOverlooked,
        Hole::NoLastTimer,
        Hole::WholeBatchWaits,
        Hole::ShortageFails,
        Hole::EndUnawaited,
        Hole::ReplacedLink,
        Hole::StalledWatcher,
        Hole::SweepUnawaited,
        Hole::SignalByNumber,
        Hole::OutputUnawaited,
        Hole::OutputRepeated,
        Hole::StrictMoves,
        Hole::SessionUnasked,
        Hole::AdvanceApart,
        Hole::DueByOwnClock,
        Hole::DueByReading,
    ];
}
