use async_trait::async_trait;
use everbeat_engine::{Ctx, Failure, Handler};
use everbeat_model::Json;
use serde::Serialize;
use serde::de::DeserializeOwned;
use std::future::Future;
use std::marker::PhantomData;

/// An async function with typed input and output, as a task.
pub(crate) struct Typed<F, I, O> {
    function: F,
    types: PhantomData<fn(I) -> O>,
}

impl<F, I, O> Typed<F, I, O> {
    pub(crate) fn new(function: F) -> Typed<F, I, O> {
        Typed { function, types: PhantomData }
    }
}

#[async_trait]
impl<F, Fut, I, O> Handler for Typed<F, I, O>
where
    F: Fn(Ctx, I) -> Fut + Send + Sync + 'static,
    Fut: Future<Output = Result<O, Failure>> + Send,
    I: DeserializeOwned + Send + 'static,
    O: Serialize + 'static,
{
    async fn perform(&self, ctx: Ctx, input: Json) -> Result<Json, Failure> {
        // The same input will not fit the next time either.
        let refuse =
            |error| Failure::permanent(format!("the input does not fit task {:?}: {error} (got {input})", ctx.task()));
        let input = input.read().map_err(refuse)?;
        let output = (self.function)(ctx, input).await?;
        Ok(Json::of(&output))
    }
}
