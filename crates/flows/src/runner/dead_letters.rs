use crate::{Configuration, Record, Rejected, Sink, Surroundings, Trouble};
use everbeat_model::StoreTime;
use serde_json::{Value, json};

/// Where rejected records of a run go.
pub(super) struct DeadLetters {
    sink: Option<Box<dyn Sink>>,
    around: Surroundings,
}

impl DeadLetters {
    pub(super) async fn open(configuration: &Configuration, around: &Surroundings) -> Result<DeadLetters, Trouble> {
        // Beside the cursor of the flow itself, which may be in the same database.
        let flow = format!("{}/dead_letter", around.flow).into();
        let around = Surroundings { flow, range: None, ..around.clone() };
        let sink = match &configuration.dead_letter {
            Some(sink) => Some(sink.open(&around).await.map_err(about)?),
            None => None,
        };
        Ok(DeadLetters { sink, around })
    }

    /// Whether they are kept somewhere.
    pub(super) fn are_written(&self) -> bool {
        self.sink.is_some()
    }

    pub(super) async fn write(&mut self, rejected: &[Rejected], cursor: &Value, now: StoreTime) -> Result<(), Trouble> {
        let Some(sink) = &mut self.sink else { return Ok(()) };
        if rejected.is_empty() {
            return Ok(());
        }
        let flow = self.around.flow.trim_end_matches("/dead_letter");
        let letter = |one: &Rejected| Record {
            value: json!({
                "flow": flow, "run": &*self.around.run, "position": one.position, "reason": one.reason,
                "raw": one.raw, "rejected_at": now.to_string(),
            }),
            position: one.position.clone(),
        };
        let written = sink.write(rejected.iter().map(letter).collect(), cursor).await.map_err(about)?;
        match written.rejected.first() {
            Some(refused) => Err(about(Trouble::permanent(format!("refuses a record: {}", refused.reason)))),
            None => Ok(()),
        }
    }

    pub(super) async fn finish(&mut self) -> Result<(), Trouble> {
        match &mut self.sink {
            Some(sink) => sink.finish().await.map_err(about),
            None => Ok(()),
        }
    }
}

fn about(trouble: Trouble) -> Trouble {
    Trouble { message: format!("the dead-letter sink: {}", trouble.message), ..trouble }
}
