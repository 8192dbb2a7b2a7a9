//! Where flows may connect to. Whoever may write a flow must not reach what only this server can reach: services on
//! loopback, private networks, the metadata service of a cloud.

use crate::Trouble;
use crate::timely::within;
use std::net::{IpAddr, Ipv4Addr, Ipv6Addr, SocketAddr};
use std::time::Duration;

/// Says which addresses one connection may go to.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Guard {
    /// Public addresses only.
    Public,
    /// Any address, for the server allows it to flows.
    Any,
    /// Any address and Unix sockets, for the operator named the target.
    Operator,
}

/// A name with more addresses is cut: nobody tries them all.
const MOST_ADDRESSES: usize = 16;
const LONGEST_LOOKUP: Duration = Duration::from_secs(10);

impl Guard {
    /// The addresses of a host, each of them allowed. Connect to one of these, never to the name again: its next answer
    /// may be another one.
    pub async fn resolve(&self, host: &str, port: u16) -> Result<Vec<SocketAddr>, Trouble> {
        let host = host.strip_prefix('[').and_then(|rest| rest.strip_suffix(']')).unwrap_or(host);
        if host.is_empty() {
            return Err(Trouble::permanent("the URL names no host: write it like scheme://host"));
        }
        let found: Vec<SocketAddr> = match within(LONGEST_LOOKUP, tokio::net::lookup_host((host, port))).await {
            Some(Ok(addresses)) => addresses.take(MOST_ADDRESSES).collect(),
            Some(Err(error)) => return Err(Trouble::transient(format!("cannot find the address of {host}: {error}"))),
            None => return Err(Trouble::transient(format!("cannot find the address of {host}: no answer"))),
        };
        if found.is_empty() {
            return Err(Trouble::transient(format!("cannot find the address of {host}: the name has none")));
        }
        for address in &found {
            self.check(address.ip()).map_err(|kind| refusal(host, address.ip(), kind))?;
        }
        Ok(found)
    }

    /// Whether one address is allowed; if not, what kind of address it is.
    pub fn check(&self, address: IpAddr) -> Result<(), &'static str> {
        match self {
            Guard::Public => inner_kind(address).map_or(Ok(()), Err),
            Guard::Any | Guard::Operator => Ok(()),
        }
    }

    pub fn allows_unix_sockets(&self) -> bool {
        *self == Guard::Operator
    }
}

fn refusal(host: &str, address: IpAddr, kind: &str) -> Trouble {
    let which = if host == address.to_string() { host.to_string() } else { format!("{host} ({address})") };
    Trouble::permanent(format!("{which} is {kind}, which flows may not connect to: {REMEDY}"))
}

pub(crate) const REMEDY: &str =
    "the operator can name the target in [flows.connections] or set flows.allow_private_targets";

/// What kind of address it is, if it does not belong to the public Internet.
fn inner_kind(address: IpAddr) -> Option<&'static str> {
    match address {
        IpAddr::V4(address) => inner_kind_v4(address),
        IpAddr::V6(address) => inner_kind_v6(address),
    }
}

fn inner_kind_v4(address: Ipv4Addr) -> Option<&'static str> {
    // Azure's services for the machine itself, metadata among them, stand behind a public address.
    if address == Ipv4Addr::new(168, 63, 129, 16) {
        return Some("a metadata address");
    }
    match address.octets() {
        [0, ..] => Some("an unspecified address"),
        [127, ..] => Some("a loopback address"),
        [10, ..] | [172, 16..=31, ..] | [192, 168, ..] => Some("a private address"),
        [100, 64..=127, ..] => Some("a shared address (CGNAT)"),
        [169, 254, ..] => Some("a link-local address"),
        [192, 0, 0, _] | [192, 0, 2, _] | [198, 18..=19, ..] | [198, 51, 100, _] | [203, 0, 113, _] => {
            Some("a reserved address")
        }
        [192, 88, 99, _] => Some("a reserved address"),
        [224..=239, ..] => Some("a multicast address"),
        [240..=255, ..] => Some("a reserved address"),
        _ => None,
    }
}

