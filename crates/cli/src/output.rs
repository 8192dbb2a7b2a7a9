//! What is printed: data on stdout, messages on stderr.

use crate::{clock, spinner, term};
use comfy_table::{Cell, Color, Table, presets};
use everbeat_model::StoreTime;
use serde_json::Value;
use std::io::{self, Write};
use std::time::Duration;

/// Prints data; answers whether anybody still reads. A reader that has seen enough and closed the pipe
/// is no error.
pub(crate) fn print(text: &str) -> bool {
    let mut written = false;
    spinner::aside(|| {
        let mut stdout = io::stdout().lock();
        written = stdout.write_all(text.as_bytes()).and_then(|()| stdout.write_all(b"\n")).is_ok();
    });
    written
}

/// Columns without borders, so that they can be cut and sorted by other tools. For a person they fit the
/// terminal, one line a row, and ids are folded; for a program they are whole.
pub(crate) fn table(headers: &[&str], rows: Vec<Vec<Cell>>) -> String {
    let width = term::style().person.then(|| usize::from(term::width(io::stdout())));
    lay_out(headers, rows.into_iter().map(|row| row.into_iter().map(folded).collect()).collect(), width)
}

/// The same, with whole ids and nothing cut.
pub(crate) fn wide_table(headers: &[&str], rows: Vec<Vec<Cell>>) -> String {
    lay_out(headers, rows, None)
}

fn lay_out(headers: &[&str], mut rows: Vec<Vec<Cell>>, width: Option<usize>) -> String {
    for cell in rows.iter_mut().flatten().filter(|cell| cell.content().contains(char::is_control)) {
        *cell = Cell::new(cell.content().split(char::is_control).collect::<Vec<_>>().join(" "));
    }
    if let Some(width) = width {
        fit(headers, &mut rows, width);
    }
    let mut table = Table::new();
    table.load_style(presets::NOTHING);
    table.set_header(headers);
    table.add_rows(rows);
    table.force_no_tty();
    if term::style().color {
        table.enforce_styling();
    }
    let last = headers.len().saturating_sub(1);
    for (place, column) in table.column_iter_mut().enumerate() {
        column.set_padding((0, if place == last { 0 } else { GAP }));
    }
    table.trim_fmt()
}

/// Between two columns.
const GAP: u16 = 2;
/// Columns are cut down to this, and only if that is not enough to the second.
const NARROWEST: [usize; 2] = [8, 4];
/// Short, and something else once they are cut: they stay whole.
const WHOLE: [&str; 6] = ["ID", "STATE", "OUTCOME", "JUDGEMENT", "EXIT", "TRIES"];

/// Cuts what is too long, the widest column first, until a row fits.
fn fit(headers: &[&str], rows: &mut [Vec<Cell>], width: usize) {
    let length = |cell: &Cell| cell.content().chars().count();
    let widest = |place: usize| rows.iter().filter_map(|row| row.get(place)).map(length).max().unwrap_or_default();
    let mut widths: Vec<usize> =
        headers.iter().enumerate().map(|(place, header)| widest(place).max(header.len())).collect();
    let gaps = usize::from(GAP) * headers.len().saturating_sub(1);
    for narrowest in NARROWEST {
        while widths.iter().sum::<usize>() + gaps > width {
            let may_be_cut = |place: &usize| {
                !WHOLE.contains(&headers[*place]) && widths[*place] > headers[*place].len().max(narrowest)
            };
            let Some(place) = (0..headers.len()).filter(may_be_cut).max_by_key(|place| widths[*place]) else { break };
            widths[place] -= 1;
        }
    }
    for row in rows {
        for (cell, width) in row.iter_mut().zip(&widths) {
            if length(cell) > *width {
                let kept: String = cell.content().chars().take(width.saturating_sub(1)).collect();
                *cell = Cell::new(format!("{}{}", kept.trim_end(), term::shape('…', '~')));
            }
        }
    }
}

/// A person tells ids apart by their last characters, and every command takes them.
fn folded(cell: Cell) -> Cell {
    let text = cell.content();
    let is_id = |word: &str| word.len() == 36 && uuid::Uuid::try_parse(word).is_ok();
    match term::style().person && text.split(' ').any(is_id) {
        true => {
            let fold = |word| if is_id(word) { spinner::tail(word) } else { word };
            Cell::new(text.split(' ').map(fold).collect::<Vec<_>>().join(" "))
        }
        false => cell,
    }
}

