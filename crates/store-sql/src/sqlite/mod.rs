//! The store in one SQLite file: one writer thread with group commit, a few readers beside it, one
//! server process per file.

mod adopt;
mod advance;
mod agenda;
mod analytics;
mod audit;
mod cancel;
mod carry_out;
mod checks;
mod claim;
mod disk;
mod enqueue;
mod events;
mod execution_list;
mod executions;
mod fault;
mod filter;
mod forget;
mod graphs;
mod identity;
mod ids;
mod leases;
mod lock;
mod migrate;
mod outputs;
mod peek;
mod place;
mod private;
mod promote;
mod queues;
mod reader;
mod reopen;
mod replicas;
mod runs;
mod schedule_carry_out;
mod schedule_due;
mod schedule_look;
mod schedule_notes;
mod schedules;
mod sessions;
mod settle;
mod sign;
mod snapshot;
mod tasks;
mod unbind;
mod verdicts;
mod wakes;
mod workers;
mod writer;

use crate::cells::Definitions;
use everbeat_store::{Clock, Result};
use fault::Fault;
use lock::FileLock;
use reader::Readers;
use rusqlite::config::DbConfig;
use rusqlite::{Connection, OpenFlags};
use std::path::Path;
use std::sync::Arc;
use std::time::Duration;
use tokio::sync::watch;
use writer::Writer;

/// A store in one file. Dropping it waits for its threads, after which the file can be opened again.
pub struct Sqlite {
    writer: Writer,
    readers: Readers,
    wakes: watch::Sender<u64>,
    definitions: Arc<Definitions>,
    clock: Arc<dyn Clock>,
    /// Dropped after the threads, so that the lock is released when nobody uses the file any more.
    _lock: FileLock,
}

/// Gives 128 random bits.
pub type Random = Arc<dyn Fn() -> u128 + Send + Sync>;

impl Sqlite {
    /// Opens or makes the file, alone: a second open of it is refused while this one lasts.
    pub fn open(path: &Path, clock: Arc<dyn Clock>, random: Random) -> Result<Sqlite> {
        let lock = FileLock::take(path)?;
        identity::check(path).inspect_err(|_| lock.withdraw())?;
        private::keep(path)?;
        let refused = |error: rusqlite::Error| Fault::opening(path, &error);
        let mut connection = Connection::open(path).map_err(refused)?;
        configure(&connection).map_err(refused)?;
        migrate::migrate(&mut connection, path, clock.now())?;
        let readers = Readers::start(|| {
            let flags = OpenFlags::SQLITE_OPEN_READ_ONLY | OpenFlags::SQLITE_OPEN_NO_MUTEX;
            let reader = Connection::open_with_flags(path, flags).map_err(refused)?;
            configure_reader(&reader).map_err(refused)?;
            Ok(reader)
        })?;
        let writer = Writer::start(connection, clock.clone(), random)?;
        Ok(Sqlite { writer, readers, wakes: watch::Sender::new(0), definitions: Arc::default(), clock, _lock: lock })
    }
}

/// More statements than this store has.
const STATEMENT_CACHE: usize = 256;

/// Bytes of log between checkpoints.
const CHECKPOINT_PAGES: i64 = 8192;

const BUSY_TIMEOUT: Duration = Duration::from_secs(5);

fn configure(connection: &Connection) -> rusqlite::Result<()> {
    connection.busy_timeout(BUSY_TIMEOUT)?;
    connection.pragma_update(None, "journal_mode", "wal")?;
    // An acknowledged commit survives a power cut, not only a crash of the process.
    connection.pragma_update(None, "synchronous", "full")?;
    connection.pragma_update(None, "foreign_keys", false)?;
    connection.pragma_update(None, "temp_store", "memory")?;
    connection.pragma_update(None, "cache_size", -65_536)?;
    // 32 MiB of log between checkpoints: pages that change often are copied back once, not each time.
    connection.pragma_update(None, "wal_autocheckpoint", CHECKPOINT_PAGES)?;
    connection.pragma_update(None, "journal_size_limit", 67_108_864)?;
    keep_statements(connection)
}

fn configure_reader(connection: &Connection) -> rusqlite::Result<()> {
    connection.busy_timeout(BUSY_TIMEOUT)?;
    connection.pragma_update(None, "query_only", true)?;
    connection.pragma_update(None, "temp_store", "memory")?;
    connection.pragma_update(None, "cache_size", -8_192)?;
    filter::register(connection)?;
    keep_statements(connection)
}

/// Prepared once, used ever after. Without the guarantee of a stable plan SQLite prepares most of those
/// with an order anew for every value that is bound: a third of what it costs an execution to go on.
fn keep_statements(connection: &Connection) -> rusqlite::Result<()> {
    connection.set_db_config(DbConfig::SQLITE_DBCONFIG_ENABLE_QPSG, true)?;
    connection.set_prepared_statement_cache_capacity(STATEMENT_CACHE);
    Ok(())
}
