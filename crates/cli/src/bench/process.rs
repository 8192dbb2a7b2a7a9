//! A server process of its own, which a measurement may kill.

use super::load::{Client, now, pause};
use crate::exit::Failure;
use rustix::process::{Pid, Signal, kill_process};
use std::fmt::Display;
use std::fs::{self, File};
use std::os::unix::process::CommandExt;
use std::path::Path;
use std::process::{Child, Command, Stdio};
use std::time::Duration;

pub(crate) struct Server {
    pub(crate) client: Client,
    child: Child,
}

const LOOK: Duration = Duration::from_millis(5);
const START_WITHIN: Duration = Duration::from_secs(30);
const STOP_WITHIN: Duration = Duration::from_secs(20);
/// What the server says is in this file of its data folder.
const SAID: &str = "said";

impl Server {
    /// Starts this very program as a server with settings of the environment.
    pub(crate) fn start(data_dir: &Path, settings: &[(&str, String)], config: Option<&str>) -> Result<Server, Failure> {
        let listen = data_dir.join("listen");
        let _there_may_be_none = fs::remove_file(&listen);
        let exe = std::env::current_exe().map_err(|error| fail(&error))?;
        let said = File::create(data_dir.join(SAID)).map_err(|error| fail(&error))?;
        let mut command = Command::new(exe);
        command.args(["serve", "--listen", "127.0.0.1:0", "--data-dir"]).arg(data_dir);
        if let Some(config) = config {
            let path = data_dir.join("everbeat.toml");
            fs::write(&path, config).map_err(|error| fail(&error))?;
            command.arg("--config").arg(path);
        }
        command.envs(settings.iter().map(|(name, value)| (name, value)));
        command.stdin(Stdio::null()).stdout(Stdio::null()).stderr(said);
        // Ctrl-C in a terminal is for the measurement, which ends its server itself.
        command.process_group(0);
        let child = command.spawn().map_err(|error| fail(&error))?;
        let mut server = Server { client: Client::new(""), child };
        let begun = now();
        let address = loop {
            match fs::read_to_string(&listen) {
                Ok(address) => break address.trim().to_string(),
                Err(_) if server.has_ended() => {
                    return Err(fail(&fs::read_to_string(data_dir.join(SAID)).unwrap_or_default()));
                }
                Err(error) if begun.elapsed() > START_WITHIN => return Err(fail(&error)),
                Err(_) => pause(LOOK),
            }
        };
        server.client = Client::new(&format!("http://{address}"));
        server.client.ready()?;
        Ok(server)
    }

    fn has_ended(&mut self) -> bool {
        self.child.try_wait().is_ok_and(|ended| ended.is_some())
    }

    pub(crate) fn pid(&self) -> u32 {
        self.child.id()
    }

    /// Lets the server end in order, with everything that it has started.
    pub(crate) fn stop(mut self) {
        let _it_may_be_gone = kill_process(Pid::from_child(&self.child), Signal::TERM);
        let begun = now();
        while !self.has_ended() && begun.elapsed() < STOP_WITHIN {
            pause(LOOK);
        }
    }

    pub(crate) fn kill(&mut self) {
        let _it_may_be_gone = self.child.kill();
        let _reaped = self.child.wait();
    }
}

impl Drop for Server {
    fn drop(&mut self) {
        self.kill();
    }
}

/// The word that follows a text in what the server has said.
pub(crate) fn said(data_dir: &Path, before: &str) -> Result<String, Failure> {
    let begun = now();
    loop {
        let text = fs::read_to_string(data_dir.join(SAID)).map_err(|error| fail(&error))?;
        let word =
            text.lines().find_map(|line| line.split_once(before)?.1.split([',', ' ']).next().map(str::to_string));
        match word {
            Some(word) => return Ok(word),
            None if begun.elapsed() > START_WITHIN => return Err(fail(&format!("it did not say {before:?}"))),
            None => pause(LOOK),
        }
    }
}

/// Linux counts CPU times for programs in hundredths of a second, on every architecture that this program is built for.
const USER_HZ: u64 = 100;

/// CPU time of a process so far, that of its threads included.
pub(crate) fn cpu(pid: u32) -> Result<Duration, Failure> {
    let lost = || fail(&format!("the CPU time of process {pid} cannot be read"));
    let stat = fs::read_to_string(format!("/proc/{pid}/stat")).map_err(|error| fail(&error))?;
    // What stands in brackets is the name, which may hold anything.
    let fields: Vec<&str> = stat.rsplit_once(')').ok_or_else(lost)?.1.split_whitespace().collect();
    let ticks = |field: usize| fields.get(field).and_then(|text| text.parse::<u64>().ok()).ok_or_else(lost);
    let (user, system) = (ticks(11)?, ticks(12)?);
    Ok(Duration::from_millis((user + system) * 1000 / USER_HZ))
}

fn fail(error: &dyn Display) -> Failure {
    Failure::server(format!("the server of a measurement: {error}"), "")
}
