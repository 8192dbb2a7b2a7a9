//! Definitions of one graph that follow each other: whether one is new, and which one an execution goes by.

use super::node::Graph;

/// Whether a definition that is applied is stored: not if its name stands for the very same already. A latest one that
/// cannot be read is none.
pub fn is_new(given: &Graph, latest: Option<&Graph>) -> bool {
    latest != Some(given)
}

/// The serials of the definitions that matter to an execution.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Course {
    /// The definition that the execution goes by.
    pub definition: u64,
    /// The newest definition that the execution knows of. It is newer than `definition` if the execution was started
    /// with an older version: only what is applied after that moves it.
    pub seen: u64,
}

impl Course {
    /// An execution that begins with a definition, while `latest` is the newest one of the graph's name.
    pub fn begin(definition: u64, latest: Option<u64>) -> Course {
        Course { definition, seen: latest.unwrap_or(definition) }
    }

    /// How the execution goes on, and whether that is with another definition than before: with the newest one of the
    /// graph's name, if it was applied since the execution last knew.
    pub fn follow(self, latest: Option<u64>) -> (Course, bool) {
        match latest.filter(|latest| *latest > self.seen) {
            Some(latest) => (Course { definition: latest, seen: latest }, true),
            None => (self, false),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use serde_json::json;

    #[test]
    fn a_definition_is_new_unless_it_is_the_latest_of_its_name() {
        let graph = |version: &str| {
            let nodes = json!([{ "name": "a", "kind": "input" }]);
            Graph::parse(&json!({ "name": "g", "version": version, "nodes": nodes })).expect("a graph")
        };
        assert!(is_new(&graph("1"), None));
        assert!(is_new(&graph("1"), Some(&graph("2"))));
        assert!(!is_new(&graph("1"), Some(&graph("1"))));
    }

    #[test]
    fn an_execution_goes_on_with_what_was_applied_after_it_last_knew() {
        let check = |definition, seen, latest, expected: (u64, u64, bool)| {
            let (course, moved) = Course { definition, seen }.follow(latest);
            assert_eq!((course.definition, course.seen, moved), expected, "{definition} {seen} {latest:?}");
        };
        check(3, 3, Some(3), (3, 3, false));
        check(3, 3, Some(5), (5, 5, true));
        check(3, 3, None, (3, 3, false));
        // Started with an older version: the newer one was there and was not wanted.
        check(2, 4, Some(4), (2, 4, false));
        check(2, 4, Some(6), (6, 6, true));
        assert_eq!(Course::begin(2, Some(4)), Course { definition: 2, seen: 4 });
        assert_eq!(Course::begin(2, None), Course { definition: 2, seen: 2 });
    }
}
