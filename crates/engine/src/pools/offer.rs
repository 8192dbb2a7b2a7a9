//! What a pool could take now, and from which lines.

use super::pool::Pool;
use super::worker::Worker;
use crate::attempts::{Line, Post};
use everbeat_model::ReplicaId;
use everbeat_model::run::lane_on;
use everbeat_model::session::waits_for;
use std::collections::{BTreeMap, BTreeSet};
use std::sync::atomic::Ordering;

/// What workers that serve the same queues have room for.
#[derive(Default)]
pub(super) struct Rooms {
    pub(super) most: usize,
    of: BTreeMap<String, usize>,
    /// Lines in which runs wait for one of these workers.
    waits: Vec<Line>,
}

impl Rooms {
    /// A worker that performs these tasks has room. Some of it is reserved for runs that have waited for this worker.
    pub(super) fn add(&mut self, tasks: &BTreeSet<String>, room: usize, waits: Vec<Line>, reserved: usize) {
        self.most += room;
        tasks.iter().for_each(|task| *self.of.entry(task.clone()).or_default() += room);
        let spare = room.saturating_sub(reserved);
        self.waits.extend(waits.into_iter().map(|line| Line { most: spare, ..line }));
    }

    /// A run of this task takes some of it.
    pub(super) fn takes(&mut self, task: &str) {
        self.most = self.most.saturating_sub(1);
        self.of.entry(task.to_string()).and_modify(|room| *room = room.saturating_sub(1));
    }
}

impl Pool {
    /// The workers whose turn it is to be offered. Whoever asks looks again until all have been.
    pub(super) fn next_turn(
        &self,
        rooms: BTreeMap<BTreeSet<String>, Rooms>,
        post: &Post,
    ) -> Option<(BTreeSet<String>, Rooms)> {
        let turns = rooms.len();
        let turn = self.turn.fetch_add(1, Ordering::Relaxed) % turns.max(1);
        if turn + 1 < turns {
            post.freed();
        }
        rooms.into_iter().nth(turn)
    }

    /// The lines in which runs wait for this worker.
    pub(super) fn waits_for(&self, worker: &Worker, replica: ReplicaId) -> Vec<Line> {
        let table = self.sessions.table();
        let host = waits_for(replica, Some(worker.id));
        let line = |task: &String| Line { name: lane_on(task, &host), task: task.clone(), most: 0 };
        table.waiting_for(worker.id, replica).map(line).collect()
    }

    /// The lines that are offered: of each task, of what other replicas have left to this one, and of what waits for a
    /// worker. A line has no more than its task has room for.
    pub(super) fn lines(&self, rooms: Rooms, post: &Post) -> Vec<Line> {
        let Rooms { of, waits, .. } = rooms;
        let left = self.sessions.keeps.load(Ordering::Relaxed).then(|| waits_for(post.replica(), None));
        let mut by_task: BTreeMap<String, Vec<Line>> = BTreeMap::new();
        for line in waits.into_iter().filter(|line| of.contains_key(&line.task)) {
            by_task.entry(line.task.clone()).or_default().push(line);
        }
        for (task, most) in of {
            let lines = by_task.entry(task.clone()).or_default();
            lines.iter_mut().for_each(|line| line.most = line.most.min(most));
            lines.extend(left.as_ref().map(|host| Line { name: lane_on(&task, host), task: task.clone(), most }));
            lines.push(Line { name: task.clone(), task, most });
        }
        self.in_turn(by_task, post)
    }

    /// A limit on a task holds for all of its lines together, and a claim counts each line by itself. So of such a task one
    /// line is offered at a time; whoever asks looks again until all have been.
    fn in_turn(&self, by_task: BTreeMap<String, Vec<Line>>, post: &Post) -> Vec<Line> {
        let limited = &post.life.core.settings.tasks;
        let turn = self.line_turn.fetch_add(1, Ordering::Relaxed);
        let (mut turns, mut offered) = (1, Vec::new());
        for (task, mut lines) in by_task {
            let count = lines.len();
            if count > 1 && limited.contains_key(&task) {
                turns = turns.max(count);
                offered.push(lines.swap_remove(turn % count));
            } else {
                offered.extend(lines);
            }
        }
        if turn % turns + 1 < turns {
            post.freed();
        }
        offered
    }
}
