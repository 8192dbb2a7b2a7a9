//! Checks and their pings between the model and what columns hold, alike for both databases.

use crate::cells::{number, stored};
use crate::decode::known;
use everbeat_model::StoreTime;
use everbeat_model::check::{Check, CheckState, Health, Ping, PingKind, Signal, Vitals, WhyDown};
use everbeat_store::{CheckRow, Error, Result};
use std::time::Duration;

/// The order is that of [`CheckCells`]; `c` is the check's row.
pub(crate) const CHECK_COLUMNS: &str = "c.name, c.definition, c.version, c.created_at, c.updated_at, c.state, \
  c.down_since, c.down_why, c.armed_at, c.last_success_at, c.started_at, c.last_ping_at, c.last_duration, c.pings";

#[derive(Debug)]
pub(crate) struct CheckCells {
    pub(crate) name: String,
    pub(crate) definition: String,
    pub(crate) version: i64,
    pub(crate) created_at: i64,
    pub(crate) updated_at: i64,
    pub(crate) state: String,
    pub(crate) down_since: Option<i64>,
    pub(crate) down_why: Option<String>,
    pub(crate) armed_at: Option<i64>,
    pub(crate) last_success_at: Option<i64>,
    pub(crate) started_at: Option<i64>,
    pub(crate) last_ping_at: Option<i64>,
    pub(crate) last_duration: Option<i64>,
    pub(crate) pings: i64,
}

impl CheckCells {
    pub(crate) fn read(self) -> Result<CheckRow> {
        let Some(check) = Check::from_stored(&self.name, &self.definition) else {
            return Err(Error::Bug(format!(
                "the definition of check {:?} cannot be read: another version of everbeat has written it; use that one",
                self.name
            )));
        };
        let health = match known("checks", &self.name, "state", &self.state, CheckState::parse(&self.state))? {
            CheckState::New => Health::New,
            CheckState::Up => Health::Up,
            CheckState::Late => Health::Late,
            CheckState::Paused => Health::Paused,
            CheckState::Down => {
                let why = self.down_why.unwrap_or_default();
                let why = known("checks", &self.name, "down_why", &why, WhyDown::parse(&why))?;
                Health::Down { since: StoreTime(self.down_since.unwrap_or(self.updated_at)), why }
            }
        };
        let at = |time: Option<i64>| time.map(StoreTime);
        let vitals = Vitals {
            health,
            armed_at: at(self.armed_at),
            last_success_at: at(self.last_success_at),
            started_at: at(self.started_at),
            last_ping_at: at(self.last_ping_at),
            last_duration: self.last_duration.map(span),
            pings: number(self.pings),
        };
        let (created_at, updated_at) = (StoreTime(self.created_at), StoreTime(self.updated_at));
        Ok(CheckRow { check, version: number(self.version), created_at, updated_at, vitals })
    }
}

/// What changes of a check whenever it is pinged or looked at.
pub(crate) struct VitalCells {
    pub(crate) state: &'static str,
    pub(crate) down_since: Option<i64>,
    pub(crate) down_why: Option<&'static str>,
    pub(crate) armed_at: Option<i64>,
    pub(crate) last_success_at: Option<i64>,
    pub(crate) started_at: Option<i64>,
    pub(crate) last_ping_at: Option<i64>,
    pub(crate) last_duration: Option<i64>,
    pub(crate) pings: i64,
    pub(crate) look_at: Option<i64>,
}

impl VitalCells {
    pub(crate) fn of(row: &CheckRow) -> VitalCells {
        let vitals = &row.vitals;
        let (down_since, down_why) = match vitals.health {
            Health::Down { since, why } => (Some(since.0), Some(why.as_str())),
            _ => (None, None),
        };
        let at = |time: Option<StoreTime>| time.map(|time| time.0);
        VitalCells {
            state: vitals.health.state().as_str(),
            down_since,
            down_why,
            armed_at: at(vitals.armed_at),
            last_success_at: at(vitals.last_success_at),
            started_at: at(vitals.started_at),
            last_ping_at: at(vitals.last_ping_at),
            last_duration: vitals.last_duration.map(micros),
            pings: stored(vitals.pings),
            look_at: at(vitals.look_at(&row.check)),
        }
    }
}

pub(crate) struct PingCells {
    pub(crate) place: i64,
    pub(crate) at: i64,
    pub(crate) kind: String,
    pub(crate) exit_code: Option<i16>,
    pub(crate) duration: Option<i64>,
    pub(crate) body: Option<String>,
}

impl PingCells {
    pub(crate) fn read(self) -> Result<Ping> {
        let kind = known("ping", self.place, "kind", &self.kind, PingKind::parse(&self.kind))?;
        let exit_code = self.exit_code.and_then(|code| u8::try_from(code).ok());
        Ok(Ping {
            place: number(self.place),
            at: StoreTime(self.at),
            signal: Signal { kind, exit_code },
            duration: self.duration.map(span),
            body: self.body,
        })
    }
}

pub(crate) fn micros(span: Duration) -> i64 {
    i64::try_from(span.as_micros()).unwrap_or(i64::MAX)
}

fn span(micros: i64) -> Duration {
    Duration::from_micros(number(micros))
}
