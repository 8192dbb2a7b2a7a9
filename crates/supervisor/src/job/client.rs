//! The server's (and the job's own) end of a shim's socket. Every call is bounded in time.

use super::clock;
use super::folder::{JobFolder, SOCKET};
use super::protocol::{Event, Hello, MOST_LINE_BYTES, Op, Refusal, Reply, Request};
use super::sentinel::Status;
use super::spec::Identity;
use everbeat_engine::StopReason;
use rustix::event::{PollFd, PollFlags, poll};
use rustix::fs::{AtFlags, FileType};
use rustix::io::Errno;
use rustix::net::{AddressFamily, RecvFlags, SendFlags, SocketAddrUnix, SocketFlags, SocketType};
use serde_json::Value;
use std::io;
use std::os::fd::{AsFd, AsRawFd, BorrowedFd, OwnedFd, RawFd};
use std::path::PathBuf;
use std::time::Duration;

#[derive(Debug)]
pub struct Client {
    socket: OwnedFd,
    identity: Identity,
    tenure: u32,
    within: Duration,
    received: Vec<u8>,
}

#[derive(Debug, thiserror::Error)]
pub enum Error {
    /// Nobody listens, or the connection broke: the shim may have ended.
    #[error("the shim cannot be reached: {0}")]
    Unreachable(#[from] io::Error),
    #[error("the shim does not answer")]
    Silent,
    #[error("the shim refuses: {0:?} {1}")]
    Refused(Refusal, String),
    #[error("the shim says what cannot be understood: {0}")]
    Malformed(String),
}

impl Client {
    /// Connects to the shim of a job, as its owner of that tenure. `within` bounds this and every later call.
    pub fn connect(folder: &JobFolder, identity: &Identity, tenure: u32, within: Duration) -> Result<Client, Error> {
        let stat = rustix::fs::statat(folder.dir(), SOCKET, AtFlags::SYMLINK_NOFOLLOW).map_err(io::Error::from)?;
        if FileType::from_raw_mode(stat.st_mode) != FileType::Socket {
            return Err(Error::Malformed("sock is not a socket".into()));
        }
        let flags = SocketFlags::CLOEXEC | SocketFlags::NONBLOCK;
        let socket =
            rustix::net::socket_with(AddressFamily::UNIX, SocketType::STREAM, flags, None).map_err(io::Error::from)?;
        let address = SocketAddrUnix::new(folder.short_path(SOCKET)).map_err(io::Error::from)?;
        match rustix::net::connect(&socket, &address) {
            Ok(()) => {}
            // Its queue of connections is full: it does not take them.
            Err(Errno::AGAIN) => return Err(Error::Silent),
            Err(error) => return Err(Error::Unreachable(error.into())),
        }
        let peer = rustix::net::sockopt::socket_peercred(&socket).map_err(io::Error::from)?;
        if peer.uid != rustix::process::geteuid() {
            return Err(Error::Malformed(format!("the socket belongs to user {}", peer.uid.as_raw())));
        }
        Ok(Client { socket, identity: identity.clone(), tenure, within, received: Vec::new() })
    }

    /// From inside a job: a client that can only beat.
    pub fn of_this_job(within: Duration) -> Result<Client, Error> {
        Client::by_variables(|name| std::env::var(name).ok(), within)
    }

    fn by_variables(get: impl Fn(&str) -> Option<String>, within: Duration) -> Result<Client, Error> {
        let variable = |name: &str| {
            get(name).ok_or_else(|| io::Error::other(format!("{name} is not set: this is not inside a job")))
        };
        let socket = PathBuf::from(variable(SOCKET_VARIABLE)?);
        let attempt = variable(ATTEMPT_VARIABLE)?.parse().map_err(io::Error::other)?;
        let identity = Identity { attempt, token: variable(BEAT_TOKEN_VARIABLE)? };
        let folder = socket.parent().ok_or_else(|| io::Error::other("the socket has no folder"))?;
        Client::connect(&JobFolder::open_path(folder)?, &identity, NO_TENURE, within)
    }

    pub fn hello(&mut self) -> Result<Hello, Error> {
        self.call(Op::Hello)
    }

    /// Asks to stop: TERM, and after the grace (the spec's, if none is given) KILL of everything.
    pub fn stop(&mut self, why: StopReason, grace: Option<Duration>) -> Result<Hello, Error> {
        self.call(Op::Stop { grace_ms: grace.map(|grace| grace.as_millis() as u64), why })
    }

    /// Signals the command itself.
    pub fn signal(&mut self, name: &str) -> Result<Hello, Error> {
        self.call(Op::Signal { name: name.into() })
    }

    pub fn beat(&mut self, status: Option<Status>, progress: Option<Value>) -> Result<Hello, Error> {
        self.call(Op::Beat { status, progress })
    }

    /// Says that a replica the store acknowledges owns the attempt. Nothing else does.
    pub fn vouch(&mut self) -> Result<Hello, Error> {
        self.call(Op::Vouch)
    }

    /// The exit is known and stored: the shim need not linger.
    pub fn ack(&mut self) -> Result<Hello, Error> {
        self.call(Op::Ack)
    }

