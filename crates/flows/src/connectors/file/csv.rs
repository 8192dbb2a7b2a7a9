use super::compression::is_damage;
use super::format::{BEGINNING, Bad, Found, KEPT_BYTES, Place, ReadFormat, damaged, text, too_long};
use super::types::{Type, Types};
use csv_core::ReadRecordResult;
use serde_json::{Map, Value};
use std::io::{self, BufRead, BufReader, Read};

/// Reads rows under a header.
pub(super) struct Rows {
    input: BufReader<Box<dyn Read + Send>>,
    parser: csv_core::Reader,
    columns: Vec<(String, Option<Type>)>,
    place: Place,
    limits: Limits,
    ended: bool,
    /// The fields of the row, one after the other, and where each ends.
    bytes: Vec<u8>,
    ends: Vec<usize>,
}

#[derive(Clone, Copy)]
pub(super) struct Limits {
    pub(super) record_bytes: usize,
    /// As for lines: whether a last row without its end counts.
    pub(super) whole: bool,
}

const BUFFER_BYTES: usize = 128 << 10;
/// Wider rows are refused.
const MOST_COLUMNS: usize = 10_000;
const FIRST_BYTES: usize = 4 << 10;
const FIRST_COLUMNS: usize = 64;

/// What stands in `bytes` and `ends` after a row was read.
enum Reached {
    Row { fields: usize },
    TooLong,
    TooWide,
    Damage(String),
    End,
}

/// Why a file cannot be read as CSV at all.
pub(super) enum Unreadable {
    Io(io::Error),
    Header(String),
}

impl Rows {
    /// Reads the header. The input stands at the beginning.
    pub(super) fn open(input: Box<dyn Read + Send>, types: &Types, limits: Limits) -> Result<Rows, Unreadable> {
        let mut rows = Rows {
            input: BufReader::with_capacity(BUFFER_BYTES, input),
            parser: csv_core::Reader::new(),
            columns: Vec::new(),
            place: BEGINNING,
            limits,
            ended: false,
            bytes: vec![0; FIRST_BYTES],
            ends: vec![0; FIRST_COLUMNS],
        };
        let refused = |reason: String| Err(Unreadable::Header(reason));
        let fields = match rows.fill().map_err(Unreadable::Io)? {
            Reached::Row { fields } => fields,
            Reached::End => {
                rows.ended = true;
                return Ok(rows);
            }
            Reached::Damage(reason) => return refused(reason),
            Reached::TooLong | Reached::TooWide => return refused("is too long".to_string()),
        };
        for field in 0..fields {
            let bytes = rows.field(field);
            let bytes = if field == 0 { bytes.strip_prefix(b"\xef\xbb\xbf").unwrap_or(bytes) } else { bytes };
            let name = text(bytes).map_err(Unreadable::Header)?.trim().to_string();
            if name.is_empty() || rows.columns.iter().any(|(known, _)| *known == name) {
                return refused(format!("names the column {name:?} twice, or not at all"));
            }
            let kind = types.get(&name).copied();
            rows.columns.push((name, kind));
        }
        match types.keys().find(|name| !rows.columns.iter().any(|(known, _)| known == *name)) {
            Some(name) => refused(format!("has no column {name:?}, which `types` names")),
            None => Ok(rows),
        }
    }

    pub(super) fn names(&self) -> Vec<String> {
        self.columns.iter().map(|(name, _)| name.clone()).collect()
    }

    /// Goes to a place after the header.
    pub(super) fn skip_to(&mut self, place: Place) -> io::Result<()> {
        let ahead = place.offset.saturating_sub(self.place.offset);
        let skipped = io::copy(&mut self.input.by_ref().take(ahead), &mut io::sink());
        match skipped {
            Ok(skipped) => self.ended |= skipped < ahead,
            Err(error) if is_damage(&error) => self.ended = true,
            Err(error) => return Err(error),
        }
        self.place = place;
        self.parser.set_line(place.line);
        Ok(())
    }

