//! An application for a loan as a graph: it waits for what the applicant enters, reminds them while
//! something is missing, decides, asks a person to approve large sums, removes the social security number
//! as soon as it is no longer needed, keeps a history, and archives itself at the end.
//!
//! `cargo run -p everbeat --example application`

use everbeat::model::StoreTime;
use everbeat::{Ctx, Engine, Failure, GraphDefinition, Key, Values, all, any, not};
use serde::{Deserialize, Serialize};
use serde_json::{Value, json};
use std::time::Duration;

const NAME: Key<String> = Key::new("name");
const SSN: Key<String> = Key::new("ssn");
const AMOUNT: Key<u64> = Key::new("amount");
const APPROVED: Key<bool> = Key::new("approved");

const REMINDER_DUE: Key<Option<StoreTime>> = Key::new("reminder_due");
const REMINDER: Key<u64> = Key::new("reminder");
const SCORE: Key<u64> = Key::new("score");
const SCRUB: Key<String> = Key::new("scrub_ssn");
const DECISION: Key<Decision> = Key::new("decision");
const LETTER: Key<String> = Key::new("letter");
const HISTORY: Key<Vec<Value>> = Key::new("history");
const ARCHIVE: Key<StoreTime> = Key::new("archive");

#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
struct Decision {
    granted: bool,
    reason: String,
}

/// Real ones would wait for days.
const BETWEEN_REMINDERS: Duration = Duration::from_millis(300);
const MOST_REMINDERS: u64 = 3;
/// Sums above it are granted by a person only.
const LARGE: u64 = 10_000;

fn loan() -> Result<GraphDefinition, everbeat::Error> {
    GraphDefinition::builder("loan", "1")
        .input(NAME)
        .input(SSN)
        .input(AMOUNT)
        .input(APPROVED)
        .tick_recurring(REMINDER_DUE, NAME, next_reminder)
        .compute(REMINDER, all([REMINDER_DUE.provided(), not(SSN)]), remind)
        .compute(SCORE, all([SSN.provided(), AMOUNT.provided()]), score)
        .options(json!({ "max_attempts": 5, "backoff": { "initial": "20ms" } }))
        .mutate(SCRUB, SCORE, SSN, |_ctx: Ctx, _values: Values| async { Ok("removed".to_string()) })
        .compute(DECISION, all([SCORE.provided(), any([AMOUNT.at_most(LARGE), APPROVED.provided()])]), decide)
        .compute(LETTER, [DECISION.provided(), NAME.provided()], write_letter)
        .historian(HISTORY, any([AMOUNT.provided(), APPROVED.provided(), DECISION.provided()]))
        .archive(ARCHIVE, LETTER)
        .build()
}

/// Until everything was entered, or enough reminders were sent; then it pauses.
async fn next_reminder(ctx: Ctx, values: Values) -> Result<Option<StoreTime>, Failure> {
    let sent = values.find(REMINDER)?.unwrap_or(0);
    let complete = values.find(SSN)?.is_some();
    Ok((!complete && sent < MOST_REMINDERS).then(|| ctx.now().plus(BETWEEN_REMINDERS)))
}

async fn remind(_ctx: Ctx, values: Values) -> Result<u64, Failure> {
    let number = values.find(REMINDER)?.unwrap_or(0) + 1;
    println!("  to {}: please enter your social security number (reminder {number})", values.get(NAME)?);
    Ok(number)
}

/// A service that fails now and then: the engine tries again.
async fn score(ctx: Ctx, values: Values) -> Result<u64, Failure> {
    if ctx.attempt() == 1 {
        return Err(Failure::new("the credit bureau did not answer"));
    }
    let digits: u64 = values.get(SSN)?.chars().filter_map(|c| c.to_digit(10)).map(u64::from).sum();
    Ok(500 + digits * 5)
}

async fn decide(_ctx: Ctx, values: Values) -> Result<Decision, Failure> {
    let (score, approved) = (values.get(SCORE)?, values.find(APPROVED)?);
    let granted = score >= 600 && approved.unwrap_or(true);
    Ok(Decision { granted, reason: format!("score {score}, approved by a person: {approved:?}") })
}

async fn write_letter(_ctx: Ctx, values: Values) -> Result<String, Failure> {
    let decision = values.get(DECISION)?;
    let answer = if decision.granted { "we are glad to grant" } else { "we are sorry that we cannot grant" };
    Ok(format!("Dear {}, {answer} your loan.", values.get(NAME)?))
}

#[tokio::main]
async fn main() -> Result<(), everbeat::Error> {
    let engine = Engine::open("memory:").graph(loan()?).start().await?;
    let application = engine.start("loan").await?;

    println!("The applicant enters a name and a sum, and forgets the rest:");
    application.set_all(Values::new().with(NAME, &"Ada".to_string()).with(AMOUNT, &25_000)).await?;
    application.get(REMINDER).await?;

    println!("Reminded, she enters it; the sum is large, so that a person must approve:");
    application.set(SSN, &"123-45-6789".to_string()).await?;
    let score = application.get(SCORE).await?;
    application.get(SCRUB).await?;
    let ssn = application.get(SSN).await?;
    println!("  score {score}; social security number: {ssn}");
    assert_eq!(ssn, "removed");
    let waiting = application.view().await?.nodes["decision"].waiting_for.clone().unwrap_or_default();
    println!("  the decision waits: {waiting}");
    assert!(waiting.contains("approved"), "{waiting}");

    println!("Somebody approves:");
    application.set(APPROVED, &true).await?;
    println!("  {}", application.get(LETTER).await?);
    println!("{}", application.summary().await?);
    assert!(application.find(ARCHIVE).await?.is_some(), "it archives itself");
    let history = application.get(HISTORY).await?;
    assert_eq!(history[0]["node"], "decision", "newest first");

    engine.drain().await;
    Ok(())
}
