use serde::{Deserialize, Serialize};

/// A value from outside that cannot be accepted: which field, what it was, what is wrong, what to do.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize, thiserror::Error)]
#[error("{field}: {problem} (got {value})")]
pub struct Invalid {
    pub field: String,
    pub value: String,
    pub problem: String,
    pub hint: String,
}

impl Invalid {
    pub fn new(
        field: impl Into<String>,
        value: impl std::fmt::Display,
        problem: impl Into<String>,
        hint: impl Into<String>,
    ) -> Invalid {
        Invalid { field: field.into(), value: shorten(&value.to_string()), problem: problem.into(), hint: hint.into() }
    }

    /// The same complaint about a field inside another one.
    pub fn within(mut self, outer: &str) -> Invalid {
        self.field = if self.field.is_empty() { outer.to_string() } else { format!("{outer}.{}", self.field) };
        self
    }
}

/// The known name nearest to a misspelt one, if any is near enough to suggest.
pub fn nearest<'a>(given: &str, known: impl IntoIterator<Item = &'a str>) -> Option<&'a str> {
    known
        .into_iter()
        .map(|name| (distance(given, name), name))
        .filter(|(distance, name)| *distance <= 1 + name.len() / 4)
        .min()
        .map(|(_, name)| name)
}

/// Values are echoed in errors, so they are kept short.
const ECHO_LIMIT: usize = 120;

fn shorten(value: &str) -> String {
    if value.chars().count() <= ECHO_LIMIT {
        return value.to_string();
    }
    let head: String = value.chars().take(ECHO_LIMIT).collect();
    format!("{head}…")
}

fn distance(a: &str, b: &str) -> usize {
    let b: Vec<char> = b.chars().collect();
    let mut row: Vec<usize> = (0..=b.len()).collect();
    for (i, left) in a.chars().enumerate() {
        let mut diagonal = row[0];
        row[0] = i + 1;
        for (j, right) in b.iter().enumerate() {
            let substituted = diagonal + usize::from(left != *right);
            diagonal = row[j + 1];
            row[j + 1] = substituted.min(row[j] + 1).min(diagonal + 1);
        }
    }
    row[b.len()]
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_misspelt_name_is_answered_with_the_nearest_known_one() {
        let known = ["heartbeat_timeout", "heartbeat_interval", "deadline"];
        assert_eq!(nearest("hartbeat_timeout", known), Some("heartbeat_timeout"));
        assert_eq!(nearest("dedline", known), Some("deadline"));
        assert_eq!(nearest("colour", known), None);
    }
}
