//! SQLite: everything blocks, and is done in threads for such work.

mod bind;
mod cursor;
mod link;
pub(super) mod sink;
pub(super) mod source;
mod table;
mod value;
