//! What a server does before it works: look at its data folder and open its store.

use crate::config::{Config, mask};
use crate::exit::Failure;
use everbeat::{StoreOptions, open_store};
use everbeat_engine::Env;
use everbeat_store::{Error, Obstacle, Store};
use everbeat_supervisor::{Misplaced, Place};
use std::fs;
use std::os::unix::fs::MetadataExt;
use std::path::Path;
use std::sync::Arc;
use std::time::Duration;

const OPEN_TRIES: u32 = 10;
const OPEN_PAUSE: Duration = Duration::from_secs(1);

/// Opens the store. A database that starts at the same time as this server is waited for, a while.
pub(crate) async fn store(config: &Config, env: &Arc<dyn Env>) -> Result<Arc<dyn Store>, Failure> {
    let url = config.store_url();
    if config.password_is_shown() {
        let remedy = "give it in PGPASSWORD, PGPASSFILE, EVERBEAT_STORE__URL or the file of store.url_file";
        tracing::warn!(remedy, "every user of this machine can see the password in --store");
    }
    let options = StoreOptions { pool_size: config.store.pool_size };
    for attempt in 1..=OPEN_TRIES {
        match open_store(&url, options, env).await {
            Ok(store) => return Ok(store),
            Err(error @ Error::Unavailable { .. }) if attempt < OPEN_TRIES => {
                tracing::warn!(store = mask(&url), cause = %error, attempt, "the store cannot be reached yet");
                env.sleep(OPEN_PAUSE).await;
            }
            Err(error) => return Err(unopened(&mask(&url), &error)),
        }
    }
    Err(unopened(&mask(&url), &Error::unavailable(Obstacle::Unreachable, format!("after {OPEN_TRIES} tries"))))
}

fn unopened(url: &str, error: &Error) -> Failure {
    let hint = match error {
        Error::Unavailable { cause: Obstacle::Unreachable, .. } => {
            "check that the database runs and that store.url (or --store) names it rightly"
        }
        Error::Unavailable { cause, .. } => cause.remedy(),
        Error::Refused(cause, _) => cause.remedy(),
        Error::KeyReused { .. } | Error::Bug(_) => "check that the store is one of Everbeat's and not damaged",
    };
    Failure::server(format!("the store {url} cannot be used: {error}"), hint)
}

/// Makes the data folder, or sees that the one that is there is in its place.
pub(crate) fn place(path: &Path, adopt: bool) -> Result<Place, Failure> {
    let misplaced = if adopt { Misplaced::Adopt } else { Misplaced::Refuse };
    let place = Place::take(path, misplaced).map_err(|error| Failure::server(error.to_string(), error.hint()))?;
    if let Ok(mode) = fs::metadata(path).map(|folder| folder.mode() & 0o777)
        && mode & 0o077 != 0
    {
        let (folder, mode) = (path.display(), format!("{mode:04o}"));
        tracing::warn!(mode, remedy = format!("chmod 700 {folder}"), "other users can look into the data folder");
    }
    Ok(place)
}
