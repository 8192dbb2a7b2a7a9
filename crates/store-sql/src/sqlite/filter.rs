//! Conditions on values as SQL. Everything that is given is bound, never written into the statement.

use everbeat_model::graph::{Condition, Operator, folded, searchable};
use rusqlite::functions::{Context, FunctionFlags};
use rusqlite::types::Value as Bound;
use rusqlite::{Connection, ToSql};
use serde_json::Value;

/// A statement in the making.
pub(super) struct Sql {
    pub(super) text: String,
    bound: Vec<Bound>,
}

impl Sql {
    pub(super) fn new(text: &str) -> Sql {
        Sql { text: text.to_string(), bound: Vec::new() }
    }

    /// Binds a value; answers the parameter that stands for it.
    pub(super) fn bind(&mut self, value: impl Into<Bound>) -> String {
        self.bound.push(value.into());
        format!("?{}", self.bound.len())
    }

    pub(super) fn parameters(&self) -> impl Iterator<Item = &dyn ToSql> {
        self.bound.iter().map(|bound| bound as &dyn ToSql)
    }

    /// Adds that a condition holds for the execution `e`.
    pub(super) fn demand(&mut self, condition: &Condition) {
        let node = self.bind(condition.node.clone());
        let set =
            format!("select 1 from value v where v.execution_id = e.id and v.node = {node} and v.value is not null");
        let demand = match condition.operator {
            Operator::IsSet => format!(" and exists ({set})"),
            Operator::IsNotSet => format!(" and not exists ({set})"),
            _ => format!(" and exists ({set} and {})", self.test(condition)),
        };
        self.text.push_str(&demand);
    }

    /// What must be true of the value `v`, which is set. The test is never null where it may be negated.
    fn test(&mut self, condition: &Condition) -> String {
        match (condition.operator, &condition.value) {
            (Operator::Eq, _) => self.equal(condition),
            (Operator::Neq, given) => {
                let same = Condition { operator: Operator::Eq, value: given.clone(), node: condition.node.clone() };
                format!("not {}", self.equal(&same))
            }
            (Operator::Lt, given) => self.ordered("<", given),
            (Operator::Lte, given) => self.ordered("<=", given),
            (Operator::Gt, given) => self.ordered(">", given),
            (Operator::Gte, given) => self.ordered(">=", given),
            (Operator::Contains, Value::String(part)) => {
                format!("instr(v.text, {}) > 0", self.bind(searchable(part).into_owned()))
            }
            (Operator::Icontains, Value::String(part)) => {
                format!("instr(coalesce(v.folded, v.text), {}) > 0", self.bind(folded(part)))
            }
            (Operator::ListContains, _) => format!("(v.class = 3 and {})", self.by_model(condition)),
            (Operator::In | Operator::NotIn, Value::Array(_)) => self.by_model(condition),
            _ => "false".to_string(),
        }
    }

    fn equal(&mut self, condition: &Condition) -> String {
        match &condition.value {
            Value::Array(_) | Value::Object(_) => format!("(v.class = 3 and {})", self.by_model(condition)),
            Value::Number(number) if number.is_f64() => {
                format!("(v.number is {})", self.bind(number.as_f64()))
            }
            // Two whole numbers are compared exactly, by their text; with any other number as floats.
            Value::Number(number) => {
                let (text, number) = (self.bind(number.to_string()), self.bind(number.as_f64()));
                format!("(v.value = {text} or (v.number is {number} and v.value glob '*[.e]*'))")
            }
            given => format!("(v.value = {})", self.bind(given.to_string())),
        }
    }

    fn ordered(&mut self, operator: &str, given: &Value) -> String {
        match given {
            Value::Number(number) => format!("v.number {operator} {}", self.bind(number.as_f64())),
            Value::String(text) => format!("v.text {operator} {}", self.bind(searchable(text).into_owned())),
            _ => "false".to_string(),
        }
    }

    /// Left to the model itself, where SQL would not find the same parts equal.
    fn by_model(&mut self, condition: &Condition) -> String {
        // Which node the condition is about has been settled; any name will do that can be read.
        let condition = Condition { node: "v".to_string(), ..condition.clone() };
        format!("everbeat_holds(v.value, {})", self.bind(condition.to_text()))
    }
}

/// `everbeat_holds(value, condition)`: whether a condition, in the form that it is written in, holds for
/// a stored value.
pub(super) fn register(connection: &Connection) -> rusqlite::Result<()> {
    let flags = FunctionFlags::SQLITE_UTF8 | FunctionFlags::SQLITE_DETERMINISTIC | FunctionFlags::SQLITE_DIRECTONLY;
    connection.create_scalar_function("everbeat_holds", 2, flags, holds)
}

fn holds(context: &Context<'_>) -> rusqlite::Result<bool> {
    // Read once for all rows of a statement.
    let condition = context.get_or_create_aux(1, |text| {
        Condition::parse(text.as_str()?).map_err(|error| rusqlite::Error::UserFunctionError(error.to_string().into()))
    })?;
    let value: Option<Value> =
        context.get_raw(0).as_str_or_null()?.map(|text| serde_json::from_str(text).unwrap_or_else(|_| text.into()));
    Ok(condition.holds(value.as_ref()))
}
