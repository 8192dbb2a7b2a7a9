//! Conditions and orders as SQL: what `Condition::holds` and `compare` say, over the columns of `value`.
//!
//! Every value is looked up by its key, whatever the planner believes: `offset 0` keeps a look-up from
//! becoming a join. Everything that a caller gave is a parameter.

use crate::encode::limit;
use everbeat_model::graph::{Condition, Direction, Field, Operator, Sort, folded, searchable};
use everbeat_store::ExecutionFilter;
use serde_json::Value;
use tokio_postgres::types::ToSql;

/// A query with its parameters.
pub(super) struct Page {
    pub(super) sql: String,
    pub(super) params: Bound,
}

#[derive(Default)]
pub(super) struct Bound(Vec<Box<dyn ToSql + Sync + Send>>);

impl Bound {
    fn bind(&mut self, value: impl ToSql + Sync + Send + 'static, cast: &str) -> String {
        self.0.push(Box::new(value));
        format!("${}::{cast}", self.0.len())
    }

    pub(super) fn given(&self) -> Vec<&(dyn ToSql + Sync)> {
        self.0.iter().map(|value| &**value as &(dyn ToSql + Sync)).collect()
    }
}

/// The ids of one page, in order.
pub(super) fn page(filter: &ExecutionFilter) -> Page {
    let mut params = Bound::default();
    let holds = matching(filter, &mut params);
    let (join, order) = order(filter.sort.as_ref(), &mut params);
    let offset = params.bind(limit(filter.offset), "bigint");
    let most = params.bind(limit(filter.limit), "bigint");
    let sql =
        format!("select e.id from execution e {join} where {holds} order by {order} offset {offset} limit {most}");
    Page { sql, params }
}

pub(super) fn counting(filter: &ExecutionFilter) -> Page {
    let mut params = Bound::default();
    let holds = matching(filter, &mut params);
    Page { sql: format!("select count(*) from execution e where {holds}"), params }
}

fn matching(filter: &ExecutionFilter, params: &mut Bound) -> String {
    let mut holds = vec!["true".to_string()];
    if let Some(graph) = &filter.graph {
        holds.push(format!("e.graph = {}", params.bind(graph.clone(), "text")));
    }
    if !filter.include_archived {
        holds.push("e.archived_at is null".to_string());
    }
    if let Some(before) = filter.before {
        holds.push(format!("e.id < {}", params.bind(before.0, "uuid")));
    }
    holds.extend(filter.conditions.iter().map(|condition| held(condition, params)));
    holds.join(" and ")
}

fn order(sort: Option<&Sort>, params: &mut Bound) -> (String, String) {
    let way = |direction: &Direction| match direction {
        Direction::Ascending => "asc",
        Direction::Descending => "desc",
    };
    match sort {
        None => (String::new(), "e.id desc".to_string()),
        Some(Sort::Field(Field::Id, direction)) => (String::new(), format!("e.id {}", way(direction))),
        Some(Sort::Field(field, direction)) => {
            let column = match field {
                Field::UpdatedAt => "e.updated_at",
                Field::Revision => "e.revision",
                Field::CreatedAt | Field::Id => "e.created_at",
            };
            (String::new(), format!("{column} {0}, e.id {0}", way(direction)))
        }
        Some(Sort::Node(node, direction)) => {
            let node = params.bind(node.clone(), "text");
            let join = format!(
                "left join lateral (select v.class, v.number, v.text, \
                   case when v.class = 2 then v.value = 'true' end as yes \
                 from value v where v.execution_id = e.id and v.node = {node} offset 0) s on true"
            );
            // Nothing set is last, whatever the direction.
            let way = way(direction);
            let order = format!(
                "s.class is null, s.class {way}, s.number {way} nulls last, s.text collate \"C\" {way} nulls last, \
                 s.yes {way} nulls last, e.id {way}"
            );
            (join, order)
        }
    }
}

