use serde::{Deserialize, Serialize};

/// What a node is.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum NodeKind {
    /// Set from outside.
    Input,
    /// Computed by its task.
    Compute,
    /// Computed by its task, which gives values for other nodes.
    Mutate,
    /// A list of what its upstreams were, newest first.
    Historian,
    /// Archives the execution.
    Archive,
    /// Due once, at the time its task gives.
    TickOnce,
    /// Due again and again, each time at the time its task gives.
    TickRecurring,
    /// Computed by its task called again and again, each iteration durable.
    Loop,
}

impl NodeKind {
    pub const ALL: [NodeKind; 8] = [
        NodeKind::Input,
        NodeKind::Compute,
        NodeKind::Mutate,
        NodeKind::Historian,
        NodeKind::Archive,
        NodeKind::TickOnce,
        NodeKind::TickRecurring,
        NodeKind::Loop,
    ];

    pub fn as_str(self) -> &'static str {
        match self {
            NodeKind::Input => "input",
            NodeKind::Compute => "compute",
            NodeKind::Mutate => "mutate",
            NodeKind::Historian => "historian",
            NodeKind::Archive => "archive",
            NodeKind::TickOnce => "tick_once",
            NodeKind::TickRecurring => "tick_recurring",
            NodeKind::Loop => "loop",
        }
    }

    pub fn parse(text: &str) -> Option<NodeKind> {
        NodeKind::ALL.into_iter().find(|kind| kind.as_str() == text)
    }

    /// Whether a task computes it.
    pub fn has_task(self) -> bool {
        !matches!(self, NodeKind::Input | NodeKind::Historian | NodeKind::Archive)
    }

    pub fn is_tick(self) -> bool {
        matches!(self, NodeKind::TickOnce | NodeKind::TickRecurring)
    }

    /// Whether a gate that turns false takes its value away. A tick only pauses, and what a historian
    /// has seen stays seen.
    pub fn clears(self) -> bool {
        matches!(self, NodeKind::Compute | NodeKind::Mutate | NodeKind::Loop)
    }
}
