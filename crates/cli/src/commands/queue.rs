use super::To;
use crate::args::QueueAction;
use crate::client::escape;
use crate::exit::{self, Failure};

pub(crate) fn act(to: &To, action: QueueAction) -> Result<u8, Failure> {
    let (name, verb, said) = match action {
        QueueAction::Pause { name } => (name, "pause", "paused: no more runs are taken from it"),
        QueueAction::Resume { name } => (name, "resume", "open"),
    };
    let answer = to.client.post(&format!("/api/v1/queues/{}/{verb}", escape(&name)), None, &[])?;
    to.print(answer.raw.get(), || format!("queue {name} is {said}"));
    Ok(exit::DONE)
}
