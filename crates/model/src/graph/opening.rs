//! Whether a request to start an execution starts one, and whether an archived one may come back.

use super::decide::Command;
use super::node::Graph;
use super::plan::Refusal;
use crate::id::ExecutionId;
use crate::idempotency::{Idempotency, Sent};
use crate::time::StoreTime;

/// Which request a start is. An execution that is stored under the start's own id was begun by it, and the answer was
/// lost. `kept` is the fingerprint that the request's key was used with, and the execution that was the answer. What
/// was answered once is answered again, whatever has become of the graph since.
pub fn repeated(
    id: ExecutionId,
    stored: bool,
    idempotency: Option<&Idempotency>,
    kept: Option<(&str, Option<ExecutionId>)>,
) -> Sent<ExecutionId> {
    if stored {
        return Sent::Again(id);
    }
    match idempotency.map_or(Sent::First, |idempotency| idempotency.sent(kept)) {
        Sent::First => Sent::First,
        Sent::Again(Some(earlier)) => Sent::Again(earlier),
        // A key under which no execution is kept was used for something else.
        Sent::Again(None) | Sent::Reused => Sent::Reused,
    }
}

/// What becomes of a start that is the first of its kind.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Opening {
    Begin,
    /// The one execution of a singleton graph stands: it is the answer.
    Stands(ExecutionId),
}

/// `standing` is an execution of the graph that is not archived; it counts for singleton graphs only.
pub fn opening(graph: &Graph, standing: Option<ExecutionId>) -> Opening {
    standing.filter(|_| graph.singleton).map_or(Opening::Begin, Opening::Stands)
}

/// Whether the commands bring back an archived execution of a singleton graph: then no other one may stand.
pub fn must_be_alone(singleton: bool, archived_at: Option<StoreTime>, commands: &[Command]) -> bool {
    singleton && archived_at.is_some() && commands.contains(&Command::Unarchive)
}

/// Refuses to bring back an execution while another one of its singleton graph stands.
pub fn not_alone(graph: &str, other: ExecutionId) -> Refusal {
    Refusal::Conflict {
        problem: format!("execution {other} of the singleton graph {graph:?} stands"),
        hint: "archive that one first".to_string(),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use serde_json::json;
    use uuid::Uuid;

    fn id(number: u128) -> ExecutionId {
        ExecutionId(Uuid::from_u128(number))
    }

    fn graph(singleton: bool) -> Graph {
        let definition = json!({ "name": "g", "singleton": singleton, "nodes": [{ "name": "a", "kind": "input" }] });
        Graph::parse(&definition).expect("a graph")
    }

    #[test]
    fn the_same_start_again_is_answered_as_before() {
        let given = Idempotency { key: "k".to_string(), fingerprint: "f".to_string() };
        let check = |stored, key: bool, kept, expected| {
            assert_eq!(repeated(id(1), stored, key.then_some(&given), kept), expected, "{stored} {key} {kept:?}");
        };
        check(false, false, None, Sent::First);
        check(false, true, None, Sent::First);
        check(true, false, None, Sent::Again(id(1)));
        // Its own id says more than a key that another request took meanwhile.
        check(true, true, Some(("other", Some(id(2)))), Sent::Again(id(1)));
        check(false, true, Some(("f", Some(id(2)))), Sent::Again(id(2)));
        check(false, true, Some(("f", None)), Sent::Reused);
        check(false, true, Some(("other", Some(id(2)))), Sent::Reused);
    }

    #[test]
    fn a_singleton_graph_has_one_execution_that_stands() {
        assert_eq!(opening(&graph(true), None), Opening::Begin);
        assert_eq!(opening(&graph(true), Some(id(2))), Opening::Stands(id(2)));
        assert_eq!(opening(&graph(false), Some(id(2))), Opening::Begin);
    }

    #[test]
    fn only_what_comes_back_to_a_singleton_graph_must_be_alone() {
        let (archived, back) = (Some(StoreTime(1)), [Command::Unarchive]);
        assert!(must_be_alone(true, archived, &back));
        assert!(!must_be_alone(false, archived, &back));
        assert!(!must_be_alone(true, None, &back));
        assert!(!must_be_alone(true, archived, &[Command::Archive]));
    }
}
