//! One replica's way to the checks in the store.

use crate::faulty_store::FaultyStore;
use async_trait::async_trait;
use everbeat_model::check::{CheckState, Ping};
use everbeat_store::{CheckFilter, CheckPut, CheckRow, Checks, Deleted, DueChecks, NewPing, Pinged, PutCheck, Result};
use std::collections::BTreeMap;

#[async_trait]
impl Checks for FaultyStore {
    async fn put_check(&self, put: PutCheck) -> Result<CheckPut> {
        self.call("put_check", move |store| async move { store.put_check(put).await }).await
    }

    async fn pause_check(&self, name: &str, paused: bool) -> Result<Option<CheckRow>> {
        let name = name.to_string();
        self.call("pause_check", move |store| async move { store.pause_check(&name, paused).await }).await
    }

    async fn delete_check(&self, name: &str, version: Option<u64>) -> Result<Deleted> {
        let name = name.to_string();
        self.call("delete_check", move |store| async move { store.delete_check(&name, version).await }).await
    }

    async fn check(&self, name: &str) -> Result<Option<CheckRow>> {
        let name = name.to_string();
        self.call("check", move |store| async move { store.check(&name).await }).await
    }

    async fn checks(&self, filter: CheckFilter) -> Result<Vec<CheckRow>> {
        self.call("checks", move |store| async move { store.checks(filter).await }).await
    }

    async fn count_checks(&self) -> Result<BTreeMap<CheckState, u64>> {
        self.call("count_checks", move |store| async move { store.count_checks().await }).await
    }

    async fn ping_check(&self, ping: NewPing) -> Result<Pinged> {
        self.call("ping_check", move |store| async move { store.ping_check(ping).await }).await
    }

    async fn pings(&self, name: &str, before: Option<u64>, limit: usize) -> Result<Option<Vec<Ping>>> {
        let name = name.to_string();
        self.call("pings", move |store| async move { store.pings(&name, before, limit).await }).await
    }

    async fn due_checks(&self, limit: usize) -> Result<DueChecks> {
        self.call("due_checks", move |store| async move { store.due_checks(limit).await }).await
    }

    async fn look_at_check(&self, name: &str) -> Result<Option<CheckRow>> {
        let name = name.to_string();
        self.call("look_at_check", move |store| async move { store.look_at_check(&name).await }).await
    }
}
