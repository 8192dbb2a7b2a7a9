//! Graphs and executions as Mermaid flowcharts.

use super::describe::{ViewState, describe, phrase, shorten};
use super::execution::Execution;
use super::gate::Gate;
use super::kind::NodeKind;
use super::node::{Graph, Node};
use crate::schedule::Rhythm;
use crate::time::StoreTime;
use std::collections::BTreeMap;
use std::fmt::Write as _;

/// The graph as a flowchart.
pub fn mermaid(graph: &Graph) -> String {
    let ids: BTreeMap<&str, usize> =
        graph.nodes().iter().enumerate().map(|(place, node)| (node.name.as_str(), place)).collect();
    let mut chart = "graph TD\n".to_string();
    for (id, node) in graph.nodes().iter().enumerate() {
        let (open, close) = shape(node.kind);
        _ = writeln!(chart, "    n{id}{open}\"{}\"{close}", label(node));
    }
    for (id, node) in graph.nodes().iter().enumerate() {
        for (upstream, words) in demands(&node.gate) {
            let Some(from) = ids.get(upstream) else { continue };
            _ = match words.as_slice() {
                [] => writeln!(chart, "    n{from} --> n{id}"),
                words => writeln!(chart, "    n{from} -->|\"{}\"| n{id}", escape(&edge_words(words))),
            };
        }
        for target in node.mutates.iter().filter_map(|target| ids.get(target.as_str())) {
            _ = writeln!(chart, "    n{id} -.->|mutates| n{target}");
        }
    }
    chart
}

/// The graph with the state of each node in an execution as its class.
pub fn mermaid_of(graph: &Graph, execution: &Execution, now: StoreTime) -> String {
    let views = describe(graph, execution, now);
    let mut members: BTreeMap<&str, Vec<String>> = BTreeMap::new();
    for (id, node) in graph.nodes().iter().enumerate() {
        if let Some(view) = views.get(&node.name) {
            members.entry(class(view.state)).or_default().push(format!("n{id}"));
        }
    }
    let mut chart = mermaid(graph);
    for (name, style) in CLASSES {
        _ = writeln!(chart, "    classDef {name} {style}");
    }
    for (name, ids) in members {
        _ = writeln!(chart, "    class {} {name}", ids.join(","));
    }
    chart
}

const CLASSES: [(&str, &str); 4] = [
    ("set", "fill:#d4edda,stroke:#28a745,color:#155724"),
    ("computing", "fill:#cce5ff,stroke:#007bff,color:#004085"),
    ("failed", "fill:#f8d7da,stroke:#dc3545,color:#721c24"),
    ("waiting", "fill:#e9ecef,stroke:#6c757d,color:#383d41"),
];

fn class(state: ViewState) -> &'static str {
    match state {
        ViewState::Set | ViewState::Computed => "set",
        ViewState::Computing => "computing",
        ViewState::Failed => "failed",
        ViewState::NotSet | ViewState::Waiting | ViewState::Paused => "waiting",
    }
}

fn shape(kind: NodeKind) -> (&'static str, &'static str) {
    match kind {
        NodeKind::Input => ("[/", "/]"),
        NodeKind::Compute => ("[", "]"),
        NodeKind::Mutate => ("[[", "]]"),
        NodeKind::Historian => ("[(", ")]"),
        NodeKind::Archive => ("([", "])"),
        NodeKind::TickOnce | NodeKind::TickRecurring => ("{{", "}}"),
        NodeKind::Loop => ("((", "))"),
    }
}

fn label(node: &Node) -> String {
    let schedule = node.schedule.as_ref().map(Rhythm::describe);
    let how = node.task.as_deref().or(schedule.as_deref());
    let lines = [Some(node.name.as_str()), Some(node.kind.as_str()), how];
    lines.into_iter().flatten().map(escape).collect::<Vec<_>>().join("<br/>")
}

/// What the gate asks of each upstream beyond having a value.
fn demands(gate: &Gate) -> BTreeMap<&str, Vec<String>> {
    let mut demands: BTreeMap<&str, Vec<String>> =
        gate.upstreams().into_iter().map(|upstream| (upstream, Vec::new())).collect();
    collect(gate, &mut demands);
    demands
}

