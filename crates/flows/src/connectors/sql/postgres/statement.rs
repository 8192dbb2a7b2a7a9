//! The statement that writes many rows at once.

use super::super::names::{list, quoted};
use super::super::sink::{CREATED, OnConflict, STAMPS, Writing};
use super::table::{Column, Columns};

/// Writes rows with these columns, given as one array of texts for each. Answers how many are new, and how many were
/// changed; those that were there exactly so are not counted.
pub(super) fn upsert(writing: &Writing, columns: &Columns, shape: &[usize]) -> String {
    let given: Vec<&Column> = shape.iter().map(|place| &columns.columns[*place]).collect();
    let has = |name: &str| given.iter().any(|column| column.name == name);
    let stamp = |name: &&str| writing.stamps && columns.find(name).is_some() && !has(name);
    let stamps: Vec<&str> = STAMPS.into_iter().filter(stamp).collect();
    let names = list(given.iter().map(|column| column.name.as_str()).chain(stamps.iter().copied()));
    let values: Vec<String> =
        given.iter().enumerate().map(|(place, column)| format!("u.c{place}::{}", column.cast)).collect();
    let now = |name: &&str| {
        let has_zone = columns.find(name).is_some_and(|place| columns.columns[place].has_zone);
        (if has_zone { "now()" } else { "(now() at time zone 'utc')" }).to_string()
    };
    let values = values.into_iter().chain(stamps.iter().map(now)).collect::<Vec<_>>().join(", ");
    let arrays = (1..=given.len()).map(|place| format!("${place}::text[]")).collect::<Vec<_>>().join(", ");
    let cells = (0..given.len()).map(|place| format!("c{place}")).collect::<Vec<_>>().join(", ");
    let overriding = if given.iter().any(|column| column.identity) { " overriding system value" } else { "" };
    let conflict = conflict(writing, columns, &given, &stamps);
    let table = writing.table.quoted();
    format!(
        "with w as (insert into {table} as t ({names}){overriding} select {values} from unnest({arrays}) as u({cells}){conflict} \
         returning t.xmax = 0 as new) select count(*) filter (where new), count(*) filter (where not new) from w"
    )
}

/// The columns of the key, if a record with these columns has all of them.
pub(super) fn key<'a>(writing: &'a Writing, columns: &'a Columns, shape: &[usize]) -> Option<&'a [String]> {
    let key = writing.key.as_ref().unwrap_or(&columns.primary);
    let has = |name: &String| shape.iter().any(|place| columns.columns[*place].name == *name);
    (!key.is_empty() && key.iter().all(has)).then_some(key)
}

fn conflict(writing: &Writing, columns: &Columns, given: &[&Column], stamps: &[&str]) -> String {
    let shape: Vec<usize> = given.iter().filter_map(|column| columns.find(&column.name)).collect();
    let Some(key) = key(writing, columns, &shape) else { return String::new() };
    let target = format!(" on conflict ({})", list(key.iter().map(String::as_str)));
    let rest: Vec<&&Column> = given.iter().filter(|column| !key.contains(&column.name)).collect();
    if rest.is_empty() || writing.on_conflict == OnConflict::Ignore {
        return format!("{target} do nothing");
    }
    let mut set: Vec<String> = rest.iter().map(|column| format!("{0} = excluded.{0}", quoted(&column.name))).collect();
    let renewed = stamps.iter().filter(|stamp| **stamp != CREATED);
    set.extend(renewed.map(|stamp| format!("{0} = excluded.{0}", quoted(stamp))));
    let compared = |side: &str| {
        let one = |column: &&&Column| {
            let cast = if column.compares_as_text { "::text" } else { "" };
            format!("{side}.{}{cast}", quoted(&column.name))
        };
        rest.iter().map(one).collect::<Vec<_>>().join(", ")
    };
    let (set, own, new) = (set.join(", "), compared("t"), compared("excluded"));
    format!("{target} do update set {set} where ({own}) is distinct from ({new})")
}
