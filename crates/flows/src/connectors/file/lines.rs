use super::compression::is_damage;
use super::format::{Bad, Found, KEPT_BYTES, Place, ReadFormat, damaged, text, too_long};
use std::io::{self, BufRead, BufReader, Read};

/// Reads JSON line by line.
pub(super) struct Lines {
    input: BufReader<Box<dyn Read + Send>>,
    place: Place,
    most_bytes: usize,
    /// A last line without its end counts, too. Otherwise whoever writes the file has not finished that line.
    whole: bool,
    ended: bool,
    line: Vec<u8>,
}

const BUFFER_BYTES: usize = 128 << 10;

/// What is in `line` after a line was read.
enum Reached {
    Line,
    TooLong,
    Damage(String),
    End,
}

impl Lines {
    /// The input stands at `place` already.
    pub(super) fn new(input: Box<dyn Read + Send>, place: Place, most_bytes: usize, whole: bool) -> Lines {
        let input = BufReader::with_capacity(BUFFER_BYTES, input);
        Lines { input, place, most_bytes, whole, ended: false, line: Vec::new() }
    }

    /// Fills `line`, without its end. The second value is how many bytes were taken.
    fn fill(&mut self) -> io::Result<(Reached, usize)> {
        self.line.clear();
        let (mut taken, mut long) = (0, false);
        loop {
            let buffer = match self.input.fill_buf() {
                Ok(buffer) => buffer,
                Err(error) if error.kind() == io::ErrorKind::Interrupted => continue,
                Err(error) if is_damage(&error) => return Ok((Reached::Damage(damaged(&error)), taken)),
                Err(error) => return Err(error),
            };
            if buffer.is_empty() {
                let reached = match (taken, self.whole, long) {
                    (0, ..) | (_, false, _) => Reached::End,
                    (.., true) => Reached::TooLong,
                    _ => Reached::Line,
                };
                return Ok((reached, taken));
            }
            let end = memchr::memchr(b'\n', buffer);
            let part = &buffer[..end.unwrap_or(buffer.len())];
            long |= self.line.len() + part.len() > self.most_bytes;
            let room = if long { KEPT_BYTES.saturating_sub(self.line.len()) } else { part.len() };
            self.line.extend_from_slice(&part[..part.len().min(room)]);
            let consumed = part.len() + usize::from(end.is_some());
            self.input.consume(consumed);
            taken += consumed;
            if end.is_some() {
                return Ok((if long { Reached::TooLong } else { Reached::Line }, taken));
            }
        }
    }
}

impl ReadFormat for Lines {
    fn next(&mut self) -> io::Result<Option<Found>> {
        while !self.ended {
            let (reached, bytes) = self.fill()?;
            let line = self.place.line;
            let bad = |reason: String, raw: &[u8]| Err(Bad { reason, raw: raw.to_vec() });
            let content = match reached {
                Reached::End => {
                    self.ended = true;
                    return Ok(None);
                }
                Reached::Damage(reason) => {
                    self.ended = true;
                    let kept = self.line.len().min(KEPT_BYTES);
                    return Ok(Some(Found { line, bytes, content: bad(reason, &self.line[..kept]) }));
                }
                Reached::TooLong => bad(too_long(self.most_bytes), &self.line[..self.line.len().min(KEPT_BYTES)]),
                Reached::Line => {
                    let found = trimmed(&self.line, self.place.offset == 0);
                    if found.is_empty() {
                        self.advance(bytes);
                        continue;
                    }
                    let parsed = text(found)
                        .and_then(|text| serde_json::from_str(text).map_err(|error| format!("is not JSON: {error}")));
                    parsed.or_else(|reason| bad(reason, found))
                }
            };
            self.advance(bytes);
            return Ok(Some(Found { line, bytes, content }));
        }
        Ok(None)
    }

    fn place(&self) -> Place {
        self.place
    }
}

impl Lines {
    fn advance(&mut self, bytes: usize) {
        self.place = Place { offset: self.place.offset + bytes as u64, line: self.place.line + 1 };
    }
}

/// Without white space around it, and without the mark that some editors put at the beginning of a file.
fn trimmed(line: &[u8], first: bool) -> &[u8] {
    let line = if first { line.strip_prefix(b"\xef\xbb\xbf").unwrap_or(line) } else { line };
    line.trim_ascii()
}

#[cfg(test)]
mod tests {
    use super::super::format::BEGINNING;
    use super::*;

    fn all(bytes: &[u8], whole: bool) -> (Vec<String>, Place) {
        let mut lines = Lines::new(Box::new(io::Cursor::new(bytes.to_vec())), BEGINNING, 16, whole);
        let mut found = Vec::new();
        while let Some(Found { line, content, .. }) = lines.next().unwrap() {
            let said = content.map_or_else(|bad| bad.reason, |value| value.to_string());
            found.push(format!("{line} {}", said.split([':', ';']).next().unwrap()));
        }
        (found, lines.place())
    }

    #[test]
    fn each_line_is_a_record_or_says_what_is_wrong_with_it() {
        let bytes = b"\xef\xbb\xbf{\"a\":1}\r\n\n nonsense\n\"\xff\"\n\"0123456789abcdef\"\n[2]";
        let (found, place) = all(bytes, true);
        assert_eq!(found[0], "1 {\"a\"");
        assert_eq!(found[1..], ["3 is not JSON", "4 is not UTF-8", "5 is longer than 16 bytes", "6 [2]"]);
        assert_eq!(place, Place { offset: bytes.len() as u64, line: 7 });
    }

    #[test]
    fn a_line_without_its_end_is_left_for_later_where_files_grow() {
        assert_eq!(all(b"1\n2", false), (vec!["1 1".to_string()], Place { offset: 2, line: 2 }));
    }
}
