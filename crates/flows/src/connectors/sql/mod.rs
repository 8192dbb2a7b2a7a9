//! Tables of SQLite and PostgreSQL.

mod address;
mod cell;
mod inflect;
mod names;
mod postgres;
mod sink;
mod source;
mod sqlite;

pub(super) use sink::read as read_sink;
pub(super) use source::read as read_source;
