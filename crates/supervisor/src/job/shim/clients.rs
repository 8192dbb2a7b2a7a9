//! The shim's socket and whoever is connected to it. Nobody can make the shim wait: what is not read is
//! bounded, what is not taken is bounded, and who goes over a bound is cut off.

use crate::job::folder::{JobFolder, SOCKET};
use crate::job::protocol::MOST_LINE_BYTES;
use rustix::event::PollFlags;
use rustix::io::Errno;
use rustix::net::{AddressFamily, RecvFlags, SendFlags, SocketAddrUnix, SocketFlags, SocketType};
use serde::Serialize;
use std::io;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};

#[derive(Debug, Default)]
pub(super) struct Clients {
    listener: Option<OwnedFd>,
    connected: Vec<Client>,
    next_id: u64,
}

#[derive(Debug)]
struct Client {
    id: u64,
    socket: OwnedFd,
    received: Vec<u8>,
    unsent: Vec<u8>,
    /// The tenure of the owner that listens.
    subscribed: Option<u32>,
}

/// A server, a person or two at the command line, and the job's own beats.
const MOST_CLIENTS: usize = 32;
const MOST_SUBSCRIBERS: usize = 8;
/// Some events of the largest kind.
const MOST_UNSENT_BYTES: usize = 4 * MOST_LINE_BYTES;
/// Connections taken in one turn.
const TURN: usize = 16;

impl Clients {
    /// Listens, if it does not yet. The lock is held: a socket that stands there is a dead shim's.
    pub(super) fn listen(&mut self, folder: &JobFolder) -> io::Result<()> {
        if self.listener.is_some() {
            return Ok(());
        }
        folder.unlink(SOCKET)?;
        let flags = SocketFlags::CLOEXEC | SocketFlags::NONBLOCK;
        let socket = rustix::net::socket_with(AddressFamily::UNIX, SocketType::STREAM, flags, None)?;
        rustix::net::bind(&socket, &SocketAddrUnix::new(folder.short_path(SOCKET))?)?;
        rustix::net::listen(&socket, MOST_CLIENTS as i32)?;
        self.listener = Some(socket);
        Ok(())
    }

    /// What to poll, each with its id; the listener's is `None`.
    pub(super) fn polled(&self) -> impl Iterator<Item = (Option<u64>, BorrowedFd<'_>, PollFlags)> {
        let listener = self.listener.iter().map(|socket| (None, socket.as_fd(), PollFlags::IN));
        listener.chain(self.connected.iter().map(|client| {
            let wants_out = if client.unsent.is_empty() { PollFlags::empty() } else { PollFlags::OUT };
            (Some(client.id), client.socket.as_fd(), PollFlags::IN | wants_out)
        }))
    }

    pub(super) fn accept(&mut self) {
        let Some(listener) = &self.listener else { return };
        for _ in 0..TURN {
            let flags = SocketFlags::CLOEXEC | SocketFlags::NONBLOCK;
            let Ok(socket) = rustix::net::accept_with(listener, flags) else { return };
            let Ok(peer) = rustix::net::sockopt::socket_peercred(&socket) else { continue };
            if peer.uid != rustix::process::geteuid() && !peer.uid.is_root() {
                continue;
            }
            if self.connected.len() >= MOST_CLIENTS {
                // The oldest that does not listen goes, so that hoarders cannot lock the server out.
                let Some(oldest) = self.connected.iter().position(|client| client.subscribed.is_none()) else {
                    continue;
                };
                self.connected.remove(oldest);
            }
            self.next_id += 1;
            let (received, unsent) = (Vec::new(), Vec::new());
            self.connected.push(Client { id: self.next_id, socket, received, unsent, subscribed: None });
        }
    }

    /// Sends what waits, reads what came, and gives the whole lines among it.
    pub(super) fn serve(&mut self, id: u64) -> Vec<Vec<u8>> {
        let Some(at) = self.connected.iter().position(|client| client.id == id) else { return Vec::new() };
        let client = &mut self.connected[at];
        let mut lines = Vec::new();
        if !(client.flush() && client.receive(&mut lines)) {
            self.connected.remove(at);
        }
        lines
    }

    /// Whether there is room for one more subscriber; then this one is.
    pub(super) fn subscribe(&mut self, id: u64, tenure: u32) -> bool {
        let room = self.connected.iter().filter(|client| client.subscribed.is_some()).count() < MOST_SUBSCRIBERS;
        let client = self.connected.iter_mut().find(|client| client.id == id);
        client.is_some_and(|client| {
            client.subscribed = client.subscribed.or(room.then_some(tenure));
            client.subscribed.is_some()
        })
    }

    /// Owners before this tenure hear no more.
    pub(super) fn drop_subscribers_before(&mut self, tenure: u32) {
        self.connected.retain(|client| client.subscribed.is_none_or(|theirs| theirs >= tenure));
    }

    pub(super) fn answer(&mut self, id: u64, message: &impl Serialize) {
        self.send(message, |client| client.id == id);
    }

    pub(super) fn announce(&mut self, message: &impl Serialize) {
        self.send(message, |client| client.subscribed.is_some());
    }

    fn send(&mut self, message: &impl Serialize, to: impl Fn(&Client) -> bool) {
        let Ok(mut line) = serde_json::to_vec(message) else { return };
        line.push(b'\n');
        self.connected.retain_mut(|client| !to(client) || client.queue(&line));
    }

    /// No more connections, and the name is gone.
    pub(super) fn close(&mut self, folder: &JobFolder) {
        for client in &mut self.connected {
            client.flush();
        }
        self.connected.clear();
        if self.listener.take().is_some() {
            let _then_the_next_shim_does = folder.unlink(SOCKET);
        }
    }
}

impl Client {
    /// Whether it may stay.
    fn queue(&mut self, line: &[u8]) -> bool {
        if self.unsent.len() + line.len() > MOST_UNSENT_BYTES {
            return false;
        }
        self.unsent.extend_from_slice(line);
        self.flush()
    }

    fn flush(&mut self) -> bool {
        while !self.unsent.is_empty() {
            match rustix::net::send(&self.socket, &self.unsent, SendFlags::NOSIGNAL) {
                Ok(sent) => drop(self.unsent.drain(..sent)),
                Err(Errno::INTR) => {}
                Err(Errno::AGAIN) => return true,
                Err(_) => return false,
            }
        }
        true
    }

    fn receive(&mut self, lines: &mut Vec<Vec<u8>>) -> bool {
        let mut part = [0; 4096];
        let open = match rustix::net::recv(&self.socket, &mut part, RecvFlags::empty()) {
            Ok((0, _)) => false,
            Ok((length, _)) => {
                self.received.extend_from_slice(&part[..length]);
                true
            }
            Err(Errno::INTR | Errno::AGAIN) => true,
            Err(_) => false,
        };
        while let Some(end) = self.received.iter().position(|byte| *byte == b'\n') {
            lines.push(self.received.drain(..=end).collect());
        }
        open && self.received.len() <= MOST_LINE_BYTES
    }
}
