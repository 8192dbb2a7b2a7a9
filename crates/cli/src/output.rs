//! What is printed: data on stdout, messages on stderr.

use crate::clock;
use comfy_table::{Cell, Color, Table, presets};
use everbeat_model::StoreTime;
use serde_json::Value;
use std::io::{self, IsTerminal, Write};
use std::time::Duration;

/// Prints data; answers whether anybody still reads. A reader that has seen enough and closed the pipe
/// is no error.
pub(crate) fn print(text: &str) -> bool {
    let mut stdout = io::stdout().lock();
    stdout.write_all(text.as_bytes()).and_then(|()| stdout.write_all(b"\n")).is_ok()
}

pub(crate) fn no_color() -> bool {
    std::env::var_os("NO_COLOR").is_some_and(|value| !value.is_empty())
}

/// Columns without borders, so that they can be cut and sorted by other tools.
pub(crate) fn table(headers: &[&str], rows: Vec<Vec<Cell>>) -> String {
    let mut table = Table::new();
    table.load_style(presets::NOTHING);
    table.set_header(headers);
    table.add_rows(rows);
    if io::stdout().is_terminal() && !no_color() {
        table.enforce_styling()
    } else {
        table.force_no_tty()
    };
    let last = headers.len().saturating_sub(1);
    for (place, column) in table.column_iter_mut().enumerate() {
        column.set_padding((0, if place == last { 0 } else { 2 }));
    }
    table.trim_fmt()
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
    let (shape, color) = look(name);
    let cell = Cell::new(if io::stdout().is_terminal() { format!("{shape} {name}") } else { name.to_string() });
    cell.fg(color)
}

fn look(name: &str) -> (char, Color) {
    match name {
        "running" | "alive" | "active" | "computing" => ('●', Color::Cyan),
        "ready" | "waiting" | "not_set" => ('○', Color::Blue),
        "scheduled" => ('◷', Color::Blue),
        "succeeded" | "set" | "computed" | "fresh" => ('✔', Color::Green),
        "failed" | "lost" | "dead" => ('✖', Color::Red),
        "timed_out" | "stalled" | "suspect" | "fenced" | "stale" => ('▲', Color::Yellow),
        "draining" | "released" | "paused" => ('◐', Color::Yellow),
        "cancelled" | "left" => ('⊘', Color::DarkGrey),
        _ => ('·', Color::Reset),
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
    fn spans_are_said_in_one_unit() {
        for (millis, said) in
            [(3, "3ms"), (1500, "1.5s"), (59_000, "59s"), (600_000, "10m"), (10_800_000, "3h"), (400_000_000, "4d")]
        {
            assert_eq!(rough(Duration::from_millis(millis)), said);
        }
    }
}
