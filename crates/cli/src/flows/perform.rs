use super::Flows;
use super::ledger::OfAttempt;
use async_trait::async_trait;
use everbeat_engine::{Ctx, Failure, Handler, Stop as Stopped};
use everbeat_flows::{Attempt, Class, Halt, PATIENCE, Range, Report, Stop, Surroundings, Trouble, run};
use everbeat_model::Json;
use everbeat_model::schedule::{FLOW, ScheduleKind, ScheduledWork};
use serde::Deserialize;
use serde_json::{Value, json};

/// The task of every flow with a source and a sink.
pub(crate) struct Runner(pub(crate) Flows);

/// What the schedule of a flow says to its run.
#[derive(Deserialize)]
struct Args {
    flow: String,
    /// Where the flow's run before ended: its checkpoint.
    previous: Option<Value>,
    /// Somebody asked to go on after this cursor of the source.
    cursor: Option<Value>,
    /// Somebody asked for this part of the source.
    range: Option<Part>,
}

#[derive(Deserialize)]
struct Part {
    from: Option<Value>,
    to: Option<Value>,
}

#[async_trait]
impl Handler for Runner {
    async fn perform(&self, ctx: Ctx, _input: Json) -> Result<Json, Failure> {
        let Runner(flows) = self;
        let Some(args) = ctx.args::<Args>() else {
            return Err(Failure::permanent(
                "the task \"flow\" performs flows only: write one with `everbeat flow apply`, and ask for it with `everbeat flow trigger`",
            ));
        };
        let Some(engine) = flows.engine.get() else {
            return Err(Failure::new("this server does not perform flows yet"));
        };
        // Read now and not when the run was made: a change reaches what waited.
        let stored = match engine.schedule(ScheduleKind::Flow, &args.flow).await {
            Ok(view) => view.stored.schedule,
            Err(everbeat_engine::Error::NotFound { .. }) => {
                return Err(Failure::permanent(format!("the flow {:?} was deleted before this run of it", args.flow)));
            }
            Err(error) => return Err(Failure::from(error)),
        };
        let ScheduledWork::Flow { configuration, dead_letter, max_rejected } = &stored.work else {
            return Err(Failure::permanent(format!("{:?} is not a flow", args.flow)));
        };
        if stored.task() != FLOW {
            return Err(Failure::permanent(format!(
                "the flow {:?} is performed by the task {:?} by now: ask for another run",
                args.flow,
                stored.task()
            )));
        }
        let configuration = flows
            .read(configuration, dead_letter.as_ref(), max_rejected.as_ref())
            .map_err(|invalid| Failure::permanent(format!("{invalid}: {}", invalid.hint)))?;
        let name = ctx.run_id().to_string();
        let attempt = Attempt {
            configuration: &configuration,
            around: Surroundings {
                flow: args.flow.as_str().into(),
                run: name.as_str().into(),
                fence: ctx.fence(),
                range: args.range.map(|Part { from, to }| Range { from, to }),
            },
            ports: flows.ports(engine, name),
            ledger: &OfAttempt(&ctx),
            checkpoint: ctx.resume().or_else(|| args.cursor.map(|cursor| json!({ "cursor": cursor }))),
            previous: args.previous,
            patience: PATIENCE,
        };
        run(&attempt).await.map(result).map_err(failure)
    }
}

fn result(report: Report) -> Json {
    let rejected = report.rejected.iter();
    let rejected = rejected.map(|one| json!({"position": one.position, "reason": one.reason, "raw": one.raw}));
    Json::of(&json!({
        "counts": report.counts,
        "cursor": report.cursor,
        "rejected": rejected.collect::<Vec<Value>>(),
    }))
}

fn failure(halt: Halt) -> Failure {
    match halt {
        Halt::Stopped(Stop::Cancelled) => Failure::from(Stopped::Cancelled),
        Halt::Stopped(Stop::Draining) => Failure::from(Stopped::Draining),
        Halt::Stopped(Stop::Fenced) => Failure::from(Stopped::Fenced),
        Halt::Stopped(Stop::Other(why)) => Failure::new(why),
        Halt::Failed(Trouble { class: Class::Permanent, message }) => Failure::permanent(message),
        Halt::Failed(Trouble { message, .. }) => Failure::new(message),
    }
}
