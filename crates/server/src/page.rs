use crate::params::Params;
use crate::problem::Result;
use everbeat_model::Invalid;
use everbeat_store::Part;
use serde::Serialize;
use utoipa::ToSchema;

/// A part of a list, and where the next part begins.
#[derive(Serialize, ToSchema)]
pub(crate) struct Page<T> {
    pub(crate) items: Vec<T>,
    /// Hand it back as `cursor` to go on; absent after the last part.
    #[schema(required)]
    pub(crate) next_cursor: Option<String>,
}

const MOST: usize = 1000;
pub(crate) const FEW: usize = 100;

/// How many items are asked for.
pub(crate) fn limit(params: &Params, default: usize) -> Result<usize> {
    let hint = || format!("use a whole number from 1 to {MOST}");
    let read = |text: &str| {
        text.parse()
            .ok()
            .filter(|limit| (1..=MOST).contains(limit))
            .ok_or_else(|| Invalid::new("", format!("{text:?}"), "is out of range", hint()))
    };
    Ok(params.get("limit", read)?.unwrap_or(default))
}

impl<T> Page<T> {
    /// Of items of which one more than `limit` was asked for, so that it is known whether more follow.
    pub(crate) fn cut(items: Vec<T>, limit: usize, cursor: impl Fn(&T) -> String) -> Page<T> {
        Page::of_part(Part { items, cut_short: false }, limit, cursor)
    }

    /// The same of a part that may have ended early since its items are large.
    pub(crate) fn of_part(part: Part<T>, limit: usize, cursor: impl Fn(&T) -> String) -> Page<T> {
        let Part { mut items, cut_short } = part;
        let more = cut_short || items.len() > limit;
        items.truncate(limit);
        let next_cursor = if more { items.last().map(cursor) } else { None };
        Page { items, next_cursor }
    }

    /// Of a list that is short enough to be read whole and rises by `key`.
    pub(crate) fn of_whole<K: Ord + ToString>(
        items: impl IntoIterator<Item = T>,
        limit: usize,
        after: Option<K>,
        key: impl Fn(&T) -> K,
    ) -> Page<T> {
        let rest = items.into_iter().filter(|item| after.as_ref().is_none_or(|after| key(item) > *after));
        Page::cut(rest.take(limit + 1).collect(), limit, |item| key(item).to_string())
    }
}

/// For lists that are short by nature: everything, unless less is asked for.
pub(crate) fn whole_limit(params: &Params) -> Result<usize> {
    limit(params, MOST)
}

pub(crate) fn text_cursor(params: &Params) -> Result<Option<String>> {
    params.get("cursor", |text| Ok(text.to_string()))
}