    /// Passes the end of the line before, and empty lines, so that the next row begins where `place` says.
    fn pass_ends(&mut self) -> io::Result<()> {
        loop {
            let buffer = match self.input.fill_buf() {
                Ok(buffer) => buffer,
                Err(error) if error.kind() == io::ErrorKind::Interrupted => continue,
                // Whoever reads on meets it again.
                Err(error) if is_damage(&error) => return Ok(()),
                Err(error) => return Err(error),
            };
            let ends = buffer.iter().take_while(|byte| matches!(byte, b'\r' | b'\n')).count();
            let lines = buffer[..ends].iter().filter(|byte| **byte == b'\n').count() as u64;
            let all = ends > 0 && ends == buffer.len();
            self.input.consume(ends);
            self.parser.set_line(self.parser.line() + lines);
            self.advance(ends);
            if !all {
                return Ok(());
            }
        }
    }

    fn fill(&mut self) -> io::Result<Reached> {
        let (mut written, mut fields, mut taken) = (0, 0, 0_usize);
        let (mut long, mut wide) = (false, false);
        loop {
            let buffer = match self.input.fill_buf() {
                Ok(buffer) => buffer,
                Err(error) if error.kind() == io::ErrorKind::Interrupted => continue,
                Err(error) if is_damage(&error) => {
                    self.bytes.truncate(written.max(1));
                    return Ok(Reached::Damage(damaged(&error)));
                }
                Err(error) => return Err(error),
            };
            let at_end = buffer.is_empty();
            if at_end && !self.limits.whole && taken > 0 {
                return Ok(Reached::End);
            }
            let (result, consumed, wrote, ended) =
                self.parser.read_record(buffer, &mut self.bytes[written..], &mut self.ends[fields..]);
            self.input.consume(consumed);
            (taken, written, fields) = (taken + consumed, written + wrote, fields + ended);
            long |= taken > self.limits.record_bytes;
            match result {
                ReadRecordResult::InputEmpty => {}
                ReadRecordResult::OutputFull if self.bytes.len() < self.limits.record_bytes => {
                    self.bytes.resize((self.bytes.len() * 2).min(self.limits.record_bytes), 0);
                }
                // The rest of a row that is refused is read over what was read of it, but for its beginning.
                ReadRecordResult::OutputFull => (long, written) = (true, KEPT_BYTES.min(self.bytes.len() / 2)),
                ReadRecordResult::OutputEndsFull if self.ends.len() < MOST_COLUMNS => {
                    self.ends.resize((self.ends.len() * 2).min(MOST_COLUMNS), 0);
                }
                ReadRecordResult::OutputEndsFull => (wide, fields) = (true, 0),
                ReadRecordResult::Record => {
                    self.advance(taken);
                    return Ok(match (long, wide) {
                        (true, _) => Reached::TooLong,
                        (_, true) => Reached::TooWide,
                        _ => Reached::Row { fields },
                    });
                }
                ReadRecordResult::End => return Ok(Reached::End),
            }
        }
    }

    fn advance(&mut self, bytes: usize) {
        self.place = Place { offset: self.place.offset + bytes as u64, line: self.parser.line() };
    }

    fn field(&self, number: usize) -> &[u8] {
        let begin = if number == 0 { 0 } else { self.ends[number - 1] };
        &self.bytes[begin..self.ends[number]]
    }

    fn record(&self, fields: usize) -> Result<Value, String> {
        if fields != self.columns.len() {
            return Err(format!("has {fields} fields where the header has {}", self.columns.len()));
        }
        let mut record = Map::new();
        for (number, (name, kind)) in self.columns.iter().enumerate() {
            let value = text(self.field(number)).and_then(|text| match kind {
                Some(kind) => kind.value(text),
                None => Ok(Value::String(text.to_string())),
            });
            record.insert(name.clone(), value.map_err(|reason| format!("column {name:?} {reason}"))?);
        }
        Ok(Value::Object(record))
    }

    /// The row for people, with commas between its fields.
    fn raw(&self, fields: usize) -> Vec<u8> {
        let mut raw = (0..fields).map(|field| self.field(field)).collect::<Vec<_>>().join(&b',');
        raw.truncate(KEPT_BYTES);
        raw
    }
}

