use super::gate::Gate;
use super::kind::NodeKind;
use super::options::{DEFAULT_KEEP, NodeOptions};
use super::validate::validate;
use crate::error::{Invalid, nearest};
use crate::job::Command;
use crate::run::{COMMAND, check_name};
use crate::schedule::Rhythm;
use serde_json::{Map, Value};
use std::collections::BTreeMap;

/// A versioned definition. Made only by `parse` or `new`, so that one in hand is valid.
#[derive(Clone, Debug, PartialEq)]
pub struct Graph {
    pub name: String,
    pub version: String,
    /// There is at most one execution of it.
    pub singleton: bool,
    /// A task to call after any value of an execution was saved.
    pub on_save: Option<String>,
    nodes: Vec<Node>,
    places: BTreeMap<String, usize>,
    /// Places of the nodes, each after all that it depends on.
    order: Vec<usize>,
    /// Places of the nodes that depend directly on each.
    dependants: BTreeMap<String, Vec<usize>>,
}

#[derive(Clone, Debug, PartialEq)]
pub struct Node {
    pub name: String,
    pub kind: NodeKind,
    pub gate: Gate,
    pub task: Option<String>,
    pub args: Option<Value>,
    /// Of a tick: its times, in place of a task that gives them.
    pub schedule: Option<Rhythm>,
    /// Of a mutate node: what it writes.
    pub mutates: Vec<String>,
    pub options: NodeOptions,
}

const FIELDS: [&str; 5] = ["name", "version", "singleton", "on_save", "nodes"];
const NODE_FIELDS: [&str; 9] = ["name", "kind", "gate", "task", "command", "args", "schedule", "mutates", "options"];
const MOST_NODES: usize = 10_000;

impl Graph {
    pub fn new(
        name: impl Into<String>,
        version: impl Into<String>,
        singleton: bool,
        on_save: Option<String>,
        nodes: Vec<Node>,
    ) -> Result<Graph, Invalid> {
        let (name, version) = (name.into(), version.into());
        check_name("name", &name)?;
        check_name("version", &version)?;
        let places = nodes.iter().enumerate().map(|(place, node)| (node.name.clone(), place)).collect();
        let (order, dependants) = (Vec::new(), BTreeMap::new());
        let mut graph = Graph { name, version, singleton, on_save, nodes, places, order, dependants };
        graph.order = validate(&graph)?;
        for (place, node) in graph.nodes.iter().enumerate() {
            for upstream in node.gate.upstreams() {
                graph.dependants.entry(upstream.to_string()).or_default().push(place);
            }
        }
        Ok(graph)
    }

    /// Reads the JSON form.
    pub fn parse(value: &Value) -> Result<Graph, Invalid> {
        let fields = object("", value, &FIELDS)?;
        let name = text("name", fields.get("name"))?;
        let version = match fields.get("version") {
            Some(Value::Number(number)) => number.to_string(),
            None | Some(Value::Null) => "1".to_string(),
            given => text("version", given)?,
        };
        let singleton = match fields.get("singleton") {
            None | Some(Value::Null) => false,
            Some(Value::Bool(singleton)) => *singleton,
            Some(other) => {
                return Err(Invalid::new("singleton", other, "is neither true nor false", "use true or false"));
            }
        };
        let on_save =
            fields.get("on_save").filter(|task| !task.is_null()).map(|task| text("on_save", Some(task))).transpose()?;
        let Some(Value::Array(items)) = fields.get("nodes") else {
            let given = fields.get("nodes").cloned().unwrap_or_default();
            return Err(Invalid::new(
                "nodes",
                given,
                "is not a list",
                "list the nodes: [{\"name\": \"a\", \"kind\": \"input\"}]",
            ));
        };
        if items.len() > MOST_NODES {
            return Err(Invalid::new("nodes", items.len(), "are too many", format!("use at most {MOST_NODES} nodes")));
        }
        let nodes = items.iter().enumerate().map(|(place, item)| Node::parse(place, item)).collect::<Result<_, _>>()?;
        Graph::new(name, version, singleton, on_save, nodes)
    }

