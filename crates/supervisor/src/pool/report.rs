//! What a guardian sees after the death of its server: a line of JSON each, for the next start to tell.

use super::folder::GuardianFolder;
use crate::job::clock;
use everbeat_engine::pools::GuardianReport;
use serde::{Deserialize, Serialize};
use serde_json::{Value, json};
use std::fs::{self, File};
use std::io::{self, Read};

#[derive(Debug, Serialize, Deserialize)]
struct Line {
    event: String,
    pool: String,
    at: String,
    detail: Value,
}

/// So much of a report is read: some ten thousand workers.
const MOST_REPORT_BYTES: u64 = 4 << 20;

/// The report of one guardian. It is written when nothing is left to kill: the disk may hang.
#[derive(Debug)]
pub(super) struct Report {
    pool: String,
    text: Vec<u8>,
}

impl Report {
    pub(super) fn new(pool: &str) -> Report {
        Report { pool: pool.to_owned(), text: Vec::new() }
    }

    /// `detection_time_ms` is what passed between the first moment at which the guardian could have noticed and the one at
    /// which it did: the kernel tells at once, but a busy guardian may listen late.
    pub(super) fn server_death_detected(&mut self, detection_time_ms: u64, workers: usize) {
        self.add("server_death_detected", json!({"detection_time_ms": detection_time_ms, "workers": workers}));
    }

    pub(super) fn worker_terminated(&mut self, worker: &str, termination_duration_ms: u64, killed: bool) {
        let method = if killed { "sigkill" } else { "sigterm" };
        let duration = termination_duration_ms;
        let detail = json!({"worker_id": worker, "termination_duration_ms": duration, "method": method});
        self.add("worker_terminated", detail);
    }

    fn add(&mut self, event: &str, detail: Value) {
        let line = Line { event: event.to_owned(), pool: self.pool.clone(), at: clock::now_text(), detail };
        if let Ok(line) = serde_json::to_vec(&line) {
            self.text.extend(line);
            self.text.push(b'\n');
        }
    }

    pub(super) fn write(&self, folder: &GuardianFolder) -> io::Result<()> {
        fs::write(folder.report(), &self.text)
    }
}

/// All whole lines of a guardian's report.
pub(super) fn read(folder: &GuardianFolder) -> Vec<GuardianReport> {
    let mut text = Vec::new();
    if let Ok(file) = File::open(folder.report()) {
        let _as_much_as_there_is = file.take(MOST_REPORT_BYTES).read_to_end(&mut text);
    }
    let lines = text.split(|byte| *byte == b'\n').filter_map(|line| serde_json::from_slice::<Line>(line).ok());
    lines.map(|line| GuardianReport { event: line.event, pool: line.pool, at: line.at, detail: line.detail }).collect()
}