    /// Turns the connection into a stream of events.
    pub fn subscribe(mut self) -> Result<Subscription, Error> {
        let hello = self.call(Op::Subscribe)?;
        Ok(Subscription { client: self, hello })
    }

    fn call(&mut self, op: Op) -> Result<Hello, Error> {
        match self.ask(op)? {
            Reply::Hello(hello) => Ok(*hello),
            Reply::Refused { error, detail, .. } => Err(Error::Refused(error, detail.unwrap_or_default())),
        }
    }

    pub(crate) fn ask(&mut self, op: Op) -> Result<Reply, Error> {
        let until = clock::boot_ms() + self.within.as_millis() as u64;
        let Identity { attempt: epoch, token: nonce } = self.identity.clone();
        let request = Request { epoch, nonce, tenure: self.tenure, op };
        let mut line = serde_json::to_vec(&request).map_err(|error| Error::Malformed(error.to_string()))?;
        line.push(b'\n');
        self.send(&line, until)?;
        let line = self.line(until)?.ok_or(Error::Silent)?;
        serde_json::from_slice(&line).map_err(|error| Error::Malformed(error.to_string()))
    }

    fn send(&mut self, mut line: &[u8], until: u64) -> Result<(), Error> {
        while !line.is_empty() {
            match rustix::net::send(&self.socket, line, SendFlags::NOSIGNAL) {
                Ok(sent) => line = &line[sent..],
                Err(Errno::AGAIN) if self.ready(PollFlags::OUT, until)? => {}
                Err(Errno::AGAIN) => return Err(Error::Silent),
                Err(Errno::INTR) => {}
                Err(error) => return Err(Error::Unreachable(error.into())),
            }
        }
        Ok(())
    }

    /// The next line, or `None` when none has come by then. The end of the connection is an error.
    fn line(&mut self, until: u64) -> Result<Option<Vec<u8>>, Error> {
        loop {
            if let Some(end) = self.received.iter().position(|byte| *byte == b'\n') {
                let mut line: Vec<u8> = self.received.drain(..=end).collect();
                line.pop();
                return Ok(Some(line));
            }
            if self.received.len() > MOST_LINE_BYTES {
                return Err(Error::Malformed("a line without an end".into()));
            }
            let mut part = [0; 4096];
            match rustix::net::recv(&self.socket, &mut part, RecvFlags::empty()) {
                Ok((0, _)) => return Err(Error::Unreachable(io::ErrorKind::UnexpectedEof.into())),
                Ok((length, _)) => self.received.extend_from_slice(&part[..length]),
                Err(Errno::AGAIN) if self.ready(PollFlags::IN, until)? => {}
                Err(Errno::AGAIN) => return Ok(None),
                Err(Errno::INTR) => {}
                Err(error) => return Err(Error::Unreachable(error.into())),
            }
        }
    }

    fn ready(&self, flags: PollFlags, until: u64) -> Result<bool, Error> {
        let left = until.saturating_sub(clock::boot_ms());
        match poll(&mut [PollFd::new(&self.socket, flags)], Some(&clock::timespec(left))) {
            Ok(count) => Ok(count > 0),
            Err(Errno::INTR) => Ok(true),
            Err(error) => Err(Error::Unreachable(error.into())),
        }
    }
}

/// A job owns nothing, not even itself.
const NO_TENURE: u32 = 0;

pub(crate) const SOCKET_VARIABLE: &str = "EVERBEAT_SOCKET";
pub(crate) const ATTEMPT_VARIABLE: &str = "EVERBEAT_ATTEMPT";
pub(crate) const BEAT_TOKEN_VARIABLE: &str = "EVERBEAT_BEAT_TOKEN";

/// The events of one shim. Its descriptor becomes readable when there is one, or when the shim is gone.
#[derive(Debug)]
pub struct Subscription {
    client: Client,
    /// How it was when the subscription began.
    pub hello: Hello,
}

#[derive(Debug)]
pub enum Next {
    Event(Event),
    /// Nothing happened meanwhile.
    Quiet,
    /// The connection ended: the shim is gone, or has a later owner. Examine the job.
    Gone,
}

impl Subscription {
    /// Waits for the next event; with a wait of zero it only looks.
    pub fn next(&mut self, wait: Duration) -> Result<Next, Error> {
        let until = clock::boot_ms().saturating_add(wait.as_millis() as u64);
        match self.client.line(until) {
            Ok(Some(line)) => {
                serde_json::from_slice(&line).map(Next::Event).map_err(|error| Error::Malformed(error.to_string()))
            }
            Ok(None) => Ok(Next::Quiet),
            Err(Error::Unreachable(_)) => Ok(Next::Gone),
            Err(error) => Err(error),
        }
    }
}

impl AsRawFd for Subscription {
    fn as_raw_fd(&self) -> RawFd {
        self.client.socket.as_raw_fd()
    }
}

impl AsFd for Subscription {
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.client.socket.as_fd()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn outside_a_job_it_says_so() {
        let error = Client::by_variables(|_| None, Duration::ZERO).unwrap_err();
        assert!(error.to_string().contains("not inside a job"), "{error}");
    }
}
