use crate::limits::MOST_CONNECTIONS;
use everbeat_model::Invalid;
use ipnet::IpNet;
use serde::Deserialize;
use std::net::{Ipv4Addr, SocketAddr};
use std::time::Duration;

/// How the server listens, whom it answers, and what it bounds.
#[derive(Clone, Debug)]
pub struct Config {
    pub listen: Vec<SocketAddr>,
    /// The largest request body, in bytes.
    pub body_limit: usize,
    /// No request takes longer, streams and waits apart, which have bounds of their own.
    pub request_timeout: Duration,
    /// Requests per second of one client address.
    pub rate_limit: Option<u32>,
    /// Connections at once. When one more comes, the one that has been idle for longest is closed.
    pub connections: usize,
    /// Refuse whatever would change something.
    pub read_only: bool,
    /// Without any, everything is open, on loopback only.
    pub tokens: Vec<Token>,
    /// If not empty, only clients from these networks are answered.
    pub allow: Vec<IpNet>,
    /// Proxies whose word about the client's address is taken.
    pub trusted_proxies: Vec<IpNet>,
}

/// A secret that opens some of the server, known by its hash only. Several may be in force at once, so
/// that one can replace another without a gap.
#[derive(Clone, Debug, PartialEq, Eq, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Token {
    pub name: String,
    /// Of the secret, in hexadecimal digits.
    pub sha256: String,
    pub scopes: Vec<Scope>,
    /// If not empty, the token is worth nothing from elsewhere.
    #[serde(default)]
    pub allow: Vec<IpNet>,
}

/// What a token opens. `admin` includes `read` and `submit`, and each of `read` and `admin` includes `metrics`.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Scope {
    Read,
    Submit,
    Heartbeat,
    Admin,
    Worker,
    Metrics,
}

impl Scope {
    pub const ALL: [Scope; 6] =
        [Scope::Read, Scope::Submit, Scope::Heartbeat, Scope::Admin, Scope::Worker, Scope::Metrics];

    pub fn as_str(self) -> &'static str {
        match self {
            Scope::Read => "read",
            Scope::Submit => "submit",
            Scope::Heartbeat => "heartbeat",
            Scope::Admin => "admin",
            Scope::Worker => "worker",
            Scope::Metrics => "metrics",
        }
    }

    pub(crate) fn includes(self, other: Scope) -> bool {
        match self {
            Scope::Admin => matches!(other, Scope::Admin | Scope::Read | Scope::Submit | Scope::Metrics),
            Scope::Read => matches!(other, Scope::Read | Scope::Metrics),
            Scope::Submit | Scope::Heartbeat | Scope::Worker | Scope::Metrics => self == other,
        }
    }
}

impl Default for Config {
    fn default() -> Config {
        Config {
            listen: vec![SocketAddr::from((Ipv4Addr::LOCALHOST, 7117))],
            body_limit: 4 << 20,
            request_timeout: Duration::from_secs(30),
            rate_limit: None,
            connections: MOST_CONNECTIONS,
            read_only: false,
            tokens: Vec::new(),
            allow: Vec::new(),
            trusted_proxies: Vec::new(),
        }
    }
}

impl Config {
    /// What must hold before the server may listen.
    pub fn check(&self) -> Result<(), Invalid> {
        self.listen.iter().try_for_each(|address| self.check_address("server.listen", *address))?;
        for token in &self.tokens {
            if token.digest().is_none() {
                let hint = "give the SHA-256 of the secret as 64 hexadecimal digits: printf %s SECRET | sha256sum";
                let problem = format!("of token {:?} is not a SHA-256", token.name);
                return Err(Invalid::new("auth.tokens.sha256", &token.sha256, problem, hint));
            }
            if token.scopes.is_empty() {
                let problem = format!("of token {:?} are none, so that it opens nothing", token.name);
                let hint = "name at least one of read, submit, heartbeat, admin, worker, metrics";
                return Err(Invalid::new("auth.tokens.scopes", "[]", problem, hint));
            }
        }
        if self.body_limit == 0 {
            return Err(Invalid::new("server.body_limit", 0, "is zero", "set it to at least \"1KiB\""));
        }
        if self.connections == 0 {
            return Err(Invalid::new("server.connections", 0, "is zero", "allow at least one connection"));
        }
        if self.request_timeout.is_zero() {
            return Err(Invalid::new("server.request_timeout", "0s", "is zero", "use a duration above zero"));
        }
        if self.rate_limit == Some(0) {
            return Err(Invalid::new("server.rate_limit", 0, "is zero", "leave it out to have no limit"));
        }
        Ok(())
    }

    /// Open to everybody is open to this machine only.
    pub fn check_address(&self, field: &str, address: SocketAddr) -> Result<(), Invalid> {
        if self.tokens.is_empty() && !address.ip().to_canonical().is_loopback() {
            return Err(Invalid::new(
                field,
                address,
                "is not a loopback address, and no token is configured, so that anybody could use this server",
                "configure auth.tokens, or listen on 127.0.0.1 or [::1]",
            ));
        }
        Ok(())
    }
}

impl Token {
    pub(crate) fn digest(&self) -> Option<[u8; 32]> {
        let text = self.sha256.as_bytes();
        if text.len() != 64 {
            return None;
        }
        let nibble = |digit: u8| char::from(digit).to_digit(16).and_then(|value| u8::try_from(value).ok());
        let mut digest = [0; 32];
        for (byte, pair) in digest.iter_mut().zip(text.chunks_exact(2)) {
            *byte = nibble(pair[0])? << 4 | nibble(pair[1])?;
        }
        Some(digest)
    }
}
