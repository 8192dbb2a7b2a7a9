use super::pass::MOST_BATCH_BYTES;
use crate::transform::apply;
use crate::{Configuration, Ports, Rejected, Room, Surroundings, Trouble};
use everbeat_model::StoreTime;
use serde_json::Value;

/// What a flow would do with its first records.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct DryRun {
    pub read: u64,
    /// What would be written.
    pub records: Vec<Value>,
    pub rejected: Vec<Rejected>,
    pub dropped: u64,
}

/// A person looks at them.
const MOST_RECORDS: usize = 1000;

/// Reads up to `most` records from the beginning and transforms them. Writes nothing, acknowledges nothing.
pub async fn dry_run(
    configuration: &Configuration,
    around: &Surroundings,
    ports: &Ports,
    most: usize,
    now: StoreTime,
) -> Result<DryRun, Trouble> {
    let most = most.clamp(1, MOST_RECORDS);
    let mut source = configuration.source.open(around, None).await?;
    let (mut all, mut bytes_left) = (DryRun::default(), MOST_BATCH_BYTES);
    while (all.read as usize) < most && bytes_left > 0 {
        let batch = source.read(Room { records: most - all.read as usize, bytes: bytes_left }).await?;
        let raw = batch.records.iter().map(|record| record.value.to_string().len()).sum::<usize>();
        bytes_left = bytes_left.saturating_sub(raw);
        all.read += (batch.records.len() + batch.rejected.len()) as u64;
        let transformed = apply(&configuration.transforms, batch.records, now, ports).await?;
        all.rejected.extend(batch.rejected.into_iter().chain(transformed.rejected));
        all.records.extend(transformed.records.into_iter().map(|record| record.value));
        all.dropped += transformed.dropped;
        if batch.last {
            break;
        }
    }
    Ok(all)
}
