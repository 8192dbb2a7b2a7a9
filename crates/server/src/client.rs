use axum::http::HeaderMap;
use ipnet::IpNet;
use std::net::{IpAddr, SocketAddr};

/// The address that a request really comes from. A forwarding header counts only as far as trusted
/// proxies wrote it: read from the right, the first address that is none of theirs is the client. None,
/// if it cannot be known.
pub(crate) fn address(peer: Option<SocketAddr>, headers: &HeaderMap, trusted: &[IpNet]) -> Option<IpAddr> {
    let mut client = peer?.ip().to_canonical();
    let hops: Vec<&[u8]> = headers
        .get_all("x-forwarded-for")
        .into_iter()
        .flat_map(|value| value.as_bytes().split(|byte| *byte == b','))
        .collect();
    for hop in hops.into_iter().rev() {
        if !within(trusted, client) {
            break;
        }
        client = parse(hop)?;
    }
    Some(client)
}

pub(crate) fn within(nets: &[IpNet], address: IpAddr) -> bool {
    nets.iter().any(|net| net.contains(&address))
}

/// `10.0.0.1`, `10.0.0.1:80`, `2001:db8::1` or `[2001:db8::1]:80`.
fn parse(hop: &[u8]) -> Option<IpAddr> {
    let text = std::str::from_utf8(hop).ok()?.trim();
    let address = text.parse::<IpAddr>().or_else(|_| text.parse::<SocketAddr>().map(|address| address.ip()));
    address.ok().map(|address| address.to_canonical())
}

#[cfg(test)]
mod tests {
    use super::*;
    use axum::http::HeaderValue;

    fn check(peer: &str, forwarded: &[&'static str], expected: Option<&str>) {
        let mut headers = HeaderMap::new();
        forwarded.iter().for_each(|value| _ = headers.append("x-forwarded-for", HeaderValue::from_static(value)));
        let trusted = ["10.0.0.0/8".parse().expect("net"), "::1/128".parse().expect("net")];
        let found = address(Some(peer.parse().expect("address")), &headers, &trusted);
        assert_eq!(found, expected.map(|text| text.parse().expect("address")), "{peer} {forwarded:?}");
    }

    #[test]
    fn only_trusted_proxies_are_believed_and_only_the_last_foreign_hop() {
        check("192.0.2.1:5", &["127.0.0.1"], Some("192.0.2.1"));
        check("10.1.1.1:5", &[], Some("10.1.1.1"));
        check("10.1.1.1:5", &["127.0.0.1, 198.51.100.7"], Some("198.51.100.7"));
        check("10.1.1.1:5", &["127.0.0.1", "198.51.100.7, 10.2.2.2"], Some("198.51.100.7"));
        check("10.1.1.1:5", &["10.3.3.3, 10.2.2.2"], Some("10.3.3.3"));
        check("10.1.1.1:5", &["198.51.100.7:1234"], Some("198.51.100.7"));
        check("[::1]:5", &["[2001:db8::1]:80"], Some("2001:db8::1"));
        check("[::ffff:10.1.1.1]:5", &["::ffff:198.51.100.7"], Some("198.51.100.7"));
        check("10.1.1.1:5", &["127.0.0.1, nonsense"], None);
    }
}
