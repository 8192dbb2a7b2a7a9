use super::To;
use crate::exit::{self, Failure};
use crate::output::{plain, table};
use comfy_table::Cell;

pub(crate) fn check(to: &To) -> Result<u8, Failure> {
    let answer = to.client.get("/api/admin/invariants", &[])?;
    let violations = answer.value["violations"].as_array().cloned().unwrap_or_default();
    to.print(answer.raw.get(), || {
        let checked = answer.value["checked"].as_object();
        let counts: Vec<String> =
            checked.into_iter().flatten().map(|(name, count)| format!("{} {name}", plain(count))).collect();
        let checked = format!("checked {}", counts.join(", "));
        if violations.is_empty() {
            return format!("{checked}\nevery guarantee holds");
        }
        let row = |violation: &serde_json::Value| {
            ["guarantee", "subject", "detail"].map(|name| Cell::new(plain(&violation[name]))).to_vec()
        };
        let rows = violations.iter().map(row).collect();
        format!("{checked}\n\n{}", table(&["GUARANTEE", "SUBJECT", "DETAIL"], rows))
    });
    Ok(if violations.is_empty() { exit::DONE } else { exit::FAILED })
}