    pub fn to_value(&self) -> Value {
        let mut fields = Map::new();
        fields.insert("name".to_string(), self.name.as_str().into());
        fields.insert("version".to_string(), self.version.as_str().into());
        fields.insert("singleton".to_string(), self.singleton.into());
        if let Some(task) = &self.on_save {
            fields.insert("on_save".to_string(), task.as_str().into());
        }
        fields.insert("nodes".to_string(), self.nodes.iter().map(Node::to_value).collect());
        Value::Object(fields)
    }

    pub fn nodes(&self) -> &[Node] {
        &self.nodes
    }

    /// Each node after all that it depends on.
    pub fn in_order(&self) -> impl Iterator<Item = &Node> {
        self.order.iter().map(|place| &self.nodes[*place])
    }

    /// Those that name it in their gates.
    pub fn dependants(&self, name: &str) -> impl Iterator<Item = &Node> {
        self.dependants.get(name).into_iter().flatten().map(|place| &self.nodes[*place])
    }

    pub fn node(&self, name: &str) -> Option<&Node> {
        self.places.get(name).map(|place| &self.nodes[*place])
    }

    /// How many changes of a node its history keeps; zero: they are not recorded at all.
    pub fn keep(&self, node: &str) -> usize {
        let Some(node) = self.node(node) else { return DEFAULT_KEEP };
        // A historian is a history already: each version of it again would be one of squares.
        let default = if node.kind == NodeKind::Historian { 0 } else { DEFAULT_KEEP };
        node.options.keep_latest.unwrap_or(default)
    }

    /// What identifies the shape of a version: a hash of names and kinds, whatever their order.
    pub fn shape(&self) -> String {
        let mut hash = Fnv::new();
        for (name, place) in &self.places {
            hash.add(name);
            hash.add(self.nodes[*place].kind.as_str());
        }
        format!("{:016x}", hash.0)
    }
}

impl Node {
    pub fn input(name: &str) -> Node {
        Node {
            name: name.to_string(),
            kind: NodeKind::Input,
            gate: Gate::open(),
            task: None,
            args: None,
            schedule: None,
            mutates: Vec::new(),
            options: NodeOptions::default(),
        }
    }

    fn parse(place: usize, value: &Value) -> Result<Node, Invalid> {
        // Errors name the node by its name as soon as it has one.
        let place = format!("nodes[{place}]");
        let fields = object(&place, value, &NODE_FIELDS)?;
        let name = text("name", fields.get("name")).map_err(|error| error.within(&place))?;
        Node::read(name.clone(), fields).map_err(|error| error.within(&name))
    }

    fn read(name: String, fields: &Map<String, Value>) -> Result<Node, Invalid> {
        let given = text("kind", fields.get("kind"))?;
        let kind = NodeKind::parse(&given).ok_or_else(|| {
            let known = NodeKind::ALL.map(NodeKind::as_str);
            let hint = match nearest(&given, known) {
                Some(kind) => format!("did you mean {kind:?}?"),
                None => format!("use one of {}", known.join(", ")),
            };
            Invalid::new("kind", format!("{given:?}"), "is not a kind of node", hint)
        })?;
        let present = |field: &str| fields.get(field).filter(|value| !value.is_null());
        let gate = present("gate").map_or_else(|| Ok(Gate::open()), Gate::parse)?;
        let task = present("task").map(|task| text("task", Some(task))).transpose()?;
        let (task, args) = match present("command") {
            None => (task, present("args").cloned()),
            Some(command) => (Some(COMMAND.to_string()), Some(command_args(task, command, present("args"))?)),
        };
        let schedule = present("schedule").map(Rhythm::parse).transpose().map_err(|error| error.within("schedule"))?;
        let mutates = match present("mutates") {
            None => Vec::new(),
            Some(Value::Array(items)) => {
                items.iter().map(|item| text("mutates", Some(item))).collect::<Result<_, _>>()?
            }
            given => vec![text("mutates", given)?],
        };
        let options = NodeOptions::parse(present("options"))?;
        Ok(Node { name, kind, gate, task, args, schedule, mutates, options })
    }

