use super::To;
use crate::client::escape;
use crate::exit::{self, Failure};
use crate::output::plain;

pub(crate) fn explain(to: &To, id: &str) -> Result<u8, Failure> {
    let answer = to.client.get(&format!("/api/v1/runs/{}/explain", escape(id)), &[])?;
    to.print(answer.raw.get(), || {
        let said = &answer.value;
        let mut lines = vec![plain(&said["summary"])];
        lines.extend(said["history"].as_array().into_iter().flatten().map(plain));
        if let Some(remedy) = said["remedy"].as_str() {
            lines.push(format!("fix: {remedy}"));
        }
        lines.join("\n")
    });
    Ok(exit::DONE)
}
