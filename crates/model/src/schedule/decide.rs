//! What becomes of the occurrences of a schedule, from what the store knows of it.

use super::{CatchUp, Overlap, Rhythm};
use crate::time::StoreTime;
use std::time::Duration;

/// What a schedule says about its occurrences.
#[derive(Clone, Debug, PartialEq)]
pub struct Terms {
    /// None: nothing is due by the clock.
    pub rhythm: Option<Rhythm>,
    pub overlap: Overlap,
    pub catch_up: CatchUp,
    /// So many runs of it at once, on all replicas together. Without it: one, or any number if they may overlap.
    pub concurrency: Option<usize>,
    /// An occurrence that is found later than this was missed, if none are made up for.
    pub late_after: Option<Duration>,
}

/// What the store knows of a schedule.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct Standing {
    /// The earliest due time that is not decided. None: there is none.
    pub next_due: Option<StoreTime>,
    /// Its runs that are not over.
    pub unfinished: usize,
    /// The due times of occurrences that wait for their turn, oldest first.
    pub waiting: Vec<StoreTime>,
    /// What others that share a limit with it leave.
    pub room: Room,
}

/// How many more runs the group of a schedule may have.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Room {
    #[default]
    Unbounded,
    For(usize),
}

/// What a look at a schedule comes to. Whoever looks writes all of it in one transaction.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct Look {
    /// Whether something was due by the clock.
    pub due: bool,
    /// Each of these becomes a run.
    pub begun: Vec<Begun>,
    /// The due times of occurrences that wait for their turn from now on.
    pub queued: Vec<StoreTime>,
    pub left: Vec<Left>,
    pub next_due: Option<StoreTime>,
    /// There is more to decide than one look may: look again at once.
    pub again: bool,
}

/// An occurrence that begins.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Begun {
    pub due: StoreTime,
    /// It has waited for its turn.
    pub waited: bool,
}

/// Occurrences that are left out, for one reason.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Left {
    pub from: StoreTime,
    pub to: StoreTime,
    /// How many; at `MOST_COUNTED` of a cron expression there may be more.
    pub count: u64,
    pub why: WhyLeft,
}

crate::spelled::spelled! {
    /// Why an occurrence was left out.
    pub enum WhyLeft {
        /// An earlier one was not over.
        Overlap = "overlap",
        /// It came due while nobody looked, and is not made up for.
        Missed = "missed",
        /// As many wait as may.
        Backlog = "backlog",
    }
}

/// One look decides on so many due times; the next goes on.
const MOST_AT_ONCE: usize = 100;
/// So many occurrences of a schedule wait for their turn.
pub const MOST_WAITING: usize = 1000;
/// Without a word on lateness, an occurrence that is found later than this was missed, if none are made up for: whoever
/// calls from outside may call every few minutes.
const LATE: Duration = Duration::from_secs(300);

/// Decides on everything that is due by now, and on whose turn it is.
pub fn decide(terms: &Terms, standing: &Standing, now: StoreTime) -> Look {
    let mut turn = Turn::new(terms, standing);
    turn.serve_those_who_wait(standing);
    let mut look = Look { next_due: standing.next_due, ..Look::default() };
    if let Some((rhythm, first)) = terms.rhythm.as_ref().zip(standing.next_due).filter(|(_, due)| *due <= now) {
        look.due = true;
        let last = rhythm.latest(first, now);
        match terms.catch_up {
            CatchUp::All if first < last => {
                let mut due = Some(first);
                for _ in 0..MOST_AT_ONCE {
                    let Some(this) = due.filter(|due| *due <= last) else { break };
                    turn.take_or_queue(this);
                    due = rhythm.after(this);
                }
                look.again = due.is_some_and(|due| due <= last);
                look.next_due = due;
            }
            CatchUp::Latest | CatchUp::None | CatchUp::All => {
                let late = now.since(last) > terms.late_after.unwrap_or(LATE);
                let missed = terms.catch_up == CatchUp::None && (first < last || late);
                if missed {
                    turn.leave(rhythm, first, last, WhyLeft::Missed);
                } else {
                    if let Some(before) = rhythm.before(last).filter(|_| first < last) {
                        turn.leave(rhythm, first, before, WhyLeft::Missed);
                    }
                    turn.take(last);
                }
                look.next_due = rhythm.after(last);
            }
        }
    }
    Look { begun: turn.begun, queued: turn.queued, left: turn.left, ..look }
}

