use super::key::Key;
use super::keys::KEYS;
use super::values::mask;
use everbeat_model::Invalid;
use everbeat_model::error::nearest;
use serde_json::Value;

/// The complaint about a key that does not exist, with the nearest one that does.
pub(crate) fn unknown(path: &str, value: &Value) -> Invalid {
    let hint = match meant(path) {
        Some(known) => format!("did you mean {known}?"),
        None => listing(path),
    };
    // A URL under a misspelt key may hold a password.
    let shown = value.as_str().map_or_else(|| value.clone(), |text| mask(text).into());
    Invalid::new(path, shown, "is not a known key", hint)
}

/// The key or section that was probably meant.
pub(crate) fn meant(path: &str) -> Option<String> {
    let Some((section, name)) = path.split_once('.') else {
        // A section, or a key whose section was forgotten.
        return nearest(path, Key::sections()).map(|section| format!("[{section}]")).or_else(|| elsewhere(path));
    };
    let section = if Key::sections().contains(&section) { Some(section) } else { nearest(section, Key::sections()) };
    let near = section.and_then(|section| nearest(name, Key::names(section)).map(|name| format!("{section}.{name}")));
    near.or_else(|| elsewhere(name))
}

/// The same name in another section.
fn elsewhere(name: &str) -> Option<String> {
    let same = |key: &&Key| key.path.rsplit('.').next() == Some(name);
    KEYS.iter().find(same).map(|key| key.path.to_string())
}

fn listing(path: &str) -> String {
    match path.split_once('.').map(|(section, _)| (section, Key::names(section))) {
        Some((section, names)) if !names.is_empty() => {
            format!("the known keys of [{section}] are {}", names.join(", "))
        }
        _ => format!("the known sections are {}", Key::sections().join(", ")),
    }
}
