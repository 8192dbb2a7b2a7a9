//! The failure detector: which replicas have been silent for their whole timeout, as watched by this
//! observer on its own boot clock.
//!
//! No evidence is not death. Silence counts only while this observer itself was reading and renewing;
//! after any gap of its own longer than half a timeout it starts afresh. When many would die at once
//! it suspects itself first, and gives them one more full timeout.

use crate::hole::{Hole, Planted};
use crate::id::ReplicaId;
use crate::replica::Replica;
use crate::time::{BootInstant, StoreTime};
use std::collections::BTreeMap;
use std::time::Duration;

/// One reading of all replicas' rows.
#[derive(Clone, Copy, Debug)]
pub struct Look<'a> {
    pub sent: BootInstant,
    pub received: BootInstant,
    /// When the observer's own last acknowledged renewal was sent.
    pub renewed: BootInstant,
    /// The observer's wall clock. Read by a planted hole only.
    pub wall: StoreTime,
    pub me: ReplicaId,
    pub replicas: &'a [Replica],
}

/// A replica that has been silent for its whole timeout.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Silent {
    pub id: ReplicaId,
    /// The beat that did not change; the judgement is a compare-and-set on it.
    pub beat: u64,
    pub silent_for: Duration,
    pub timeout: Duration,
    pub last_heartbeat_at: StoreTime,
    /// Silence was watched for two timeouts, since many fell silent at once.
    pub doubted: bool,
}

/// How a replica looks from here.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Appearance {
    Alive,
    /// Silent for two of its intervals or more, not yet judged.
    Suspect,
    /// Not watched long enough to say.
    Unknown,
}

#[derive(Clone, Copy, Debug)]
struct Sighting {
    beat: u64,
    /// Compared, never reckoned with: a failover may set the beat back, and it then passes through the
    /// same numbers again.
    stamp: StoreTime,
    since: BootInstant,
    interval: Duration,
    changed: bool,
    /// When its silence was first doubted, since many were silent.
    doubted_at: Option<BootInstant>,
}

#[derive(Debug, Default)]
pub struct Watch {
    sightings: BTreeMap<ReplicaId, Sighting>,
    /// Of those watched.
    shortest_timeout: Option<Duration>,
    last_received: Option<BootInstant>,
    /// A reading or a renewal failed since the last reading.
    outage: bool,
    /// Suspects that beat again since it was last asked.
    refuted: u64,
    hole: Planted,
}

/// More than this share of the watched, and at least this many, falling silent at once is doubted.
const MASS_SHARE_PERCENT: usize = 30;
const MASS_LEAST: usize = 3;

impl Watch {
    pub fn new(hole: Planted) -> Watch {
        Watch { hole, ..Watch::default() }
    }

    /// Takes in a reading and answers who has been silent for long enough to be judged.
    pub fn look(&mut self, look: &Look<'_>) -> Vec<Silent> {
        let others: Vec<&Replica> =
            look.replicas.iter().filter(|row| row.id != look.me && row.state.holds_leases()).collect();
        self.sightings.retain(|id, _| others.iter().any(|row| row.id == *id));
        let gap = self.last_received.map(|last| look.received.since(last));
        let outage = std::mem::take(&mut self.outage);
        self.last_received = Some(look.received);
        self.shortest_timeout = others.iter().map(|row| row.heartbeat_timeout).min();
        let mut silent = Vec::new();
        for row in &others {
            if self.hole.is(Hole::ForeignClocks) {
                if look.wall.since(row.last_heartbeat_at) > row.heartbeat_timeout {
                    silent.push(self.silent(row, row.heartbeat_timeout));
                }
                continue;
            }
            let afresh = self.starts_afresh(row, look, gap, outage);
            let sighting = self.sightings.entry(row.id).or_insert(Sighting {
                beat: row.beat,
                stamp: row.last_heartbeat_at,
                since: look.received,
                interval: row.heartbeat_interval,
                changed: false,
                doubted_at: None,
            });
            if (sighting.beat, sighting.stamp) != (row.beat, row.last_heartbeat_at) {
                // Where the observer itself was away, it suspected nobody.
                self.refuted += u64::from(!afresh && sighting.suspect(look.sent));
                *sighting = Sighting {
                    beat: row.beat,
                    stamp: row.last_heartbeat_at,
                    since: look.received,
                    changed: true,
                    doubted_at: None,
                    ..*sighting
                };
            } else if afresh {
                // An earlier doubt belonged to the earlier observation.
                *sighting = Sighting { since: look.received, doubted_at: None, ..*sighting };
            }
            let silent_for = look.sent.since(sighting.since);
            if silent_for >= row.heartbeat_timeout {
                silent.push(self.silent(row, silent_for));
            }
        }
        self.doubt_masses(silent, others.len(), look)
    }

    /// A reading or a renewal failed: the store, or the way to it, is out.
    pub fn failed(&mut self) {
        self.outage = true;
    }

    /// How many suspects have beaten again since this was last asked.
    pub fn take_refuted(&mut self) -> u64 {
        std::mem::take(&mut self.refuted)
    }