/// Lines of `name  value`, aligned.
pub(crate) fn fields(pairs: &[(&str, String)]) -> String {
    let width = pairs.iter().map(|(name, _)| name.len()).max().unwrap_or_default();
    let line = |(name, value): &(&str, String)| {
        let value = value.replace('\n', &format!("\n{:width$}  ", ""));
        format!("{name:width$}  {value}")
    };
    pairs.iter().map(line).collect::<Vec<_>>().join("\n")
}

/// A state, with a shape and a colour where a person looks.
pub(crate) fn state(name: &str) -> Cell {
    let (shape, ascii, color) = look(name);
    let person = term::style().person && !name.is_empty();
    let cell = Cell::new(if person { format!("{} {name}", term::shape(shape, ascii)) } else { name.to_string() });
    cell.fg(color)
}

fn look(name: &str) -> (char, char, Color) {
    match name {
        "running" | "in_progress" | "alive" | "active" | "computing" | "busy" => ('●', '*', Color::Cyan),
        "ready" | "pending" | "waiting" | "not_set" | "scheduled" | "starting" | "new" => ('◌', 'o', Color::Blue),
        "success" | "succeeded" | "set" | "computed" | "fresh" | "up" => ('✓', '+', Color::Green),
        "failed" => ('!', '!', Color::Red),
        "lost" | "dead" | "hung" | "down" => ('✕', 'x', Color::Red),
        "suspect" | "stale" | "draining" | "paused" | "degraded" | "stopped" | "starved" | "cut_off" | "ending"
        | "stopping" => ('◐', '%', Color::Yellow),
        "timed_out" | "stalled" | "late" => ('◇', '^', Color::Yellow),
        "released" => ('↷', '>', Color::Yellow),
        "cancelled" | "left" | "fenced" => ('⊘', '-', Color::DarkGrey),
        _ => ('?', '?', Color::Reset),
    }
}

/// `3s ago`, `in 5m`; nothing for no time.
pub(crate) fn age(time: &Value) -> String {
    let Some(at) = time.as_str().and_then(|text| StoreTime::parse(text).ok()) else { return String::new() };
    let now = clock::wall();
    match at > now {
        true => format!("in {}", rough(at.since(now))),
        false => format!("{} ago", rough(now.since(at))),
    }
}

/// A time and how long ago it was.
pub(crate) fn moment(time: &Value) -> String {
    match time.as_str() {
        Some(text) => format!("{text} ({})", age(time)),
        None => String::new(),
    }
}

/// How long it took from one time to the other.
pub(crate) fn took(from: &Value, to: &Value) -> Option<String> {
    let parse = |time: &Value| time.as_str().and_then(|text| StoreTime::parse(text).ok());
    Some(rough(parse(to)?.since(parse(from)?)))
}

/// A span as people say it: one or two units, no more.
pub(crate) fn rough(span: Duration) -> String {
    let secs = span.as_secs();
    match secs {
        0 => format!("{}ms", span.as_millis()),
        1..10 => format!("{:.1}s", span.as_secs_f64()),
        10..120 => format!("{secs}s"),
        120..7200 => format!("{}m", secs / 60),
        7200..172_800 => format!("{}h", secs / 3600),
        _ => format!("{}d", secs / 86_400),
    }
}

/// Text for a table: strings bare, nothing for null, everything else as JSON.
pub(crate) fn plain(value: &Value) -> String {
    match value {
        Value::Null => String::new(),
        Value::String(text) => text.clone(),
        other => other.to_string(),
    }
}

/// The message of an error, or the error whole.
pub(crate) fn message(error: &Value) -> String {
    match error.get("message").and_then(Value::as_str) {
        Some(text) => text.to_string(),
        None => plain(error),
    }
}

/// What an error says about where it came from, like a traceback: for people who read only this, with its message.
pub(crate) fn whole_message(error: &Value) -> String {
    let (message, detail) =
        (message(error), error.get("detail").and_then(Value::as_str).unwrap_or_default().trim_end());
    match detail {
        "" => message,
        // A traceback ends with the message.
        detail if detail.ends_with(message.trim_end()) => detail.to_string(),
        detail => format!("{message}\n{detail}"),
    }
}

