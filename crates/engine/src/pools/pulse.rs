//! The pulse of one worker: pings and pongs, what its process does, and what follows from both.

use super::guardian::{ProcessLook, ProcessState};
use super::link::Pong;
use super::settings::PoolSettings;
use everbeat_model::BootInstant;
use everbeat_model::worker::{Class, Looks, Patience, Seen, Silence, Suspicion};
use std::time::Duration;

/// Pings of workers whose links were opened together fall into so many parts of an interval.
const SPREAD: u128 = 64;

pub(super) struct Pulse {
    patience: Patience,
    suspicion: Suspicion,
    /// Its process can be looked at. Before it was, nothing is known of it: it is not a worker elsewhere.
    visible: bool,
    /// When anything was last heard of it.
    pub(super) heard: BootInstant,
    transport: Option<BootInstant>,
    next_ping: BootInstant,
    /// How long after the first ping over a link the second one follows. Each worker has its own, so that links that were
    /// opened together are not pinged together for ever.
    second_after: Duration,
    /// How long after the next ping the one after it follows.
    ping_gap: Duration,
    sequence: u64,
    outstanding: Option<Outstanding>,
    /// What this server reads from it waits for this server: its silence says nothing.
    pub(super) held_up: u32,
    /// Its outputs are read to their ends.
    pub(super) output_over: bool,
    /// The latest looks at its process since it was heard.
    looks: Looks,
    /// Since which look it was found stopped, each time.
    stopped_since: Option<BootInstant>,
    stopped_for: Duration,
    pub(super) last_pong: Option<(BootInstant, Pong)>,
    pub(super) round_trip: Option<Duration>,
    pub(super) resident_bytes: u64,
    pub(super) class: Class,
    pub(super) pings: u64,
    pub(super) pongs: u64,
    pub(super) timeouts: u64,
}

/// The ping that is not answered yet.
#[derive(Clone, Copy)]
struct Outstanding {
    sequence: u64,
    /// Since when its pong is owed.
    since: BootInstant,
    /// There was room for it; otherwise it is tried again.
    sent: bool,
    /// How many pings that were due since are counted as missed.
    counted: u32,
}

impl Pulse {
    /// `chance` spreads the pings of several workers over the interval.
    pub(super) fn new(settings: &PoolSettings, now: BootInstant, visible: bool, chance: u128) -> Pulse {
        let second_after = settings.ping_interval * (1 + (chance % SPREAD) as u32) / SPREAD as u32;
        Pulse {
            patience: Patience {
                ping_interval: settings.ping_interval,
                ping_timeout: settings.ping_timeout,
                max_missed: settings.max_missed,
                worker_ttl: settings.worker_ttl,
            },
            suspicion: Suspicion::new(settings.ping_interval),
            visible,
            heard: now,
            transport: None,
            next_ping: now,
            second_after,
            ping_gap: second_after,
            sequence: 0,
            outstanding: None,
            held_up: 0,
            output_over: false,
            looks: Looks::new(settings.ping_timeout),
            stopped_since: None,
            stopped_for: Duration::ZERO,
            last_pong: None,
            round_trip: None,
            resident_bytes: 0,
            class: Class::Starting,
            pings: 0,
            pongs: 0,
            timeouts: 0,
        }
    }

    /// A link is there: whatever was asked over an earlier one is not answered any more.
    pub(super) fn connected(&mut self, now: BootInstant) {
        (self.outstanding, self.next_ping, self.ping_gap) = (None, now, self.second_after);
        self.heard(now);
    }

    /// Anything valid that it says is a sign of life.
    pub(super) fn heard(&mut self, now: BootInstant) {
        self.heard = self.heard.max(now);
        self.look_afresh();
        if self.class != Class::Stalled {
            self.class = Class::Alive;
        }
    }

    /// What it said has found room.
    pub(super) fn unheld(&mut self, now: BootInstant) {
        self.held_up -= 1;
        // What was due while this server did not listen was not missed by the worker.
        let _held_up = self.newly_missed(now);
        self.heard(now);
    }

    /// Its transport answered, whatever its program does.
    pub(super) fn transport(&mut self, now: BootInstant) {
        self.transport = Some(now);
    }

