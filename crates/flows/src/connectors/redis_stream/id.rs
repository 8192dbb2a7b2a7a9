use std::collections::BTreeSet;
use std::fmt;
use std::str::FromStr;

/// The id of a message in a stream: its time in milliseconds, and a number for those of the same time.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(super) struct Id {
    pub(super) time: u64,
    pub(super) number: u64,
}

impl Id {
    pub(super) const ZERO: Id = Id { time: 0, number: 0 };
}

impl fmt::Display for Id {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}-{}", self.time, self.number)
    }
}

impl FromStr for Id {
    type Err = ();

    fn from_str(text: &str) -> Result<Id, ()> {
        let (time, number) = text.split_once('-').ok_or(())?;
        Ok(Id { time: time.parse().map_err(drop)?, number: number.parse().map_err(drop)? })
    }
}

/// Writes ids as one text. Each says how much later it is than the one before: `17000-0 +1 +2 5-0` stands for 17000-0,
/// 17000-1, 17000-3 and 17005-0. Cursors hold the ids of whole batches, and are written with each.
pub(super) fn encode(ids: impl IntoIterator<Item = Id>) -> String {
    let mut text = String::new();
    let mut last = Id::ZERO;
    for id in ids {
        if !text.is_empty() {
            text.push(' ');
        }
        match id.time == last.time && !text.is_empty() {
            true => text.push_str(&format!("+{}", id.number - last.number)),
            false => text.push_str(&format!("{}-{}", id.time - last.time, id.number)),
        }
        last = id;
    }
    text
}

/// Reads what `encode` wrote; nothing if it is anything else.
pub(super) fn decode(text: &str) -> Option<BTreeSet<Id>> {
    let mut ids = BTreeSet::new();
    let mut last = Id::ZERO;
    for part in text.split_ascii_whitespace() {
        last = match part.strip_prefix('+') {
            Some(later) => Id { time: last.time, number: last.number.checked_add(later.parse().ok()?)? },
            None => {
                let later: Id = part.parse().ok()?;
                Id { time: last.time.checked_add(later.time)?, number: later.number }
            }
        };
        ids.insert(last);
    }
    Some(ids)
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    proptest! {
        #[test]
        fn ids_survive_a_cursor(ids in prop::collection::btree_set((0..50u64, any::<u64>()), 0..50), late: bool) {
            let base = if late { u64::MAX - 50 } else { 0 };
            let ids: BTreeSet<Id> = ids.into_iter().map(|(time, number)| Id { time: base + time, number }).collect();
            prop_assert_eq!(decode(&encode(ids.iter().copied())), Some(ids));
        }

        #[test]
        fn any_other_text_is_refused_or_read_without_harm(text: String) {
            let _ = decode(&text);
        }
    }

    #[test]
    fn ids_of_one_time_are_short() {
        let ids = [(17000, 0), (17000, 1), (17000, 3), (17005, 0)].map(|(time, number)| Id { time, number });
        assert_eq!(encode(ids), "17000-0 +1 +2 5-0");
        assert_eq!(decode("1-x"), None);
        assert_eq!(decode("5-0 +18446744073709551615 +1"), None);
    }
}
