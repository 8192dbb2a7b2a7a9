use super::Host;
use everbeat_model::Json;
use std::fs;
use std::io::{self, ErrorKind, Read};
use std::path::PathBuf;

const FILE: &str = "startup-log.jsonl";
const MOST_ENTRIES: usize = 50;
const MOST_BYTES: u64 = 32 << 20;

impl Host {
    /// Written aside and renamed, so that nobody reads half of it.
    pub(super) fn log_start(&self, entry: &Json) -> io::Result<()> {
        let mut lines = self.start_lines()?;
        lines.push(entry.as_str().to_string());
        let first = lines.len().saturating_sub(MOST_ENTRIES);
        let fresh = self.data_dir.join(format!(".{FILE}-{}", uuid::Uuid::new_v4().simple()));
        fs::write(&fresh, lines[first..].join("\n") + "\n")?;
        fs::rename(&fresh, self.start_file())
    }

    pub(super) fn starts(&self) -> io::Result<Vec<Json>> {
        let lines = self.start_lines()?;
        Ok(lines.iter().rev().filter_map(|line| Json::parse(line).ok()).collect())
    }

    fn start_file(&self) -> PathBuf {
        self.data_dir.join(FILE)
    }

    fn start_lines(&self) -> io::Result<Vec<String>> {
        let mut text = String::new();
        match fs::File::open(self.start_file()) {
            Ok(file) => _ = file.take(MOST_BYTES).read_to_string(&mut text)?,
            Err(error) if error.kind() == ErrorKind::NotFound => {}
            Err(error) => return Err(error),
        }
        Ok(text.lines().map(ToString::to_string).collect())
    }
}
