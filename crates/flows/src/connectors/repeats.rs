//! What tells repeats, for sinks that may write a record twice.

use crate::{Record, Surroundings};
use sha2::{Digest, Sha256};
use std::collections::BTreeMap;
use std::fmt::Write;

/// A key for each record of a batch: its run, its position, and which of the records with this position it is. A record
/// that is written again by a later attempt of the run has the same key.
pub(super) fn keys(around: &Surroundings, records: &[Record]) -> Vec<String> {
    let mut seen: BTreeMap<&str, usize> = BTreeMap::new();
    let mut keys = Vec::with_capacity(records.len());
    for Record { position, .. } in records {
        let times = seen.entry(position).or_default();
        *times += 1;
        keys.push(match *times {
            1 => plain(format!("{}/{position}", around.run)),
            nth => plain(format!("{}/{position}#{nth}", around.run)),
        });
    }
    keys
}

/// One key for a whole batch: the same for the same records.
pub(super) fn batch_key(around: &Surroundings, records: &[Record]) -> String {
    let mut hash = Sha256::new();
    for record in records {
        hash.update((record.position.len() as u64).to_be_bytes());
        hash.update(record.position.as_bytes());
    }
    plain(format!("{}/{}", around.run, hex(&hash.finalize())))
}

/// Keys stand in headers, which hold no other characters and are of bounded length.
fn plain(key: String) -> String {
    const LONGEST: usize = 200;
    if key.len() <= LONGEST && key.bytes().all(|byte| byte.is_ascii_graphic()) {
        return key;
    }
    hex(&Sha256::digest(key.as_bytes()))
}

fn hex(bytes: &[u8]) -> String {
    let mut text = String::with_capacity(bytes.len() * 2);
    for byte in bytes {
        // Writing to a String cannot fail.
        let _ = write!(text, "{byte:02x}");
    }
    text
}

#[cfg(test)]
mod tests {
    use super::*;
    use serde_json::Value;

    fn records(positions: &[&str]) -> Vec<Record> {
        positions.iter().map(|&position| Record { value: Value::Null, position: position.into() }).collect()
    }

    fn around(run: &str, fence: u64) -> Surroundings {
        Surroundings { flow: "f".into(), run: run.into(), fence, range: None }
    }

    #[test]
    fn a_record_keeps_its_key_in_every_attempt_and_shares_it_with_no_other() {
        let records = records(&["a:1", "a:1", "a:2", "ü 3", "ü 4"]);
        let keys = keys(&around("r", 1), &records);
        assert_eq!(&keys[..3], ["r/a:1", "r/a:1#2", "r/a:2"]);
        assert_eq!(keys, super::keys(&around("r", 2), &records));
        assert_ne!(keys[3], keys[4]);
        assert!(keys.iter().all(|key| key.len() <= 200 && key.bytes().all(|byte| byte.is_ascii_graphic())));
    }

    #[test]
    fn a_batch_has_the_key_of_its_records() {
        let key = |positions: &[&str]| batch_key(&around("r", 1), &records(positions));
        assert_eq!(key(&["a", "b"]), key(&["a", "b"]));
        assert_ne!(key(&["a", "b"]), key(&["ab"]));
        assert_ne!(key(&["a", "b"]), key(&["a"]));
    }
}
