use everbeat_model::{Json, NotJson, StoreTime};
use jaq_core::load::{Arena, File, Loader};
use jaq_core::{Compiler, Ctx, Vars, data, unwrap_valr};
use jaq_json::{Val, read};
use serde::{Deserialize, Deserializer, Serialize};
use serde_json::value::RawValue;
use std::collections::BTreeMap;

/// Performs the task `jq`: `{"program": ".a + .b", "input": {"a": 1, "b": 2}}`. Without `input`, the
/// program sees the other fields of the object. One output is the result, several are a list, none is
/// null. An error is a message for people.
///
/// A program may overflow the stack, eat all memory or go on for ever: call this only in a process that
/// may die of it.
pub fn perform(input: &str) -> Result<Json, String> {
    let Input { program, input, now, rest } = serde_json::from_str(input).map_err(|error| {
        format!("input of task \"jq\": {error}; write it like {{\"program\": \".a\", \"input\": {{\"a\": 1}}}}")
    })?;
    match input {
        Some(input) => evaluate(&program, input.get(), now),
        None => evaluate(&program, Json::of(&rest).as_str(), now),
    }
}

/// The input of [`perform`] for a run with these arguments: the program stands in them, and all of the run's
/// own input is what it sees, with the store's time as `now`, so that ticks are told by the clock that they
/// are due by. Without arguments it is the run's input itself.
pub fn question(args: Option<&Json>, input: &Json, now: StoreTime) -> Result<Json, String> {
    let Some(args) = args else { return Ok(input.clone()) };
    let Args { program } = args
        .read()
        .map_err(|error| format!("args of task \"jq\": {error}; write them like {{\"program\": \".a + .b\"}}"))?;
    Ok(Json::of(&Question { program, input, now: now.0 as f64 / 1e6 }))
}

#[derive(Deserialize)]
struct Args {
    program: String,
}

#[derive(Serialize)]
struct Question<'a> {
    program: String,
    input: &'a Json,
    #[serde(rename = "$now")]
    now: f64,
}

#[derive(Deserialize)]
struct Input {
    program: String,
    /// Not bounded again: that of a node holds values which are, one level below.
    #[serde(default, deserialize_with = "given")]
    input: Option<Box<RawValue>>,
    #[serde(default, rename = "$now")]
    now: Option<f64>,
    #[serde(flatten)]
    rest: BTreeMap<String, serde_json::Value>,
}

/// A null that is given is an input like any other.
fn given<'de, D: Deserializer<'de>>(deserializer: D) -> Result<Option<Box<RawValue>>, D::Error> {
    Box::deserialize(deserializer).map(Some)
}

/// One program gives no more outputs.
const MOST_OUTPUTS: usize = 10_000;

/// What a program could use to see or touch the server itself.
const FORBIDDEN: [&str; 6] = ["env", "halt", "halt_error", "stderr", "stderr_empty", "input_line_number"];

fn evaluate(program: &str, input: &str, now: Option<f64>) -> Result<Json, String> {
    let defs =
        jaq_core::defs().chain(jaq_std::defs()).chain(jaq_json::defs()).filter(|def| !FORBIDDEN.contains(&def.name));
    let funs =
        jaq_core::funs().chain(jaq_std::funs()).chain(jaq_json::funs()).filter(|(name, ..)| !FORBIDDEN.contains(name));
    let arena = Arena::default();
    let refuse = |what: &str| format!("the jq program {} {what}", quoted(program));
    let code = now.map_or_else(|| program.to_string(), |now| format!("def now: {now:?}; {program}"));
    let modules =
        Loader::new(defs).load(&arena, File { code: &*code, path: () }).map_err(|_| refuse("cannot be parsed"))?;
    let filter = Compiler::default().with_funs(funs).compile(modules).map_err(|errors| {
        let names: Vec<String> =
            errors.iter().flat_map(|(_, errors)| errors.iter().map(|(name, _)| name.to_string())).collect();
        refuse(&format!("uses what is not defined: {}", shortened(&names.join(", "))))
    })?;
    let input =
        read::parse_single(input.as_bytes()).map_err(|error| refuse(&format!("got an unreadable input: {error}")))?;
    let ctx = Ctx::<data::JustLut<Val>>::new(&filter.lut, Vars::new([]));
    let said = |error: NotJson| match error {
        NotJson::Syntax(_) => refuse("gives an output that is not JSON"),
        beyond => refuse(&format!("gives an output that {}: {}", beyond.problem(), beyond.hint())),
    };
    let mut outputs = Vec::new();
    for output in filter.id.run((ctx, input)).map(unwrap_valr) {
        let output = output.map_err(|error| shortened(&format!("jq: {error}")))?;
        if outputs.len() == MOST_OUTPUTS {
            return Err(refuse("gives too many outputs; collect them with [ … ] or limit them"));
        }
        outputs.push(Json::read_text(&output.to_string()).map_err(said)?);
    }
    let result = match outputs.len() {
        0 => Json::null(),
        1 => outputs.remove(0),
        _ => Json::of(&outputs),
    };
    // A list of several is one level deeper than they are.
    result.check().map_err(said)?;
    Ok(result)
}

