//! Whether the kernel killed a worker for lack of memory, where the worker has no cgroup of its own that counts memory.
//!
//! The kernel tells nobody why it kills. But it counts such kills, for the memory cgroup of whoever it kills and for the
//! machine, before it sends the signal. So a counter that rises when a worker is killed says why, unless somebody else
//! was killed for lack of memory at the same time.

use crate::cgroups::{self, Hierarchy};
use crate::pool::cgroup::field;
use crate::pool::protocol::OutOfMemory;
use std::collections::BTreeMap;
use std::fs;
use std::path::{Path, PathBuf};

/// Counters are read so often while there are workers. What was counted up to twice as long before a death may be the
/// death of that worker: a large process takes its time to end.
pub(super) const LOOK_MS: u64 = 2000;

/// The field of all these files.
const KILLS: &str = "oom_kill";

/// The counters that count for the workers of this guardian.
pub(super) struct Kills {
    /// Where `/proc` and the mounts of cgroups are: `/`, but for tests.
    root: PathBuf,
    counts: BTreeMap<PathBuf, Count>,
    looked_at: u64,
}

/// A counter, as it was at the last look and at the one before.
#[derive(Clone, Copy, Debug)]
struct Count {
    last: u64,
    before: u64,
}

/// What counts the kills of one worker.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct Counter {
    path: PathBuf,
    means: OutOfMemory,
}

impl Kills {
    pub(super) fn new(now_ms: u64) -> Kills {
        Kills::below(Path::new("/"), now_ms)
    }

    fn below(root: &Path, now_ms: u64) -> Kills {
        Kills { root: root.to_owned(), counts: BTreeMap::new(), looked_at: now_ms }
    }

    /// Finds what counts the kills of a process that lives, and counts from now on. None: nobody does.
    pub(super) fn counter(&mut self, pid: i32) -> Option<Counter> {
        let counter = self.find(pid)?;
        if !self.counts.contains_key(&counter.path) {
            let now = read(&counter.path)?;
            self.counts.insert(counter.path.clone(), Count { last: now, before: now });
        }
        Some(counter)
    }

    /// Whether it is time to look at the counters, and at which workers have which. From now on the next look counts.
    pub(super) fn is_due(&mut self, now_ms: u64) -> bool {
        let due = now_ms >= self.looked_at + LOOK_MS;
        if due {
            self.looked_at = now_ms;
        }
        due
    }

    /// Reads all counters that these workers have.
    pub(super) fn look<'a>(&mut self, counters: impl Iterator<Item = &'a Counter>) {
        let had = std::mem::take(&mut self.counts);
        for Counter { path, .. } in counters {
            if let (false, Some(count)) = (self.counts.contains_key(path), had.get(path)) {
                let last = read(path).unwrap_or(count.last);
                self.counts.insert(path.clone(), Count { last, before: count.last });
            }
        }
    }

    /// A worker was killed, and nobody here did it. Each kill that was counted explains one death.
    pub(super) fn explain(&mut self, counter: &Counter) -> OutOfMemory {
        let Some(count) = self.counts.get_mut(&counter.path) else { return OutOfMemory::No };
        if read(&counter.path).is_none_or(|now| now <= count.before) {
            return OutOfMemory::No;
        }
        count.before += 1;
        count.last = count.last.max(count.before);
        counter.means
    }

    fn find(&self, pid: i32) -> Option<Counter> {
        let proc = self.root.join("proc");
        let mountinfo = fs::read_to_string(proc.join("self/mountinfo")).unwrap_or_default();
        let groups = |of: &str| fs::read_to_string(proc.join(of).join("cgroup")).unwrap_or_default();
        let (worker, own) = (groups(&pid.to_string()), groups("self"));
        for (hierarchy, file) in [(Hierarchy::Memory, "memory.oom_control"), (Hierarchy::Unified, "memory.events")] {
            let seen_at = |groups: &str| cgroups::seen_at(groups, &mountinfo, hierarchy);
            let Some(cgroup) = seen_at(&worker) else { continue };
            let path = self.root.join(cgroup.strip_prefix("/").unwrap_or(&cgroup)).join(file);
            if read(&path).is_none() {
                continue;
            }
            // A worker whose command moved to another cgroup has that to itself, or shares it with its like.
            let moved = seen_at(&own).as_ref() != Some(&cgroup);
            let means = if moved { OutOfMemory::OwnCgroup } else { OutOfMemory::SharedCgroup };
            return Some(Counter { path, means });
        }
        let path = proc.join("vmstat");
        read(&path).map(|_| Counter { path, means: OutOfMemory::Machine })
    }
}

/// How many were killed so far. None: the kernel is too old, or nothing is counted there.
fn read(path: &Path) -> Option<u64> {
    field(&fs::read_to_string(path).ok()?, KILLS)
}

#[cfg(test)]
mod tests {
    use super::*;

    /// A machine of files: its root, and what to write there.
    struct Machine(tempfile::TempDir);

