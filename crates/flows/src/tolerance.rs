use everbeat_model::Invalid;
use serde_json::Value;

/// How many records may be rejected before the run fails.
#[derive(Clone, Copy, Debug, PartialEq)]
pub enum MaxRejected {
    Count(u64),
    /// Of what was read, in percent.
    Percent(f64),
}

/// A share of fewer records than this says nothing yet. At the end of a run any number counts.
const FEW: u64 = 1000;

impl MaxRejected {
    pub(crate) fn read(value: &Value) -> Result<MaxRejected, Invalid> {
        let percent = |text: &str| text.strip_suffix('%').and_then(|share| share.trim().parse::<f64>().ok());
        let read = match value {
            Value::Number(number) => number.as_u64().map(MaxRejected::Count),
            Value::String(text) => {
                percent(text).filter(|share| (0.0..=100.0).contains(share)).map(MaxRejected::Percent)
            }
            _ => None,
        };
        let refused = || Invalid::new("max_rejected", value, "is no limit", "write a number, or a share like \"5%\"");
        read.ok_or_else(refused)
    }

    pub(crate) fn is_exceeded(self, rejected: u64, read: u64, at_end: bool) -> bool {
        match self {
            MaxRejected::Count(most) => rejected > most,
            MaxRejected::Percent(share) => {
                (at_end || read >= FEW) && rejected > 0 && rejected as f64 * 100.0 > share * read as f64
            }
        }
    }
}

impl std::fmt::Display for MaxRejected {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        match self {
            MaxRejected::Count(most) => write!(f, "{most}"),
            MaxRejected::Percent(share) => write!(f, "{share}%"),
        }
    }
}
