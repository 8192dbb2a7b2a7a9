//! Which of the candidates a claim takes: best first, as long as task, queue and request have room.

use everbeat_model::run::{COMMAND, lane_on};
use everbeat_model::session::WAITS_FOR;
use std::collections::BTreeMap;
use uuid::Uuid;

pub(crate) struct Lane {
    pub(crate) queue: String,
    /// A task, or a task on a host.
    pub(crate) task: String,
}

impl Lane {
    /// Whether what stands in the lane is detached.
    pub(crate) fn detached(&self) -> bool {
        self.task.split('@').next() == Some(COMMAND)
    }

    /// The host that what stands in the lane belongs to, or the session that it waits for. None of a lane of a task.
    pub(crate) fn host(&self) -> Option<&str> {
        let waits = || self.task.find(&lane_on("", WAITS_FOR)).map(|at| &self.task[at + 1..]);
        self.task.strip_prefix(&lane_on(COMMAND, "")).or_else(waits)
    }
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) struct Candidate {
    pub(crate) rank: i32,
    pub(crate) run_id: Uuid,
    /// Index into the lanes.
    pub(crate) lane: usize,
}

/// How much one lane can give at most.
pub(crate) fn lane_limit(
    lane: &Lane,
    tasks: &BTreeMap<String, usize>,
    queues: &BTreeMap<String, usize>,
    limit: usize,
) -> usize {
    let task = tasks.get(&lane.task).copied().unwrap_or(0);
    let queue = queues.get(&lane.queue).copied().unwrap_or(usize::MAX);
    limit.min(task).min(queue)
}

/// The picked ones in order. Whatever stops a lane stops all that is behind it in the same lane, so
/// from each lane this takes a prefix.
pub(crate) fn pick(
    mut candidates: Vec<Candidate>,
    lanes: &[Lane],
    tasks: &BTreeMap<String, usize>,
    queues: &BTreeMap<String, usize>,
    limit: usize,
) -> Vec<Candidate> {
    candidates.sort_unstable();
    let mut tasks_free = tasks.clone();
    let mut queues_free = queues.clone();
    let mut picked = Vec::with_capacity(candidates.len().min(limit));
    for candidate in candidates {
        if picked.len() == limit {
            break;
        }
        let lane = &lanes[candidate.lane];
        let Some(task_free) = tasks_free.get_mut(&lane.task).filter(|free| **free > 0) else { continue };
        match queues_free.get_mut(&lane.queue) {
            Some(0) => continue,
            Some(queue_free) => *queue_free -= 1,
            None => {}
        }
        *task_free -= 1;
        picked.push(candidate);
    }
    picked
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_host_of_a_lane_is_told_from_the_name_of_a_task() {
        let cases = [
            ("t", None),
            ("t@plain", None),
            ("t@session", None),
            ("command", None),
            ("command@host@1", Some("host@1")),
            ("t@session a b", Some("session a b")),
            ("t@u@session a", Some("session a")),
        ];
        for (task, host) in cases {
            let lane = Lane { queue: "q".to_string(), task: task.to_string() };
            assert_eq!(lane.host(), host, "{task}");
        }
    }

    #[test]
    fn a_candidate_that_its_queue_stops_does_not_use_up_its_task() {
        let lane = |queue: &str| Lane { queue: queue.to_string(), task: "t".to_string() };
        let candidate = |id, lane| Candidate { rank: 0, run_id: Uuid::from_u128(id), lane };
        let candidates = vec![candidate(1, 0), candidate(2, 0), candidate(3, 1), candidate(4, 1)];
        let tasks = BTreeMap::from([("t".to_string(), 3)]);
        let queues = BTreeMap::from([("a".to_string(), 1)]);
        let picked = pick(candidates, &[lane("a"), lane("b")], &tasks, &queues, 10);
        let ids: Vec<u128> = picked.iter().map(|candidate| candidate.run_id.as_u128()).collect();
        assert_eq!(ids, [1, 3, 4]);
    }
}