    /// The ping that is due, if one is: never two at a time.
    pub(super) fn ping(&mut self, now: BootInstant) -> Option<u64> {
        match self.outstanding {
            Some(Outstanding { sequence, sent: false, .. }) => Some(sequence),
            None if now >= self.next_ping => {
                self.sequence += 1;
                self.outstanding = Some(Outstanding { sequence: self.sequence, since: now, sent: false, counted: 0 });
                self.next_ping = now + std::mem::replace(&mut self.ping_gap, self.patience.ping_interval);
                Some(self.sequence)
            }
            _ => None,
        }
    }

    /// The ping is on its way. One that was not even taken is owed all the same, and tried again.
    pub(super) fn pinged(&mut self) {
        if let Some(outstanding) = &mut self.outstanding {
            outstanding.sent = true;
            self.pings += 1;
        }
    }

    /// A person asks: the next ping is due now.
    pub(super) fn hurry(&mut self, now: BootInstant) {
        self.next_ping = self.next_ping.min(now);
    }

    /// Answers how long the pong took, if it is the one that is awaited.
    pub(super) fn pong(&mut self, pong: Pong, now: BootInstant) -> Option<Duration> {
        let Outstanding { since, .. } = self.outstanding.filter(|ping| ping.sequence == pong.sequence)?;
        self.outstanding = None;
        self.pongs += 1;
        let took = now.since(since);
        if let Some((before, _)) = self.last_pong {
            self.suspicion.heard(now.since(before));
        }
        self.round_trip = Some(took);
        self.last_pong = Some((now, pong));
        self.resident_bytes = self.resident_bytes.max(pong.resident_bytes);
        Some(took)
    }

    /// Its process was looked at.
    pub(super) fn looked(&mut self, look: ProcessLook, now: BootInstant) {
        self.resident_bytes = look.resident_bytes;
        let stopped = look.state == ProcessState::Stopped;
        if self.stopped_since.is_some() && !stopped {
            // It goes on: what it did not do while it was stopped says nothing of it now.
            self.look_afresh();
        }
        self.looks.add(now, look.cpu, matches!(look.state, ProcessState::Running | ProcessState::Blocked));
        self.stopped_since = self.stopped_since.or(Some(now)).filter(|_| stopped);
        self.stopped_for = self.stopped_since.map_or(Duration::ZERO, |since| now.since(since));
    }

    /// The watcher was away for so long.
    pub(super) fn excuse(&mut self, lag: Duration, now: BootInstant) {
        let later = |at: BootInstant| (at + lag).min(now);
        self.heard = later(self.heard);
        self.transport = self.transport.map(later);
        self.outstanding = self.outstanding.map(|ping| Outstanding { since: later(ping.since), ..ping });
        self.look_afresh();
    }

    /// One more full timeout, from now on.
    pub(super) fn reprieve(&mut self, now: BootInstant) {
        self.heard = now;
        self.outstanding = self.outstanding.map(|ping| Outstanding { since: now, ..ping });
        self.look_afresh();
    }

    fn look_afresh(&mut self) {
        self.looks.clear();
        (self.stopped_since, self.stopped_for) = (None, Duration::ZERO);
    }

    /// How many pings were due since the one that is not answered.
    fn missed(&self, now: BootInstant) -> u32 {
        let interval = self.patience.ping_interval.max(Duration::from_millis(1));
        let owed = self.outstanding.map_or(0, |ping| now.since(ping.since).as_nanos() / interval.as_nanos());
        u32::try_from(owed).unwrap_or(u32::MAX)
    }

    /// How many of these are not counted yet; from now on they are.
    pub(super) fn newly_missed(&mut self, now: BootInstant) -> u32 {
        let missed = self.missed(now);
        let Some(ping) = &mut self.outstanding else { return 0 };
        let new = missed.saturating_sub(ping.counted);
        ping.counted += new;
        new
    }

    pub(super) fn silence(&self, now: BootInstant) -> Silence {
        let transport = self.transport.is_some_and(|at| now.since(at) < self.patience.ping_timeout);
        let (stopped_now, stopped_for) = (self.stopped_since.is_some(), self.stopped_for);
        let seen = self.visible.then(|| Seen { stopped_now, stopped_for, ..self.looks.seen() });
        Silence { lasted: now.since(self.heard), missed: self.missed(now), transport, seen }
    }

    pub(super) fn patience(&self) -> &Patience {
        &self.patience
    }

    pub(super) fn suspicion(&self) -> &Suspicion {
        &self.suspicion
    }
}
