use super::keys::{KEYS, Key};
use everbeat_model::error::nearest;

const PREFIX: &str = "EVERBEAT_";

/// Variables beside the keys of the configuration: what the client reads, what a job is given, and what tests and
/// measurements of Everbeat itself use.
const KNOWN: [&str; 16] = [
    "EVERBEAT_URL",
    "EVERBEAT_TOKEN",
    "EVERBEAT_CONFIG",
    "EVERBEAT_JOB_ID",
    "EVERBEAT_JOB_TAG",
    "EVERBEAT_SHIM_TAG",
    "EVERBEAT_ATTEMPT",
    "EVERBEAT_WORKSPACE",
    "EVERBEAT_PROGRESS",
    "EVERBEAT_SOCKET",
    "EVERBEAT_BEAT_TOKEN",
    "EVERBEAT_BENCH_POSTGRES",
    "EVERBEAT_TEST_POSTGRES",
    "EVERBEAT_KILL_AT",
    "EVERBEAT_SHIM_KILL_AT",
    "EVERBEAT_SHIM_FREEZE_AT",
];

/// What to say of variables that look like Everbeat's and that nothing reads. Those with a double underscore are
/// keys of the configuration: a server refuses unknown ones.
pub(crate) fn strangers(variables: impl IntoIterator<Item = (String, String)>) -> Vec<String> {
    let mut names: Vec<String> = variables.into_iter().map(|(name, _)| name).filter(|name| is_strange(name)).collect();
    names.sort();
    names.into_iter().map(complaint).collect()
}

fn is_strange(name: &str) -> bool {
    name.starts_with(PREFIX) && !name.contains("__") && !KNOWN.contains(&name)
}

fn complaint(name: String) -> String {
    let keys: Vec<String> = KEYS.iter().map(Key::env_name).collect();
    let known = KNOWN[..3].iter().copied().chain(keys.iter().map(String::as_str));
    match nearest(&name, known) {
        Some(near) => format!("the environment variable {name} is read by nothing; did you mean {near}?"),
        None => format!("the environment variable {name} is read by nothing"),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_variable_that_nothing_reads_is_told_with_the_nearest_one_that_is_read() {
        let check = |name: &str, expected: &[&str]| {
            let said = strangers([(name.to_string(), String::new())]);
            assert_eq!(said.len(), usize::from(!expected.is_empty()), "{name}: {said:?}");
            for part in expected {
                assert!(said[0].contains(part), "{part:?} is not in {said:?}");
            }
        };
        check("EVERBEAT_ULR", &["EVERBEAT_ULR", "EVERBEAT_URL"]);
        check("EVERBEAT_REPLICA_SLOTS", &["EVERBEAT_REPLICA__SLOTS"]);
        check("EVERBEAT_COMPLETELY_DIFFERENT", &["EVERBEAT_COMPLETELY_DIFFERENT"]);
        for known in ["EVERBEAT_URL", "EVERBEAT_REPLICA__SLOTS", "EVERBEAT_SERVER__NO_SUCH", "HOME"] {
            check(known, &[]);
        }
    }
}
