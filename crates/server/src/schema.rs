//! Names of the model as the API document shows them.

use everbeat_engine::pools::{PoolView, WorkerView};
use everbeat_engine::{CheckName, CheckStatus, Findable, HeartbeatStatus, Lock, Stream};
use everbeat_model::check::{CheckState, PingKind, WhyDown};
use everbeat_model::graph::{NodeKind, ViewState};
use everbeat_model::output::OutputKind;
use everbeat_model::replica::ReplicaState;
use everbeat_model::run::Kind;
use everbeat_model::schedule::{CatchUp, Overlap};
use everbeat_model::session::Affinity;
use everbeat_model::verdict::{Judgement, SubjectKind};
use everbeat_model::worker::Class;
use everbeat_model::{Outcome, RunState};
use utoipa::openapi::schema::{ArrayBuilder, ObjectBuilder, SchemaType, Type};
use utoipa::openapi::{RefOr, Schema};
use utoipa::{PartialSchema, ToSchema};

/// A type whose values are the given words.
macro_rules! words {
    ($schema:ident, $words:expr) => {
        pub(crate) struct $schema;

        impl PartialSchema for $schema {
            fn schema() -> RefOr<Schema> {
                let words: Vec<&'static str> = $words;
                ObjectBuilder::new().schema_type(SchemaType::new(Type::String)).enum_values(Some(words)).into()
            }
        }

        impl ToSchema for $schema {}
    };
}

words!(RunStateName, RunState::ALL.map(RunState::as_str).to_vec());
words!(CheckNameWord, CheckName::ALL.map(CheckName::as_str).to_vec());
words!(CheckStatusWord, CheckStatus::ALL.map(CheckStatus::as_str).to_vec());
words!(KindName, Kind::ALL.map(Kind::as_str).to_vec());
words!(OutcomeName, Outcome::ALL.map(Outcome::as_str).to_vec());
words!(ReplicaStateName, ReplicaState::ALL.map(ReplicaState::as_str).to_vec());
words!(JudgementName, Judgement::ALL.map(Judgement::as_str).to_vec());
words!(SubjectKindName, vec![SubjectKind::Replica.as_str(), SubjectKind::Run.as_str()]);
words!(LivenessName, vec!["alive", "suspect", "stalled", "unknown"]);
words!(NodeKindName, NodeKind::ALL.map(NodeKind::as_str).to_vec());
words!(NodeStateName, ViewState::ALL.map(ViewState::as_str).to_vec());
words!(ChangeKind, vec!["set", "cleared"]);
words!(WaitForValue, vec!["immediate", "any", "newer", "newer_than"]);
words!(SummaryFormat, vec!["json", "text"]);
words!(FindableName, Findable::ALL.map(Findable::as_str).to_vec());
words!(WaitFor, vec!["finished"]);
words!(HeartbeatStatusName, HeartbeatStatus::ALL.map(HeartbeatStatus::as_str).to_vec());
words!(StreamName, Stream::BOTH.map(Stream::as_str).to_vec());
words!(OutputKindName, OutputKind::ALL.iter().map(|kind| kind.as_str()).collect());
words!(LockName, Lock::ALL.map(Lock::as_str).to_vec());
words!(RecommendedAction, vec!["investigate", "resume", "none"]);
words!(ResumeOutcome, vec!["resumed", "skipped", "not-found"]);
words!(PoolStateName, PoolView::STATES.to_vec());
words!(WorkerStateName, WorkerView::STATES.to_vec());
words!(AffinityName, Affinity::ALL.iter().map(|affinity| affinity.as_str()).collect());
words!(ClassName, Class::ALL.iter().map(|class| class.as_str()).collect());
words!(OverlapName, Overlap::ALL.iter().map(|word| word.as_str()).collect());
words!(CatchUpName, CatchUp::ALL.iter().map(|word| word.as_str()).collect());
words!(DeclaredName, crate::schedules::DECLARED.to_vec());
words!(FlowRunStatusName, crate::flow_runs::STATUSES.to_vec());
words!(PromiseName, crate::flows::PROMISES.to_vec());
words!(CheckStateName, CheckState::ALL.iter().map(|word| word.as_str()).collect());
words!(WhyDownName, WhyDown::ALL.iter().map(|word| word.as_str()).collect());
words!(PingKindName, PingKind::ALL.iter().map(|word| word.as_str()).collect());
words!(CleanOutcome, vec!["removed", "would-remove", "left-alone"]);

fn text(pattern: &str) -> ObjectBuilder {
    ObjectBuilder::new().schema_type(SchemaType::new(Type::String)).pattern(Some(pattern))
}

fn argument(least: usize) -> ObjectBuilder {
    text(r"^[^\x00]*$").min_length(Some(least)).max_length(Some((128 << 10) - 1))
}

/// A program and its arguments: the program has a name.
pub(crate) struct Arguments;

impl PartialSchema for Arguments {
    fn schema() -> RefOr<Schema> {
        let program: Schema = argument(1).into();
        ArrayBuilder::new().prefix_items([program]).items(argument(0)).min_items(Some(1)).into()
    }
}

impl ToSchema for Arguments {}

/// Variables by name.
pub(crate) struct Environment;

impl PartialSchema for Environment {
    fn schema() -> RefOr<Schema> {
        let (names, values) = (text(r"^(?!EVERBEAT_)[^=\x00]+$"), text(r"^[^\x00]*$"));
        let schema = ObjectBuilder::new().schema_type(SchemaType::new(Type::Object));
        schema.property_names(Some(names)).additional_properties(Some(Schema::from(values))).into()
    }
}

impl ToSchema for Environment {}
