//! SQLite and PostgreSQL stores: the only home of SQL.
//!
//! Both answer exactly as the in-memory store of `everbeat-store` does; files of the same name in
//! `sqlite/` and `postgres/` do the same work.

pub mod postgres;
pub mod raw;
pub mod sqlite;

mod answers;
mod cells;
mod checks;
mod columns;
mod decode;
mod encode;
mod halves;
mod migrations;
mod obstacle;
mod pick;
mod schedules;

pub use postgres::{Postgres, PostgresOptions};
pub use sqlite::Sqlite;
