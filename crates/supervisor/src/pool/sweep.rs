//! The end of what dead servers left of their pools.

use super::folder::{GuardianFolder, ServerFolder};
use super::leftovers::Leftovers;
use super::{report, socket};
use crate::job::clock;
use everbeat_engine::pools::Swept;
use std::io;
use std::path::Path;
use std::time::Duration;

/// A guardian whose server died ends within a second. One that does not hangs.
const GUARDIANS_END_WITHIN_MS: u64 = 2000;
/// Another server that sweeps the same folder may wait for what the kernel holds up.
const SWEPT_WITHIN_MS: u64 = 20_000;
const LOOK_AGAIN_MS: u64 = 5;

/// Ends what servers that are gone left below this data folder. What one folder's end lacks does not stop the others.
pub(super) fn sweep(data_dir: &Path, own_nonce: &str) -> io::Result<Swept> {
    let began = clock::boot_us();
    let mut swept = Swept::default();
    let mut failed = None;
    for folder in ServerFolder::all(data_dir)? {
        if folder.nonce() == own_nonce {
            continue;
        }
        if let Err(error) = sweep_one(&folder, &mut swept) {
            tracing::warn!(folder = %folder.path().display(), %error, "what a dead server left is not ended yet");
            failed.get_or_insert(error);
        }
    }
    swept.reports.sort_by(|one, other| one.at.cmp(&other.at));
    swept.took = Duration::from_micros(clock::boot_us() - began);
    failed.map_or(Ok(swept), Err)
}

fn sweep_one(folder: &ServerFolder, swept: &mut Swept) -> io::Result<()> {
    if folder.is_held()? {
        return Ok(());
    }
    // Another server may be at it. Then it is waited for, since nothing may be left when this returns.
    let until = clock::boot_ms() + SWEPT_WITHIN_MS;
    let _alone = loop {
        match folder.sweep_lock() {
            Ok(Some(lock)) => break lock,
            Ok(None) if clock::boot_ms() > until => {
                return Err(io::Error::new(io::ErrorKind::TimedOut, "another server that sweeps hangs"));
            }
            Ok(None) => clock::pause(LOOK_AGAIN_MS),
            Err(_) if !folder.exists() => return Ok(()),
            Err(error) => return Err(error),
        }
    };
    let guardians = match folder.guardians() {
        Err(_) if !folder.exists() => return Ok(()),
        guardians => guardians?,
    };
    await_ends(&guardians);
    for guardian in &guardians {
        if let Some(leftovers) = Leftovers::of(guardian)? {
            swept.orphans += leftovers.end()?;
        }
        swept.reports.extend(report::read(guardian));
        // Its reports are told once, also if the next one cannot be ended.
        guardian.remove()?;
    }
    socket::remove(folder);
    if let Err(error) = folder.remove() {
        // Another server that looks at it just now may have put its lock there. Nothing lives in it.
        tracing::debug!(folder = %folder.path().display(), %error, "a dead server's folder stays until the next sweep");
    }
    Ok(())
}

/// Guardians that are ending may do so in peace.
fn await_ends(guardians: &[GuardianFolder]) {
    let until = clock::boot_ms() + GUARDIANS_END_WITHIN_MS;
    // What cannot be read cannot be waited for.
    while guardians.iter().any(|guardian| guardian.is_held().unwrap_or(false)) && clock::boot_ms() < until {
        clock::pause(LOOK_AGAIN_MS);
    }
}
