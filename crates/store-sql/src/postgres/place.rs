//! The host where a detached run has begun.

use super::link::Link;
use everbeat_model::lease::Shown;
use everbeat_store::Result;

/// The lease is locked first: whoever settles it meanwhile waits, and then reads the host that is written here.
const PLACE: &str = "\
    with held as materialized (select 1 from lease l where l.run_id = $1 and l.token = $2 and l.replica_id = $3 \
      for update), \
    placed as (update run r set host = $4 where r.id = $1 and exists (select 1 from held) returning 1) \
    select 1 from placed";

pub(super) async fn place(link: &Link, shown: Shown, host: Option<&str>) -> Result<bool> {
    let rows = link.query(PLACE, &[&shown.run_id.0, &shown.token.0, &shown.replica_id.0, &host]).await?;
    Ok(!rows.is_empty())
}
