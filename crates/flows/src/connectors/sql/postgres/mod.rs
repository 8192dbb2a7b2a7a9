//! PostgreSQL.

mod address;
mod cell;
mod cursor;
mod fault;
mod guard;
mod link;
pub(super) mod sink;
pub(super) mod source;
mod statement;
mod table;
mod tls;