    /// How often to renew and to look: often enough for whoever has the shortest patience. An observer
    /// that looked less often would take its own pauses for stalls, and see nothing.
    pub fn pace(&self, own_interval: Duration) -> Duration {
        self.shortest_timeout.map_or(own_interval, |timeout| own_interval.min(timeout / 3))
    }

    /// How a replica looks at `now`.
    pub fn appearance(&self, replica: ReplicaId, now: BootInstant) -> Appearance {
        match self.sightings.get(&replica) {
            Some(sighting) if sighting.suspect(now) => Appearance::Suspect,
            Some(sighting) if sighting.changed => Appearance::Alive,
            _ => Appearance::Unknown,
        }
    }

    /// Whether this observer was itself away (stalled, cut off, or not renewed) for so long that what
    /// it saw before must not count.
    fn starts_afresh(&self, row: &Replica, look: &Look<'_>, gap: Option<Duration>, outage: bool) -> bool {
        let half = row.heartbeat_timeout / 2;
        let stalled = gap.is_none_or(|gap| gap > half);
        let unrenewed = look.received.since(look.renewed) > half;
        let unmindful = if outage { Hole::NoGraceAfterOutage } else { Hole::StalledDetector };
        if self.hole.is(unmindful) {
            return false;
        }
        stalled || (unrenewed && !self.hole.is(Hole::UnrenewedJudge))
    }

    fn silent(&self, row: &Replica, silent_for: Duration) -> Silent {
        Silent {
            id: row.id,
            beat: row.beat,
            silent_for,
            timeout: row.heartbeat_timeout,
            last_heartbeat_at: row.last_heartbeat_at,
            doubted: self.sightings.get(&row.id).is_some_and(|sighting| sighting.doubted_at.is_some()),
        }
    }

    /// Of the silent, those that may be judged now. They need not cross their timeouts in the same look
    /// to be many: whoever is suspect counts.
    fn doubt_masses(&mut self, silent: Vec<Silent>, watched: usize, look: &Look<'_>) -> Vec<Silent> {
        if self.hole.is(Hole::ForeignClocks) {
            return silent;
        }
        let suspects = self.sightings.values().filter(|sighting| sighting.suspect(look.sent)).count();
        let many = suspects >= MASS_LEAST && suspects * 100 > watched * MASS_SHARE_PERCENT;
        let mut judged = Vec::new();
        for silent in silent {
            let Some(sighting) = self.sightings.get_mut(&silent.id) else { continue };
            match sighting.doubted_at {
                None if many => sighting.doubted_at = Some(look.received),
                Some(doubted_at) if look.sent.since(doubted_at) < silent.timeout => {}
                _ => judged.push(silent),
            }
        }
        judged
    }
}

