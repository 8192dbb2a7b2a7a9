use async_trait::async_trait;
use everbeat_engine::{Ctx, Failure, Handler};
use everbeat_model::Json;
use jaq_core::load::{Arena, File, Loader};
use jaq_core::{Compiler, Ctx as JqCtx, Vars, data, unwrap_valr};
use jaq_json::{Val, read};
use serde::Deserialize;
use std::collections::BTreeMap;

/// Runs a jq program: `{"program": ".a + .b", "input": {"a": 1, "b": 2}}`. Without `input`, the program
/// sees the other fields of the object. One output is the result, several are a list, none is null.
pub(crate) struct Jq;

#[derive(Deserialize)]
struct Input {
    program: String,
    #[serde(default)]
    input: Option<Json>,
    #[serde(flatten)]
    rest: BTreeMap<String, serde_json::Value>,
}

#[async_trait]
impl Handler for Jq {
    async fn perform(&self, _ctx: Ctx, input: Json) -> Result<Json, Failure> {
        let parsed: Input = input.read().map_err(|error| {
            Failure::permanent(format!(
                "input of task \"jq\": {error}; write it like {{\"program\": \".a\", \"input\": {{\"a\": 1}}}}"
            ))
        })?;
        let over = parsed.input.unwrap_or_else(|| Json::of(&parsed.rest));
        // A program may compute for long: not on a thread that others need.
        let run = tokio::task::spawn_blocking(move || evaluate(&parsed.program, &over));
        run.await.map_err(|_| Failure::permanent("the jq program broke off"))?
    }
}

/// One program gives no more outputs.
const MOST_OUTPUTS: usize = 10_000;

/// What a program could use to see or touch the server itself.
const FORBIDDEN: [&str; 6] = ["env", "halt", "halt_error", "stderr", "stderr_empty", "input_line_number"];

fn evaluate(program: &str, input: &Json) -> Result<Json, Failure> {
    let defs =
        jaq_core::defs().chain(jaq_std::defs()).chain(jaq_json::defs()).filter(|def| !FORBIDDEN.contains(&def.name));
    let funs =
        jaq_core::funs().chain(jaq_std::funs()).chain(jaq_json::funs()).filter(|(name, ..)| !FORBIDDEN.contains(name));
    let arena = Arena::default();
    let refuse = |what: &str| Failure::permanent(format!("the jq program {program:?} {what}"));
    let modules =
        Loader::new(defs).load(&arena, File { code: program, path: () }).map_err(|_| refuse("cannot be parsed"))?;
    let filter = Compiler::default().with_funs(funs).compile(modules).map_err(|errors| {
        let names: Vec<String> =
            errors.iter().flat_map(|(_, errors)| errors.iter().map(|(name, _)| name.to_string())).collect();
        refuse(&format!("uses what is not defined: {}", names.join(", ")))
    })?;
    let input = read::parse_single(input.as_str().as_bytes())
        .map_err(|error| refuse(&format!("got an unreadable input: {error}")))?;
    let ctx = JqCtx::<data::JustLut<Val>>::new(&filter.lut, Vars::new([]));
    let mut outputs = Vec::new();
    for output in filter.id.run((ctx, input)).map(unwrap_valr) {
        let output = output.map_err(|error| Failure::permanent(format!("jq: {error}")))?;
        if outputs.len() == MOST_OUTPUTS {
            return Err(refuse("gives too many outputs; collect them with [ … ] or limit them"));
        }
        outputs.push(Json::parse(&output.to_string()).map_err(|_| refuse("gives an output that is not JSON"))?);
    }
    Ok(match outputs.len() {
        0 => Json::null(),
        1 => outputs.remove(0),
        _ => Json::of(&outputs),
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    fn check(program: &str, input: &str, expected: &str) {
        let output =
            evaluate(program, &Json::parse(input).unwrap()).unwrap_or_else(|failure| Json::of(&failure.message));
        assert_eq!(output.as_str(), expected, "{program}");
    }

    #[test]
    fn programs_compute() {
        check(".a + .b", r#"{"a":2,"b":3}"#, "5");
        check(".[] | . * 2", "[1,2]", "[2,4]");
        check("empty", "null", "null");
        check("now | type", "null", "\"number\"");
        check("{name, n: (.items | length)}", r#"{"name":"x","items":[1,2]}"#, r#"{"name":"x","n":2}"#);
    }

    #[test]
    fn programs_that_cannot_be_run_fail_for_good_and_say_why() {
        for program in ["env", "$ENV", "halt", "halt_error", "stderr", "input", ".a +", "nonsense"] {
            let failure = evaluate(program, &Json::null()).expect_err(program);
            assert!(failure.permanent && failure.message.contains("jq"), "{program}: {}", failure.message);
        }
        assert!(evaluate("error(\"no\")", &Json::null()).expect_err("fails").message.contains("no"));
    }
}