fn collect<'a>(gate: &'a Gate, demands: &mut BTreeMap<&'a str, Vec<String>>) {
    match gate {
        Gate::All(gates) | Gate::Any(gates) => gates.iter().for_each(|gate| collect(gate, demands)),
        Gate::Provided(_) => {}
        Gate::IsTrue(name) | Gate::IsFalse(name) | Gate::Compare(_, name, _) => {
            demands.entry(name).or_default().push(without_name(name, gate));
        }
        Gate::Not(inner) => match &**inner {
            Gate::Not(gate) => collect(gate, demands),
            Gate::Provided(name) | Gate::IsTrue(name) | Gate::IsFalse(name) | Gate::Compare(_, name, _) => {
                demands.entry(name).or_default().push(format!("not {}", without_name(name, inner)));
            }
            // What is asked of one of them depends on the others.
            Gate::All(_) | Gate::Any(_) => {
                let words = phrase(gate);
                for name in inner.upstreams() {
                    demands.entry(name).or_default().push(words.clone());
                }
            }
        },
    }
}

/// The edge shows which node is meant.
fn without_name(name: &str, gate: &Gate) -> String {
    let words = phrase(gate);
    let rest = words.strip_prefix(name).map_or(words.as_str(), str::trim_start);
    rest.strip_prefix("is ").unwrap_or(rest).to_string()
}

const LONGEST_WORDS: usize = 120;

fn edge_words(words: &[String]) -> String {
    shorten(&words.join(", "), LONGEST_WORDS)
}

