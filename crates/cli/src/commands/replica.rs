use super::To;
use super::find::REPLICA;
use crate::args::ReplicaAction;
use crate::client::escape;
use crate::exit::{self, Failure};

pub(crate) fn act(to: &To, action: ReplicaAction) -> Result<u8, Failure> {
    let ReplicaAction::Drain { id } = action;
    let id = to.id(&id, REPLICA)?;
    let answer = to.client.post(&format!("/api/v1/replicas/{}/drain", escape(&id)), None, &[])?;
    to.print(answer.raw.get(), || format!("replica {id} finishes its work and leaves"));
    Ok(exit::DONE)
}
