//! Jobs of a host that stays away are given up after a while, and runs that wait for it may begin elsewhere.

use crate::replica::{Life, Turn, rescue};
use everbeat_model::lease::Lease;
use everbeat_model::session::is_wait;
use everbeat_model::{BootInstant, Hole, Reason, Settled, Token};
use everbeat_store::{Error as StoreError, Held, Which};
use serde_json::json;
use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;
use std::time::Duration;

const BATCH: usize = 500;

/// Since when each lease of a host without any replica was seen to be so, by this replica.
#[derive(Default)]
pub(super) struct Absent {
    since: BTreeMap<Token, (LastSeen, BootInstant)>,
    /// Since when each host that waiting runs belong to was seen to have no replica.
    hosts: BTreeMap<String, BootInstant>,
    looked: Option<BootInstant>,
}

/// What the store says of a lease, and of the last beat of its owner. Where either is another than before, somebody
/// was there between two looks.
#[derive(Clone, Debug, PartialEq)]
struct LastSeen {
    lease: Lease,
    beat: Option<u64>,
}

impl LastSeen {
    fn of(held: &Held) -> LastSeen {
        LastSeen { lease: held.lease.clone(), beat: held.owner.as_ref().map(|owner| owner.beat) }
    }
}

/// Jobs of a host that no replica has returned to for the whole window, as watched from here, are lost.
pub(super) async fn give_up(life: &Arc<Life>, absent: &mut Absent) -> Result<(), StoreError> {
    let core = &life.core;
    let window = core.settings.jobs.reattach_window;
    let mut orphans = Vec::new();
    let mut after = None;
    loop {
        let page = life.call_in(Turn::Sweep, core.store.held(Which::Detached(after, BATCH))).await?;
        let full = page.len() == BATCH;
        after = page.last().map(|held| held.lease.run_id);
        orphans.extend(page);
        if !full {
            break;
        }
    }
    let now = core.env.boot();
    // A watcher that was away itself, or could not be heard, begins anew.
    let longest = (window / 2).max(core.settings.sweep_interval * 2);
    let attentive = absent.looked.is_some_and(|looked| now.since(looked) <= longest);
    if !attentive || !life.pulse().connected() {
        absent.since.clear();
        absent.hosts.clear();
    }
    absent.looked = Some(now);
    let mut bound = life.call_in(Turn::Sweep, core.store.bound_hosts()).await?;
    // What waits for the worker of a session belongs to no machine.
    bound.retain(|host| !is_wait(host));
    if orphans.is_empty() && bound.is_empty() {
        absent.since.clear();
        absent.hosts.clear();
        return Ok(());
    }
    let replicas = life.call_in(Turn::Sweep, core.store.observe()).await?;
    let present: BTreeSet<&str> = replicas.iter().map(|replica| replica.host.as_str()).collect();
    let host = |held: &Held| held.owner.as_ref().map(|owner| owner.host.clone()).or_else(|| held.spec.host.clone());
    orphans.retain(|held| host(held).is_none_or(|host| !present.contains(host.as_str())));
    let tokens: BTreeSet<Token> = orphans.iter().map(|held| held.lease.token).collect();
    absent.since.retain(|token, _| tokens.contains(token));
    for held in orphans {
        let seen = LastSeen::of(&held);
        let (before, since) = absent.since.entry(held.lease.token).or_insert_with(|| (seen.clone(), now));
        if *before != seen && !core.settings.hole.is(Hole::ReturnOverlooked) {
            (*before, *since) = (seen, now);
        }
        let since = *since;
        if host(&held).is_some_and(|host| never_returns(life, &host)) {
            lose(life, &held, now.since(since), Why::NotOurs).await?;
        } else if now.since(since) >= window || core.settings.hole.is(Hole::HastyGivingUp) {
            lose(life, &held, now.since(since), Why::HostAway).await?;
        }
    }
    bound.retain(|host| !present.contains(host.as_str()));
    absent.hosts.retain(|host, _| bound.contains(host));
    for host in bound {
        let since = *absent.hosts.entry(host.clone()).or_insert(now);
        if now.since(since) >= window || never_returns(life, &host) {
            unbind(life, host).await?;
        }
    }
    Ok(())
}

/// Whether a host has no way back into this store: the store came here as a copy, together with that host's data folder.
fn never_returns(life: &Life, host: &str) -> bool {
    life.core.store.sole() && life.core.settings.former_hosts.contains(host)
}

/// Runs that wait for a host which stays away may begin anywhere, each in a new workspace.
async fn unbind(life: &Arc<Life>, host: String) -> Result<(), StoreError> {
    loop {
        let unbound = life.call_in(Turn::Sweep, life.core.store.unbind(host.clone(), BATCH)).await?;
        if unbound > 0 {
            tracing::warn!(host, unbound, "runs that waited for a host which stays away may begin elsewhere");
            rescue::returned(life);
        }
        if unbound < BATCH {
            return Ok(());
        }
    }
}

/// Why a job of another host is given up.
#[derive(Clone, Copy)]
enum Why {
    HostAway,
    NotOurs,
}

async fn lose(life: &Arc<Life>, held: &Held, away: Duration, why: Why) -> Result<(), StoreError> {
    let core = &life.core;
    let host = held.owner.as_ref().map(|owner| owner.host.clone());
    let named = host.clone().unwrap_or_else(|| "of its replica".to_string());
    let (reason, message) = match why {
        Why::HostAway => (Reason::HostAway, format!("no replica of host {named} came back for it")),
        Why::NotOurs => (Reason::NotOurs, format!("it began on host {named}, of whose data this is a copy")),
    };
    let ending = everbeat_model::job::lost(reason, &message);
    let evidence = json!({
        "replica_id": held.lease.replica_id,
        "host": host,
        "away_for_ms": away.as_millis() as u64,
        "reattach_window_ms": core.settings.jobs.reattach_window.as_millis() as u64,
        "last_heartbeat_at": held.owner.as_ref().map(|owner| owner.last_heartbeat_at),
        "exit": "unknown",
    });
    let settlement = rescue::rescued(life, held, ending, reason, evidence, life.id);
    if life.call_in(Turn::Sweep, core.store.settle(vec![settlement])).await? == [Settled::Done] {
        tracing::warn!(job = %held.lease.run_id, reason = reason.as_str(), "a job is lost: its host stays away");
        core.jobs.lost();
        rescue::count(life, held, reason);
        rescue::returned(life);
        // It may be tried anywhere from now on: its workspace is out of reach. Only now: for as long as its lease stands,
        // its host may come back, and must know that it was there.
        if let Some(host) = &held.spec.host {
            unbind(life, host.clone()).await?;
        }
    }
    Ok(())
}
