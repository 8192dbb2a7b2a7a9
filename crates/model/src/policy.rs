use crate::error::{Invalid, nearest};
use crate::time::{duration_from, format_duration};
use serde_json::{Map, Value};
use std::time::Duration;

/// How a run is watched, retried and stopped. Resolved when the run is enqueued, and then fixed.
#[derive(Clone, Debug, PartialEq)]
pub struct Policy {
    pub heartbeat: HeartbeatMode,
    pub heartbeat_interval: Duration,
    /// No timeout: the attempt is judged by its deadline and its replica only.
    pub heartbeat_timeout: Option<Duration>,
    pub stall_timeout: Option<Duration>,
    pub deadline: Option<Duration>,
    pub max_attempts: u32,
    pub backoff: Backoff,
    pub on_lost: OnLost,
    pub when_isolated: WhenIsolated,
    pub cancel_grace: Duration,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum HeartbeatMode {
    Auto,
    Manual,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum OnLost {
    Retry,
    Fail,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum WhenIsolated {
    Continue,
    Stop,
}

#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Backoff {
    pub initial: Duration,
    pub factor: f64,
    pub max: Duration,
    /// The share of a delay that chance may take away: 0.2 gives 80 to 100 %.
    pub jitter: f64,
}

impl Backoff {
    /// The delay before the retry after `failures` failures, `chance` in `0..1`.
    pub fn delay(&self, failures: u32, chance: f64) -> Duration {
        let steps = i32::try_from(failures.saturating_sub(1)).unwrap_or(i32::MAX);
        let full = (self.initial.as_secs_f64() * self.factor.powi(steps)).min(self.max.as_secs_f64());
        Duration::from_secs_f64(full * (1.0 - self.jitter * chance.clamp(0.0, 1.0)))
    }
}

impl Policy {
    /// What stored policies are written against: a stored policy holds only what differs. These
    /// values may therefore never change.
    pub const BASELINE: Policy = Policy {
        heartbeat: HeartbeatMode::Auto,
        heartbeat_interval: Duration::from_secs(30),
        heartbeat_timeout: Some(Duration::from_secs(120)),
        stall_timeout: None,
        deadline: None,
        max_attempts: 3,
        backoff: Backoff { initial: Duration::from_secs(1), factor: 2.0, max: Duration::from_secs(300), jitter: 0.2 },
        on_lost: OnLost::Retry,
        when_isolated: WhenIsolated::Continue,
        cancel_grace: Duration::from_secs(10),
    };

    /// The policy as a JSON object with every field.
    pub fn to_value(&self) -> Value {
        let off = |span: Option<Duration>| span.map_or("off".into(), format_duration);
        let mut fields = Map::new();
        let mut put = |name: &str, value: Value| fields.insert(name.to_string(), value);
        put("heartbeat", if self.heartbeat == HeartbeatMode::Auto { "auto" } else { "manual" }.into());
        put("heartbeat_interval", format_duration(self.heartbeat_interval).into());
        put("heartbeat_timeout", off(self.heartbeat_timeout).into());
        put("stall_timeout", off(self.stall_timeout).into());
        put("deadline", off(self.deadline).into());
        put("max_attempts", self.max_attempts.into());
        put(
            "backoff",
            serde_json::json!({
                "initial": format_duration(self.backoff.initial),
                "factor": self.backoff.factor,
                "max": format_duration(self.backoff.max),
                "jitter": self.backoff.jitter,
            }),
        );
        put("on_lost", if self.on_lost == OnLost::Retry { "retry" } else { "fail" }.into());
        put("when_isolated", if self.when_isolated == WhenIsolated::Continue { "continue" } else { "stop" }.into());
        put("cancel_grace", format_duration(self.cancel_grace).into());
        Value::Object(fields)
    }

    /// The stored form: only what differs from the baseline.
    pub fn to_stored(&self) -> String {
        if *self == Policy::BASELINE {
            return "{}".to_string();
        }
        let (Value::Object(mine), Value::Object(baseline)) = (self.to_value(), Policy::BASELINE.to_value()) else {
            return "{}".to_string();
        };
        let differing: Map<String, Value> =
            mine.into_iter().filter(|(name, value)| baseline.get(name) != Some(value)).collect();
        Value::Object(differing).to_string()
    }

    /// Reads the stored form. Fields of a newer version are passed over, damaged ones read as the
    /// baseline: a row must never stop a loop.
    pub fn from_stored(text: &str) -> Policy {
        let mut policy = Policy::BASELINE;
        if let Ok(Value::Object(fields)) = serde_json::from_str(text) {
            for (name, value) in fields {
                let _unreadable_fields_keep_the_baseline =
                    PolicyPatch::field(&name, &value).map(|set| set(&mut policy));
            }
        }
        policy
    }

    /// The rules that bind several fields to each other.
    fn check(self) -> Result<Policy, Invalid> {
        if let Some(timeout) = self.heartbeat_timeout
            && self.heartbeat_interval > timeout / 2
        {
            return Err(Invalid::new(
                "heartbeat_interval",
                format!("{:?}", format_duration(self.heartbeat_interval)),
                format!("is over half of heartbeat_timeout ({:?})", format_duration(timeout)),
                format!(
                    "set heartbeat_interval to at most {:?}, or raise heartbeat_timeout",
                    format_duration(timeout / 2)
                ),
            ));
        }
        Ok(self)
    }
}

type Set = Box<dyn FnOnce(&mut Policy)>;

/// Changes to a policy, each checked by itself, in the order they were given.
#[derive(Default)]
pub struct PolicyPatch(Vec<Set>);

/// Every name a policy may use.
pub const FIELDS: [&str; 10] = [
    "heartbeat",
    "heartbeat_interval",
    "heartbeat_timeout",
    "stall_timeout",
    "deadline",
    "max_attempts",
    "backoff",
    "on_lost",
    "when_isolated",
    "cancel_grace",
];

impl PolicyPatch {
    /// Reads a JSON object of policy fields. The older names that end in `_seconds`, and
    /// `abandon_after_seconds` for the deadline, are accepted.
    pub fn parse(value: &Value) -> Result<PolicyPatch, Invalid> {
        let Value::Object(fields) = value else {
            return Err(Invalid::new("", value, "is not an object", "write it like {\"max_attempts\": 5}"));
        };
        let mut patch = PolicyPatch::default();
        for (name, value) in fields {
            let canonical = match name.as_str() {
                "abandon_after_seconds" => "deadline",
                other => other.strip_suffix("_seconds").filter(|bare| FIELDS.contains(bare)).unwrap_or(other),
            };
            patch.0.push(PolicyPatch::field(canonical, value).map_err(|error| error.within(name))?);
        }
        Ok(patch)
    }

    /// The policy that results from these changes to `base`.
    pub fn over(self, base: &Policy) -> Result<Policy, Invalid> {
        let mut policy = base.clone();
        let shorter_timeout = |policy: &mut Policy| {
            // A shorter timeout alone brings its interval along; the two were never meant to part.
            if let Some(timeout) = policy.heartbeat_timeout {
                policy.heartbeat_interval = policy.heartbeat_interval.min(timeout / 4);
            }
        };
        let interval = policy.heartbeat_interval;
        for set in self.0 {
            set(&mut policy);
        }
        if policy.heartbeat_interval == interval && policy.heartbeat_timeout != base.heartbeat_timeout {
            shorter_timeout(&mut policy);
        }
        policy.check()
    }

    fn field(name: &str, value: &Value) -> Result<Set, Invalid> {
        let positive = |span: Duration| match span {
            Duration::ZERO => Err(Invalid::new("", value, "is zero", "use a duration above zero")),
            span => Ok(span),
        };
        let optional = |value: &Value| match value {
            Value::Null => Ok(None),
            Value::String(text) if text == "off" => Ok(None),
            value => duration_from(value).and_then(positive).map(Some),
        };
        let choice = |names: [&str; 2]| match value.as_str() {
            Some(text) if text == names[0] => Ok(true),
            Some(text) if text == names[1] => Ok(false),
            _ => Err(Invalid::new(
                "",
                value,
                "is not one of the known values",
                format!("use {:?} or {:?}", names[0], names[1]),
            )),
        };
        Ok(match name {
            "heartbeat" => {
                let auto = choice(["auto", "manual"])?;
                Box::new(move |policy| {
                    policy.heartbeat = if auto { HeartbeatMode::Auto } else { HeartbeatMode::Manual };
                })
            }
            "heartbeat_interval" => {
                let span = positive(duration_from(value)?)?;
                Box::new(move |policy| policy.heartbeat_interval = span)
            }
            "heartbeat_timeout" => {
                let span = optional(value)?;
                Box::new(move |policy| policy.heartbeat_timeout = span)
            }
            "stall_timeout" => {
                let span = optional(value)?;
                Box::new(move |policy| policy.stall_timeout = span)
            }
            "deadline" => {
                let span = optional(value)?;
                Box::new(move |policy| policy.deadline = span)
            }
            "max_attempts" => {
                let attempts = whole(value, 1, 1000)?;
                Box::new(move |policy| policy.max_attempts = attempts)
            }
            "backoff" => {
                let apply = backoff(value)?;
                Box::new(move |policy| apply(&mut policy.backoff))
            }
            "on_lost" => {
                let retry = choice(["retry", "fail"])?;
                Box::new(move |policy| policy.on_lost = if retry { OnLost::Retry } else { OnLost::Fail })
            }
            "when_isolated" => {
                let goes_on = choice(["continue", "stop"])?;
                Box::new(move |policy| {
                    policy.when_isolated = if goes_on { WhenIsolated::Continue } else { WhenIsolated::Stop };
                })
            }
            "cancel_grace" => {
                let span = duration_from(value)?;
                Box::new(move |policy| policy.cancel_grace = span)
            }
            unknown => {
                let hint = match nearest(unknown, FIELDS) {
                    Some(name) => format!("did you mean {name:?}?"),
                    None => format!("the known ones are {}", FIELDS.join(", ")),
                };
                return Err(Invalid::new("", value, "is not a policy field", hint));
            }
        })
    }
}

fn whole(value: &Value, least: u32, most: u32) -> Result<u32, Invalid> {
    value
        .as_u64()
        .and_then(|number| u32::try_from(number).ok())
        .filter(|number| (least..=most).contains(number))
        .ok_or_else(|| Invalid::new("", value, "is out of range", format!("use a whole number from {least} to {most}")))
}

type Change = Box<dyn FnOnce(&mut Backoff)>;

fn backoff(value: &Value) -> Result<Change, Invalid> {
    let Value::Object(fields) = value else {
        let hint = "write it like {\"initial\": \"1s\", \"factor\": 2, \"max\": \"5m\", \"jitter\": 0.2}";
        return Err(Invalid::new("", value, "is not an object", hint));
    };
    let number = |value: &Value, least: f64, most: f64| {
        value
            .as_f64()
            .filter(|number| (least..=most).contains(number))
            .ok_or_else(|| Invalid::new("", value, "is out of range", format!("use a number from {least} to {most}")))
    };
    let mut changes: Vec<Change> = Vec::new();
    for (name, value) in fields {
        let within = |error: Invalid| error.within(name);
        match name.as_str() {
            "initial" => {
                let span = duration_from(value).map_err(within)?;
                changes.push(Box::new(move |backoff| backoff.initial = span));
            }
            "max" => {
                let span = duration_from(value).map_err(within)?;
                changes.push(Box::new(move |backoff| backoff.max = span));
            }
            "factor" => {
                let factor = number(value, 1.0, 100.0).map_err(within)?;
                changes.push(Box::new(move |backoff| backoff.factor = factor));
            }
            "jitter" => {
                let jitter = number(value, 0.0, 1.0).map_err(within)?;
                changes.push(Box::new(move |backoff| backoff.jitter = jitter));
            }
            _ => {
                let hint = "the known ones are initial, factor, max, jitter";
                return Err(Invalid::new(name, value, "is not a backoff field", hint));
            }
        }
    }
    Ok(Box::new(move |backoff| changes.into_iter().for_each(|change| change(backoff))))
}

#[cfg(test)]
mod tests {
    use super::*;
    use serde_json::json;

    fn resolve(value: Value) -> Result<Policy, Invalid> {
        PolicyPatch::parse(&value)?.over(&Policy::BASELINE)
    }

    #[test]
    fn an_interval_over_half_its_timeout_is_refused_with_both_values() {
        let error = resolve(json!({"heartbeat_interval": "70s", "heartbeat_timeout": "2m"})).expect_err("too long");
        assert_eq!(error.field, "heartbeat_interval");
        assert!(error.value.contains("70s"), "{error:?}");
        assert!(error.problem.contains("2m"), "{error:?}");
        assert!(resolve(json!({"heartbeat_interval": "60s", "heartbeat_timeout": "120s"})).is_ok());
        assert!(resolve(json!({"heartbeat_interval": "10m", "heartbeat_timeout": "off"})).is_ok());
    }

    #[test]
    fn a_timeout_given_alone_brings_its_interval_along() {
        let policy = resolve(json!({"heartbeat_timeout": "1s"})).expect("valid");
        assert_eq!(policy.heartbeat_interval, Duration::from_millis(250));
    }

    #[test]
    fn each_bad_field_is_named_with_its_value_and_a_remedy() {
        for (given, field) in [
            (json!({"deadline": "soon"}), "deadline"),
            (json!({"max_attempts": 0}), "max_attempts"),
            (json!({"max_attempts": -1}), "max_attempts"),
            (json!({"max_attempts": 1.5}), "max_attempts"),
            (json!({"backoff": {"factor": 0.5}}), "backoff.factor"),
            (json!({"backoff": {"colour": 1}}), "backoff.colour"),
            (json!({"on_lost": "panic"}), "on_lost"),
            (json!({"heartbeat": true}), "heartbeat"),
            (json!({"heartbeat_timeout": "0s"}), "heartbeat_timeout"),
            (json!({"dedline": "1s"}), "dedline"),
            (json!([]), ""),
        ] {
            let error = resolve(given.clone()).expect_err("refused");
            assert_eq!(error.field, field, "{given}");
            assert!(!error.hint.is_empty(), "{given}");
        }
        assert!(resolve(json!({"dedline": "1s"})).expect_err("refused").hint.contains("deadline"));
    }

    #[test]
    fn the_older_names_are_accepted() {
        let policy = resolve(json!({
            "heartbeat_interval_seconds": 30, "heartbeat_timeout_seconds": 240, "abandon_after_seconds": 60
        }))
        .expect("valid");
        assert_eq!(policy.heartbeat_timeout, Some(Duration::from_secs(240)));
        assert_eq!(policy.deadline, Some(Duration::from_secs(60)));
    }

    #[test]
    fn a_policy_survives_its_stored_form() {
        assert_eq!(Policy::BASELINE.to_stored(), "{}");
        let policy = resolve(json!({
            "heartbeat": "manual", "heartbeat_timeout": "1s", "stall_timeout": "5m", "deadline": 1.5,
            "max_attempts": 7, "backoff": {"initial": "10ms"}, "on_lost": "fail", "when_isolated": "stop", "cancel_grace": 0
        }))
        .expect("valid");
        assert_eq!(Policy::from_stored(&policy.to_stored()), policy);
        assert_eq!(Policy::from_stored("{\"max_attempts\":\"many\",\"from_the_future\":1}"), Policy::BASELINE);
        assert_eq!(Policy::from_stored("not json"), Policy::BASELINE);
    }

    #[test]
    fn backoff_grows_to_its_limit_and_jitter_only_shortens() {
        let backoff = Policy::BASELINE.backoff;
        assert_eq!(backoff.delay(1, 0.0), Duration::from_secs(1));
        assert_eq!(backoff.delay(3, 0.0), Duration::from_secs(4));
        assert_eq!(backoff.delay(1000, 0.0), Duration::from_secs(300));
        assert_eq!(backoff.delay(1, 1.0), Duration::from_millis(800));
    }
}
