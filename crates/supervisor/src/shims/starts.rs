use super::Host;
use crate::locks;
use everbeat_model::Json;
use std::fs::{self, File};
use std::io::{self, ErrorKind, Read, Seek, SeekFrom, Write};
use std::os::unix::fs::OpenOptionsExt;
use std::path::PathBuf;

const FILE: &str = "startup-log.jsonl";
const LOCK: &str = "startup-log.lock";
const MOST_ENTRIES: usize = 50;
const MOST_BYTES: u64 = 32 << 20;

impl Host {
    /// Written aside and renamed, so that nobody reads half of it; and by one replica of this host at a time, so that
    /// nobody's line is lost.
    pub(super) fn log_start(&self, entry: &Json) -> io::Result<()> {
        let _alone = self.lock_starts()?;
        let mut lines = self.start_lines()?;
        lines.push(entry.clone());
        let first = lines.len().saturating_sub(MOST_ENTRIES);
        let text: String = lines[first..].iter().map(|line| format!("{}\n", line.as_str())).collect();
        let fresh = self.data_dir.join(format!(".{FILE}-{}", uuid::Uuid::new_v4().simple()));
        let written = (|| {
            let mut file = File::options().write(true).create_new(true).mode(0o600).open(&fresh)?;
            file.write_all(text.as_bytes())?;
            file.sync_all()?;
            fs::rename(&fresh, self.start_file())
        })();
        if written.is_err() {
            let _nothing_more_to_do = fs::remove_file(&fresh);
        }
        written
    }

    pub(super) fn starts(&self) -> io::Result<Vec<Json>> {
        Ok(self.start_lines()?.into_iter().rev().collect())
    }

    fn start_file(&self) -> PathBuf {
        self.data_dir.join(FILE)
    }

    /// In a file of its own: the log itself is replaced.
    fn lock_starts(&self) -> io::Result<File> {
        let path = self.data_dir.join(LOCK);
        let file = File::options().write(true).create(true).truncate(false).mode(0o600).open(path)?;
        locks::wait_for(file, "another replica holds the log of starts")
    }

    /// What is no line of JSON is passed over.
    fn start_lines(&self) -> io::Result<Vec<Json>> {
        let mut bytes = Vec::new();
        match File::open(self.start_file()) {
            Ok(mut file) => {
                let length = file.metadata()?.len();
                file.seek(SeekFrom::Start(length.saturating_sub(MOST_BYTES)))?;
                file.take(MOST_BYTES).read_to_end(&mut bytes)?;
            }
            Err(error) if error.kind() == ErrorKind::NotFound => {}
            Err(error) => return Err(error),
        }
        let lines = bytes.split(|byte| *byte == b'\n').filter(|line| !line.is_empty());
        Ok(lines.filter_map(|line| Json::parse(std::str::from_utf8(line).ok()?).ok()).collect())
    }
}
