//! One replica's way to what attempts stream.

use crate::faulty_store::FaultyStore;
use crate::job_checker;
use crate::shared::Shared;
use async_trait::async_trait;
use everbeat_model::lease::Shown;
use everbeat_store::{Keep, Memory, OutputFilter, OutputPage, Outputs, Piece, Result, Signed};
use std::sync::Arc;

#[async_trait]
impl Outputs for FaultyStore {
    async fn append(&self, pieces: Vec<Piece>, keep: Keep) -> Result<Vec<Signed>> {
        let shown: Vec<Shown> = pieces.iter().map(|piece| piece.shown).collect();
        let appended = move |shared: &Shared, answers: &Vec<Signed>| {
            for (shown, answer) in shown.iter().zip(answers) {
                if matches!(answer, Signed::Accepted { .. }) {
                    job_checker::accepted(&mut shared.truth(), shown);
                }
            }
        };
        let (short, shared) = (self.short(), self.shared.clone());
        let append = move |store: Arc<Memory>| async move {
            if let Some(Err(error)) = short.map(|short| short.appends(&pieces)) {
                shared.truth().unstored(&pieces);
                return Err(error);
            }
            store.append(pieces, keep).await
        };
        self.call_and("append", append, appended).await
    }

    async fn output(&self, filter: OutputFilter) -> Result<OutputPage> {
        self.call("output", move |store| async move { store.output(filter).await }).await
    }
}