/// Indents JSON without reading its values, so that numbers and the order of fields stay as they came.
pub(crate) fn pretty(json: &str) -> String {
    let mut out = String::with_capacity(json.len() * 2);
    let (mut depth, mut in_string, mut escaped) = (0_usize, false, false);
    let mut chars = json.chars().filter(|c| !c.is_ascii_control()).peekable();
    let line = |out: &mut String, depth: usize| {
        out.push('\n');
        out.push_str(&"  ".repeat(depth));
    };
    while let Some(c) = chars.next() {
        if in_string {
            out.push(c);
            in_string = escaped || c != '"';
            escaped = !escaped && c == '\\';
            continue;
        }
        match c {
            ' ' => {}
            '"' => {
                in_string = true;
                out.push(c);
            }
            '{' | '[' => {
                out.push(c);
                while chars.next_if_eq(&' ').is_some() {}
                if let Some(close) = chars.next_if(|next| matches!(next, '}' | ']')) {
                    out.push(close);
                } else {
                    depth += 1;
                    line(&mut out, depth);
                }
            }
            '}' | ']' => {
                depth = depth.saturating_sub(1);
                line(&mut out, depth);
                out.push(c);
            }
            ',' => {
                out.push(c);
                line(&mut out, depth);
            }
            ':' => out.push_str(": "),
            _ => out.push(c),
        }
    }
    out
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn json_is_indented_and_its_values_are_left_alone() {
        let given = "{\"n\":1.0,\"big\":123456789012345678901234567890,\"s\":\"a,{\\\"}: \",\"e\":[],\"o\":{ },\"a\":[1,{\"b\":null}]}";
        let expected = "{\n  \"n\": 1.0,\n  \"big\": 123456789012345678901234567890,\n  \"s\": \"a,{\\\"}: \",\n  \"e\": [],\n  \"o\": {},\n  \"a\": [\n    1,\n    {\n      \"b\": null\n    }\n  ]\n}";
        assert_eq!(pretty(given), expected);
        assert_eq!(pretty(&pretty(given)), expected);
        assert_eq!(pretty("\"\\\\\""), "\"\\\\\"");
    }

    #[test]
    fn the_widest_columns_are_cut_until_a_row_fits() {
        let row = || vec![Cell::new("12345678"), Cell::new("n".repeat(60)), Cell::new("p".repeat(20))];
        let laid_out = lay_out(&["ID", "NAME", "NOTE"], vec![row(), row()], Some(50));
        assert!(laid_out.lines().all(|line| line.chars().count() <= 50), "{laid_out}");
        assert_eq!(laid_out.lines().count(), 3, "{laid_out}");
        assert!(laid_out.contains("12345678  ") && laid_out.contains('~'), "{laid_out}");
        let whole = lay_out(&["ID", "NAME", "NOTE"], vec![row()], None);
        assert!(whole.contains(&"n".repeat(60)), "{whole}");
        let lines = lay_out(&["A", "B"], vec![vec![Cell::new("two\nlines"), Cell::new("x")]], None);
        assert!(lines.contains("two lines  x"), "{lines}");
    }

    #[test]
    fn a_state_is_whole_however_wide_the_others_are() {
        let headers = ["ID", "NAME", "STATE", "EXIT", "HEARTBEAT", "TRIES", "PROGRESS", "CREATED"];
        let check = |name: &str, exit: &str, tries: &str, progress: &str, age: &str| {
            let row = ["12345678", name, "+ succeeded", exit, "unknown", tries, progress, age];
            let laid_out = lay_out(&headers, vec![row.into_iter().map(Cell::new).collect()], Some(80));
            assert!(laid_out.lines().all(|line| line.chars().count() <= 80), "{laid_out}");
            assert!(laid_out.contains("12345678  ") && laid_out.contains("  + succeeded  "), "{laid_out}");
            assert!(laid_out.contains(&format!("  {exit}  ")) && laid_out.contains(tries), "{laid_out}");
        };
        let long = "n".repeat(60);
        check(&long, "0", "1/1", "", "1.2s ago");
        check(&long, "0", "1/1", "", "12345s ago");
        check(&long, "signal 9", "1/1", &long, "3d 4h ago");
        check(&long, "signal 15", "100/1000", "531/1000 chapter 3", "in 12345 s");
    }

    #[test]
    fn spans_are_said_in_one_unit() {
        for (millis, said) in
            [(3, "3ms"), (1500, "1.5s"), (59_000, "59s"), (600_000, "10m"), (10_800_000, "3h"), (400_000_000, "4d")]
        {
            assert_eq!(rough(Duration::from_millis(millis)), said);
        }
    }
}