/// Decides on an occurrence that somebody asks for by hand, or that another schedule's end makes due. It waits if it
/// cannot begin.
pub fn ask(terms: &Terms, standing: &Standing, due: StoreTime) -> Look {
    let mut turn = Turn::new(terms, standing);
    turn.serve_those_who_wait(standing);
    turn.take_or_queue(due);
    Look { begun: turn.begun, queued: turn.queued, left: turn.left, next_due: standing.next_due, ..Look::default() }
}

/// How much may begin, and what was decided so far.
struct Turn {
    overlap: Overlap,
    /// How many more of it may run at once.
    own: usize,
    /// How many more its group leaves it.
    room: usize,
    waiting: usize,
    begun: Vec<Begun>,
    queued: Vec<StoreTime>,
    left: Vec<Left>,
}

impl Turn {
    fn new(terms: &Terms, standing: &Standing) -> Turn {
        let most = match (terms.concurrency, terms.overlap) {
            (Some(most), _) => most,
            (None, Overlap::Allow) => usize::MAX,
            (None, Overlap::Skip | Overlap::Queue) => 1,
        };
        let own = most.saturating_sub(standing.unfinished);
        let room = match standing.room {
            Room::Unbounded => usize::MAX,
            Room::For(room) => room,
        };
        let (begun, queued, left) = (Vec::new(), Vec::new(), Vec::new());
        Turn { overlap: terms.overlap, own, room, waiting: standing.waiting.len(), begun, queued, left }
    }

    fn free(&self) -> usize {
        self.own.min(self.room)
    }

    fn serve_those_who_wait(&mut self, standing: &Standing) {
        for due in standing.waiting.iter().take(self.free().min(MOST_AT_ONCE)) {
            self.begin(*due, true);
            self.waiting -= 1;
        }
    }

    fn begin(&mut self, due: StoreTime, waited: bool) {
        (self.own, self.room) = (self.own - 1, self.room - 1);
        self.begun.push(Begun { due, waited });
    }

    /// One that is due now: the way it overlaps says what becomes of it.
    fn take(&mut self, due: StoreTime) {
        match self.overlap {
            Overlap::Skip if self.own == 0 || self.waiting > 0 => {
                self.left.push(Left { from: due, to: due, count: 1, why: WhyLeft::Overlap });
            }
            _ => self.take_or_queue(due),
        }
    }

    fn take_or_queue(&mut self, due: StoreTime) {
        if self.free() > 0 && self.waiting == 0 && self.begun.len() < MOST_AT_ONCE {
            self.begin(due, false);
        } else if self.waiting < MOST_WAITING {
            self.waiting += 1;
            self.queued.push(due);
        } else {
            self.left.push(Left { from: due, to: due, count: 1, why: WhyLeft::Backlog });
        }
    }

