//! New runs, and requests that are the same as before.

mod keys;
mod rows;

pub(super) use rows::{INSERT, rows};

use super::Postgres;
use super::arrays::Statement;
use super::chunk::{chunks, pieces};
use super::fault::{Fault, Outcome};
use super::link::{Params, again};
use super::sql::{append_event, now};
use super::transaction::Transaction;
use crate::answers::Answers;
use crate::halves::Halves;
use everbeat_model::NewRun;
use everbeat_model::enqueue::Reused;
use everbeat_model::event::{EventKind, line};
use everbeat_store::{Enqueue, Enqueued, Error, Result};
use keys::Keys;
use rows::{ENQUEUE, ENQUEUE_KEYED, Request, Requests};
use std::collections::BTreeSet;

pub(super) const APPEND: &str = concat!("with ", now!(), " ", append_event!(), "t.now, $1 from t");

/// What each request is answered.
type Given = Answers<Vec<Enqueued>>;

pub(super) async fn enqueue(store: &Postgres, requests: &[Enqueue]) -> Result<Vec<Result<Vec<Enqueued>>>> {
    let mut answers = Answers::to(requests.len());
    let wants = |request: &Enqueue| request.idempotency.is_some() || !request.runs.is_empty();
    let (places, idle): (Vec<usize>, Vec<usize>) = (0..requests.len()).partition(|place| wants(&requests[*place]));
    answers.give(&idle, idle.iter().map(|_| Ok(Vec::new())).collect());
    for piece in pieces(&places, |place| (requests[*place].runs.len().max(1), requests[*place].bytes())) {
        if let Err(fault) = enqueue_piece(store, requests, piece, &mut answers).await {
            return answers.told(fault.into());
        }
    }
    answers.all()
}

async fn enqueue_piece(store: &Postgres, requests: &[Enqueue], piece: &[usize], answers: &mut Given) -> Outcome<()> {
    let mut open = Halves::of(at_once(store, requests, piece, answers).await?);
    while let Some(places) = open.next() {
        let batch: Vec<&Enqueue> = places.iter().map(|place| &requests[*place]).collect();
        match in_transaction(store, &batch).await {
            Ok(enqueued) => answers.give(&places, enqueued),
            Err(fault @ Fault::Data(_)) => {
                if let Some(place) = open.halve(places) {
                    answers.give(&[place], vec![Err(fault.into())]);
                }
            }
            Err(fault) => return Err(fault),
        }
    }
    Ok(())
}

/// Accepts requests that want nothing stored before, in one statement. Answers the places of those that are left: their
/// idempotency keys were used before, or by an earlier one of them, or it takes more than this statement to tell.
async fn at_once(store: &Postgres, requests: &[Enqueue], piece: &[usize], answers: &mut Given) -> Outcome<Vec<usize>> {
    // Runs are logged in the order of their requests: one that has to be decided about keeps the others back.
    if piece.iter().any(|place| requests[*place].wants_unique_key()) {
        return Ok(piece.to_vec());
    }
    let mut keys = BTreeSet::new();
    let mut may_be_first = |place: &usize| {
        let request = &requests[*place];
        let first = request.idempotency.as_ref().is_none_or(|idempotency| keys.insert(&idempotency.key));
        first && !request.runs.is_empty()
    };
    let (first, mut left): (Vec<usize>, Vec<usize>) = piece.iter().copied().partition(&mut may_be_first);
    let runs: Vec<&NewRun> = first.iter().flat_map(|place| &requests[*place].runs).collect();
    if chunks(&runs, |run| run.bytes()).len() != 1 {
        return Ok(piece.to_vec());
    }
    let mut by_request = Requests::default();
    for request in first.iter().map(|place| &requests[*place]) {
        let given = request.idempotency.as_ref();
        request.runs.iter().for_each(|_| {
            by_request.push(Request {
                key: given.map(|given| given.key.as_str()),
                fingerprint: given.map(|given| given.fingerprint.as_str()),
            });
        });
    }
    let rows = rows(runs.into_iter());
    let (sql, mut params) = (if keys.is_empty() { &ENQUEUE } else { &ENQUEUE_KEYED }, rows.params());
    if !keys.is_empty() {
        params.extend(by_request.params());
    }
    let taken = match store.command.query(sql, &params).await {
        Ok(taken) => taken,
        // Perhaps some of the runs were enqueued before; a transaction tells.
        Err(Fault::Data(_)) => return Ok(piece.to_vec()),
        Err(fault) => return Err(fault),
    };
    let taken: BTreeSet<&str> =
        if keys.is_empty() { BTreeSet::new() } else { taken.iter().map(|row| row.get(0)).collect() };
    for place in first {
        let request = &requests[place];
        match &request.idempotency {
            Some(idempotency) if !taken.contains(idempotency.key.as_str()) => left.push(place),
            _ => answers.give(&[place], vec![Ok(request.runs.iter().map(|run| Enqueued::Created(run.id)).collect())]),
        }
    }
    left.sort_unstable();
    Ok(left)
}

/// Accepts requests whose answers depend on what is stored.
async fn in_transaction(store: &Postgres, requests: &[&Enqueue]) -> Outcome<Vec<Result<Vec<Enqueued>>>> {
    again!(async {
        let transaction = store.exclusive.begin().await?;
        match try_enqueue(&transaction, requests).await {
            Ok((answers, lines)) if lines.is_empty() => transaction.commit().await.map(|()| answers),
            Ok((answers, lines)) => transaction.commit_with(APPEND, &[&lines.join("\n")]).await.map(|()| answers),
            Err(fault) => transaction.close(Err(fault)).await,
        }
    })
}

/// Answers the requests, and what is to be logged.
async fn try_enqueue(
    transaction: &Transaction<'_>,
    requests: &[&Enqueue],
) -> Outcome<(Vec<Result<Vec<Enqueued>>>, Vec<String>)> {
    let (keys, mut intake) = Keys::take(transaction, requests).await?;
    let (mut answers, mut made, mut lines) = (Vec::with_capacity(requests.len()), Vec::new(), Vec::new());
    for request in requests {
        let answer = intake.accept(request).map_err(|Reused| reused(request));
        for (run, answer) in request.runs.iter().zip(answer.iter().flatten()) {
            if let Enqueued::Created(id) = answer {
                made.push(run);
                lines.push(line(EventKind::RunCreated, &id.to_string(), None, None));
            }
        }
        answers.push(answer);
    }
    let runs: Vec<_> = chunks(&made, |run| run.bytes()).into_iter().map(|runs| rows(runs.iter().copied())).collect();
    let decided = keys.decided(&intake);
    let mut statements: Vec<Statement<'_>> = runs.iter().map(|runs| (INSERT.as_str(), runs.params())).collect();
    statements.extend(decided.statements());
    let statements: Vec<(&str, Params<'_>)> = statements.iter().map(|(sql, params)| (*sql, &params[..])).collect();
    let written = transaction.all(&statements).await?;
    if written[..runs.len()].iter().map(Vec::len).sum::<usize>() < made.len() {
        return Err(Fault::Again("a run has just been stored by an earlier call".to_string()));
    }
    Ok((answers, lines))
}

fn reused(request: &Enqueue) -> Error {
    let key = request.idempotency.as_ref().map(|idempotency| idempotency.key.clone());
    Error::KeyReused { key: key.unwrap_or_default() }
}
