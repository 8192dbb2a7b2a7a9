//! What a process did lately, by looks at it: its CPU time and whether it wanted a processor, over a window that moves.

use super::Seen;
use crate::time::BootInstant;
use std::collections::VecDeque;
use std::time::Duration;

/// Before so many looks nobody is called hung: the window keeps as many, however far they lie apart.
pub(super) const LEAST_LOOKS: u32 = 3;
/// The window moves by this share of its length: that bounds what is kept, however often is looked.
const PARTS: u32 = 16;

/// Looks at a process, the latest of them: what it did before the window says nothing of what it does now.
#[derive(Clone, Debug)]
pub struct Looks {
    window: Duration,
    parts: VecDeque<Part>,
    /// When the latest look was, and all the CPU time that the process had taken by then.
    latest: Option<(BootInstant, Duration)>,
}

/// Looks that lie close together.
#[derive(Clone, Copy, Debug)]
struct Part {
    /// When the first of them was, and all the CPU time that the process had taken by then.
    first: (BootInstant, Duration),
    looks: u32,
    wanting: u32,
}

impl Looks {
    pub fn new(window: Duration) -> Looks {
        Looks { window, parts: VecDeque::new(), latest: None }
    }

    pub fn clear(&mut self) {
        (self.parts, self.latest) = (VecDeque::new(), None);
    }

    /// A look: all the CPU time that the process has taken, and whether it is on a processor, waits for one, or is
    /// blocked in the kernel.
    pub fn add(&mut self, now: BootInstant, cpu: Duration, wanting: bool) {
        let close = |part: &&mut Part| now.since(part.first.0) < self.window / PARTS;
        let (looks, wanting) = (1, u32::from(wanting));
        match self.parts.back_mut().filter(close) {
            Some(part) => (part.looks, part.wanting) = (part.looks + looks, part.wanting + wanting),
            None => self.parts.push_back(Part { first: (now, cpu), looks, wanting }),
        }
        self.latest = Some((now, cpu));
        // The first part goes when the others reach back far enough without it.
        while let (Some(first), Some(second)) = (self.parts.front(), self.parts.get(1)) {
            if now.since(second.first.0) < self.window || self.looks() - first.looks < LEAST_LOOKS {
                break;
            }
            self.parts.pop_front();
        }
    }

    fn looks(&self) -> u32 {
        self.parts.iter().map(|part| part.looks).sum()
    }

    /// What these looks say together.
    pub fn seen(&self) -> Seen {
        let (Some(oldest), Some((at, cpu))) = (self.parts.front(), self.latest) else { return Seen::default() };
        Seen {
            looks: self.looks(),
            wanting: self.parts.iter().map(|part| part.wanting).sum(),
            cpu: cpu.saturating_sub(oldest.first.1),
            over: at.since(oldest.first.0),
            ..Seen::default()
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const WINDOW: Duration = Duration::from_secs(10);

    fn at(ms: u64) -> BootInstant {
        BootInstant(Duration::from_millis(ms))
    }

    /// Looks every so many milliseconds, at a process that computes until then and sleeps afterwards.
    fn looks(every: u64, computes_until: u64, until: u64) -> Looks {
        let mut looks = Looks::new(WINDOW);
        for ms in (0..=until).step_by(every as usize) {
            looks.add(at(ms), Duration::from_millis(ms.min(computes_until)), ms < computes_until);
        }
        looks
    }

    #[test]
    fn what_was_long_ago_says_nothing() {
        let computed = looks(1000, 600_000, 600_000).seen();
        assert!(computed.over >= WINDOW && computed.over < WINDOW * 2, "{computed:?}");
        assert_eq!(computed.cpu, computed.over);
        let idle = looks(1000, 600_000, 612_000).seen();
        assert_eq!((idle.cpu, idle.wanting), (Duration::ZERO, 0), "{idle:?}");
        assert!(idle.looks >= 10 && idle.over >= WINDOW, "{idle:?}");
    }

    #[test]
    fn few_looks_far_apart_are_kept_however_old() {
        let seen = looks(30_000, 0, 300_000).seen();
        assert_eq!((seen.looks, seen.over), (LEAST_LOOKS, Duration::from_secs(60)));
    }

    #[test]
    fn however_often_is_looked_little_is_kept() {
        let looks = looks(1, 0, 60_000);
        assert!(looks.parts.len() <= PARTS as usize + 2, "{}", looks.parts.len());
        assert!(looks.seen().over >= WINDOW);
    }

    #[test]
    fn nothing_is_known_before_the_first_look() {
        let mut looks = looks(1000, 5000, 5000);
        looks.clear();
        assert_eq!(looks.seen(), Seen::default());
    }
}
