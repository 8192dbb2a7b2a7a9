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
    let batch = configuration.source.look(around, Room { records: most, bytes: MOST_BATCH_BYTES }).await?;
    let read = (batch.records.len() + batch.rejected.len()) as u64;
    let transformed = apply(&configuration.transforms, batch.records, now, ports).await?;
    Ok(DryRun {
        read,
        records: transformed.records.into_iter().map(|record| record.value).collect(),
        rejected: batch.rejected.into_iter().chain(transformed.rejected).collect(),
        dropped: transformed.dropped,
    })
}