fn inner_kind_v6(address: Ipv6Addr) -> Option<&'static str> {
    if address == Ipv6Addr::LOCALHOST {
        return Some("a loopback address");
    }
    if address.is_unspecified() {
        return Some("an unspecified address");
    }
    let groups = address.segments();
    let v4 = |high: u16, low: u16| inner_kind_v4(Ipv4Addr::from((u32::from(high) << 16) | u32::from(low)));
    match groups {
        // IPv4-compatible, IPv4-mapped and IPv4-translated addresses, and those of the well-known NAT64 prefix.
        [0, 0, 0, 0, 0, 0, high, low]
        | [0, 0, 0, 0, 0, 0xffff, high, low]
        | [0, 0, 0, 0, 0xffff, 0, high, low]
        | [0x64, 0xff9b, 0, 0, 0, 0, high, low] => v4(high, low),
        [0x64, 0xff9b, ..] => Some("an address of a local translator (NAT64)"),
        [0xfc00..=0xfdff, ..] => Some("a private address"),
        [0xfe80..=0xfebf, ..] => Some("a link-local address"),
        [0xfec0..=0xfeff, ..] => Some("a private address"),
        [0xff00..=0xffff, ..] => Some("a multicast address"),
        [0x2001, 0, ..] => Some("a tunnelled address (Teredo)"),
        [0x2001, 1..=0x1ff, ..] | [0x2001, 0xdb8, ..] | [0x3fff, 0..=0xfff, ..] => Some("a reserved address"),
        [0x2002, high, low, ..] => v4(high, low),
        // ISATAP: the interface is named by an IPv4 address.
        [.., 0 | 0x200, 0x5efe, high, low] => v4(high, low),
        [0x2000..=0x3fff, ..] => None,
        _ => Some("a reserved address"),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::Class;
    use proptest::prelude::*;

    const INNER: [&str; 46] = [
        "0.0.0.0",
        "0.1.2.3",
        "10.0.0.1",
        "10.255.255.255",
        "100.64.0.1",
        "100.127.255.255",
        "100.100.100.200",
        "127.0.0.1",
        "127.255.255.254",
        "168.63.129.16",
        "169.254.0.1",
        "169.254.169.254",
        "172.16.0.1",
        "172.31.255.255",
        "192.0.0.192",
        "192.0.2.1",
        "192.168.0.1",
        "192.88.99.1",
        "198.18.0.1",
        "198.19.255.255",
        "224.0.0.1",
        "239.255.255.255",
        "240.0.0.1",
        "255.255.255.255",
        "::",
        "::1",
        "::127.0.0.1",
        "::ffff:127.0.0.1",
        "::ffff:169.254.169.254",
        "::ffff:0:10.0.0.1",
        "64:ff9b::10.0.0.1",
        "64:ff9b:1::1",
        "2002:7f00:1::",
        "2002:a9fe:a9fe::1",
        "2001::1",
        "fc00::1",
        "fd00:ec2::254",
        "fdff::1",
        "fe80::1",
        "febf::1",
        "fec0::1",
        "ff02::1",
        "2001:db8::1",
        "100::1",
        "2606:4700::5efe:10.0.0.1",
        "2606:4700::200:5efe:c0a8:1",
    ];
    const PUBLIC: [&str; 14] = [
        "1.1.1.1",
        "8.8.8.8",
        "100.63.255.255",
        "100.128.0.1",
        "172.15.255.255",
        "172.32.0.1",
        "169.253.255.255",
        "192.167.1.1",
        "223.255.255.255",
        "2606:4700::1111",
        "2a00:1450::1",
        "::ffff:8.8.8.8",
        "64:ff9b::8.8.8.8",
        "2002:808:808::1",
    ];

    #[test]
    fn inner_addresses_are_refused_and_public_ones_are_not() {
        for text in INNER {
            assert!(Guard::Public.check(text.parse().unwrap()).is_err(), "{text} is let through");
            assert_eq!(Guard::Any.check(text.parse().unwrap()), Ok(()));
        }
        for text in PUBLIC {
            assert_eq!(Guard::Public.check(text.parse().unwrap()), Ok(()), "{text}");
        }
    }

    proptest! {
        /// Whatever form an IPv4 address takes as IPv6, what is said of it is the same.
        #[test]
        fn no_form_of_an_ipv4_address_says_more_than_the_address(bits: u32) {
            let v4 = Ipv4Addr::from(bits);
            let plain = Guard::Public.check(v4.into());
            let [a, b] = [(bits >> 16) as u16, bits as u16];
            let forms = [
                Ipv6Addr::new(0, 0, 0, 0, 0, 0xffff, a, b),
                Ipv6Addr::new(0, 0, 0, 0, 0xffff, 0, a, b),
                Ipv6Addr::new(0x64, 0xff9b, 0, 0, 0, 0, a, b),
                Ipv6Addr::new(0x2002, a, b, 0, 0, 0, 0, 1),
                Ipv6Addr::new(0x2606, 0x4700, 0, 0, 0, 0x5efe, a, b),
            ];
            for form in forms {
                prop_assert_eq!(Guard::Public.check(form.into()), plain, "{} {}", form, v4);
            }
        }

        /// No address of a private network gets through, whatever its lower bits.
        #[test]
        fn no_private_address_gets_through(bits: u128) {
            for (prefix, length) in [(0xfc00, 7), (0xfe80, 10), (0xff00, 8)] {
                let mask = u128::MAX << (128 - length);
                let address = Ipv6Addr::from(((prefix as u128) << 112) & mask | bits & !mask);
                prop_assert!(Guard::Public.check(address.into()).is_err(), "{}", address);
            }
        }
    }

    #[tokio::test]
    async fn names_are_judged_by_what_they_resolve_to() {
        for host in ["localhost", "127.0.0.1", "[::1]", "::1", "0x7f.1", "2130706433", "0"] {
            let trouble = Guard::Public.resolve(host, 80).await.unwrap_err();
            assert_eq!(trouble.class, Class::Permanent, "{trouble}");
            assert!(trouble.message.contains(REMEDY), "{trouble}");
        }
        assert_eq!(Guard::Operator.resolve("", 80).await.unwrap_err().class, Class::Permanent);
        let found = Guard::Operator.resolve("localhost", 80).await.unwrap();
        assert!(found.iter().all(|address| address.ip().is_loopback() && address.port() == 80));
    }
}
