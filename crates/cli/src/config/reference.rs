use super::KEYS;
use std::fmt::Write;

/// The reference page of the configuration.
pub(crate) fn markdown() -> String {
    let mut page = String::from(
        "# Configuration\n\n\
         `everbeat serve` needs none. What is set comes from, in rising order: `everbeat.toml` (or `--config FILE`), \
         the environment, and the flags `--store`, `--listen` and `--data-dir`. `everbeat config` shows what is in force \
         and where it comes from. Unknown keys are refused.\n\n\
         Durations are written like `\"250ms\"`, `\"30s\"`, `\"5m\"`, `\"2h\"`, `\"1d\"`, or as a number of seconds; sizes like \
         `\"4MiB\"` or as a number of bytes. In the environment, lists and tables are written as JSON.\n",
    );
    let mut section = "";
    for key in KEYS {
        if key.section() != section {
            section = key.section();
            let heading = if key.path == section { format!("[[{section}]]") } else { format!("[{section}]") };
            push(&mut page, format_args!("\n## `{heading}`\n\n"));
        }
        let (path, kind, default, env) = (key.path, key.kind.name(), key.default, key.env_name());
        if path == section {
            push(&mut page, format_args!("{} In the environment: `{env}__NAME__FIELD`.\n\n", key.help));
        } else {
            push(&mut page, format_args!("- `{path}` ({kind}, default `{default}`): {} `{env}`\n", key.help));
        }
        let indent = if path == section { "" } else { "  " };
        for field in key.kind.fields() {
            push(&mut page, format_args!("{indent}- `{}`: {}\n", field.name, field.help));
        }
    }
    page
}

fn push(page: &mut String, text: std::fmt::Arguments<'_>) {
    let _writing_to_a_string_cannot_fail = page.write_fmt(text);
}
