//! How deliveries of messages are named, so that a later attempt of a run can acknowledge them.

use serde_json::{Value, json};
use std::collections::BTreeMap;

/// Deliveries by the number of their message in the stream.
pub(super) type Deliveries = BTreeMap<u64, Delivery>;

/// One delivery of a message: the server finds it by these numbers.
#[derive(Clone, Copy, Debug, PartialEq)]
pub(super) struct Delivery {
    /// How often the message was delivered.
    times: u64,
    /// Its number in the stream.
    pub(super) message: u64,
    /// The number of the delivery.
    number: u64,
}

/// What all acknowledgements of one consumer have in common.
#[derive(Clone, Debug, PartialEq)]
pub(super) struct Form {
    prefix: String,
    /// The server ignores the time and the count that stand after the numbers.
    suffix: &'static str,
}

const PREFIX: &str = "$JS.ACK.";

/// Reads the subject that a message is to be acknowledged at.
pub(super) fn parse(reply: &str) -> Option<(Form, Delivery)> {
    let tokens: Vec<&str> = reply.split('.').collect();
    let (named, suffix) = match tokens.len() {
        9 => (4, ".0.0"),
        11 => (6, ".0.0"),
        12.. => (6, ".0.0._"),
        _ => return None,
    };
    let number = |at: usize| tokens[at].parse().ok();
    let delivery = Delivery { times: number(named)?, message: number(named + 1)?, number: number(named + 2)? };
    let form = Form { prefix: tokens[..named].join("."), suffix };
    form.is_sound().then_some((form, delivery))
}

impl Form {
    pub(super) fn subject(&self, delivery: &Delivery) -> String {
        let Delivery { times, message, number } = delivery;
        format!("{}.{times}.{message}.{number}{}", self.prefix, self.suffix)
    }

    /// Whether it can be nothing but the beginning of an acknowledgement.
    fn is_sound(&self) -> bool {
        let plain = |byte: u8| byte.is_ascii_graphic() && byte != b'*' && byte != b'>';
        self.prefix.starts_with(PREFIX) && self.prefix.bytes().all(plain)
    }
}

/// A cursor: the deliveries that are in the sink. `created` tells streams of the same name apart.
pub(super) fn encode(created: &str, form: Option<&Form>, deliveries: &Deliveries) -> Value {
    let one = |Delivery { times, message, number }: &Delivery| format!("{times}.{message}.{number}");
    let acks = deliveries.values().map(one).collect::<Vec<_>>().join(" ");
    let (prefix, suffix) = form.map_or(("", ""), |form| (&form.prefix, form.suffix));
    json!({"created": created, "prefix": prefix, "suffix": suffix, "acks": acks})
}

/// Reads what `encode` wrote: when the stream was created, and its deliveries. Nothing if it is anything else.
pub(super) fn decode(cursor: &Value) -> Option<(&str, Option<Form>, Deliveries)> {
    let text = |name: &str| cursor.get(name)?.as_str();
    let suffix = [".0.0", ".0.0._"].into_iter().find(|suffix| text("suffix") == Some(suffix));
    let form = match (text("prefix")?, suffix) {
        ("", _) => None,
        (prefix, suffix) => Some(Form { prefix: prefix.to_string(), suffix: suffix? }).filter(Form::is_sound),
    };
    let mut deliveries = Deliveries::new();
    for ack in text("acks")?.split_ascii_whitespace() {
        let mut numbers = ack.split('.').map(|number| number.parse().ok());
        let mut next = || numbers.next().flatten();
        let delivery = Delivery { times: next()?, message: next()?, number: next()? };
        deliveries.insert(delivery.message, delivery);
    }
    let whole = form.is_some() || deliveries.is_empty();
    whole.then_some((text("created")?, form, deliveries))
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    proptest! {
        #[test]
        fn deliveries_survive_a_cursor(numbers in prop::collection::vec(any::<(u64, u64, u64)>(), 0..20)) {
            let delivery = |(times, message, number)| (message, Delivery { times, message, number });
            let deliveries: Deliveries = numbers.into_iter().map(delivery).collect();
            let form = Form { prefix: "$JS.ACK.S.C".into(), suffix: ".0.0" };
            let cursor = encode("5", Some(&form), &deliveries);
            prop_assert_eq!(decode(&cursor), Some(("5", Some(form), deliveries)));
        }

        #[test]
        fn any_subject_is_read_or_refused_without_harm(subject: String) {
            let _ = parse(&subject);
        }
    }

    #[test]
    fn acknowledgements_are_named_as_the_server_named_them() {
        for (reply, subject) in [
            ("$JS.ACK.S.C.2.17.19.1700000000.5", "$JS.ACK.S.C.2.17.19.0.0"),
            ("$JS.ACK.d.hash.S.C.2.17.19.1700000000.5", "$JS.ACK.d.hash.S.C.2.17.19.0.0"),
            ("$JS.ACK.d.hash.S.C.2.17.19.1700000000.5.x", "$JS.ACK.d.hash.S.C.2.17.19.0.0._"),
        ] {
            let (form, delivery) = parse(reply).unwrap();
            assert_eq!(form.subject(&delivery), subject);
            assert_eq!(delivery.message, 17);
        }
        for reply in ["", "$JS.ACK.S.C.2.x.19.1.5", "orders.a.b.c.2.17.19.1.5", "$JS.ACK.S.>.2.17.19.1.5"] {
            assert_eq!(parse(reply), None, "{reply}");
        }
    }

    #[test]
    fn a_cursor_that_could_publish_elsewhere_is_refused() {
        for (prefix, acks) in
            [("orders.S.C", "1.1.1"), ("$JS.ACK.S.*", "1.1.1"), ("", "1.1.1"), ("$JS.ACK.S.C", "1.x.1")]
        {
            let cursor = json!({"created": "5", "prefix": prefix, "suffix": ".0.0", "acks": acks});
            assert_eq!(decode(&cursor), None, "{cursor}");
        }
        assert_eq!(decode(&encode("5", None, &Deliveries::new())), Some(("5", None, Deliveries::new())));
    }
}
