use super::gate::Gate;
use super::kind::NodeKind;
use super::node::{Graph, Node};
use crate::error::{Invalid, nearest};
use crate::job::Command;
use crate::json::Json;
use crate::run::{COMMAND, check_name, check_task_name};
use std::collections::{BTreeMap, BTreeSet};

/// Every rule that binds the nodes of a graph to each other. Each complaint names the node. Answers the
/// places of the nodes, each after all that it depends on.
pub(super) fn validate(graph: &Graph) -> Result<Vec<usize>, Invalid> {
    if graph.nodes().is_empty() {
        return Err(Invalid::new("nodes", "[]", "is empty", "define at least one node"));
    }
    let mut seen = BTreeSet::new();
    for node in graph.nodes() {
        check_name("name", &node.name).map_err(|error| error.within(&node.name))?;
        if !seen.insert(node.name.as_str()) {
            let hint = "give every node a name of its own";
            return Err(Invalid::new(&node.name, format!("{:?}", node.name), "is defined twice", hint));
        }
        shape(node).map_err(|error| error.within(&node.name))?;
        references(graph, node).map_err(|error| error.within(&node.name))?;
    }
    order(graph)
}

/// A node that is a command says which.
fn check_command(node: &Node) -> Result<(), Invalid> {
    match node.args.clone().map(serde_json::from_value::<Command>) {
        Some(Ok(command)) => command.check(),
        _ => {
            let hint = "write \"command\": [\"program\", \"argument\"] in place of the task";
            Err(Invalid::new("task", format!("{COMMAND:?}"), "does not say what to run", hint))
        }
    }
}

/// A tick with a schedule needs nobody to compute it, and nothing that only whoever computes it would be told.
fn check_schedule(node: &Node) -> Result<(), Invalid> {
    let shown = node.schedule.as_ref().map_or_else(String::new, |rhythm| rhythm.to_json().to_string());
    if !node.kind.is_tick() {
        let problem = format!("is not for a {} node", node.kind.as_str());
        return Err(Invalid::new("schedule", shown, problem, "leave it out, or use tick_once or tick_recurring"));
    }
    if let Some(task) = &node.task {
        let field = if task == COMMAND { "command" } else { "task" };
        let hint = "leave one of them out: a tick gets its times from a task or from a schedule";
        return Err(Invalid::new(field, format!("{task:?}"), "stands beside a schedule", hint));
    }
    let hint = "leave it out: nothing is run for a tick with a schedule";
    if let Some(args) = &node.args {
        return Err(Invalid::new("args", args, "stands beside a schedule", hint));
    }
    match node.options.policy.iter().next() {
        Some((name, value)) => Err(Invalid::new(format!("options.{name}"), value, "stands beside a schedule", hint)),
        None => Ok(()),
    }
}

/// What each kind needs, and what it must not have.
fn shape(node: &Node) -> Result<(), Invalid> {
    let kind = node.kind.as_str();
    let lacks = |field: &str, hint: &str| {
        Err(Invalid::new(field, "nothing", format!("is missing: a {kind} node needs it"), hint))
    };
    let surplus = |field: &str, value: String| {
        Err(Invalid::new(field, value, format!("is not for a {kind} node"), "leave it out, or choose another kind"))
    };
    match (&node.task, node.kind.has_task()) {
        (_, _) if node.schedule.is_some() => check_schedule(node)?,
        (None, true) if node.kind.is_tick() => {
            return lacks("task", "name the task that gives its time, or add a \"schedule\" like {\"every\": \"15m\"}");
        }
        (None, true) => return lacks("task", "name the task that computes it"),
        (Some(task), false) => return surplus("task", task.clone()),
        (Some(task), true) if task == COMMAND => check_command(node)?,
        (Some(task), true) => check_task_name("task", task)?,
        (None, false) => {}
    }
    if let Some(args) = &node.args {
        let args = Json::of(args);
        args.check().map_err(|error| error.about("args", args.as_str()))?;
    }
    if let Some(task) = &node.options.on_save {
        check_task_name("options.on_save", task)?;
    }
    if !node.gate.is_shallow() {
        return Err(Invalid::new("gate", "…", "is nested too deeply", "nest at most 50 levels"));
    }
    let gated = node.gate != Gate::open();
    match node.kind {
        NodeKind::Input if gated => return surplus("gate", node.gate.describe()),
        NodeKind::Input | NodeKind::TickOnce | NodeKind::TickRecurring => {}
        _ if node.gate.upstreams().is_empty() => {
            return lacks("gate", "name what it depends on: \"gate\": [\"a\", \"b\"]");
        }
        _ => {}
    }
    match (node.kind == NodeKind::Mutate, node.mutates.is_empty()) {
        (true, true) => return lacks("mutates", "name the node whose value it writes"),
        (false, false) => return surplus("mutates", node.mutates.join(", ")),
        _ => {}
    }
    let options = &node.options;
    if options.max_entries.is_some() && node.kind != NodeKind::Historian {
        return surplus("options.max_entries", format!("{:?}", options.max_entries));
    }
    if options.update_revision_on_change && node.kind != NodeKind::Mutate {
        return surplus("options.update_revision_on_change", "true".to_string());
    }
    match (node.kind == NodeKind::Loop, options.max_iterations) {
        (true, None) => {
            lacks("options.max_iterations", "a loop must have an end: \"options\": {\"max_iterations\": 10}")
        }
        (false, Some(iterations)) => surplus("options.max_iterations", iterations.to_string()),
        _ => Ok(()),
    }
}

