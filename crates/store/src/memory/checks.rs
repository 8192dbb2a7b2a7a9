//! Checks and their pings.

use super::Memory;
use super::state::State;
use crate::{
    CheckFilter, CheckPut, CheckRow, CheckWritten, Checks, Deleted, DueChecks, NewPing, Pinged, PutCheck, Result,
    check_deleted,
};
use async_trait::async_trait;
use everbeat_model::StoreTime;
use everbeat_model::check::{CheckState, MOST_PINGS, Ping};
use std::collections::BTreeMap;

#[async_trait]
impl Checks for Memory {
    async fn put_check(&self, put: PutCheck) -> Result<CheckPut> {
        let now = self.now();
        let mut state = self.lock();
        let before = state.checks.get(&put.check.name).cloned();
        let (row, lines) = match CheckRow::written(before.as_ref(), &put, now) {
            CheckWritten::Conflict(there) => return Ok(CheckPut::Conflict(there)),
            CheckWritten::Row(..) if before.is_none() && state.checks.len() >= put.most => {
                return Ok(CheckPut::TooMany);
            }
            CheckWritten::Row(row, lines) => (*row, lines),
            CheckWritten::Same(row) => return Ok(CheckPut::Unchanged(*row)),
        };
        state.keep_check(row.clone(), &lines, now);
        Ok(if before.is_some() { CheckPut::Replaced(row) } else { CheckPut::Created(row) })
    }

    async fn pause_check(&self, name: &str, paused: bool) -> Result<Option<CheckRow>> {
        let now = self.now();
        let mut state = self.lock();
        let Some(row) = state.checks.get(name).cloned() else { return Ok(None) };
        let Some((row, lines)) = row.switched(paused, now) else { return Ok(Some(row)) };
        state.keep_check(row.clone(), &lines, now);
        Ok(Some(row))
    }

    async fn delete_check(&self, name: &str, version: Option<u64>) -> Result<Deleted> {
        let now = self.now();
        let mut state = self.lock();
        let Some(there) = state.checks.get(name).map(|row| row.version) else { return Ok(Deleted::NotFound) };
        if version.is_some_and(|version| version != there) {
            return Ok(Deleted::Conflict(there));
        }
        state.checks.remove(name);
        state.pings.remove(name);
        state.append(now, &[check_deleted(name)]);
        state.version += 1;
        Ok(Deleted::Done)
    }

    async fn check(&self, name: &str) -> Result<Option<CheckRow>> {
        Ok(self.lock().checks.get(name).cloned())
    }

    async fn checks(&self, filter: CheckFilter) -> Result<Vec<CheckRow>> {
        let state = self.lock();
        let wanted = |row: &&CheckRow| {
            filter.state.is_none_or(|state| row.vitals.health.state() == state)
                && filter.after.as_ref().is_none_or(|after| row.check.name > *after)
        };
        Ok(state.checks.values().filter(wanted).take(filter.limit).cloned().collect())
    }

    async fn count_checks(&self) -> Result<BTreeMap<CheckState, u64>> {
        let mut counts = BTreeMap::new();
        for row in self.lock().checks.values() {
            *counts.entry(row.vitals.health.state()).or_default() += 1;
        }
        Ok(counts)
    }

    async fn ping_check(&self, ping: NewPing) -> Result<Pinged> {
        let now = self.now();
        let mut state = self.lock();
        let found = state.checks.get(&ping.check.name).cloned();
        let created = found.is_none();
        if created && state.checks.len() >= ping.most {
            return Ok(Pinged::TooMany);
        }
        let row = found.unwrap_or_else(|| CheckRow::new(ping.check.clone(), now));
        let (row, kept, lines) = row.pinged(&ping, now);
        let pings = state.pings.entry(row.check.name.clone()).or_default();
        pings.push(kept);
        let surplus = pings.len().saturating_sub(MOST_PINGS);
        pings.drain(..surplus);
        state.keep_check(row.clone(), &lines, now);
        Ok(Pinged::Done { check: row, created })
    }

    async fn pings(&self, name: &str, before: Option<u64>, limit: usize) -> Result<Option<Vec<Ping>>> {
        let state = self.lock();
        if !state.checks.contains_key(name) {
            return Ok(None);
        }
        let kept = state.pings.get(name).map(Vec::as_slice).unwrap_or_default();
        let older = kept.iter().rev().filter(|ping| before.is_none_or(|before| ping.place < before));
        Ok(Some(older.take(limit).cloned().collect()))
    }

    async fn due_checks(&self, limit: usize) -> Result<DueChecks> {
        let now = self.now();
        let state = self.lock();
        let mut times: Vec<(StoreTime, &str)> = Vec::new();
        for row in state.checks.values() {
            times.extend(row.vitals.look_at(&row.check).map(|at| (at, row.check.name.as_str())));
        }
        times.sort_unstable();
        let due = times.partition_point(|(at, _)| *at <= now);
        let next = times.get(due).map(|(at, _)| at.since(now));
        let next_in = if due > limit { Some(std::time::Duration::ZERO) } else { next };
        Ok(DueChecks { names: times[..due].iter().take(limit).map(|(_, name)| name.to_string()).collect(), next_in })
    }

    async fn look_at_check(&self, name: &str) -> Result<Option<CheckRow>> {
        let now = self.now();
        let mut state = self.lock();
        let Some(row) = state.checks.get(name).cloned() else { return Ok(None) };
        let Some((row, lines)) = row.looked(now) else { return Ok(Some(row)) };
        state.keep_check(row.clone(), &lines, now);
        Ok(Some(row))
    }
}

impl State {
    fn keep_check(&mut self, row: CheckRow, lines: &[String], now: StoreTime) {
        self.append(now, lines);
        self.checks.insert(row.check.name.clone(), row);
        self.version += 1;
    }
}
