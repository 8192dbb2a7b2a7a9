//! The arrays of statements that unnest them: a column's name, its SQL type and its array stand together, so that no
//! statement counts parameters by hand.

use tokio_postgres::types::ToSql;

/// A column's name and the SQL type of its elements.
pub(super) type Column = (&'static str, &'static str);

/// Defines a row, and rows as one array per column in the order of the statement's parameters.
macro_rules! arrays {
    ($(#[$meta:meta])* $rows:ident of $row:ident $(<$life:lifetime>)? {
        $($column:ident: $rust:ty as $sql:literal,)*
    }) => {
        pub(in $crate::postgres) struct $row$(<$life>)? {
            $(pub(in $crate::postgres) $column: $rust,)*
        }

        $(#[$meta])*
        #[derive(Default)]
        pub(in $crate::postgres) struct $rows$(<$life>)? {
            $(pub(in $crate::postgres) $column: Vec<$rust>,)*
        }

        impl$(<$life>)? $rows$(<$life>)? {
            pub(in $crate::postgres) const COLUMNS: &'static [$crate::postgres::arrays::Column] =
                &[$((stringify!($column), $sql),)*];

            pub(in $crate::postgres) fn push(&mut self, row: $row$(<$life>)?) {
                $(self.$column.push(row.$column);)*
            }

            /// The statement with these rows; none without any.
            #[allow(dead_code, reason = "not every statement may be left out")]
            pub(in $crate::postgres) fn statement(&self, sql: &'static str) -> Option<$crate::postgres::arrays::Statement<'_>> {
                let lengths = [$(self.$column.len(),)*];
                (lengths[0] > 0).then(|| (sql, self.params()))
            }

            pub(in $crate::postgres) fn params(&self) -> Vec<&(dyn tokio_postgres::types::ToSql + Sync)> {
                vec![$(&self.$column,)*]
            }
        }
    };
}
pub(super) use arrays;

/// A statement and its parameters.
pub(super) type Statement<'a> = (&'static str, Vec<&'a (dyn ToSql + Sync)>);

/// `insert into execution as e (id, graph) select * from unnest($1::uuid[], $2::text[])`
pub(super) fn insert(table: &str, columns: &[Column]) -> String {
    format!("insert into {table} ({}) select * from {}", names(columns), unnest(columns))
}

/// `id, graph`
pub(super) fn names(columns: &[Column]) -> String {
    columns.iter().map(|(name, _)| *name).collect::<Vec<_>>().join(", ")
}

/// `unnest($1::uuid[], $2::text[])`
pub(super) fn unnest(columns: &[Column]) -> String {
    let arrays: Vec<String> =
        columns.iter().enumerate().map(|(place, (_, sql))| format!("${}::{sql}[]", place + 1)).collect();
    format!("unnest({})", arrays.join(", "))
}

/// `select * from unnest($1::uuid[], $2::text[]) as g(id, graph)`
pub(super) fn given(columns: &[Column]) -> String {
    format!("select * from {} as g({})", unnest(columns), names(columns))
}

/// `select * from unnest($1::uuid[], $2::text[]) with ordinality as g(id, graph, nth)`: `nth` keeps the order.
pub(super) fn numbered(columns: &[Column]) -> String {
    format!("select * from {} with ordinality as g({}, nth)", unnest(columns), names(columns))
}

/// `$2::text[]`: the whole array of a column.
pub(super) fn array(columns: &[Column], name: &str) -> String {
    let place = columns.iter().position(|(column, _)| *column == name).expect("a column of the statement");
    format!("${}::{}[]", place + 1, columns[place].1)
}

/// `$3`: the first parameter after the arrays.
pub(super) fn after(columns: &[Column]) -> String {
    format!("${}", columns.len() + 1)
}

#[cfg(test)]
mod tests {
    use super::*;

    arrays! {
        Things of Thing<'a> {
            id: i64 as "bigint",
            name: &'a str as "text",
        }
    }

    #[test]
    fn a_statement_names_its_arrays_in_the_order_in_which_they_are_given() {
        let columns = Things::COLUMNS;
        assert_eq!(given(columns), "select * from unnest($1::bigint[], $2::text[]) as g(id, name)");
        assert_eq!(
            numbered(columns),
            "select * from unnest($1::bigint[], $2::text[]) with ordinality as g(id, name, nth)"
        );
        assert_eq!(
            insert("thing", columns),
            "insert into thing (id, name) select * from unnest($1::bigint[], $2::text[])"
        );
        assert_eq!(array(columns, "name"), "$2::text[]");
        assert_eq!(after(columns), "$3");
        let mut things = Things::default();
        assert!(things.statement("none").is_none());
        things.push(Thing { id: 1, name: "a" });
        things.push(Thing { id: 2, name: "b" });
        assert_eq!((&things.id[..], &things.name[..]), (&[1, 2][..], &["a", "b"][..]));
        assert_eq!(things.params().len(), columns.len());
    }
}