fn references(graph: &Graph, node: &Node) -> Result<(), Invalid> {
    let unknown = |field: &str, name: &str| {
        let hint = match nearest(name, graph.nodes().iter().map(|node| node.name.as_str())) {
            Some(near) => format!("did you mean {near:?}?"),
            None => format!("define a node {name:?}, or correct the name"),
        };
        Invalid::new(field, format!("{name:?}"), "is not a node of the graph", hint)
    };
    if let Some(upstream) = node.gate.upstreams().into_iter().find(|name| graph.node(name).is_none()) {
        return Err(unknown("gate", upstream));
    }
    for target in &node.mutates {
        let Some(target) = graph.node(target) else { return Err(unknown("mutates", target)) };
        if node.options.update_revision_on_change && upstream_of(graph, node, &target.name) {
            let hint =
                "it would set itself off for ever: leave the option out, or mutate a node that it does not depend on";
            let problem = "is upstream of the node that mutates it with update_revision_on_change";
            return Err(Invalid::new("mutates", format!("{:?}", target.name), problem, hint));
        }
    }
    Ok(())
}

/// Whether `name` is above `node`, however far: what a mutation that bumps revisions writes is below it.
fn upstream_of(graph: &Graph, node: &Node, name: &str) -> bool {
    let mut above: Vec<&str> = node.gate.upstreams().into_iter().collect();
    let mut seen = BTreeSet::new();
    while let Some(next) = above.pop() {
        if next == name {
            return true;
        }
        if seen.insert(next) {
            above.extend(graph.node(next).into_iter().flat_map(|node| node.gate.upstreams()));
            let writes = |node: &&Node| {
                node.options.update_revision_on_change && node.mutates.iter().any(|target| target == next)
            };
            above.extend(graph.nodes().iter().filter(writes).flat_map(|node| node.gate.upstreams()));
        }
    }
    false
}

/// Depth-first, without recursion: a graph may be as deep as it has nodes.
fn order(graph: &Graph) -> Result<Vec<usize>, Invalid> {
    let places: BTreeMap<&str, usize> =
        graph.nodes().iter().enumerate().map(|(place, node)| (node.name.as_str(), place)).collect();
    let upstreams = |place: usize| graph.nodes()[place].gate.upstreams().into_iter().map(|name| places[name]).collect();
    let mut order = Vec::with_capacity(places.len());
    let mut fates = vec![Fate::New; places.len()];
    for start in 0..places.len() {
        if fates[start] != Fate::New {
            continue;
        }
        fates[start] = Fate::OnPath;
        let mut path: Vec<(usize, Vec<usize>)> = vec![(start, upstreams(start))];
        while let Some((place, rest)) = path.last_mut() {
            let place = *place;
            match rest.pop() {
                None => {
                    fates[place] = Fate::Done;
                    order.push(place);
                    path.pop();
                }
                Some(next) => match fates[next] {
                    Fate::Done => {}
                    Fate::New => {
                        fates[next] = Fate::OnPath;
                        path.push((next, upstreams(next)));
                    }
                    Fate::OnPath => {
                        let name = |place: usize| graph.nodes()[place].name.as_str();
                        let begin = path.iter().position(|(place, _)| *place == next).unwrap_or_default();
                        let mut circle: Vec<&str> = path[begin..].iter().map(|(place, _)| name(*place)).collect();
                        circle.push(name(next));
                        let hint = "let one of them depend on something else";
                        return Err(Invalid::new(name(next), circle.join(" ← "), "depends on itself", hint));
                    }
                },
            }
        }
    }
    Ok(order)
}

#[derive(Clone, Copy, PartialEq)]
enum Fate {
    New,
    OnPath,
    Done,
}