    fn to_value(&self) -> Value {
        let mut fields = Map::new();
        fields.insert("name".to_string(), self.name.as_str().into());
        fields.insert("kind".to_string(), self.kind.as_str().into());
        if self.gate != Gate::open() {
            fields.insert("gate".to_string(), self.gate.to_value());
        }
        match (&self.task, &self.args) {
            (Some(task), Some(Value::Object(args))) if task == COMMAND => {
                let mut args = args.clone();
                fields.insert("command".to_string(), args.remove("command").unwrap_or_default());
                if !args.is_empty() {
                    fields.insert("args".to_string(), Value::Object(args));
                }
            }
            (task, args) => {
                fields.extend(task.as_ref().map(|task| ("task".to_string(), task.as_str().into())));
                fields.extend(args.as_ref().map(|args| ("args".to_string(), args.clone())));
            }
        }
        if let Some(schedule) = &self.schedule {
            fields.insert("schedule".to_string(), schedule.to_json());
        }
        if !self.mutates.is_empty() {
            fields.insert("mutates".to_string(), self.mutates.clone().into());
        }
        if self.options != NodeOptions::default() {
            fields.insert("options".to_string(), self.options.to_value());
        }
        Value::Object(fields)
    }
}

/// What a node that is a command hands to whoever performs it: `args` may name its environment and working
/// folder.
fn command_args(task: Option<String>, command: &Value, args: Option<&Value>) -> Result<Value, Invalid> {
    if let Some(task) = task {
        let hint = "leave one of them out: a node is computed by a task or by a command";
        return Err(Invalid::new("task", format!("{task:?}"), "stands beside a command", hint));
    }
    let mut all = args.map_or_else(|| Ok(Map::new()), |args| object("args", args, &["env", "cwd"]).cloned())?;
    all.insert("command".to_string(), command.clone());
    let all = Value::Object(all);
    let read: Command = serde_json::from_value(all.clone()).map_err(|error| {
        let hint = "write the program and its arguments as a list of texts, like [\"jq\", \".a + .b\"]";
        Invalid::new("command", command, format!("cannot be read: {error}"), hint)
    })?;
    read.check()?;
    Ok(all)
}

fn object<'a>(what: &str, value: &'a Value, known: &[&str]) -> Result<&'a Map<String, Value>, Invalid> {
    let Value::Object(fields) = value else {
        return Err(Invalid::new(what, value, "is not an object", format!("use an object with {}", known.join(", "))));
    };
    match fields.iter().find(|(name, _)| !known.contains(&name.as_str())) {
        None => Ok(fields),
        Some((name, value)) => {
            let hint = match nearest(name, known.iter().copied()) {
                Some(near) => format!("did you mean {near:?}?"),
                None => format!("the known ones are {}", known.join(", ")),
            };
            let error = Invalid::new(name, value, "is not a known field", hint);
            Err(if what.is_empty() { error } else { error.within(what) })
        }
    }
}

fn text(field: &str, value: Option<&Value>) -> Result<String, Invalid> {
    match value {
        Some(Value::String(text)) => Ok(text.clone()),
        Some(other) => Err(Invalid::new(field, other, "is not a text", "use a text in quotes")),
        None => Err(Invalid::new(field, "nothing", "is missing", "add it")),
    }
}

/// Fowler, Noll and Vo's hash (1a, 64 bits): the same on every machine and in every version.
struct Fnv(u64);

impl Fnv {
    fn new() -> Fnv {
        Fnv(0xcbf2_9ce4_8422_2325)
    }

    fn add(&mut self, text: &str) {
        // A byte that no text contains ends each part.
        for byte in text.bytes().chain([0xff]) {
            self.0 = (self.0 ^ u64::from(byte)).wrapping_mul(0x0100_0000_01b3);
        }
    }
}
