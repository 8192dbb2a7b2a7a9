//! What an attempt streams over the links of its worker: repetitions are passed over, and what the store holds is answered.

use super::link::{LeaseShown, ToWorker};
use super::worker::Worker;
use crate::attempts::{Ctx, MOST_ITEM_BYTES, Stop};
use everbeat_model::Json;
use futures_util::FutureExt;
use futures_util::future::BoxFuture;

/// How far an attempt has come with what it streams, by the numbers of its worker.
#[derive(Default)]
pub(super) struct Streamed {
    heard: u64,
    /// All up to this one are dealt with.
    kept: u64,
    /// An item was dealt with, or said again, since the last answer began.
    due: bool,
}

/// What became of an item.
pub(super) enum Kept {
    /// Taken, or refused for good. The store holds it, or what is said of it instead, before the attempt ends.
    Yes,
    /// The attempt should stop, and nothing is taken of it any more.
    No,
}

impl Streamed {
    /// Whether an item is to be taken. After a reconnect a worker says again what was not answered; one that counts
    /// nothing does not.
    pub(super) fn hear(&mut self, sequence: u64) -> bool {
        if sequence == 0 {
            return true;
        }
        let new = sequence > self.heard;
        // The answer to what is said again was lost with the link.
        self.due |= !new && self.kept > 0;
        self.heard = self.heard.max(sequence);
        new
    }

    pub(super) fn kept(&mut self, sequence: u64) {
        if sequence > self.kept {
            (self.kept, self.due) = (sequence, true);
        }
    }

    /// Answers all that was heard so far, once the store holds it. To be asked while nothing that was heard waits to be
    /// taken. None: there is nothing to answer.
    pub(super) fn answer<'a>(
        &mut self,
        ctx: &'a Ctx,
        worker: &'a Worker,
        lease: LeaseShown,
    ) -> Option<BoxFuture<'a, ()>> {
        if !std::mem::take(&mut self.due) {
            return None;
        }
        let (sequence, items) = (self.kept, ctx.streamed());
        let answer = async move {
            ctx.stores(items).await;
            // Where the link is cut meanwhile, the worker says the items again over the next.
            worker.tell(ToWorker::OutputAnswer { lease, sequence }).await;
        };
        Some(answer.boxed())
    }
}

/// A piece of the result of an attempt. One that cannot be taken is told in the log of the attempt.
pub(super) async fn keep_item(ctx: &Ctx, item: String) -> Kept {
    let bytes = item.len();
    let refused = match Json::parse(&item) {
        _ if bytes > MOST_ITEM_BYTES => format!("it has {bytes} bytes; at most {MOST_ITEM_BYTES} are taken"),
        Err(error) => format!("it is not JSON: {error}"),
        Ok(item) => match ctx.take_output(&item).await {
            Ok(()) => return Kept::Yes,
            Err(stop @ (Stop::TooLarge | Stop::TooDeep)) => stop.to_string(),
            // Whether the attempt should stop, its worker is told elsewhere.
            Err(_) => return Kept::No,
        },
    };
    let _stop = ctx.log(&format!("everbeat: an item of output was refused: {refused}")).await;
    Kept::Yes
}