fn held(condition: &Condition, params: &mut Bound) -> String {
    let node = params.bind(condition.node.clone(), "text");
    let given = &condition.value;
    let holds = match condition.operator {
        Operator::IsSet | Operator::IsNotSet => "true".to_string(),
        Operator::Eq => equal(&[given], params),
        Operator::Neq => format!("not {}", equal(&[given], params)),
        Operator::In => among(given, params),
        // Without a list to be in, `not_in` holds for nothing.
        Operator::NotIn if !given.is_array() => "false".to_string(),
        Operator::NotIn => format!("not {}", among(given, params)),
        Operator::Lt => compared("<", given, params),
        Operator::Lte => compared("<=", given, params),
        Operator::Gt => compared(">", given, params),
        Operator::Gte => compared(">=", given, params),
        Operator::Contains => part("v.text", given.as_str().map(|part| searchable(part).into_owned()), params),
        Operator::Icontains => part("coalesce(v.folded, v.text)", given.as_str().map(folded), params),
        Operator::ListContains => listed(given, params),
    };
    let not = if condition.operator == Operator::IsNotSet { "not " } else { "" };
    format!(
        "{not}exists (select 1 from value v where v.execution_id = e.id and v.node = {node} \
           and v.value is not null and {holds} offset 0)"
    )
}

fn among(given: &Value, params: &mut Bound) -> String {
    let items: Vec<&Value> = given.as_array().into_iter().flatten().collect();
    equal(&items, params)
}

fn compared(operator: &str, given: &Value, params: &mut Bound) -> String {
    match given {
        Value::Number(number) => match number.as_f64() {
            Some(number) => format!("v.number {operator} {}", params.bind(number, "float8")),
            None => "false".to_string(),
        },
        Value::String(text) => {
            format!("v.text {operator} {} collate \"C\"", params.bind(searchable(text).into_owned(), "text"))
        }
        _ => "false".to_string(),
    }
}

fn part(column: &str, part: Option<String>, params: &mut Bound) -> String {
    match part {
        Some(part) => format!("strpos({column}, {}) > 0", params.bind(part, "text")),
        None => "false".to_string(),
    }
}

/// What values are compared with, by the way of comparing.
#[derive(Default)]
struct Alike {
    /// Values that are compared as JSON texts: equal texts are equal values.
    texts: Vec<String>,
    numbers: Vec<f64>,
    /// Beside each number: its text if it is whole, for two whole ones are compared exactly.
    wholes: Vec<Option<String>>,
    /// Lists and objects may hold numbers that are written otherwise.
    documents: Vec<String>,
}

impl Alike {
    fn of(items: &[&Value]) -> Alike {
        let mut alike = Alike::default();
        for item in items {
            match item {
                Value::Number(number) => {
                    if let Some(value) = number.as_f64() {
                        alike.numbers.push(value);
                        alike.wholes.push((!number.is_f64()).then(|| number.to_string()));
                    }
                }
                Value::Array(_) | Value::Object(_) => alike.documents.push(item.to_string()),
                Value::Null | Value::Bool(_) | Value::String(_) => alike.texts.push(item.to_string()),
            }
        }
        alike
    }

    /// `value` is a JSON text, `number` that value as a number, if it is one; `nested` is true where the value may be a
    /// list or an object.
    fn sql(self, value: &str, number: &str, nested: &str, params: &mut Bound) -> String {
        let mut ways = vec!["false".to_string()];
        if !self.texts.is_empty() {
            ways.push(format!("{value} = any({})", params.bind(self.texts, "text[]")));
        }
        if !self.numbers.is_empty() {
            let (numbers, wholes) = (params.bind(self.numbers, "float8[]"), params.bind(self.wholes, "text[]"));
            ways.push(format!(
                "exists (select 1 from unnest({numbers}, {wholes}) as n(number, whole) where n.number = {number} \
                   and (n.whole is null or n.whole = {value} or {value} ~ '[.e]'))"
            ));
        }
        if !self.documents.is_empty() {
            let documents = params.bind(self.documents, "text[]");
            ways.push(format!(
                "({nested} and exists (select 1 from unnest({documents}) as d where same_json({value}, d)))"
            ));
        }
        format!("coalesce({}, false)", ways.join(" or "))
    }
}

fn equal(items: &[&Value], params: &mut Bound) -> String {
    Alike::of(items).sql("v.value", "v.number", "v.class = 3", params)
}

/// The cast is never evaluated for what is not a list.
fn listed(given: &Value, params: &mut Bound) -> String {
    let number = "(case when j.item ~ '^-?[0-9]' then j.item::float8 end)";
    let alike = Alike::of(&[given]).sql("j.item", number, "j.item ~ '^[[{]'", params);
    format!(
        "case when left(v.value, 1) = '[' then exists (\
           select 1 from (select x::text as item from json_array_elements(v.value::json) as x offset 0) j \
           where {alike}) else false end"
    )
}
