use everbeat_model::Invalid;

/// A table, perhaps in a schema.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct Table {
    pub(super) schema: Option<String>,
    pub(super) name: String,
}

impl Table {
    pub(super) fn read(text: &str) -> Result<Table, Invalid> {
        let refused = |problem: &str| Invalid::new("table", text, problem, "write it like orders or sales.orders");
        let mut parts = text.split('.').map(str::to_string);
        let table = match (parts.next(), parts.next(), parts.next()) {
            (Some(name), None, _) => Table { schema: None, name },
            (Some(schema), Some(name), None) => Table { schema: Some(schema), name },
            _ => return Err(refused("has more than one dot")),
        };
        if table.name.is_empty() || table.schema.as_deref() == Some("") || text.contains('\0') {
            return Err(refused("is not the name of a table"));
        }
        Ok(table)
    }

    pub(super) fn quoted(&self) -> String {
        let name = quoted(&self.name);
        self.schema.as_ref().map_or_else(|| name.clone(), |schema| format!("{}.{name}", quoted(schema)))
    }
}

impl std::fmt::Display for Table {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        match &self.schema {
            Some(schema) => write!(f, "{schema}.{}", self.name),
            None => f.write_str(&self.name),
        }
    }
}

/// A name as both databases read it, whatever is in it.
pub(super) fn quoted(name: &str) -> String {
    format!("\"{}\"", name.replace('"', "\"\""))
}

/// Each name quoted, with commas between.
pub(super) fn list<'a>(names: impl IntoIterator<Item = &'a str>) -> String {
    names.into_iter().map(quoted).collect::<Vec<_>>().join(", ")
}
