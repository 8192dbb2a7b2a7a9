//! What happens to records between source and sink.

mod fields;
mod port;
mod read;

pub use fields::Addition;
pub use port::{Evaluate, PerformTask, Ports};
pub(crate) use read::read;

use crate::{Record, Rejected, Trouble};
use everbeat_model::StoreTime;
use fields::changed;
use serde_json::Value;

/// One step that records go through.
#[derive(Clone, Debug, PartialEq)]
pub enum Transform {
    /// Sets fields.
    Add(Vec<(String, Addition)>),
    /// Removes fields.
    Drop(Vec<String>),
    /// Gives fields other names.
    Rename(Vec<(String, String)>),
    /// A jq program: each of its outputs is a record.
    Jq(String),
    /// A task: its result is a list with an item for each record.
    Task(String),
}

/// Records after some steps.
#[derive(Debug, Default)]
pub(crate) struct Transformed {
    pub(crate) records: Vec<Record>,
    pub(crate) rejected: Vec<Rejected>,
    /// Records of which a step made nothing, on purpose.
    pub(crate) dropped: u64,
}

/// Takes records through all steps. `now` is the time of the batch.
pub(crate) async fn apply(
    steps: &[Transform],
    records: Vec<Record>,
    now: StoreTime,
    ports: &Ports,
) -> Result<Transformed, Trouble> {
    let mut all = Transformed { records, ..Transformed::default() };
    for step in steps {
        let records = std::mem::take(&mut all.records);
        if records.is_empty() {
            break;
        }
        match step {
            Transform::Add(_) | Transform::Drop(_) | Transform::Rename(_) => {
                for mut record in records {
                    match changed(step, &mut record.value, now) {
                        Ok(()) => all.records.push(record),
                        Err(reason) => all.reject(&record, reason),
                    }
                }
            }
            Transform::Jq(program) => all.jq(program, records, ports).await?,
            Transform::Task(task) => all.task(task, records, ports).await?,
        }
    }
    Ok(all)
}

impl Transformed {
    fn reject(&mut self, record: &Record, reason: impl Into<String>) {
        let raw = record.value.to_string();
        self.rejected.push(Rejected::new(record.position.clone(), reason, raw.as_bytes()));
    }

    async fn jq(&mut self, program: &str, records: Vec<Record>, ports: &Ports) -> Result<(), Trouble> {
        let Some(evaluate) = &ports.evaluate else {
            return Err(Trouble::permanent("jq programs cannot be evaluated here: this program has no evaluator"));
        };
        let answers =
            evaluate.evaluate(program, &records.iter().map(|record| &record.value).collect::<Vec<_>>()).await?;
        if answers.len() != records.len() {
            let (given, asked) = (answers.len(), records.len());
            return Err(Trouble::transient(format!("the jq evaluator gave {given} answers for {asked} records")));
        }
        for (record, answer) in records.into_iter().zip(answers) {
            match answer {
                Err(reason) => self.reject(&record, reason),
                Ok(outputs) if outputs.is_empty() => self.dropped += 1,
                Ok(outputs) => {
                    let position = record.position;
                    self.records.extend(outputs.into_iter().map(|value| Record { value, position: position.clone() }));
                }
            }
        }
        Ok(())
    }

    async fn task(&mut self, task: &str, records: Vec<Record>, ports: &Ports) -> Result<(), Trouble> {
        let Some(tasks) = &ports.tasks else {
            return Err(Trouble::permanent(format!("the task {task:?} of a transform cannot be performed here")));
        };
        let asked = records.iter().map(|record| record.value.clone()).collect();
        let answers = tasks.perform(task, asked).await?;
        if answers.len() != records.len() {
            let (given, asked) = (answers.len(), records.len());
            let hint = "give a list with one item for each record: null drops it, {\"rejected\": \"why\"} rejects it";
            return Err(Trouble::permanent(format!(
                "the task {task:?} gave {given} items for {asked} records; {hint}"
            )));
        }
        for (record, answer) in records.into_iter().zip(answers) {
            match (rejection(&answer), answer) {
                (Some(reason), _) => self.reject(&record, reason),
                (None, Value::Null) => self.dropped += 1,
                (None, value) => self.records.push(Record { value, position: record.position }),
            }
        }
        Ok(())
    }
}

/// `{"rejected": "why"}`, and nothing else.
fn rejection(value: &Value) -> Option<String> {
    let fields = value.as_object().filter(|fields| fields.len() == 1)?;
    fields.get("rejected")?.as_str().map(str::to_string)
}

#[cfg(test)]
mod tests;
