//! A server in a process of its own, which a test can kill.

use crate::harness::*;
use std::io::{BufRead, BufReader};
use std::path::Path;
use std::process::{Child, Command, Stdio};

const FOLDER: &str = "POOLS_TEST_FOLDER";
const MASK: &str = "POOLS_TEST_MASK";
const SCRIPT: &str = "POOLS_TEST_SCRIPT";
const MARK: &str = "POOLS_TEST_MARK";

const COUNT: &str = "POOLS_TEST_WORKERS";

/// Of a server that a test starts without a word on it.
pub(crate) const WORKERS: usize = 3;

/// Not a test unless it is told to be a server: then it never ends by itself.
#[test]
fn a_server() {
    let Ok(folder) = std::env::var(FOLDER) else { return };
    let variable = |name| std::env::var(name).unwrap();
    let host = Host::at(Path::new(&folder), &variable(MASK));
    let guardian = host.guard("p");
    let order = || marked_order(&variable(SCRIPT), &variable(MARK));
    let count: usize = variable(COUNT).parse().unwrap();
    let workers: Vec<_> = (0..count).map(|_| host.spawn(&guardian, &order())).collect();
    for worker in &workers {
        assert_eq!(host.text(worker), "up");
    }
    println!("\nserving");
    loop {
        pause(LONG);
    }
}

pub(crate) struct Server(Child);

impl Server {
    pub(crate) fn start(folder: &Path, mask: &str, script: &str, mark: &str) -> Server {
        Server::with(WORKERS, folder, mask, script, mark)
    }

    /// When this returns, all its workers are up.
    pub(crate) fn with(workers: usize, folder: &Path, mask: &str, script: &str, mark: &str) -> Server {
        let mut command = Command::new(std::env::current_exe().unwrap());
        command.args(["--exact", "server::a_server", "--nocapture"]).stdout(Stdio::piped());
        command.env(FOLDER, folder).env(MASK, mask).env(SCRIPT, script).env(MARK, mark).env(COUNT, workers.to_string());
        let mut child = command.spawn().unwrap();
        let lines = BufReader::new(child.stdout.take().unwrap()).lines();
        let serving = lines.map_while(Result::ok).any(|line| line == "serving");
        assert!(serving, "the server did not come up");
        Server(child)
    }

    /// When this returns, the kernel has let go of its lock and its connections.
    pub(crate) fn kill(&mut self) {
        self.0.kill().unwrap();
        self.0.wait().unwrap();
    }
}

impl Drop for Server {
    fn drop(&mut self) {
        let _killed_already = self.0.kill();
        let _reaped = self.0.wait();
    }
}
