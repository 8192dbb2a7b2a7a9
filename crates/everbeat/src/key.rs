use everbeat_engine::Failure;
use everbeat_model::graph::{Comparison, Gate};
use serde::de::DeserializeOwned;
use serde::{Deserialize, Serialize};
use serde_json::{Map, Value};
use std::marker::PhantomData;

/// The name of a node together with the type of its value.
///
/// ```
/// use everbeat::Key;
/// const NAME: Key<String> = Key::new("name");
/// ```
pub struct Key<T> {
    name: &'static str,
    of: PhantomData<fn() -> T>,
}

impl<T> Clone for Key<T> {
    fn clone(&self) -> Key<T> {
        *self
    }
}

impl<T> Copy for Key<T> {}

impl<T> Key<T> {
    pub const fn new(name: &'static str) -> Key<T> {
        Key { name, of: PhantomData }
    }

    pub const fn name(&self) -> &'static str {
        self.name
    }

    /// Holds when the node has a value; of a tick: when it is due.
    pub fn provided(self) -> Gate {
        Gate::Provided(self.name.to_string())
    }

    pub fn is_true(self) -> Gate {
        Gate::IsTrue(self.name.to_string())
    }

    pub fn is_false(self) -> Gate {
        Gate::IsFalse(self.name.to_string())
    }

    pub fn equals(self, value: impl Serialize) -> Gate {
        self.compare(Comparison::Eq, value)
    }

    pub fn differs(self, value: impl Serialize) -> Gate {
        self.compare(Comparison::Neq, value)
    }

    pub fn below(self, value: impl Serialize) -> Gate {
        self.compare(Comparison::Lt, value)
    }

    pub fn at_most(self, value: impl Serialize) -> Gate {
        self.compare(Comparison::Lte, value)
    }

    pub fn above(self, value: impl Serialize) -> Gate {
        self.compare(Comparison::Gt, value)
    }

    pub fn at_least(self, value: impl Serialize) -> Gate {
        self.compare(Comparison::Gte, value)
    }

    fn compare(self, comparison: Comparison, value: impl Serialize) -> Gate {
        Gate::Compare(comparison, self.name.to_string(), serde_json::to_value(value).unwrap_or_default())
    }
}

/// What can stand for a gate: a key (its node is provided), a gate, or several of either (all of them
/// hold).
pub trait IntoGate {
    fn into_gate(self) -> Gate;
}

impl IntoGate for Gate {
    fn into_gate(self) -> Gate {
        self
    }
}

impl<T> IntoGate for Key<T> {
    fn into_gate(self) -> Gate {
        self.provided()
    }
}

impl<G: IntoGate, const N: usize> IntoGate for [G; N] {
    fn into_gate(self) -> Gate {
        all(self)
    }
}

/// Holds when all of them do.
pub fn all(gates: impl IntoIterator<Item = impl IntoGate>) -> Gate {
    Gate::All(gates.into_iter().map(IntoGate::into_gate).collect())
}

/// Holds when any of them does.
pub fn any(gates: impl IntoIterator<Item = impl IntoGate>) -> Gate {
    Gate::Any(gates.into_iter().map(IntoGate::into_gate).collect())
}

/// Holds when it does not.
pub fn not(gate: impl IntoGate) -> Gate {
    Gate::Not(Box::new(gate.into_gate()))
}

/// Always holds: for ticks that depend on nothing.
pub fn always() -> Gate {
    Gate::All(Vec::new())
}

/// Everything that was set when a node's computation began.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
#[serde(transparent)]
pub struct Values(Map<String, Value>);

impl Values {
    pub fn new() -> Values {
        Values::default()
    }

    /// The value of a node that its gate guarantees. That it is missing or of another type is a mistake
    /// in the graph, which trying again does not mend.
    pub fn get<T: DeserializeOwned>(&self, key: Key<T>) -> Result<T, Failure> {
        let name = key.name;
        let value = self.0.get(name).ok_or_else(|| Failure::permanent(format!("node {name:?} is not set")))?;
        T::deserialize(value).map_err(|error| Failure::permanent(format!("node {name:?} is of another type: {error}")))
    }

    /// The value of a node that may not be set.
    pub fn find<T: DeserializeOwned>(&self, key: Key<T>) -> Result<Option<T>, Failure> {
        if self.0.contains_key(key.name) { self.get(key).map(Some) } else { Ok(None) }
    }

    /// With this value too: for setting several at once, and for what a mutation gives.
    pub fn with<T: Serialize>(mut self, key: Key<T>, value: &T) -> Values {
        self.0.insert(key.name.to_string(), serde_json::to_value(value).unwrap_or_default());
        self
    }

    pub(crate) fn into_map(self) -> Map<String, Value> {
        self.0
    }
}