    const MOUNTS: &str = "30 1 0:30 / /sys/fs/cgroup/memory rw - cgroup cgroup rw,memory\n\
                          31 1 0:31 / /sys/fs/cgroup/unified rw - cgroup2 cgroup2 rw\n";

    impl Machine {
        fn new() -> Machine {
            let machine = Machine(tempfile::tempdir().expect("a folder"));
            machine.write("proc/self/mountinfo", MOUNTS);
            machine.write("proc/self/cgroup", "4:memory:/box\n0::/server\n");
            machine.write("proc/7/cgroup", "4:memory:/box\n0::/server\n");
            machine.count("proc/vmstat", 5);
            machine
        }

        fn write(&self, path: &str, text: &str) {
            let path = self.0.path().join(path);
            fs::create_dir_all(path.parent().expect("a folder")).expect("made");
            fs::write(path, text).expect("written");
        }

        fn count(&self, path: &str, kills: u64) {
            self.write(path, &format!("nr_free_pages 7\noom_kill_disable 0\nunder_oom 0\noom_kill {kills}\n"));
        }

        fn kills(&self) -> Kills {
            Kills::below(self.0.path(), 0)
        }
    }

    const BOX: &str = "sys/fs/cgroup/memory/box/memory.oom_control";

    #[test]
    fn without_a_cgroup_that_counts_memory_the_machine_says_probably() {
        let machine = Machine::new();
        let mut kills = machine.kills();
        let counter = kills.counter(7).expect("a counter");
        assert_eq!(kills.explain(&counter), OutOfMemory::No, "nobody was killed since");
        machine.count("proc/vmstat", 6);
        assert_eq!(kills.explain(&counter), OutOfMemory::Machine);
        assert_eq!(kills.explain(&counter), OutOfMemory::No, "one kill explains one death");
    }

    #[test]
    fn a_memory_cgroup_of_version_1_goes_before_the_machine() {
        let machine = Machine::new();
        machine.count(BOX, 1);
        let mut kills = machine.kills();
        let counter = kills.counter(7).expect("a counter");
        machine.count("proc/vmstat", 6);
        assert_eq!(kills.explain(&counter), OutOfMemory::No, "somebody else was killed");
        machine.count(BOX, 2);
        assert_eq!(kills.explain(&counter), OutOfMemory::SharedCgroup);
    }

    #[test]
    fn a_worker_that_moved_to_another_memory_cgroup_has_its_own() {
        let machine = Machine::new();
        machine.count(BOX, 1);
        let mut kills = machine.kills();
        let before = kills.counter(7).expect("a counter");
        machine.write("proc/7/cgroup", "4:memory:/limited\n0::/server\n");
        machine.count("sys/fs/cgroup/memory/limited/memory.oom_control", 0);
        let counter = kills.counter(7).expect("a counter");
        assert_ne!(before, counter);
        kills.look([&counter].into_iter());
        machine.count("sys/fs/cgroup/memory/limited/memory.oom_control", 1);
        assert_eq!(kills.explain(&counter), OutOfMemory::OwnCgroup);
        assert_eq!(kills.explain(&before), OutOfMemory::No, "that one is not looked at any more");
    }

    #[test]
    fn version_2_counts_where_its_memory_controller_is() {
        let machine = Machine::new();
        machine.count("sys/fs/cgroup/unified/server/memory.events", 3);
        let mut kills = machine.kills();
        let counter = kills.counter(7).expect("a counter");
        machine.count("sys/fs/cgroup/unified/server/memory.events", 4);
        assert_eq!(kills.explain(&counter), OutOfMemory::SharedCgroup);
    }

    #[test]
    fn what_was_counted_long_before_a_death_says_nothing_of_it() {
        let machine = Machine::new();
        let mut kills = machine.kills();
        let counter = kills.counter(7).expect("a counter");
        machine.count("proc/vmstat", 6);
        kills.look([&counter].into_iter());
        let mut ends_slowly = Kills { root: kills.root.clone(), counts: kills.counts.clone(), looked_at: 0 };
        assert_eq!(ends_slowly.explain(&counter), OutOfMemory::Machine, "a look in between hides no kill");
        kills.look([&counter].into_iter());
        assert_eq!(kills.explain(&counter), OutOfMemory::No);
        kills.look(std::iter::empty());
        assert!(kills.counts.is_empty(), "without workers nothing old is kept");
    }

    #[test]
    fn looks_are_due_at_their_interval() {
        let mut kills = Machine::new().kills();
        assert!(!kills.is_due(LOOK_MS - 1) && kills.is_due(LOOK_MS) && !kills.is_due(LOOK_MS + 1));
    }

    #[test]
    fn where_nothing_counts_nothing_is_said() {
        let machine = Machine::new();
        machine.write("proc/vmstat", "nr_free_pages 7\n");
        assert!(machine.kills().counter(7).is_none());
    }
}