impl Sighting {
    /// Two beats missed, and half an interval for the way.
    fn suspect(&self, now: BootInstant) -> bool {
        now.since(self.since) >= self.interval * 5 / 2
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::replica::ReplicaState;
    use uuid::Uuid;

    const TIMEOUT: Duration = Duration::from_millis(1000);

    fn replica(id: u128, beat: u64) -> Replica {
        Replica {
            id: ReplicaId(Uuid::from_u128(id)),
            host: "h".into(),
            machine: None,
            version: "0".into(),
            state: ReplicaState::Active,
            beat,
            started_at: StoreTime(0),
            last_heartbeat_at: StoreTime(0),
            heartbeat_interval: TIMEOUT / 5,
            heartbeat_timeout: TIMEOUT,
            clock_skew_ms: 0,
            running: 0,
        }
    }

    fn at(millis: u64) -> BootInstant {
        BootInstant(Duration::from_millis(millis))
    }

    /// Looks at `now`, renewed just then.
    fn look(watch: &mut Watch, now: u64, replicas: &[Replica]) -> Vec<u128> {
        look_renewed(watch, now, now, replicas)
    }

    fn look_renewed(watch: &mut Watch, now: u64, renewed: u64, replicas: &[Replica]) -> Vec<u128> {
        let look = Look {
            sent: at(now),
            received: at(now),
            renewed: at(renewed),
            wall: StoreTime(0),
            me: ReplicaId(Uuid::from_u128(99)),
            replicas,
        };
        watch.look(&look).into_iter().map(|silent| silent.id.0.as_u128()).collect()
    }

    #[test]
    fn silence_watched_for_the_whole_timeout_is_reported_and_not_before() {
        let mut watch = Watch::default();
        for now in (0..1000).step_by(200) {
            assert!(look(&mut watch, now, &[replica(1, 7)]).is_empty(), "{now}");
        }
        assert_eq!(look(&mut watch, 1000, &[replica(1, 7)]), [1]);
        assert!(look(&mut watch, 1200, &[replica(1, 8)]).is_empty());
    }

    #[test]
    fn a_suspect_that_beats_again_refutes_the_suspicion_once() {
        let mut watch = Watch::default();
        for (now, beat) in [(0, 7), (200, 8), (400, 8), (600, 8)] {
            look(&mut watch, now, &[replica(1, beat)]);
        }
        assert_eq!(watch.take_refuted(), 0, "neither a beat nor silence refutes");
        look(&mut watch, 800, &[replica(1, 9)]);
        assert_eq!((watch.take_refuted(), watch.take_refuted()), (1, 0));
        // This observer was away itself: it suspected nobody.
        look(&mut watch, 3000, &[replica(1, 20)]);
        assert_eq!(watch.take_refuted(), 0);
    }

    #[test]
    fn a_gap_of_its_own_starts_every_observation_afresh() {
        let mut watch = Watch::default();
        look(&mut watch, 0, &[replica(1, 7)]);
        look(&mut watch, 400, &[replica(1, 7)]);
        assert!(look(&mut watch, 1000, &[replica(1, 7)]).is_empty());
        for now in (1200..2000).step_by(200) {
            assert!(look(&mut watch, now, &[replica(1, 7)]).is_empty(), "{now}");
        }
        assert_eq!(look(&mut watch, 2000, &[replica(1, 7)]), [1]);
    }

    #[test]
    fn a_beat_that_a_failover_set_back_and_that_rose_again_has_changed() {
        let mut watch = Watch::default();
        look(&mut watch, 0, &[replica(1, 7)]);
        look(&mut watch, 450, &[replica(1, 7)]);
        let again = Replica { last_heartbeat_at: StoreTime(1), ..replica(1, 7) };
        look(&mut watch, 900, std::slice::from_ref(&again));
        assert!(look(&mut watch, 1300, &[again]).is_empty(), "it beat at 900 at the latest");
    }

    #[test]
    fn a_doubt_ends_with_the_observation_it_belongs_to() {
        let mut watch = Watch::default();
        let silent = [replica(1, 7), replica(2, 7), replica(3, 7)];
        for now in (0..=1000).step_by(200) {
            assert!(look(&mut watch, now, &silent).is_empty(), "{now}: doubted at the end of these");
        }
        // Away for three seconds: all begins anew, and many at once are doubted anew.
        for now in (4000..=5800).step_by(200) {
            assert!(look(&mut watch, now, &silent).is_empty(), "{now}");
        }
        assert_eq!(look(&mut watch, 6000, &silent), [1, 2, 3]);
    }

    #[test]
    fn an_unrenewed_observer_judges_nobody() {
        let mut watch = Watch::default();
        for now in (0..=4000).step_by(200) {
            assert!(look_renewed(&mut watch, now, 0, &[replica(1, 7)]).is_empty() || now <= 500, "{now}");
        }
    }

    #[test]
    fn many_at_once_get_one_more_timeout_and_few_do_not() {
        let rows = |beat| (1..=4).map(|id| replica(id, beat)).collect::<Vec<_>>();
        let mut watch = Watch::default();
        for now in (0..=1800).step_by(200) {
            assert!(look(&mut watch, now, &rows(7)).is_empty(), "{now}");
        }
        assert_eq!(look(&mut watch, 2000, &rows(7)), [1, 2, 3, 4]);

        let mut watch = Watch::default();
        let mut reported = Vec::new();
        for now in (0..=1000).step_by(200) {
            let mut mixed = rows(now);
            mixed[0].beat = 1;
            mixed[1].beat = 1;
            reported = look(&mut watch, now, &mixed);
        }
        assert_eq!(reported, [1, 2]);
    }

    #[test]
    fn many_are_doubted_although_their_beats_were_out_of_step() {
        let mut watch = Watch::default();
        // All four are cut off at 400; two beat last at 200, two at 400.
        let rows =
            |now: u64| (1..=4).map(|id| replica(id, now.min(if id <= 2 { 200 } else { 400 }))).collect::<Vec<_>>();
        let mut judged = Vec::new();
        for now in (0..=2600).step_by(200) {
            let found = look(&mut watch, now, &rows(now));
            assert!(found.is_empty() || now >= 2200, "{now}: {found:?}");
            judged.extend(found);
        }
        judged.sort_unstable();
        judged.dedup();
        assert_eq!(judged, [1, 2, 3, 4]);
    }

    #[test]
    fn the_pace_follows_the_shortest_timeout_that_is_watched() {
        let mut watch = Watch::default();
        let own = Duration::from_secs(10);
        assert_eq!(watch.pace(own), own);
        look(&mut watch, 0, &[replica(1, 7)]);
        assert_eq!(watch.pace(own), TIMEOUT / 3);
        assert_eq!(watch.pace(TIMEOUT / 10), TIMEOUT / 10);
    }

    #[test]
    fn a_replica_is_suspect_after_two_missed_beats() {
        let mut watch = Watch::default();
        look(&mut watch, 0, &[replica(1, 7)]);
        assert_eq!(watch.appearance(replica(1, 7).id, at(0)), Appearance::Unknown);
        look(&mut watch, 200, &[replica(1, 8)]);
        assert_eq!(watch.appearance(replica(1, 8).id, at(500)), Appearance::Alive);
        assert_eq!(watch.appearance(replica(1, 8).id, at(700)), Appearance::Suspect);
        assert_eq!(watch.appearance(replica(2, 1).id, at(700)), Appearance::Unknown);
    }
}
