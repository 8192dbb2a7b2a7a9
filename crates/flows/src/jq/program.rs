use jaq_core::load::{Arena, File, Loader};
use jaq_core::{Compiler, Ctx, Filter, Vars, data, unwrap_valr};
use jaq_json::{Val, read};
use serde_json::Value;

/// A compiled program.
pub(super) struct Program(Filter<data::JustLut<Val>>);

/// One record gives no more outputs.
const MOST_OUTPUTS: usize = 10_000;
/// Nor outputs of more bytes.
const MOST_OUTPUT_BYTES: usize = 8 << 20;

/// What a program could use to see or touch the server itself.
const FORBIDDEN: [&str; 6] = ["env", "halt", "halt_error", "stderr", "stderr_empty", "input_line_number"];

/// Longer messages are cut.
const MOST_SHOWN: usize = 1000;

impl Program {
    pub(super) fn compile(program: &str) -> Result<Program, String> {
        let allowed = |name: &str| !FORBIDDEN.contains(&name);
        let defs = jaq_core::defs().chain(jaq_std::defs()).chain(jaq_json::defs()).filter(|def| allowed(def.name));
        let funs = jaq_core::funs().chain(jaq_std::funs()).chain(jaq_json::funs()).filter(|(name, ..)| allowed(name));
        let arena = Arena::default();
        let file = File { code: program, path: () };
        let modules = Loader::new(defs).load(&arena, file).map_err(|_| "cannot be parsed as jq".to_string())?;
        let filter = Compiler::default().with_funs(funs).compile(modules).map_err(|errors| {
            let names = errors.iter().flat_map(|(_, errors)| errors.iter().map(|(name, _)| name.to_string()));
            shortened(&format!("uses what is not defined: {}", names.collect::<Vec<_>>().join(", ")))
        })?;
        Ok(Program(filter))
    }

    /// The outputs for one record, given as JSON.
    pub(super) fn outputs(&self, record: &[u8]) -> Result<Vec<Value>, String> {
        let input = read::parse_single(record).map_err(|error| format!("jq: cannot read the record: {error}"))?;
        let ctx = Ctx::<data::JustLut<Val>>::new(&self.0.lut, Vars::new([]));
        let (mut outputs, mut bytes) = (Vec::new(), 0);
        for output in self.0.id.run((ctx, input)).map(unwrap_valr) {
            let text = output.map_err(|error| shortened(&format!("jq: {error}")))?.to_string();
            bytes += text.len();
            if outputs.len() == MOST_OUTPUTS || bytes > MOST_OUTPUT_BYTES {
                return Err("jq: the program gives more than 10000 outputs, or 8 MiB, for one record".to_string());
            }
            let value = serde_json::from_str(&text);
            outputs.push(value.map_err(|_| "jq: the program gives an output that is not JSON".to_string())?);
        }
        Ok(outputs)
    }
}

fn shortened(text: &str) -> String {
    match text.char_indices().nth(MOST_SHOWN) {
        Some((end, _)) => format!("{}…", &text[..end]),
        None => text.to_string(),
    }
}
