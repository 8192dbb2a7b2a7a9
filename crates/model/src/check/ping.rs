//! What a job says.

use crate::error::Invalid;
use crate::spelled::spelled;
use crate::time::StoreTime;
use std::time::Duration;

spelled! {
    /// What a ping says of its job.
    pub enum PingKind {
        Success = "success",
        Start = "start",
        Fail = "fail",
        /// Only that something is noted.
        Log = "log",
    }
}

/// What a ping says, with the exit code of the job if that is how it was said.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Signal {
    pub kind: PingKind,
    pub exit_code: Option<u8>,
}

impl Signal {
    pub fn plain(kind: PingKind) -> Signal {
        Signal { kind, exit_code: None }
    }

    /// A job that ended with this code.
    pub fn exit(code: u8) -> Signal {
        let kind = if code == 0 { PingKind::Success } else { PingKind::Fail };
        Signal { kind, exit_code: Some(code) }
    }

    /// Reads what follows the name in the path of a ping.
    pub fn parse(word: &str) -> Result<Signal, Invalid> {
        let code = || Some(word).filter(|word| word.bytes().all(|byte| byte.is_ascii_digit()))?.parse().ok();
        match PingKind::parse(word) {
            Some(kind @ (PingKind::Start | PingKind::Fail | PingKind::Log)) => Ok(Signal::plain(kind)),
            _ => code().map(Signal::exit).ok_or_else(|| {
                let hint = "use start, fail, log or an exit code from 0 to 255; a success has nothing after the name";
                Invalid::new("signal", format!("{word:?}"), "is not what a ping can say", hint)
            }),
        }
    }
}

/// A ping that is kept.
#[derive(Clone, Debug, PartialEq)]
pub struct Ping {
    /// Rises within its check.
    pub place: u64,
    pub at: StoreTime,
    pub signal: Signal,
    /// From the start to this end.
    pub duration: Option<Duration>,
    pub body: Option<String>,
}

/// So many bytes of what comes with a ping are kept.
pub const BODY_LIMIT: usize = 10_000;

/// What is kept of what came with a ping: its beginning, as text that every store can hold.
pub fn repaired(body: &[u8]) -> Option<String> {
    let mut text = String::from_utf8_lossy(&body[..body.len().min(BODY_LIMIT)]).replace('\0', "\u{fffd}");
    let cut = (0..=BODY_LIMIT.min(text.len())).rev().find(|at| text.is_char_boundary(*at)).unwrap_or(0);
    // The last character may have been cut in two.
    text.truncate(cut);
    (!text.is_empty()).then_some(text)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_path_says_what_became_of_a_job() {
        let code = |code| Ok(Signal::exit(code));
        assert_eq!(Signal::parse("0"), code(0));
        assert_eq!(Signal::parse("255"), code(255));
        assert_eq!((Signal::exit(0).kind, Signal::exit(3).kind), (PingKind::Success, PingKind::Fail));
        for kind in [PingKind::Start, PingKind::Fail, PingKind::Log] {
            assert_eq!(Signal::parse(kind.as_str()), Ok(Signal::plain(kind)));
        }
        for word in ["", "256", "-1", "+1", "1.0", "success", "START", "stop"] {
            assert_eq!(Signal::parse(word).expect_err(word).field, "signal");
        }
    }

    #[test]
    fn a_body_is_kept_as_text_up_to_its_limit() {
        assert_eq!(repaired(b""), None);
        assert_eq!(repaired(b"done\n").as_deref(), Some("done\n"));
        assert_eq!(repaired(b"a\0b\xff").as_deref(), Some("a\u{fffd}b\u{fffd}"));
        for body in ["é".repeat(BODY_LIMIT), format!("x{}", "é".repeat(BODY_LIMIT))] {
            let kept = repaired(body.as_bytes()).expect("text");
            assert!(kept.len() <= BODY_LIMIT && kept.len() > BODY_LIMIT - 4, "{}", kept.len());
        }
        assert!(repaired(&[0xff; 2 * BODY_LIMIT]).is_some_and(|kept| kept.len() <= BODY_LIMIT));
    }
}
