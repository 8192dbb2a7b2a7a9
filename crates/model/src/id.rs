use serde::{Deserialize, Serialize};
use std::fmt;
use std::str::FromStr;
use std::sync::atomic::{AtomicU64, Ordering};
use uuid::Uuid;

macro_rules! id {
    ($(#[$doc:meta])* $name:ident) => {
        $(#[$doc])*
        #[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
        #[serde(transparent)]
        pub struct $name(pub Uuid);

        impl fmt::Display for $name {
            fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
                self.0.fmt(f)
            }
        }

        impl fmt::Debug for $name {
            fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
                write!(f, "{}({})", stringify!($name), self.0)
            }
        }

        impl FromStr for $name {
            type Err = uuid::Error;

            fn from_str(text: &str) -> Result<$name, uuid::Error> {
                Uuid::try_parse(text).map($name)
            }
        }
    };
}

id! {
    /// Names a run. Version 7, made from the store's time, so that ids sort by age.
    RunId
}
id! {
    /// Names one boot of one server process; a restarted server has a new one.
    ReplicaId
}
id! {
    /// Names an execution of a graph. Version 7, like a run's.
    ExecutionId
}
id! {
    /// Names a schedule or a flow, from when it is written to when it is deleted. Version 7, like a run's.
    ScheduleId
}
id! {
    /// Names a verdict.
    VerdictId
}
id! {
    /// Names one worker process, from its start to its end.
    WorkerId
}
id! {
    /// Names one session, from its beginning at a worker to its end.
    SessionId
}

/// The secret of a lease: 128 random bits, so that two grants never share one, even when a database
/// failover forgets the first.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Token(pub Uuid);

impl fmt::Debug for Token {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("Token(…)")
    }
}

/// Makes version 7 identifiers that rise even within one millisecond, so that a batch keeps its order.
#[derive(Debug, Default)]
pub struct Sequence(AtomicU64);

/// So many identifiers fit into one millisecond before the next one is borrowed.
const PLACES_BITS: u32 = 18;

impl Sequence {
    pub fn next(&self, now_ms: u64, random: u128) -> Uuid {
        let earliest = now_ms << PLACES_BITS;
        let step = |last: u64| Some(earliest.max(last + 1));
        let before = self.0.fetch_update(Ordering::Relaxed, Ordering::Relaxed, step).unwrap_or_default();
        let place = u128::from(earliest.max(before + 1));
        let (millis, high, low) = (place >> PLACES_BITS, (place >> 6) & 0xfff, place & 0x3f);
        Uuid::from_u128(millis << 80 | 7 << 76 | high << 64 | 0b10 << 62 | low << 56 | random >> 72)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn identifiers_rise_and_carry_their_time() {
        let sequence = Sequence::default();
        let ids: Vec<Uuid> = (0..10_000_u32).map(|n| sequence.next(1_700_000_000_000, !u128::from(n))).collect();
        assert!(ids.is_sorted());
        assert_eq!(ids[0].get_version_num(), 7);
        assert_eq!(ids[0].get_variant(), uuid::Variant::RFC4122);
        let (seconds, _) = ids[9_999].get_timestamp().expect("version 7").to_unix();
        assert_eq!(seconds, 1_700_000_000);
        assert!(sequence.next(1, 0) > ids[9_999], "a clock that goes back repeats nothing");
    }
}
