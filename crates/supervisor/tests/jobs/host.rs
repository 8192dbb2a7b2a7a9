//! The engine's port, with real shims below a data folder of its own.

use crate::harness::*;
use everbeat_engine::{Fenced, Finding, JobAttempt, LAST_WORD, Order, Shims, StartError, WithoutFolder};
use everbeat_model::job::{Command, Exit};
use everbeat_model::{BootInstant, RunId, Token};
use everbeat_supervisor::{HostShims, Misplaced, Place};
use std::cell::RefCell;
use std::path::{Path, PathBuf};
use std::time::Duration;

pub(crate) struct Host {
    pub(crate) data_dir: tempfile::TempDir,
    runtime: tokio::runtime::Runtime,
    shims: HostShims,
    attempts: RefCell<Vec<JobAttempt>>,
}

pub(crate) fn place(data_dir: &Path) -> Place {
    Place::take(data_dir, Misplaced::Refuse).unwrap()
}

impl Host {
    pub(crate) fn new() -> Host {
        Host::with(scratch())
    }

    pub(crate) fn with(data_dir: tempfile::TempDir) -> Host {
        let runtime = tokio::runtime::Builder::new_multi_thread().worker_threads(2).enable_all().build().unwrap();
        let shims = runtime.block_on(async {
            HostShims::open(&place(data_dir.path()), env!("CARGO_BIN_EXE_everbeat-shim").into(), vec!["shim".into()])
                .unwrap()
        });
        Host { data_dir, runtime, shims, attempts: RefCell::default() }
    }

    /// Asks the port.
    pub(crate) fn ask<T>(&self, question: impl AsyncFnOnce(&HostShims) -> T) -> T {
        self.runtime.block_on(question(&self.shims))
    }

    /// The first attempt of a new job.
    pub(crate) fn attempt(&self) -> JobAttempt {
        self.next(&JobAttempt {
            job: RunId(uuid::Uuid::new_v4()),
            attempt: 0,
            token: Token(uuid::Uuid::nil()),
            tenure: 1,
        })
    }

    pub(crate) fn next(&self, last: &JobAttempt) -> JobAttempt {
        let next = JobAttempt { attempt: last.attempt + 1, token: Token(uuid::Uuid::new_v4()), ..last.clone() };
        self.attempts.borrow_mut().push(next.clone());
        next
    }

    pub(crate) fn start(&self, attempt: &JobAttempt, script: &str) -> Result<(), StartError> {
        self.order(attempt, &order(script))
    }

    pub(crate) fn order(&self, attempt: &JobAttempt, order: &Order) -> Result<(), StartError> {
        self.ask(async |shims| shims.start(attempt, order).await)
    }

    /// The first attempt of a new job, begun.
    pub(crate) fn started(&self, script: &str) -> JobAttempt {
        let attempt = self.attempt();
        self.start(&attempt, script).unwrap();
        attempt
    }

    pub(crate) fn examine(&self, attempt: &JobAttempt) -> Finding {
        self.ask(async |shims| shims.examine(attempt).await)
    }

    pub(crate) fn fence(&self, attempt: &JobAttempt) -> Fenced {
        patiently(|| self.ask(async |shims| shims.fence(attempt, WithoutFolder::MakeOne).await))
    }

    /// The same where its folder is known to have been made.
    pub(crate) fn fence_in_place(&self, attempt: &JobAttempt) -> Fenced {
        patiently(|| self.ask(async |shims| shims.fence(attempt, WithoutFolder::LeaveIt).await))
    }

    pub(crate) fn exited(&self, attempt: &JobAttempt) -> Exit {
        eventually("an exit", || match self.examine(attempt) {
            Finding::Exited(exit) => Some(exit),
            Finding::Live(_) | Finding::Hung => None,
            other => panic!("{other:?}"),
        })
    }

    pub(crate) fn path(&self, attempt: &JobAttempt, name: &str) -> PathBuf {
        self.data_dir.path().join("jobs").join(attempt.job.to_string()).join(name)
    }

    pub(crate) fn await_file(&self, attempt: &JobAttempt, name: &str) -> String {
        let path = self.path(attempt, "workspace").join(name);
        eventually(name, || std::fs::read_to_string(&path).ok().filter(|text| text.ends_with('\n')))
    }

    /// Ends a shim without letting it say anything.
    pub(crate) fn kill_shim(&self, attempt: &JobAttempt) {
        patiently(|| self.ask(async |shims| shims.kill(attempt).await));
    }

    pub(crate) fn destroy(&self, attempt: &JobAttempt) {
        patiently(|| self.ask(async |shims| shims.destroy(attempt).await));
    }

    /// The living processes of a job.
    pub(crate) fn processes(&self, attempt: &JobAttempt) -> Vec<i32> {
        marked(&format!("EVERBEAT_JOB_ID={}", attempt.job))
    }
}

pub(crate) fn order(script: &str) -> Order {
    Order {
        command: Command { command: ["/bin/sh", "-c", script].map(ToString::to_string).into(), ..Command::default() },
        input: None,
        heartbeat_interval: Duration::from_millis(50),
        stop_grace: Duration::from_secs(5),
        deadline: None,
        log_limit: 1 << 20,
        start_before: boot() + LONG,
        isolated_after: None,
    }
}

pub(crate) fn boot() -> BootInstant {
    let now = rustix::time::clock_gettime(rustix::time::ClockId::Boottime);
    BootInstant(Duration::new(now.tv_sec as u64, now.tv_nsec as u32))
}

impl Drop for Host {
    fn drop(&mut self) {
        let attempts = self.attempts.take();
        for attempt in attempts.iter().rev() {
            let last = JobAttempt { tenure: LAST_WORD, ..attempt.clone() };
            let end = || {
                self.ask(async |shims| {
                    let _there_may_be_no_folder = shims.kill(&last).await;
                    shims.destroy(&last).await
                })
            };
            match std::thread::panicking() {
                true => drop(end()),
                false => patiently(end),
            }
        }
        for attempt in &attempts {
            assert!(std::thread::panicking() || self.processes(attempt).is_empty(), "nothing is left");
        }
    }
}