/// Letters, digits and what has no meaning in Mermaid stay; everything else becomes an entity code, since
/// quotes alone do not protect: Mermaid looks for directives, styles and entity codes before it parses, and
/// for Markdown (lists, rules, emphasis) in labels.
fn escape(text: &str) -> String {
    let mut escaped = String::with_capacity(text.len());
    for character in text.chars() {
        let plain = match character {
            '≥' | '≤' | '≠' | '…' => true,
            ' ' | ',' | '=' | '_' | '-' => !escaped.is_empty(),
            '.' => !escaped.chars().all(|before| before.is_ascii_digit()),
            other => other.is_alphanumeric(),
        };
        if plain {
            escaped.push(character);
        } else {
            _ = write!(escaped, "#{};", u32::from(character));
        }
    }
    escaped
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::graph::{Command, decide};
    use crate::id::RunId;
    use serde_json::{Value, json};
    use uuid::Uuid;

    /// A line of a chart, as the strict grammar below reads it.
    #[derive(Debug, PartialEq)]
    enum Line {
        Node { id: usize, shape: &'static str, label: Vec<String> },
        Edge { from: usize, words: Option<String>, to: usize },
        Mutation { from: usize, to: usize },
        ClassDef(String),
        Class { ids: Vec<usize>, name: String },
    }

    const SHAPES: [(&str, &str); 7] = [
        ("[/\"", "\"/]"),
        ("[[\"", "\"]]"),
        ("[(\"", "\")]"),
        ("[\"", "\"]"),
        ("([\"", "\"])"),
        ("((\"", "\"))"),
        ("{{\"", "\"}}"),
    ];

    fn parse(chart: &str) -> Vec<Line> {
        let mut lines = chart.strip_suffix('\n').expect("a last line end").split('\n');
        assert_eq!(lines.next(), Some("graph TD"));
        lines.map(|line| read(line).unwrap_or_else(|| panic!("not a line of a chart: {line}"))).collect()
    }

    fn read(line: &str) -> Option<Line> {
        let line = line.strip_prefix("    ")?;
        if let Some(rest) = line.strip_prefix("classDef ") {
            let (name, style) = rest.split_once(' ')?;
            let safe = style.chars().all(|c| c.is_ascii_alphanumeric() || matches!(c, ':' | '#' | ','));
            return (safe && word(name)).then(|| Line::ClassDef(name.to_string()));
        }
        if let Some(rest) = line.strip_prefix("class ") {
            let (ids, name) = rest.split_once(' ')?;
            let ids = ids.split(',').map(|part| id(part).filter(|(_, rest)| rest.is_empty()).map(|(id, _)| id));
            return word(name).then_some(Line::Class { ids: ids.collect::<Option<_>>()?, name: name.to_string() });
        }
        let (from, rest) = id(line)?;
        if let Some(rest) = rest.strip_prefix(" -.->|mutates| ") {
            return id(rest).filter(|(_, rest)| rest.is_empty()).map(|(to, _)| Line::Mutation { from, to });
        }
        if let Some(rest) = rest.strip_prefix(" -->") {
            let (words, rest) = match rest.strip_prefix("|\"") {
                None => (None, rest),
                Some(rest) => {
                    let (words, rest) = rest.split_once("\"|")?;
                    (Some(unescape(words)?), rest)
                }
            };
            let (to, rest) = id(rest.strip_prefix(' ')?)?;
            return rest.is_empty().then_some(Line::Edge { from, words, to });
        }
        let (open, close) = SHAPES.into_iter().find(|(open, _)| rest.starts_with(open))?;
        let label = rest.strip_prefix(open)?.strip_suffix(close)?;
        let label = label.split("<br/>").map(unescape).collect::<Option<_>>()?;
        Some(Line::Node { id: from, shape: open, label })
    }

    fn word(text: &str) -> bool {
        !text.is_empty() && text.chars().all(|c| c.is_ascii_lowercase())
    }

    fn id(text: &str) -> Option<(usize, &str)> {
        let digits = text.strip_prefix('n')?;
        let end = digits.find(|c: char| !c.is_ascii_digit()).unwrap_or(digits.len());
        Some((digits[..end].parse().ok()?, &digits[end..]))
    }

    /// Nothing but letters, digits, harmless signs and decimal entity codes.
    fn unescape(text: &str) -> Option<String> {
        let mut plain = String::new();
        let mut rest = text.chars();
        while let Some(character) = rest.next() {
            match character {
                '#' => {
                    let (code, after) = rest.as_str().split_once(';')?;
                    plain.push(char::from_u32(code.parse().ok()?)?);
                    rest = after.chars();
                }
                c if c.is_alphanumeric() || " _-.,=≥≤≠…".contains(c) => plain.push(c),
                _ => return None,
            }
        }
        Some(plain)
    }

    fn graph(nodes: Value) -> Graph {
        Graph::parse(&json!({"name": "g", "nodes": nodes})).expect("a valid graph")
    }

    #[test]
    fn every_kind_has_its_shape_and_every_demand_its_words() {
        let graph = graph(json!([
            {"name": "age", "kind": "input"},
            {"name": "ok", "kind": "input"},
            {"name": "sum", "kind": "compute", "gate": ["age", "ok"], "task": "jq"},
            {"name": "scrub", "kind": "mutate", "gate": {"and": ["sum", {"gte": ["age", 18]}]}, "task": "t", "mutates": ["age", "ok"]},
            {"name": "log", "kind": "historian", "gate": {"or": [{"is_true": "ok"}, {"not": {"is_false": "ok"}}]}},
            {"name": "bye", "kind": "archive", "gate": {"not": "ok"}},
            {"name": "once", "kind": "tick_once", "gate": {"not": ["age", "ok"]}, "task": "t"},
            {"name": "often", "kind": "tick_recurring", "schedule": {"cron": "30 2 * * *", "tz": "Europe/Berlin"}},
            {"name": "poll", "kind": "loop", "gate": {"not": {"not": "once"}}, "task": "t", "options": {"max_iterations": 3}},
        ]));
        assert_eq!(
            mermaid(&graph),
            r#"graph TD
    n0[/"age<br/>input"/]
    n1[/"ok<br/>input"/]
    n2["sum<br/>compute<br/>jq"]
    n3[["scrub<br/>mutate<br/>t"]]
    n4[("log<br/>historian")]
    n5(["bye<br/>archive"])
    n6{{"once<br/>tick_once<br/>t"}}
    n7{{"often<br/>tick_recurring<br/>30 2 #42; #42; #42; Europe#47;Berlin"}}
    n8(("poll<br/>loop<br/>t"))
    n0 --> n2
    n1 --> n2
    n0 -->|"≥ 18"| n3
    n2 --> n3
    n3 -.->|mutates| n0
    n3 -.->|mutates| n1
    n1 -->|"true, not false"| n4
    n1 -->|"not provided"| n5
    n0 -->|"not #40;age is provided and ok is provided#41;"| n6
    n1 -->|"not #40;age is provided and ok is provided#41;"| n6
    n6 --> n8
"#
        );
        assert_eq!(parse(&mermaid(&graph)).len(), 20);
    }

    #[test]
    fn a_chart_is_valid_whatever_the_names_and_values_contain() {
        let names = [
            "end",
            "graph",
            "subgraph",
            "style",
            "class",
            "click",
            "default",
            "n0",
            "o",
            "x",
            "\"",
            "a\"]-->n1",
            "[x]",
            "(x)",
            "{x}",
            "</br>",
            "<script>alert(1)</script>",
            "a&b",
            "&quot;",
            "#quot;",
            "#35;",
            "#",
            ";",
            "`md`",
            "**b**",
            "_i_",
            "%%",
            "%%{init:{}}%%",
            "style:x#1;",
            "classDef:#;",
            "a|b",
            "a-->b",
            "a:::b",
            "\\n",
            "'",
            "---",
            "-",
            "1.",
            "1.2",
            "größe",
            "日本",
            "😀",
            "e\u{301}",
            "\u{202e}rtl",
            "ﬂ°°35¶ß",
            "@{shape:x}",
            "~~~",
            "$$x$$",
            "fa:fa-ban",
            "a.b",
            "==",
        ];
        let mut nodes: Vec<Value> = names.iter().map(|name| json!({"name": name, "kind": "input"})).collect();
        let values = json!(["\"| n0", "a\nb", "\u{2028}", "<br/>", {"#": ["]", "%%{"]}, "\u{7f}", null]);
        for (place, name) in names.iter().enumerate() {
            let value = &values[place % 7];
            let gate = json!({"and": [{"eq": [name, value]}, {"or": [name, {"not": {"is_true": names[0]}}]}]});
            nodes.push(
                json!({"name": format!("{name}'"), "kind": "mutate", "gate": gate, "task": name, "mutates": name}),
            );
        }
        let graph = graph(Value::Array(nodes));
        let lines = parse(&mermaid(&graph));
        for (place, node) in graph.nodes().iter().enumerate() {
            let label: Vec<String> = [Some(node.name.clone()), Some(node.kind.as_str().to_string()), node.task.clone()]
                .into_iter()
                .flatten()
                .collect();
            let shape = if node.task.is_some() { "[[\"" } else { "[/\"" };
            assert_eq!(lines[place], Line::Node { id: place, shape, label });
        }
        let most = names.len();
        let words = |from: usize, to: usize| {
            lines.iter().find_map(|line| match line {
                Line::Edge { from: a, words, to: b } if (*a, *b) == (from, to) => Some(words.clone()),
                _ => None,
            })
        };
        for place in 1..most {
            assert_eq!(words(place, most + place), Some(Some(format!("= {}", values[place % 7]))));
            assert!(lines.contains(&Line::Mutation { from: most + place, to: place }));
        }
    }

    #[test]
    fn long_values_are_cut_short_in_edges() {
        let graph = graph(json!([
            {"name": "a", "kind": "input"},
            {"name": "b", "kind": "compute", "gate": {"eq": ["a", "x".repeat(10_000)]}, "task": "t"},
        ]));
        assert!(mermaid(&graph).len() < 300);
    }

    #[test]
    fn states_are_classes() {
        let graph = graph(json!([
            {"name": "a", "kind": "input"},
            {"name": "b", "kind": "input"},
            {"name": "c", "kind": "compute", "gate": ["a"], "task": "t"},
            {"name": "d", "kind": "compute", "gate": ["b"], "task": "t"},
            {"name": "e", "kind": "compute", "gate": ["a"], "task": "t"},
        ]));
        let now = StoreTime(1_000_000_000_000_000);
        let mut last = 0;
        let mut new_run = || {
            last += 1;
            RunId(Uuid::from_u128(last))
        };
        let set = Command::Set { values: BTreeMap::from([("a".to_string(), json!(1))]), metadata: None };
        let begun = decide(&graph, Execution::default(), vec![set], now, &mut new_run).execution;
        let failed =
            Command::Failed { node: "e".to_string(), run: begun.running("e").unwrap(), error: "no".to_string() };
        let execution = decide(&graph, begun, vec![failed], now, &mut new_run).execution;
        let chart = mermaid_of(&graph, &execution, now);
        assert!(chart.starts_with(&mermaid(&graph)));
        let lines = parse(&chart);
        for (ids, name) in [(vec![0], "set"), (vec![1, 3], "waiting"), (vec![2], "computing"), (vec![4], "failed")] {
            assert!(lines.contains(&Line::ClassDef(name.to_string())));
            assert!(lines.contains(&Line::Class { ids, name: name.to_string() }), "{name} in {chart}");
        }
    }
}
