//! What one look at a schedule decided: every due time that it passed became a run, waits, or was left out with its reason.

use crate::schedule_checker::Checked;
use crate::schedule_definitions::apart;
use crate::schedule_rest::ScheduleRow;
use crate::truth::Truth;
use everbeat_model::StoreTime;
use everbeat_model::schedule::{CatchUp, Left, MOST_COUNTED, Overlap, Rhythm, WhyLeft};
use everbeat_store::LeftOut;
use std::time::Duration;

/// A schedule before and after a look.
pub(crate) struct Look<'a> {
    pub(crate) was: &'a ScheduleRow,
    pub(crate) row: &'a ScheduleRow,
    /// Due times that became runs, or wait since.
    pub(crate) by_clock: &'a [StoreTime],
    /// All records of what was left out, the newest last.
    pub(crate) left: &'a [LeftOut],
    pub(crate) now: StoreTime,
}

/// One look may decide on so many due times, and leave the rest to the next.
const MANY: i64 = 100;
/// Without a word on lateness, what is found later than this was missed.
const LATE: Duration = Duration::from_secs(300);

pub(crate) fn check_look(truth: &mut Truth, look: &Look<'_>, waits_or_runs: bool) -> Checked {
    let Look { was, row, by_clock, now, .. } = look;
    if was.next_due == row.next_due {
        return match by_clock.first() {
            Some(due) => Err(("G7", format!("{due} was decided, and it is still due at {:?}", row.next_due))),
            None => Ok(()),
        };
    }
    let rhythm = row.schedule.terms.rhythm.as_ref();
    let (Some(from), Some(until), Some(rhythm)) = (was.next_due, row.next_due, rhythm.filter(|_| row.enabled)) else {
        return Err(("G7", format!("it is due at {:?} instead of {:?}: {row:?}", row.next_due, was.next_due)));
    };
    let Some(apart) = apart(rhythm) else { return Err(("G7", format!("its rhythm is unknown: {rhythm:?}"))) };
    let left: Vec<Left> = look.left.iter().rev().map(|out| out.left).take_while(|left| left.to >= from).collect();
    let count = passed(look, &left, (from, until, apart))?;
    let last = StoreTime(until.0 - apart);
    if last > *now {
        return Err(("G5", format!("at {now} it is decided until {until}")));
    }
    if until <= *now && count < MANY {
        return Err(("G7", format!("at {now} it is decided until {until} only")));
    }
    if row.last_due != Some(last) {
        return Err(("G7", format!("{last} was decided last, and it says {:?}", row.last_due)));
    }
    for left in &left {
        truth.report.schedule(match left.why {
            WhyLeft::Overlap => "left out: overlap",
            WhyLeft::Missed => "left out: missed",
            WhyLeft::Backlog => "left out: backlog",
        });
        check_left(look, left, (count, last), waits_or_runs)?;
        let counted = (left.to.0 - left.from.0) / apart + 1;
        let most = if matches!(rhythm, Rhythm::Cron(_)) { MOST_COUNTED as i64 } else { i64::MAX };
        if left.count as i64 != counted.min(most) {
            return Err(("G7", format!("{left:?} leaves out {counted}")));
        }
    }
    match row.schedule.terms.catch_up {
        CatchUp::Latest if by_clock.iter().any(|due| *due != last) => {
            Err(("G7", format!("of {count} due times until {last} others than the latest were made up for")))
        }
        CatchUp::None if count > 1 && !by_clock.is_empty() => {
            Err(("G7", format!("of {count} due times until {last} some were made up for")))
        }
        _ => Ok(()),
    }
}

/// Goes through all due times between: each is there once. Answers how many there are.
fn passed(
    look: &Look<'_>,
    left: &[Left],
    (from, until, apart): (StoreTime, StoreTime, i64),
) -> Result<i64, (&'static str, String)> {
    let one = |due: &StoreTime| (due.0, due.0);
    let mut spans: Vec<(i64, i64)> = look.by_clock.iter().map(one).collect();
    spans.extend(left.iter().map(|left| (left.from.0, left.to.0)));
    spans.sort_unstable();
    let mut next = from.0;
    for (first, last) in spans {
        if first != next {
            let what = if first < next { "is decided twice" } else { "is not decided" };
            return Err(("G7", format!("{} {what}: from {from} to {until}", StoreTime(next.min(first)))));
        }
        if last < first || (last - first) % apart != 0 {
            return Err(("G7", format!("{} is no due time of it", StoreTime(last))));
        }
        next = last + apart;
    }
    match next == until.0 && until > from {
        true => Ok((until.0 - from.0) / apart),
        false => Err(("G7", format!("{} is not decided, and it is due at {until}", StoreTime(next)))),
    }
}

/// What is left out is left out for a reason that holds.
fn check_left(look: &Look<'_>, left: &Left, (count, last): (i64, StoreTime), waits_or_runs: bool) -> Checked {
    let terms = &look.row.schedule.terms;
    let late = look.now.since(last) > terms.late_after.unwrap_or(LATE);
    let right = match (left.why, terms.catch_up) {
        (WhyLeft::Overlap, _) => terms.overlap == Overlap::Skip && waits_or_runs,
        (WhyLeft::Missed, CatchUp::All) => false,
        (WhyLeft::Missed, CatchUp::Latest) => left.to < last,
        (WhyLeft::Missed, CatchUp::None) => count > 1 || late,
        // Nobody asks for so much here.
        (WhyLeft::Backlog, _) => false,
    };
    match right {
        true => Ok(()),
        false => Err(("G7", format!("{left:?} was left out without a reason, at {}: {terms:?}", look.now))),
    }
}
