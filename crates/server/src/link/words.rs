//! Between the messages of the wire and the engine's own words.

use super::grpc::{MESSAGE_LIMIT, Status};
use super::proto::{self, from_server, from_worker};
use everbeat_engine::pools::{
    Assignment, Declined, Ended, FromWorker, HeartbeatAnswer, Hello, LeaseShown, Pong, Returning, ToWorker, Why,
};
use everbeat_model::{Token, WorkerId};
use std::time::Duration;
use uuid::Uuid;

pub(super) fn hello(hello: proto::Hello) -> Result<Hello, Status> {
    let proto::Hello { pool, secret, sdk, tasks, slots, queues, worker_id, leases, graphs, host, key, .. } = hello;
    let (flows, schedules) = (hello.flows, hello.schedules);
    let returning = match worker_id.is_empty() {
        true => None,
        false => Some(Returning {
            worker: WorkerId(id("worker_id", &worker_id)?),
            key: token("key", &key)?,
            leases: leases.iter().map(lease).collect::<Result<_, _>>()?,
        }),
    };
    let slots = usize::try_from(slots).unwrap_or(usize::MAX);
    let pool = Some(pool).filter(|pool| !pool.is_empty());
    Ok(Hello { pool, secret, sdk, tasks, slots, queues, returning, graphs, flows, schedules, host })
}

/// What a worker says after its hello.
pub(super) fn from_worker(message: proto::FromWorker) -> Result<FromWorker, Status> {
    let nothing = || Status::invalid("a message says nothing that this server knows");
    Ok(match message.message.ok_or_else(nothing)? {
        from_worker::Message::Hello(_) => return Err(Status::invalid("a worker says hello once")),
        from_worker::Message::Pong(pong) => FromWorker::Pong(Pong {
            sequence: pong.sequence,
            running: pong.running,
            lag: millis(pong.lag_ms.into()),
            progress: pong.progress,
            resident_bytes: pong.resident_bytes,
            cpu: millis(pong.cpu_ms),
        }),
        from_worker::Message::Heartbeat(beat) => FromWorker::Heartbeat {
            lease: shown(beat.lease)?,
            done: beat.done,
            total: beat.total,
            note: beat.note,
            checkpoint: beat.checkpoint,
            next_within: beat.next_within_ms.map(millis),
            sequence: beat.sequence,
        },
        from_worker::Message::Output(output) => {
            FromWorker::Output { lease: shown(output.lease)?, sequence: output.sequence, item: output.item }
        }
        from_worker::Message::Log(log) => {
            FromWorker::Log { lease: shown(log.lease)?, level: log.level, text: log.text }
        }
        from_worker::Message::Ended(ended) => {
            FromWorker::Ended { lease: shown(ended.lease)?, how: how(ended.outcome)? }
        }
        from_worker::Message::Draining(proto::Draining {}) => FromWorker::Draining,
        from_worker::Message::Stacks(stacks) => FromWorker::Stacks { sequence: stacks.sequence, text: stacks.text },
    })
}

fn how(outcome: Option<proto::ended::Outcome>) -> Result<Ended, Status> {
    Ok(match outcome.ok_or_else(|| Status::invalid("an ended attempt shows no outcome"))? {
        proto::ended::Outcome::Result(result) => Ended::Result(result),
        proto::ended::Outcome::Failure(proto::Failure { message, permanent, detail }) => {
            Ended::Failure { message, permanent, detail }
        }
        proto::ended::Outcome::Stopped(proto::Stopped {}) => Ended::Stopped,
    })
}

fn shown(shown: Option<proto::Lease>) -> Result<LeaseShown, Status> {
    lease(&shown.ok_or_else(|| Status::invalid("a message about an attempt shows no lease"))?)
}

fn lease(shown: &proto::Lease) -> Result<LeaseShown, Status> {
    Ok(LeaseShown {
        run_id: everbeat_model::RunId(id("run_id", &shown.run_id)?),
        attempt: shown.attempt,
        token: token("token", &shown.token)?,
    })
}

fn id(field: &str, text: &str) -> Result<Uuid, Status> {
    Uuid::try_parse(text).map_err(|_| Status::invalid(format!("{field} is not an id")))
}

fn token(field: &str, bytes: &[u8]) -> Result<Token, Status> {
    let wrong = |_| Status::invalid(format!("{field} has {} bytes; it must have 16", bytes.len()));
    Uuid::from_slice(bytes).map(Token).map_err(wrong)
}

