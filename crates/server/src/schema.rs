//! Names of the model as the API document shows them.

use everbeat_model::graph::{NodeKind, ViewState};
use everbeat_model::replica::ReplicaState;
use everbeat_model::run::Kind;
use everbeat_model::verdict::{Judgement, SubjectKind};
use everbeat_model::{Outcome, RunState};
use utoipa::openapi::schema::{ObjectBuilder, SchemaType, Type};
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
words!(WaitFor, vec!["finished"]);
