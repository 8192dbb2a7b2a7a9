//! The row of a check, and what becomes of the row when the check is written, paused, pinged or looked at: alike in every
//! store.

use crate::{Expected, NewPing, PutCheck};
use everbeat_model::check::{Change, Check, CheckNews, Health, Ping, Vitals};
use everbeat_model::event::{EventKind, line};
use everbeat_model::{Json, StoreTime};
use serde_json::{Value, json};

/// A check as it is stored.
#[derive(Clone, Debug, PartialEq)]
pub struct CheckRow {
    pub check: Check,
    /// Rises with every definition.
    pub version: u64,
    pub created_at: StoreTime,
    pub updated_at: StoreTime,
    pub vitals: Vitals,
}

/// What a request to write a check comes to.
#[derive(Clone, Debug, PartialEq)]
pub enum CheckWritten {
    /// The version there is another one; none if there is no such check.
    Conflict(Option<u64>),
    /// The same was written before; this is the row.
    Same(Box<CheckRow>),
    /// The row, and what is told of it.
    Row(Box<CheckRow>, Vec<String>),
}

impl CheckRow {
    pub fn new(check: Check, now: StoreTime) -> CheckRow {
        CheckRow { check, version: 1, created_at: now, updated_at: now, vitals: Vitals::NEW }
    }

    /// Writes a definition over the row that is there.
    pub fn written(before: Option<&CheckRow>, put: &PutCheck, now: StoreTime) -> CheckWritten {
        let there = before.map(|row| row.version);
        let fits = match put.expected {
            Expected::Anything => true,
            Expected::Nothing => there.is_none(),
            Expected::Version(version) => there == Some(version),
        };
        if !fits {
            return CheckWritten::Conflict(there);
        }
        let told = |news: &[CheckNews]| {
            let mut lines = vec![said(EventKind::CheckWritten, &put.check.name)];
            lines.extend(check_events(&put.check.name, news, now));
            lines
        };
        let Some(row) = before else {
            return CheckWritten::Row(Box::new(CheckRow::new(put.check.clone(), now)), told(&[]));
        };
        if row.check == put.check {
            return CheckWritten::Same(Box::new(row.clone()));
        }
        let Change { vitals, news, .. } = row.vitals.rewritten(&put.check, now);
        let (check, version) = (put.check.clone(), row.version + 1);
        let row = CheckRow { check, version, created_at: row.created_at, updated_at: now, vitals };
        CheckWritten::Row(Box::new(row), told(&news))
    }

    /// The row paused or resumed, and what is told of it; none if that is how it stands.
    pub fn switched(&self, paused: bool, now: StoreTime) -> Option<(CheckRow, Vec<String>)> {
        if (self.vitals.health == Health::Paused) == paused {
            return None;
        }
        let (vitals, kind) = match paused {
            true => (self.vitals.paused(), EventKind::CheckPaused),
            false => (self.vitals.resumed(now), EventKind::CheckResumed),
        };
        Some((CheckRow { vitals, updated_at: now, ..self.clone() }, vec![said(kind, &self.check.name)]))
    }

    /// The row after a ping, the ping as it is kept, and what is told of both.
    pub fn pinged(&self, ping: &NewPing, now: StoreTime) -> (CheckRow, Ping, Vec<String>) {
        let Change { vitals, news, duration } = self.vitals.pinged(&self.check, ping.signal, now);
        let kept = Ping { place: vitals.pings, at: now, signal: ping.signal, duration, body: ping.body.clone() };
        (CheckRow { vitals, ..self.clone() }, kept, check_events(&self.check.name, &news, now))
    }

    /// The row as time has changed it, and what is told of that; none if it is as it was.
    pub fn looked(&self, now: StoreTime) -> Option<(CheckRow, Vec<String>)> {
        let Change { vitals, news, .. } = self.vitals.looked(&self.check, now);
        let changed = vitals != self.vitals;
        changed.then(|| (CheckRow { vitals, ..self.clone() }, check_events(&self.check.name, &news, now)))
    }
}

/// What is told when a check is deleted.
pub fn check_deleted(name: &str) -> String {
    said(EventKind::CheckDeleted, name)
}

fn said(kind: EventKind, name: &str) -> String {
    line(kind, name, None, None)
}

fn check_events(name: &str, news: &[CheckNews], now: StoreTime) -> Vec<String> {
    let event = |news: &CheckNews| {
        let (kind, detail): (EventKind, Value) = match news {
            CheckNews::Late { due } => (EventKind::CheckLate, json!({ "due_at": due })),
            CheckNews::Down { since, why, exit_code } => {
                (EventKind::CheckDown, json!({ "since": since, "why": why.as_str(), "exit_code": exit_code }))
            }
            CheckNews::Up { down_since } => {
                let down_ms = u64::try_from(now.since(*down_since).as_millis()).unwrap_or(u64::MAX);
                (EventKind::CheckUp, json!({ "down_since": down_since, "down_ms": down_ms }))
            }
        };
        line(kind, name, None, Some(&Json::of(&detail)))
    };
    news.iter().map(event).collect()
}
