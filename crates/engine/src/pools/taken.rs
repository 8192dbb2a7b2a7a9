//! Names of tasks that no worker may offer: servers perform them by themselves, and whoever submits one of them must know
//! what is performed.

use super::link::{Hello, Refused};
use super::settings::PoolSettings;
use everbeat_model::Invalid;
use everbeat_model::run::COMMAND;
use std::collections::BTreeSet;

pub(crate) struct Taken(BTreeSet<String>);

impl Taken {
    pub(crate) fn new(builtin: &BTreeSet<String>) -> Taken {
        Taken(builtin.iter().cloned().chain([COMMAND.to_string()]).collect())
    }

    /// What the configuration says of tasks.
    pub(crate) fn check_settings(&self, pools: &[PoolSettings]) -> Result<(), Invalid> {
        for pool in pools {
            if let Some(task) = pool.tasks.iter().find(|task| self.0.contains(*task)) {
                let field = format!("tasks of the pool {:?}", pool.name);
                let hint = "give the task another name; a pool that speaks lines and names no tasks performs one of its own name";
                return Err(Invalid::new(field, format!("{task:?}"), PROBLEM, hint));
            }
        }
        Ok(())
    }

    pub(super) fn check_hello(&self, hello: &Hello) -> Result<(), Refused> {
        match hello.tasks.iter().find(|task| self.0.contains(*task)) {
            Some(task) => Err(Refused::Invalid(format!(
                "task {task:?} {PROBLEM}: give it another name (in Python: @app.task(\"my_{task}\"))"
            ))),
            None => Ok(()),
        }
    }
}

const PROBLEM: &str = "is one that every server performs by itself";

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_worker_may_not_offer_what_servers_perform_by_themselves() {
        let taken = Taken::new(&BTreeSet::from(["echo".to_string()]));
        let check = |tasks: &[&str]| {
            let tasks = tasks.iter().map(ToString::to_string).collect();
            taken.check_hello(&Hello { tasks, ..Hello::default() }).err()
        };
        assert_eq!(check(&["add", "echoes"]), None);
        for task in ["echo", COMMAND] {
            let refused = check(&["add", task]);
            assert!(matches!(&refused, Some(Refused::Invalid(why)) if why.contains(task)), "{refused:?}");
        }
        let pool =
            PoolSettings { name: "echo".to_string(), tasks: vec!["echo".to_string()], ..PoolSettings::default() };
        let invalid = taken.check_settings(&[pool]).expect_err("the name is taken");
        assert!(invalid.to_string().contains("echo"), "{invalid}");
    }
}