pub(super) fn to_worker(word: ToWorker) -> proto::FromServer {
    let message = match word {
        ToWorker::Welcome { worker, epoch, ping_interval, worker_ttl, key } => {
            from_server::Message::Welcome(proto::Welcome {
                worker_id: worker.to_string(),
                epoch,
                ping_interval_ms: short(ping_interval),
                // 0 would mean that the worker lives for ever.
                worker_ttl_ms: worker_ttl.map_or(0, |ttl| short(ttl).max(1)),
                key: key.0.as_bytes().to_vec(),
                message_limit: u32::try_from(MESSAGE_LIMIT).unwrap_or(u32::MAX),
                answers_output: true,
            })
        }
        ToWorker::Ping { sequence, epoch, vouched } => {
            from_server::Message::Ping(proto::Ping { sequence, epoch, vouched_ms: short(vouched) })
        }
        ToWorker::Work(assignment) => from_server::Message::Work(work(*assignment)),
        ToWorker::HeartbeatAnswer { lease, sequence, answer } => {
            let (verdict, problem) = verdict(answer);
            let lease = Some(lease_of(&lease));
            let verdict = verdict.into();
            from_server::Message::HeartbeatAnswer(proto::HeartbeatAnswer { lease, verdict, sequence, problem })
        }
        ToWorker::OutputAnswer { lease, sequence } => {
            from_server::Message::OutputAnswer(proto::OutputAnswer { lease: Some(lease_of(&lease)), sequence })
        }
        ToWorker::EndedAnswer { lease } => {
            from_server::Message::EndedAnswer(proto::EndedAnswer { lease: Some(lease_of(&lease)) })
        }
        ToWorker::Cancel { lease, why } => {
            let why = match why {
                Why::Cancelled => proto::Why::Cancelled,
                Why::Draining => proto::Why::Draining,
                Why::Fenced => proto::Why::Fenced,
                Why::Judged => proto::Why::Judged,
            };
            from_server::Message::Cancel(proto::Cancel { lease: Some(lease_of(&lease)), why: why.into() })
        }
        ToWorker::Drain { grace } => from_server::Message::Drain(proto::Drain { grace_ms: short(grace) }),
        ToWorker::Dump { sequence } => from_server::Message::Dump(proto::Dump { sequence }),
        ToWorker::Declined(Declined { kind, name, problem }) => {
            from_server::Message::Declined(proto::Declined { kind: kind.to_string(), name, problem })
        }
    };
    proto::FromServer { message: Some(message) }
}

fn work(assignment: Assignment) -> proto::Work {
    let Assignment { lease, task, input, checkpoint, deadline, args, parent, .. } = &assignment;
    proto::Work {
        lease: Some(lease_of(lease)),
        task: task.clone(),
        input: input.to_string(),
        checkpoint: checkpoint.as_ref().map(ToString::to_string),
        deadline_ms: deadline.map(long),
        args: args.as_ref().map(ToString::to_string),
        execution_id: parent.as_ref().map(|parent| parent.execution.to_string()),
        node: parent.as_ref().map(|parent| parent.node.clone()),
        stop_when_isolated: assignment.stop_when_isolated,
        session: assignment.session.as_ref().map(|session| session.key.clone()),
        session_id: assignment.session.as_ref().map(|session| session.id.to_string()),
        session_new: assignment.session.as_ref().is_some_and(|session| session.is_new),
        cancel_grace_ms: long(assignment.cancel_grace),
    }
}

fn verdict(answer: HeartbeatAnswer) -> (proto::Verdict, String) {
    match answer {
        HeartbeatAnswer::GoOn => (proto::Verdict::GoOn, String::new()),
        HeartbeatAnswer::Cancelled => (proto::Verdict::Cancelled, String::new()),
        HeartbeatAnswer::Draining => (proto::Verdict::Draining, String::new()),
        HeartbeatAnswer::Fenced => (proto::Verdict::Fenced, String::new()),
        HeartbeatAnswer::Refused(problem) => (proto::Verdict::Refused, problem),
    }
}

fn lease_of(lease: &LeaseShown) -> proto::Lease {
    let LeaseShown { run_id, attempt, token } = lease;
    proto::Lease { run_id: run_id.to_string(), attempt: *attempt, token: token.0.as_bytes().to_vec() }
}

fn millis(ms: u64) -> Duration {
    Duration::from_millis(ms)
}

fn long(span: Duration) -> u64 {
    u64::try_from(span.as_millis()).unwrap_or(u64::MAX)
}

fn short(span: Duration) -> u32 {
    u32::try_from(span.as_millis()).unwrap_or(u32::MAX)
}