impl ReadFormat for Rows {
    fn next(&mut self) -> io::Result<Option<Found>> {
        if self.ended {
            return Ok(None);
        }
        self.pass_ends()?;
        let before = self.place;
        let bad = |reason: String, raw: Vec<u8>| Err(Bad { reason, raw });
        let content = match self.fill()? {
            Reached::End => {
                self.ended = true;
                return Ok(None);
            }
            Reached::Damage(reason) => {
                self.ended = true;
                bad(reason, self.bytes[..self.bytes.len().min(KEPT_BYTES)].to_vec())
            }
            Reached::TooLong => {
                bad(too_long(self.limits.record_bytes), self.bytes[..self.bytes.len().min(KEPT_BYTES)].to_vec())
            }
            Reached::TooWide => bad(format!("has more than {MOST_COLUMNS} fields"), Vec::new()),
            Reached::Row { fields } => self.record(fields).or_else(|reason| bad(reason, self.raw(fields))),
        };
        let bytes = (self.place.offset - before.offset) as usize;
        Ok(Some(Found { line: before.line, bytes, content }))
    }

    fn place(&self) -> Place {
        self.place
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn rows(bytes: &[u8], whole: bool) -> Result<Rows, Unreadable> {
        let types = [("n".to_string(), Type::Integer)].into();
        Rows::open(Box::new(io::Cursor::new(bytes.to_vec())), &types, Limits { record_bytes: 32, whole })
    }

    fn all(rows: &mut Rows) -> Vec<String> {
        let mut found = Vec::new();
        while let Some(Found { line, content, .. }) = rows.next().unwrap() {
            found.push(format!("{line} {}", content.map_or_else(|bad| bad.reason, |value| value.to_string())));
        }
        found
    }

    fn opened(bytes: &[u8], whole: bool) -> Rows {
        rows(bytes, whole).unwrap_or_else(|_| panic!("a header"))
    }

    #[test]
    fn each_row_is_a_record_or_says_what_is_wrong_with_it() {
        let bytes = b"\xef\xbb\xbfa,n\r\n\"x\ny\",1\r\n\r\nshort\r\n\xff,2\r\nz,many\r\n0123456789012345678901234567890,3\r\nq,\r\nr,7";
        let found = all(&mut opened(bytes, true));
        assert_eq!(found[0], r#"2 {"a":"x\ny","n":1}"#);
        assert_eq!(found[1], "5 has 1 fields where the header has 2");
        assert_eq!(found[2], "6 column \"a\" is not UTF-8: byte 1 cannot be read");
        assert_eq!(found[3], "7 column \"n\" is not an integer");
        assert!(found[4].starts_with("8 is longer than 32 bytes"), "{}", found[4]);
        assert_eq!(found[5..], [r#"9 {"a":"q","n":null}"#, r#"10 {"a":"r","n":7}"#]);
        assert_eq!(all(&mut opened(bytes, false)).len(), 6, "the last row has no end yet");
    }

    #[test]
    fn reading_goes_on_at_any_place_it_was_at() {
        let bytes = b"a,n\r\nx,1\r\n\"y\nz\",2\r\n\r\nq,3\nr,4\n";
        let whole = all(&mut opened(bytes, true));
        for stop in 0..whole.len() {
            let mut first = opened(bytes, true);
            for _ in 0..stop {
                first.next().unwrap();
            }
            let mut second = opened(bytes, true);
            second.skip_to(first.place()).unwrap();
            assert_eq!(all(&mut second), whole[stop..], "after {stop}");
        }
    }

    #[test]
    fn a_quote_that_is_never_closed_takes_no_memory() {
        let mut bytes = b"a,n\n\"".to_vec();
        bytes.resize(1 << 20, b'x');
        let mut rows = opened(&bytes, true);
        assert!(all(&mut rows)[0].starts_with("2 is longer"));
        assert!(rows.bytes.len() <= FIRST_BYTES);
    }

    #[test]
    fn a_header_that_cannot_be_used_says_why() {
        for (text, said) in [("n,n\n", "\"n\" twice"), ("n,\n", "or not at all"), ("a,b\n", "no column \"n\"")] {
            let Err(Unreadable::Header(reason)) = rows(text.as_bytes(), true) else { panic!("{said}") };
            assert!(reason.contains(said), "{reason}");
        }
    }
}
