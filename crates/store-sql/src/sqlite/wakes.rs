//! Hints that something may be ready.

use super::Sqlite;
use everbeat_store::{WakeSignal, Wakes};

impl Wakes for Sqlite {
    fn wake(&self) {
        self.wakes.send_modify(|wakes| *wakes += 1);
    }

    fn wakes(&self) -> WakeSignal {
        WakeSignal::new(self.wakes.subscribe())
    }
}
