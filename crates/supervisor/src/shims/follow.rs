//! Hearing a shim, or a change in a folder, without a thread that waits.
#![allow(unsafe_code)] // Registering a descriptor with the runtime, once.

use crate::job::FolderWatch;
use crate::job::client::{Next, Subscription};
use crate::job::protocol::{Event, State};
use async_trait::async_trait;
use everbeat_engine::{Following, JobEvent};
use std::io;
use std::os::fd::AsRawFd;
use std::time::Duration;
use tokio::io::Interest;
use tokio::io::unix::AsyncFd;

/// The events of one shim, as they come.
pub(super) struct Followed {
    subscription: AsyncFd<Subscription>,
    /// It was over when this began.
    over: bool,
}

impl Followed {
    /// To be called inside the runtime.
    pub(super) fn new(subscription: Subscription) -> io::Result<Followed> {
        let over = subscription.hello.state == State::Exited;
        Ok(Followed { subscription: watched(subscription)?, over })
    }
}

#[async_trait]
impl Following for Followed {
    async fn next(&mut self) -> JobEvent {
        if self.over {
            return JobEvent::Over;
        }
        loop {
            match self.subscription.get_mut().next(Duration::ZERO) {
                Ok(Next::Event(Event::Beat(hello) | Event::Progress(hello))) => return JobEvent::Beat(hello.beat()),
                // What it left behind is still being cleared.
                Ok(Next::Event(Event::Exit(_))) => {}
                Ok(Next::Event(Event::Exited(_)) | Next::Gone) | Err(_) => return JobEvent::Over,
                Ok(Next::Quiet) => match self.subscription.readable().await {
                    // Nothing was there to read a moment ago: whatever comes now makes it ready anew.
                    Ok(mut ready) => ready.clear_ready(),
                    Err(_) => return JobEvent::Over,
                },
            }
        }
    }
}

/// Both own the one descriptor that they show, from beginning to end.
pub(super) trait OwnsDescriptor: AsRawFd {}
impl OwnsDescriptor for Subscription {}
impl OwnsDescriptor for FolderWatch {}

/// To be called inside the runtime.
pub(super) fn watched<T: OwnsDescriptor>(owner: T) -> io::Result<AsyncFd<T>> {
    // SAFETY: the descriptor is open, and stays the same one for as long as its owner, which goes into the
    // answer, lives.
    unsafe { AsyncFd::register_with_interest(owner, Interest::READABLE) }.map_err(|error| error.into_parts().1)
}