/// Longer programs and messages are cut where they are shown.
const MOST_SHOWN: usize = 1000;

fn quoted(program: &str) -> String {
    format!("{:?}", shortened(program))
}

fn shortened(text: &str) -> String {
    match text.char_indices().nth(MOST_SHOWN) {
        Some((end, _)) => format!("{}…", &text[..end]),
        None => text.to_string(),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn check(program: &str, input: &str, expected: &str) {
        let output = evaluate(program, input, None).unwrap_or_else(|message| Json::of(&message));
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
    fn outputs_keep_the_bounds_of_all_json_and_inputs_of_nodes_are_not_bounded_twice() {
        let nested = |levels: usize| format!("(reduce range({levels}) as $_ (null; [.]))");
        let refused = |program: &str| evaluate(program, "null", None).expect_err(program);
        for program in [nested(100), format!("{}, 1", nested(99))] {
            evaluate(&program, "null", None).expect(&program);
        }
        for program in [nested(101), format!("{}, 1", nested(100))] {
            assert!(refused(&program).contains("is nested too deeply"), "{program}");
        }
        assert!(refused("[1e999]").contains("a number that is too large"));
        for program in ["infinite", "[nan]", "{([1]): 2}"] {
            assert!(refused(program).contains("not JSON"), "{program}");
        }
        assert!(refused(r#""\"\\ud800\"" | fromjson"#).contains("surrogate"));
        let value = format!("{}{}", "[".repeat(100), "]".repeat(100));
        let node = format!(r#"{{"program": ".a | length", "input": {{"a": {value}}}}}"#);
        assert_eq!(perform(&node).expect("a value is within its bounds").as_str(), "1");
    }

    #[test]
    fn programs_that_cannot_be_run_say_why() {
        for program in ["env", "$ENV", "halt", "halt_error", "stderr", "input", ".a +", "nonsense"] {
            let message = evaluate(program, "null", None).expect_err(program);
            assert!(message.contains("jq"), "{program}: {message}");
        }
        assert!(evaluate("error(\"no\")", "null", None).expect_err("fails").contains("no"));
        for program in ["x".repeat(100_000), format!("error(\"{}\")", "é".repeat(100_000))] {
            let message = evaluate(&program, "null", None).expect_err("fails");
            assert!(message.len() < 3 * MOST_SHOWN, "{} bytes", message.len());
        }
    }

    #[test]
    fn a_program_sees_its_input_or_else_the_other_fields_and_that_of_a_node_all_of_its_input() {
        let check = |input: &str, expected: &str| assert_eq!(perform(input).unwrap().as_str(), expected, "{input}");
        check(r#"{"program": ".a", "input": {"a": 1}, "a": 2}"#, "1");
        check(r#"{"program": ".a", "a": 2}"#, "2");
        check(r#"{"program": ".", "input": null}"#, "null");
        check(r#"{"program": "."}"#, "{}");
        let ask = |args: &str, input: &str| {
            question(Json::parse(args).ok().as_ref(), &Json::parse(input).unwrap(), StoreTime(1_500_000))
        };
        let node = ask(r#"{"program": ".program + .a"}"#, r#"{"program": 1, "a": 12345678901234567890123}"#).unwrap();
        assert_eq!(
            node.as_str(),
            r#"{"program":".program + .a","input":{"program":1,"a":12345678901234567890123},"$now":1.5}"#
        );
        let now = ask(r#"{"program": "now"}"#, "{}").unwrap();
        assert_eq!(perform(now.as_str()).unwrap().as_str(), "1.5", "the store's time, not this machine's");
        assert_eq!(
            perform(ask(r#"{"program": ".a + .b"}"#, r#"{"a": 1, "b": 2}"#).unwrap().as_str()).unwrap().as_str(),
            "3"
        );
        assert!(ask(r#"{"porgram": "."}"#, "{}").expect_err("no program").contains("write them like"));
        let message = perform(r#"{"porgram": "."}"#).expect_err("no program");
        assert!(message.contains("program") && message.contains("write it like"), "{message}");
    }
}
