//! Whether a verdict of death on a replica was just.
//!
//! Just is: nobody stood behind that row any more; or the judge itself, awake, connected and renewed,
//! watched it stand still for the whole timeout, and it was the judged one's own trouble, not one that
//! all had in common.

use crate::truth::{Truth, Window, WindowKind};
use everbeat_model::verdict::SubjectKind;
use everbeat_model::{Reason, ReplicaId};
use everbeat_store::memory::State;

/// The replicas' heartbeat timeout, in microseconds.
pub(crate) const TIMEOUT: u64 = 1_000_000;

/// A stall or outage beyond half a timeout ends every observation. This much more leaves room for
/// what was under way when it began.
const LONG: u64 = TIMEOUT / 2 + 250_000;

/// After an outage an observation may count from the last look before its end: a retry's pause and
/// its way ago, which a replica gives a tenth and a third of its timeout.
const SLACK: u64 = TIMEOUT / 3 + TIMEOUT / 10;

/// The judge with its look, and how long it had watched; nothing if nobody stood behind the row.
pub(crate) type Watched = Option<((ReplicaId, u64), u64)>;

pub(crate) fn check(
    truth: &Truth,
    state: &State,
    dead: ReplicaId,
    now: u64,
) -> Result<Watched, (&'static str, String)> {
    let label = truth.label_of(dead);
    let subject = dead.to_string();
    let about = |kind: SubjectKind, id: &str| kind == SubjectKind::Replica && id == subject;
    let verdict = state.verdicts.values().rev().find(|verdict| about(verdict.subject.kind, &verdict.subject.id));
    let Some(verdict) = verdict else { return Err(("G15", format!("{label} is dead without a verdict"))) };
    let over = truth.over(dead);
    if Reason::parse(&verdict.reason) == Some(Reason::LockReleased) {
        return if over { Ok(None) } else { Err(("G3", format!("{label} is alive and holds its lock"))) };
    }
    let (Some(life), Some(judge)) = (truth.lives.get(&dead), truth.lives.get(&verdict.judged_by)) else {
        return Ok(None);
    };
    let Some(look) = judge.burials.get(&verdict.id).copied() else {
        return Err(("G3", format!("{label} was judged by somebody who never looked")));
    };
    let judge_label = truth.label_of(verdict.judged_by);
    if look.sent < truth.unsure_until {
        return Ok(None);
    }
    // What came after the look it rests on is not its judge's fault: the verdict may have travelled for long.
    let ends = |window: &Window| window.to.unwrap_or(now).min(look.sent);
    // As far as the judge itself lived through it.
    let span = |window: &Window| ends(window).saturating_sub(window.from.max(judge.joined_at));
    let counts = |window: &&Window| window.from < look.sent && span(window) >= LONG;
    let common = truth.common.iter().filter(counts).map(|window| ends(window).saturating_sub(SLACK));
    let judge_boot = truth.boots.get(&judge.owner);
    let away = judge_boot.into_iter().flat_map(|boot| &boot.windows).filter(counts).map(|window| match window.kind {
        WindowKind::Frozen => ends(window),
        WindowKind::Cut => ends(window).saturating_sub(SLACK),
    });
    let since = common.chain(away).chain([life.beat_at, judge.joined_at]).max().unwrap_or(0);
    let watched = look.sent.saturating_sub(since);
    let key = (verdict.judged_by, look.sent);
    if over {
        return Ok(Some((key, watched)));
    }
    if watched < TIMEOUT {
        let detail = format!(
            "{judge_label} judged {label} dead after {watched} us of silence that counts (last beat {} us before the look)",
            look.sent.saturating_sub(life.beat_at)
        );
        return Err(("G3/G4/G5", detail));
    }
    if look.received - look.renewed > TIMEOUT / 2 {
        return Err(("G4", format!("{judge_label} judged {label} dead without being freshly renewed itself")));
    }
    let recent = look.sent.saturating_sub(TIMEOUT);
    let own = truth.boots.get(&life.owner).is_some_and(|boot| {
        boot.troubled_at >= recent || boot.windows.iter().any(|window| window.to.is_none_or(|to| to >= recent))
    });
    if !own {
        return Err(("G3", format!("{judge_label} judged {label} dead, which had no trouble of its own")));
    }
    Ok(Some((key, watched)))
}
