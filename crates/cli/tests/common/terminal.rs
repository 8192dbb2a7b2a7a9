//! A terminal of a test's own, and what a person would see on it.
#![allow(dead_code, reason = "every test file uses its own part of this")]

use rustix::pty::{OpenptFlags, grantpt, openpt, ptsname, unlockpt};
use rustix::termios::{Winsize, tcsetwinsize};
use std::fs::{File, OpenOptions};
use std::io::Read;
use std::os::unix::fs::OpenOptionsExt;
use std::process::{Child, Command, ExitStatus};
use std::sync::{Arc, Mutex};

/// Eighty columns, as every terminal has.
pub(crate) const COLUMNS: u16 = 80;

/// A command whose stdin, stdout and stderr are a terminal.
pub(crate) struct OnTerminal {
    pub(crate) child: Child,
    seen: Arc<Mutex<Vec<u8>>>,
    reader: std::thread::JoinHandle<()>,
}

impl OnTerminal {
    /// Starts it with a locale that has all signs.
    pub(crate) fn start(mut command: Command) -> OnTerminal {
        let master = openpt(OpenptFlags::RDWR | OpenptFlags::NOCTTY).expect("a pseudo-terminal");
        grantpt(&master).and_then(|()| unlockpt(&master)).expect("its other side");
        let size = Winsize { ws_row: 24, ws_col: COLUMNS, ws_xpixel: 0, ws_ypixel: 0 };
        tcsetwinsize(&master, size).expect("its size");
        let name = ptsname(&master, Vec::new()).expect("its name").into_string().expect("a path");
        // Whoever leads a session without a terminal would get this one, and be hung up with it.
        let mut options = OpenOptions::new();
        options.read(true).write(true).custom_flags(OpenptFlags::NOCTTY.bits() as i32);
        let side = || -> File { options.open(&name).expect("the terminal") };
        for name in ["NO_COLOR", "COLUMNS"] {
            command.env_remove(name);
        }
        let known = |name: &str| command.get_envs().any(|(set, _)| set == name);
        let missing: Vec<(&str, &str)> =
            [("TERM", "xterm"), ("LC_ALL", "C.UTF-8")].into_iter().filter(|(name, _)| !known(name)).collect();
        let child = command.envs(missing).stdin(side()).stdout(side()).stderr(side()).spawn().expect("it starts");
        // The command keeps its sides open; nobody else may, or the end is never seen.
        drop(command);
        let seen = Arc::new(Mutex::new(Vec::new()));
        let (all, mut from) = (seen.clone(), File::from(master));
        let reader = std::thread::spawn(move || {
            let mut buffer = [0; 4096];
            // At the end of the other side, reading fails.
            while let Ok(length @ 1..) = from.read(&mut buffer) {
                all.lock().expect("not poisoned").extend_from_slice(&buffer[..length]);
            }
        });
        OnTerminal { child, seen, reader }
    }

    /// All that came so far.
    pub(crate) fn seen(&self) -> String {
        String::from_utf8_lossy(&self.seen.lock().expect("not poisoned")).into_owned()
    }

    /// Everything it wrote, once it has ended.
    pub(crate) fn end(mut self) -> (ExitStatus, String) {
        let status = self.child.wait().expect("it ends");
        let _nothing_more_comes = self.reader.join();
        let seen = String::from_utf8_lossy(&self.seen.lock().expect("not poisoned")).into_owned();
        (status, seen)
    }
}

/// Without colours, and without what a line overwrote.
pub(crate) fn plain(seen: &str) -> String {
    let mut text = String::new();
    let mut chars = seen.chars().peekable();
    while let Some(c) = chars.next() {
        match c {
            '\x1b' => while chars.next().is_some_and(|c| !c.is_ascii_alphabetic()) {},
            '\r' => {}
            c => text.push(c),
        }
    }
    text
}
