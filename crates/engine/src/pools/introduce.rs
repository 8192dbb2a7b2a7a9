//! What a new worker brings along: names of tasks, and graphs, flows and schedules that its code declares.

use super::link::{Declined, Hello, ToWorker};
use super::worker::Worker;
use crate::{Engine, Error, Result};
use everbeat_model::schedule::ScheduleKind;
use everbeat_store::Class;
use std::sync::Arc;
use std::time::Duration;

/// A store that is away is asked again after this time, and then more rarely.
const SHORTEST_PAUSE: Duration = Duration::from_millis(200);
const LONGEST_PAUSE: Duration = Duration::from_secs(30);
/// So much of a problem is told to the worker.
const MOST_TOLD: usize = 2000;

/// What a worker may declare.
#[derive(Clone, Copy)]
enum Noun {
    Graph,
    Scheduled(ScheduleKind),
}

impl Noun {
    fn as_str(self) -> &'static str {
        match self {
            Noun::Graph => "graph",
            Noun::Scheduled(kind) => kind.as_str(),
        }
    }
}

impl Engine {
    /// Tells the store of it. A definition that is refused holds back no other one, and the worker hears why.
    pub(super) async fn introduce(&self, worker: &Arc<Worker>, new_tasks: bool, hello: &Hello) {
        if new_tasks {
            self.core.announce_tasks().await;
        }
        let declared = [
            (Noun::Graph, &hello.graphs),
            (Noun::Scheduled(ScheduleKind::Flow), &hello.flows),
            (Noun::Scheduled(ScheduleKind::Schedule), &hello.schedules),
        ];
        for (noun, texts) in declared {
            for text in texts {
                let Err(error) = self.declare_at_last(noun, text).await else { continue };
                let (kind, name) = (noun.as_str(), name_of(text));
                tracing::warn!(%error, kind, name, worker = %worker.id, "what a worker declares cannot be accepted");
                let problem = told(&error);
                worker.tell(ToWorker::Declined(Declined { kind, name, problem })).await;
            }
        }
    }

    /// Tries until the store has answered: this ends with the worker.
    async fn declare_at_last(&self, noun: Noun, text: &str) -> Result<()> {
        let mut pause = SHORTEST_PAUSE;
        loop {
            let answer = match noun {
                Noun::Graph => self.apply_text(text).await.map(|_| ()),
                Noun::Scheduled(kind) => self.declare_text(kind, text).await,
            };
            match answer {
                Err(error) if error.class() == Class::Unavailable => {
                    tracing::debug!(%error, kind = noun.as_str(), "what a worker declares cannot be stored yet");
                    self.core.env.sleep(self.core.env.jittered(pause)).await;
                    pause = (2 * pause).min(LONGEST_PAUSE);
                }
                answer => return answer,
            }
        }
    }
}

/// For people, who look for it in their code.
fn name_of(text: &str) -> String {
    let value: Option<serde_json::Value> = serde_json::from_str(text).ok();
    let name = value.as_ref().and_then(|value| value.get("name")?.as_str());
    name.unwrap_or_default().chars().take(200).collect()
}

fn told(error: &Error) -> String {
    let (problem, hint) = (error.to_string(), error.hint());
    let whole = if problem.contains(&hint) { problem } else { format!("{problem}: {hint}") };
    whole.chars().take(MOST_TOLD).collect()
}
