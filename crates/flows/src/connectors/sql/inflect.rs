//! The table of a model, as Rails names it.

/// `InventoryItem` becomes `inventory_items`.
pub(super) fn table_of(model: &str) -> String {
    let path = underscored(&model.replace("::", "_"));
    match path.rsplit_once('_') {
        Some((head, last)) => format!("{head}_{}", plural(last)),
        None => plural(&path),
    }
}

fn underscored(name: &str) -> String {
    let letters: Vec<char> = name.chars().collect();
    let mut path = String::new();
    for (place, letter) in letters.iter().enumerate() {
        let before = place.checked_sub(1).map(|before| letters[before]);
        let after = letters.get(place + 1);
        let begins = letter.is_uppercase()
            && before.is_some_and(|before| {
                before.is_lowercase()
                    || before.is_ascii_digit()
                    || before.is_uppercase() && after.is_some_and(|after| after.is_lowercase())
            });
        if begins {
            path.push('_');
        }
        path.extend(letter.to_lowercase());
    }
    path
}

const IRREGULAR: [(&str, &str); 7] = [
    ("person", "people"),
    ("man", "men"),
    ("woman", "women"),
    ("child", "children"),
    ("sex", "sexes"),
    ("move", "moves"),
    ("zombie", "zombies"),
];

const UNCOUNTABLE: [&str; 10] =
    ["equipment", "information", "rice", "money", "species", "series", "fish", "sheep", "jeans", "police"];

fn plural(word: &str) -> String {
    if UNCOUNTABLE.contains(&word) {
        return word.to_string();
    }
    if let Some((_, plural)) = IRREGULAR.iter().find(|(singular, _)| *singular == word) {
        return (*plural).to_string();
    }
    let changed = |end: &str, into: &str| word.strip_suffix(end).map(|stem| format!("{stem}{into}"));
    let vowel_before_y = ["ay", "ey", "iy", "oy", "uy"].iter().any(|end| word.ends_with(end) && !word.ends_with("quy"));
    if word.ends_with('y') && !vowel_before_y {
        return changed("y", "ies").unwrap_or_default();
    }
    for (end, into) in [
        ("quiz", "quizzes"),
        ("ox", if word == "ox" { "oxen" } else { "oxes" }),
        ("mouse", "mice"),
        ("matrix", "matrices"),
        ("vertex", "vertices"),
        ("index", "indices"),
        ("axis", "axes"),
        ("crisis", "crises"),
        ("analysis", "analyses"),
        ("basis", "bases"),
        ("datum", "data"),
        ("medium", "media"),
        ("buffalo", "buffaloes"),
        ("tomato", "tomatoes"),
        ("hive", "hives"),
        ("status", "statuses"),
        ("alias", "aliases"),
        ("bus", "buses"),
        ("octopus", "octopi"),
        ("virus", "viri"),
        ("lf", "lves"),
        ("rf", "rves"),
        ("ife", "ives"),
    ] {
        if let Some(plural) = changed(end, into) {
            return plural;
        }
    }
    if ["x", "ch", "ss", "sh"].iter().any(|end| word.ends_with(end)) {
        return format!("{word}es");
    }
    if word.ends_with('s') { word.to_string() } else { format!("{word}s") }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn tables_are_named_as_rails_names_them() {
        for (model, table) in [
            ("Product", "products"),
            ("InventoryItem", "inventory_items"),
            ("Category", "categories"),
            ("Person", "people"),
            ("SalesPerson", "sales_people"),
            ("Box", "boxes"),
            ("Batch", "batches"),
            ("Address", "addresses"),
            ("Day", "days"),
            ("News", "news"),
            ("Status", "statuses"),
            ("HTTPRequest", "http_requests"),
            ("Admin::User", "admin_users"),
            ("OrderLine2", "order_line2s"),
            ("Wolf", "wolves"),
        ] {
            assert_eq!(table_of(model), table, "{model}");
        }
    }
}
