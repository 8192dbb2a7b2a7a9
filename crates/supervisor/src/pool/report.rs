//! What a guardian sees after the death of its server: a line of JSON each, for the next start to tell.

use super::folder::GuardianFolder;
use crate::job::clock;
use everbeat_engine::pools::GuardianReport;
use serde::{Deserialize, Serialize};
use serde_json::{Value, json};
use std::fs::{File, OpenOptions};
use std::io::{Read, Write};
use std::os::unix::fs::OpenOptionsExt;

#[derive(Debug, Serialize, Deserialize)]
struct Line {
    event: String,
    pool: String,
    at: String,
    detail: Value,
}

/// So much of a report is read: some ten thousand workers.
const MOST_REPORT_BYTES: u64 = 4 << 20;

/// The report of one guardian, opened when there is something to write.
#[derive(Debug)]
pub(super) struct Report {
    pool: String,
    file: Option<File>,
}

impl Report {
    pub(super) fn begin(folder: &GuardianFolder, pool: &str) -> Report {
        let file = OpenOptions::new().append(true).create(true).mode(0o600).open(folder.report()).ok();
        Report { pool: pool.to_owned(), file }
    }

    /// `detection_time_ms` is what passed between the first moment at which the guardian could have noticed and the one at
    /// which it did: the kernel tells at once, but a busy guardian may listen late.
    pub(super) fn server_death_detected(&mut self, detection_time_ms: u64, workers: usize) {
        self.write("server_death_detected", json!({"detection_time_ms": detection_time_ms, "workers": workers}));
    }

    pub(super) fn worker_terminated(&mut self, worker: &str, termination_duration_ms: u64, killed: bool) {
        let method = if killed { "sigkill" } else { "sigterm" };
        let duration = termination_duration_ms;
        let detail = json!({"worker_id": worker, "termination_duration_ms": duration, "method": method});
        self.write("worker_terminated", detail);
    }

    fn write(&mut self, event: &str, detail: Value) {
        let line = Line { event: event.to_owned(), pool: self.pool.clone(), at: clock::now_text(), detail };
        let Ok(mut text) = serde_json::to_vec(&line) else { return };
        text.push(b'\n');
        // What cannot be told must not hold up the end of the workers.
        let _told_or_not = self.file.as_mut().map(|file| file.write_all(&text));
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
