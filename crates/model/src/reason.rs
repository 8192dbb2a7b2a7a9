//! Why an attempt ended other than by success, and why somebody was judged.

use crate::json::Json;
use crate::spelled::spelled;

spelled! {
    /// The stable reason in the error of an attempt or a run, and of a verdict. Most are both: a verdict explains the
    /// ending that it led to.
    pub enum Reason {
        // Of verdicts on replicas.
        /// A replica's kernel lock is free, or the store that it held alone is held by its successor.
        LockReleased = "lock_released",
        /// Also of each attempt that such a replica held.
        ReplicaSilent = "replica_silent",

        // Of attempts whose replica is gone.
        ReplicaDied = "replica_died",
        ReplicaLeft = "replica_left",
        ReplicaUnknown = "replica_unknown",

        // Of attempts that their own replica gave up.
        AttemptSilent = "attempt_silent",
        /// The store refused a sign of it: its lease was another's.
        Fenced = "fenced",
        /// Its replica, or its shim, was not acknowledged in time.
        Isolated = "isolated",

        // Of commands whose exit nobody knows.
        ShimDied = "shim_died",
        ShimHung = "shim_hung",
        ShimTerminated = "shim_terminated",
        StartUnclear = "start_unclear",
        Rebooted = "rebooted",
        FolderGone = "folder_gone",
        Unreadable = "unreadable",
        /// A later attempt took its place, which the store has forgotten.
        Forgotten = "forgotten",
        HostAway = "host_away",
        /// It began on the host whose data was copied here.
        NotOurs = "not_ours",

        // Of attempts whose worker process is gone, or had to be ended.
        WorkerDied = "worker_died",
        WorkerSilent = "worker_silent",
        /// It did not end an attempt in time.
        WorkerUnresponsive = "worker_unresponsive",
        /// It did not answer, and did nothing.
        WorkerHung = "worker_hung",
        /// It was stopped by a signal for longer than it may go unheard.
        WorkerStopped = "worker_stopped",
        /// The kernel killed it for lack of memory, or it took more than its pool allows.
        WorkerOutOfMemory = "worker_out_of_memory",
        /// It is on another machine, and was not heard.
        WorkerCutOff = "worker_cut_off",
        /// It did not say hello in time.
        WorkerNotReady = "worker_not_ready",

        // Of verdicts on what came too late to count.
        LateResult = "late_result",
        /// A command still ran when its host came back.
        LateReturn = "late_return",
        /// Its replica learned that it had been judged dead.
        ReplicaDead = "replica_dead",

        // Of attempts that went past a limit.
        NoProgress = "no_progress",
        Deadline = "deadline",
        /// It was asked to stop, and did not within its grace.
        CancelGrace = "cancel_grace",

        // Of attempts that were ended on purpose.
        Cancelled = "cancelled",
        Stopped = "stopped",
        /// The run of a node whose execution does not wait for it any more.
        Superseded = "superseded",

        // Of attempts that failed.
        Failed = "failed",
        Panicked = "panicked",
        Exited = "exited",
        NotStarted = "not_started",
        /// The store could not take its ending, while it took others.
        NotStored = "not_stored",
        /// The database cannot hold its ending at all.
        Unstorable = "unstorable",

        // Of attempts that were released, at no cost.
        Draining = "draining",
        TaskUnknown = "task_unknown",
        /// There was no worker just then.
        WorkerAway = "worker_away",
        /// The worker of its session was busy, or another replica keeps its session: it waits there.
        SessionBusy = "session_busy",
        NotPerformed = "not_performed",
        /// Its shim died before the command began.
        NeverStarted = "never_started",
        Shortage = "shortage",
    }
}

impl Reason {
    /// What the error of an attempt or a run says. None for words of another version.
    pub fn of(error: &Json) -> Option<Reason> {
        error.value()["reason"].as_str().and_then(Reason::parse)
    }

    /// Whether it is what another replica says, that returns the leases of one which is gone.
    pub fn is_rescue(self) -> bool {
        matches!(self, Reason::ReplicaSilent | Reason::ReplicaDied | Reason::ReplicaLeft | Reason::ReplicaUnknown)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::{Ending, Outcome};
    use std::collections::BTreeSet;

    #[test]
    fn each_reason_has_one_spelling_that_never_changes() {
        let spelled: Vec<&str> = Reason::ALL.iter().map(|reason| reason.as_str()).collect();
        assert_eq!(
            spelled.join(" "),
            "lock_released replica_silent replica_died replica_left replica_unknown attempt_silent fenced \
             isolated shim_died shim_hung shim_terminated start_unclear rebooted folder_gone unreadable \
             forgotten host_away not_ours worker_died worker_silent worker_unresponsive worker_hung \
             worker_stopped worker_out_of_memory worker_cut_off worker_not_ready late_result late_return replica_dead \
             no_progress deadline cancel_grace cancelled stopped superseded failed panicked exited \
             not_started not_stored unstorable draining task_unknown worker_away session_busy not_performed \
             never_started shortage"
        );
        assert_eq!(spelled.iter().collect::<BTreeSet<_>>().len(), spelled.len());
        for reason in Reason::ALL.iter().copied() {
            assert_eq!(Reason::parse(reason.as_str()), Some(reason));
            let ending = Ending::because(Outcome::Failed, reason, "so it was");
            assert_eq!(ending.error.as_ref().and_then(Reason::of), Some(reason));
        }
    }

    #[test]
    fn a_reason_of_another_version_is_none() {
        for error in [r#"{"reason":"replica_bored"}"#, r#"{"reason":7}"#, "{}", r#""failed""#, "null"] {
            assert_eq!(Reason::of(&Json::stored(error)), None, "{error}");
        }
    }

    #[test]
    fn only_those_who_return_leases_say_what_became_of_a_replica() {
        let rescues: Vec<Reason> = Reason::ALL.iter().copied().filter(|reason| reason.is_rescue()).collect();
        assert_eq!(rescues, [Reason::ReplicaSilent, Reason::ReplicaDied, Reason::ReplicaLeft, Reason::ReplicaUnknown]);
    }
}
