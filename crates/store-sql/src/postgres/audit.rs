//! Counts of everything, and violations of what must hold.

use super::Postgres;
use crate::columns::{
    AUDIT_COUNTS, AUDIT_COUNTS_SQL, AUDIT_G1_SQL, AUDIT_OWNERLESS_SQL, AUDIT_PLACES_SQL, AUDIT_STRANDED_SQL,
};
use crate::decode::{found_violations, whole};
use async_trait::async_trait;
use everbeat_store::{Audit, Audits, Error, Result};

#[async_trait]
impl Audits for Postgres {
    async fn audit(&self) -> Result<Audit> {
        let counts = self.slow.query(AUDIT_COUNTS_SQL, &[]).await?;
        let counts = counts.first().ok_or_else(|| Error::Bug("the audit counted nothing".to_string()))?;
        let count = |(column, name): (usize, &&str)| (name.to_string(), whole(counts.get(column)));
        let checked = AUDIT_COUNTS.iter().enumerate().map(count).collect();
        let places = self.slow.query(AUDIT_PLACES_SQL, &[]).await?;
        let ownerless = self.slow.query(AUDIT_OWNERLESS_SQL, &[]).await?;
        let stranded = self.slow.query(AUDIT_STRANDED_SQL, &[]).await?;
        let ended_again = self.slow.query(AUDIT_G1_SQL, &[]).await?;
        let violations = found_violations(
            places.iter().map(|row| (row.get(0), row.get(1))).collect(),
            ownerless.iter().map(|row| (row.get(0), row.get(1))).collect(),
            stranded.iter().map(|row| (row.get(0), row.get(1), row.get(2))).collect(),
            ended_again.iter().map(|row| (row.get(0), row.get(1))).collect(),
        );
        Ok(Audit { checked, violations })
    }
}
