use super::key::Key;
use super::keys::KEYS;
use super::layers::{meant_variable, unknown_path};
use everbeat_model::error::nearest;

const PREFIX: &str = "EVERBEAT_";

/// Variables beside the keys of the configuration: what the client reads, what a job or a worker is given, and what tests
/// and measurements of Everbeat itself use.
const KNOWN: [&str; 36] = [
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
    "EVERBEAT_POOL",
    "EVERBEAT_POOL_TAG",
    "EVERBEAT_SLOTS",
    "EVERBEAT_GUARDIAN_TAG",
    "EVERBEAT_WORKER_ID",
    "EVERBEAT_WORKER_SOCKET",
    "EVERBEAT_WORKER_SECRET_FD",
    "EVERBEAT_WORKER_SECRET",
    "EVERBEAT_WORKER_LIFE_FD",
    "EVERBEAT_WORKER_DUMP_PATH",
    "EVERBEAT_WORKER_URL",
    "EVERBEAT_BENCH_POSTGRES",
    "EVERBEAT_TEST_POSTGRES",
    "EVERBEAT_TEST_REDIS",
    "EVERBEAT_TEST_NATS",
    "EVERBEAT_KILL_AT",
    "EVERBEAT_SHIM_KILL_AT",
    "EVERBEAT_SHIM_FREEZE_AT",
    "EVERBEAT_POOL_MASK",
    "EVERBEAT_ATTACK_SECONDS",
    "EVERBEAT_DESCRIPTORS",
    "EVERBEAT_SIM_SEEDS",
    "EVERBEAT_TEST_FOLDER",
    "EVERBEAT_TRIALS",
    "EVERBEAT_BIN",
];

/// What to say of variables that look like Everbeat's and that nothing reads. Those with a double underscore are
/// keys of the configuration: a server refuses unknown ones.
pub(crate) fn strangers(variables: impl IntoIterator<Item = (String, String)>) -> Vec<String> {
    let mut names: Vec<String> = variables.into_iter().map(|(name, _)| name).filter(|name| is_strange(name)).collect();
    names.sort();
    names.into_iter().map(complaint).collect()
}

/// The same of variables that look like keys of the configuration and are none. For whoever does not read it, and so
/// does not refuse them.
pub(crate) fn strange_keys(variables: impl IntoIterator<Item = (String, String)>) -> Vec<String> {
    let unknown = |(name, _): (String, String)| unknown_path(&name).map(|path| told(&name, meant_variable(&path)));
    let mut said: Vec<String> = variables.into_iter().filter_map(unknown).collect();
    said.sort();
    said
}

fn is_strange(name: &str) -> bool {
    name.starts_with(PREFIX) && !name.contains("__") && !KNOWN.contains(&name)
}

fn complaint(name: String) -> String {
    let keys: Vec<String> = KEYS.iter().map(Key::env_name).collect();
    let known = KNOWN[..3].iter().copied().chain(keys.iter().map(String::as_str));
    told(&name, nearest(&name, known).map(ToString::to_string))
}

fn told(name: &str, near: Option<String>) -> String {
    match near {
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

    #[test]
    fn a_key_that_does_not_exist_is_told_with_the_nearest_one_that_does() {
        let check = |name: &str, expected: &[&str]| {
            let said = strange_keys([(name.to_string(), String::new())]);
            assert_eq!(said.len(), usize::from(!expected.is_empty()), "{name}: {said:?}");
            for part in expected {
                assert!(said[0].contains(part), "{part:?} is not in {said:?}");
            }
        };
        check("EVERBEAT_REPLICA__SLOST", &["EVERBEAT_REPLICA__SLOST", "did you mean EVERBEAT_REPLICA__SLOTS?"]);
        check("EVERBEAT_ZZZ__QQQQQQQQ", &["EVERBEAT_ZZZ__QQQQQQQQ is read by nothing"]);
        for known in
            ["EVERBEAT_REPLICA__SLOTS", "EVERBEAT_QUEUE__MAIL__RATE", "EVERBEAT_RUNS__BACKOFF__MAX", "EVERBEAT_ULR"]
        {
            check(known, &[]);
        }
    }
}
