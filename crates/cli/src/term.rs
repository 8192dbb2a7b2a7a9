//! The terminal, if there is one: what it can show, how wide it is, and messages to the person before it.

use crate::args::{Args, Output};
use crate::spinner;
use clap::ValueEnum;
use std::ffi::OsString;
use std::io::{self, IsTerminal, Write};
use std::os::fd::AsFd;
use std::sync::OnceLock;

#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, ValueEnum)]
pub(crate) enum Color {
    /// On a terminal, unless NO_COLOR is set
    #[default]
    Auto,
    Always,
    Never,
}

/// How to speak, decided once for the whole process.
#[derive(Clone, Copy, Debug, Default)]
pub(crate) struct Style {
    /// Whether a person looks at stdout.
    pub(crate) person: bool,
    /// Whether stdout gets colours.
    pub(crate) color: bool,
    /// Whether signs beyond ASCII can be shown.
    pub(crate) unicode: bool,
    /// Whether a line on stderr can be drawn again and again.
    pub(crate) live: bool,
    /// Only errors and what was asked for.
    pub(crate) quiet: bool,
}

static STYLE: OnceLock<Style> = OnceLock::new();

pub(crate) fn style() -> Style {
    STYLE.get().copied().unwrap_or_default()
}

/// Decides how to speak, from the flags and from the environment.
pub(crate) fn settle(args: &Args) {
    let environment = Environment {
        dumb: std::env::var_os("TERM").is_some_and(|term| term == "dumb"),
        utf8: is_utf8(|name| std::env::var_os(name)),
        no_color: no_color(),
    };
    let person = io::stdout().is_terminal() && args.output == Output::Table;
    let live = io::stderr().is_terminal() && !args.quiet;
    let _it_is_decided_once = STYLE.set(environment.style(args.color, person, live, args.quiet));
}

struct Environment {
    dumb: bool,
    utf8: bool,
    no_color: bool,
}

impl Environment {
    fn style(&self, color: Color, person: bool, live: bool, quiet: bool) -> Style {
        let color = match color {
            Color::Auto => person && !self.dumb && !self.no_color,
            Color::Always => true,
            Color::Never => false,
        };
        Style { person, color, unicode: self.utf8 && !self.dumb, live: live && !self.dumb, quiet }
    }
}

pub(crate) fn no_color() -> bool {
    std::env::var_os("NO_COLOR").is_some_and(|value| !value.is_empty())
}

/// Whether the locale speaks UTF-8: the first of these variables that is set decides, as it does in the C library.
fn is_utf8(variable: impl Fn(&str) -> Option<OsString>) -> bool {
    let set = |name: &&str| variable(name).filter(|value| !value.is_empty());
    let locale = ["LC_ALL", "LC_CTYPE", "LANG"].iter().find_map(set).unwrap_or_default();
    let locale = locale.to_string_lossy().to_ascii_lowercase();
    locale.contains("utf-8") || locale.contains("utf8")
}

/// The columns of the terminal behind this descriptor; where nobody says, as many as every terminal has.
pub(crate) fn width(of: impl AsFd) -> u16 {
    const EVERYWHERE: u16 = 80;
    let said = std::env::var("COLUMNS").ok().and_then(|columns| columns.parse().ok());
    let asked = || rustix::termios::tcgetwinsize(of).ok().map(|size| size.ws_col);
    said.or_else(asked).filter(|columns| *columns > 0).unwrap_or(EVERYWHERE)
}

/// Tells the person something that is neither data nor an error. `--quiet` leaves it out.
pub(crate) fn say(message: &str) {
    if !style().quiet {
        warn(message);
    }
}

/// Tells the person something that must not be missed.
pub(crate) fn warn(message: &str) {
    let message = shown(message);
    spinner::aside(|| {
        let _nobody_listens = writeln!(io::stderr().lock(), "{message}");
    });
}

/// Our own words in signs that the terminal has.
pub(crate) fn shown(text: &str) -> String {
    match style().unicode {
        true => text.to_string(),
        false => text.replace('…', "..."),
    }
}

/// The sign of a state: its shape says it, the colour only underlines it.
pub(crate) fn shape(unicode: char, ascii: char) -> char {
    if style().unicode { unicode } else { ascii }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_first_locale_variable_that_is_set_decides() {
        let check = |variables: &[(&str, &str)], expected: bool| {
            let find = |name: &str| variables.iter().find(|(known, _)| *known == name).map(|(_, value)| value.into());
            assert_eq!(is_utf8(find), expected, "{variables:?}");
        };
        check(&[], false);
        check(&[("LANG", "de_CH.UTF-8")], true);
        check(&[("LANG", "C.utf8")], true);
        check(&[("LC_ALL", "C"), ("LANG", "en_US.UTF-8")], false);
        check(&[("LC_ALL", ""), ("LC_CTYPE", "C.UTF-8")], true);
        check(&[("LANG", "en_US.ISO-8859-1")], false);
    }

    #[test]
    fn colours_are_for_people_unless_asked_for() {
        let check = |color: Color, person: bool, dumb: bool, no_color: bool, expected: bool| {
            let style = Environment { dumb, utf8: true, no_color }.style(color, person, true, false);
            assert_eq!(style.color, expected, "{color:?} {person} {dumb} {no_color}");
        };
        check(Color::Auto, true, false, false, true);
        check(Color::Auto, false, false, false, false);
        check(Color::Auto, true, true, false, false);
        check(Color::Auto, true, false, true, false);
        check(Color::Always, false, true, true, true);
        check(Color::Never, true, false, false, false);
    }
}