    fn leave(&mut self, rhythm: &Rhythm, from: StoreTime, to: StoreTime, why: WhyLeft) {
        self.left.push(Left { from, to, count: rhythm.count(from, to), why });
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    const MINUTE: Duration = Duration::from_secs(60);

    fn at(minute: u64) -> StoreTime {
        StoreTime(0).plus(Duration::from_secs(60 * minute))
    }

    fn terms(overlap: Overlap, catch_up: CatchUp) -> Terms {
        Terms { rhythm: Some(Rhythm::Every(MINUTE)), overlap, catch_up, concurrency: None, late_after: None }
    }

    fn due(minute: u64) -> Standing {
        Standing { next_due: Some(at(minute)), ..Standing::default() }
    }

    fn begins(look: &Look) -> Vec<StoreTime> {
        look.begun.iter().map(|begun| begun.due).collect()
    }

    #[test]
    fn what_is_not_due_is_left_alone() {
        let look = decide(&terms(Overlap::Skip, CatchUp::Latest), &due(5), at(4));
        assert_eq!(look, Look { next_due: Some(at(5)), ..Look::default() });
        let never = Terms { rhythm: None, ..terms(Overlap::Skip, CatchUp::All) };
        assert_eq!(decide(&never, &Standing::default(), at(4)), Look::default());
    }

    #[test]
    fn what_is_due_begins_and_the_next_due_time_follows_from_this_one() {
        let late = at(5).plus(Duration::from_secs(7));
        let look = decide(&terms(Overlap::Skip, CatchUp::None), &due(5), late);
        assert_eq!((begins(&look), look.next_due, look.left), (vec![at(5)], Some(at(6)), vec![]));
    }

    #[test]
    fn after_five_periods_without_a_look_one_five_or_none_are_made_up_for() {
        let now = at(9).plus(Duration::from_secs(20));
        let latest = decide(&terms(Overlap::Skip, CatchUp::Latest), &due(5), now);
        assert_eq!(begins(&latest), [at(9)]);
        assert_eq!(latest.left, [Left { from: at(5), to: at(8), count: 4, why: WhyLeft::Missed }]);
        let all = decide(&terms(Overlap::Allow, CatchUp::All), &due(5), now);
        assert_eq!(begins(&all), [5, 6, 7, 8, 9].map(at));
        let in_turn = decide(&terms(Overlap::Skip, CatchUp::All), &due(5), now);
        assert_eq!((begins(&in_turn), in_turn.queued), (vec![at(5)], [6, 7, 8, 9].map(at).to_vec()));
        let none = decide(&terms(Overlap::Skip, CatchUp::None), &due(5), now);
        assert_eq!(none.left, [Left { from: at(5), to: at(9), count: 5, why: WhyLeft::Missed }]);
        assert!(none.begun.is_empty());
        for look in [latest, all, none] {
            assert_eq!(look.next_due, Some(at(10)));
        }
    }

    #[test]
    fn an_occurrence_that_is_found_late_is_missed_if_none_are_made_up_for() {
        let hourly = Terms { rhythm: Some(Rhythm::Every(60 * MINUTE)), ..terms(Overlap::Skip, CatchUp::None) };
        assert_eq!(begins(&decide(&hourly, &due(60), at(64))), [at(60)]);
        assert!(decide(&hourly, &due(60), at(70)).begun.is_empty());
        let patient = Terms { late_after: Some(20 * MINUTE), ..hourly };
        assert_eq!(begins(&decide(&patient, &due(60), at(70))), [at(60)]);
    }

    #[test]
    fn one_that_is_due_while_another_runs_is_left_out_waits_or_begins_beside_it() {
        let busy = Standing { unfinished: 1, ..due(5) };
        let skip = decide(&terms(Overlap::Skip, CatchUp::Latest), &busy, at(5));
        assert_eq!(skip.left, [Left { from: at(5), to: at(5), count: 1, why: WhyLeft::Overlap }]);
        assert!(skip.due && skip.begun.is_empty());
        let queue = decide(&terms(Overlap::Queue, CatchUp::Latest), &busy, at(5));
        assert_eq!((queue.begun.len(), queue.queued), (0, vec![at(5)]));
        let allow = decide(&terms(Overlap::Allow, CatchUp::Latest), &busy, at(5));
        assert_eq!(begins(&allow), [at(5)]);
        let bounded = Terms { concurrency: Some(1), ..terms(Overlap::Allow, CatchUp::Latest) };
        assert_eq!(decide(&bounded, &busy, at(5)).queued, [at(5)]);
    }

    #[test]
    fn those_who_wait_come_first_and_one_by_one() {
        let waiting = Standing { waiting: vec![at(2), at(3)], ..due(5) };
        let look = decide(&terms(Overlap::Queue, CatchUp::Latest), &waiting, at(5));
        assert_eq!(look.begun, [Begun { due: at(2), waited: true }]);
        assert_eq!(look.queued, [at(5)]);
        let skip = decide(&terms(Overlap::Skip, CatchUp::Latest), &waiting, at(5));
        assert_eq!((begins(&skip), skip.left.len()), (vec![at(2)], 1));
    }

    #[test]
    fn a_full_group_makes_an_occurrence_wait_and_never_leaves_it_out() {
        let full = Standing { room: Room::For(0), ..due(5) };
        let terms = terms(Overlap::Skip, CatchUp::Latest);
        assert_eq!(decide(&terms, &full, at(5)).queued, [at(5)]);
        let some = Standing { room: Room::For(1), ..due(5) };
        assert_eq!(begins(&decide(&terms, &some, at(5))), [at(5)]);
    }

    #[test]
    fn what_somebody_asks_for_waits_for_its_turn() {
        let busy = Standing { unfinished: 1, ..due(5) };
        let look = ask(&terms(Overlap::Skip, CatchUp::Latest), &busy, at(3));
        assert_eq!((look.queued, look.next_due), (vec![at(3)], Some(at(5))));
        let look = ask(&terms(Overlap::Skip, CatchUp::Latest), &due(5), at(3));
        assert_eq!(begins(&look), [at(3)]);
    }

    #[test]
    fn a_backlog_is_bounded_and_a_look_too() {
        let waiting = Standing { unfinished: 1, waiting: vec![at(1); MOST_WAITING], ..due(5) };
        let look = decide(&terms(Overlap::Queue, CatchUp::Latest), &waiting, at(5));
        assert_eq!(look.left.first().map(|left| left.why), Some(WhyLeft::Backlog));
        let long = decide(&terms(Overlap::Allow, CatchUp::All), &due(5), at(1000));
        assert_eq!((long.begun.len(), long.again, long.next_due), (MOST_AT_ONCE, true, Some(at(5 + 100))));
    }

    proptest! {
        /// However looks fall, each due time is decided once, and never more run than may.
        #[test]
        fn each_due_time_is_decided_once(
            pauses in prop::collection::vec(0_u64..400, 1..40),
            ends in prop::collection::vec(0_usize..4, 40),
            overlap in prop::sample::select(Overlap::ALL),
            catch_up in prop::sample::select(CatchUp::ALL),
            concurrency in prop::option::of(1_usize..4),
        ) {
            let terms = Terms { concurrency, ..terms(overlap, catch_up) };
            let mut standing = due(0);
            let (mut now, mut decided, mut running) = (StoreTime(0), 0, 0_usize);
            for (pause, ends) in pauses.iter().zip(&ends) {
                now = now.plus(Duration::from_secs(*pause));
                running = running.saturating_sub(*ends);
                loop {
                    standing.unfinished = running;
                    let look = decide(&terms, &standing, now);
                    let waited = look.begun.iter().filter(|begun| begun.waited).count();
                    standing.waiting.drain(..waited);
                    standing.waiting.extend(&look.queued);
                    running += look.begun.len();
                    let left: u64 = look.left.iter().map(|left| left.count).sum();
                    decided += left + (look.begun.len() - waited + look.queued.len()) as u64;
                    standing.next_due = look.next_due;
                    if !look.again {
                        break;
                    }
                }
                let most = concurrency.unwrap_or(if overlap == Overlap::Allow { usize::MAX } else { 1 });
                prop_assert!(running <= most);
                prop_assert!(standing.waiting.is_sorted());
                prop_assert_eq!(decided, now.since(StoreTime(0)).as_secs() / 60 + 1);
            }
        }
    }
}
