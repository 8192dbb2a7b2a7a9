use crate::dial::{roots, server_name};
use crate::target::decoded;
use crate::timely::within;
use crate::{Target, Trouble, shown};
use async_nats::jetstream::Context;
use async_nats::{ConnectError, ConnectErrorKind, ConnectOptions, ServerAddr};
use rustls_pki_types::{CertificateDer, ServerName, UnixTime};
use std::error::Error as _;
use std::path::Path;
use std::sync::Arc;
use std::time::Duration;
use tokio_rustls::rustls::client::WebPkiServerVerifier;
use tokio_rustls::rustls::client::danger::{HandshakeSignatureValid, ServerCertVerified, ServerCertVerifier};
use tokio_rustls::rustls::crypto::ring;
use tokio_rustls::rustls::{ClientConfig, DigitallySignedStruct, Error, SignatureScheme};

pub(super) const SCHEMES: &[&str] = &["nats", "tls"];
const DEFAULT_PORT: u16 = 4222;
const LONGEST_CONNECT: Duration = Duration::from_secs(10);
/// A server that takes longer to answer is away, or hangs.
pub(super) const LONGEST_ANSWER: Duration = Duration::from_secs(10);
/// A connection that is lost is opened again so often; then the attempt of the run ends, and the next one connects anew.
const MOST_CONNECTS: usize = 3;

/// A connection to a NATS server.
pub(super) struct Link {
    pub(super) context: Context,
    pub(super) shown: String,
}

impl Link {
    pub(super) async fn open(target: &Target) -> Result<Link, Trouble> {
        let url = target.url(SCHEMES)?;
        let shown = shown(url.as_str());
        let host = url.host_str().unwrap_or_default();
        // The client is given addresses, not the name, and is told of no others: none is connected to unchecked.
        let addresses = target.guard().resolve(host, url.port().unwrap_or(DEFAULT_PORT)).await?;
        let servers: Result<Vec<ServerAddr>, _> =
            addresses.iter().map(|address| format!("{}://{address}", url.scheme()).parse()).collect();
        let servers = servers.map_err(|error| Trouble::permanent(format!("NATS at {shown}: {error}")))?;
        let mut options = ConnectOptions::new()
            .name("everbeat")
            .ignore_discovered_servers()
            .max_reconnects(MOST_CONNECTS.max(servers.len()))
            .connection_timeout(LONGEST_CONNECT)
            .request_timeout(Some(LONGEST_ANSWER))
            .require_tls(url.scheme() == "tls")
            .tls_client_config(tls(host, target.ca())?);
        match (decoded(url.username()), url.password().map(decoded)) {
            (user, None) if user.is_empty() => {}
            (token, None) => options = options.token(token),
            (user, Some(password)) => options = options.user_and_password(user, password),
        }
        let connecting = within(LONGEST_CONNECT * 3, options.connect(servers)).await;
        let client = match connecting {
            Some(Ok(client)) => client,
            Some(Err(error)) => return Err(refused(&shown, &error)),
            None => return Err(Trouble::transient(format!("NATS at {shown} gave no answer"))),
        };
        let mut context = async_nats::jetstream::new(client);
        context.set_timeout(LONGEST_ANSWER);
        Ok(Link { context, shown })
    }

    /// What the server, or the way to it, says of a request.
    pub(super) fn transient(&self, error: &dyn std::fmt::Display) -> Trouble {
        Trouble::transient(format!("NATS at {}: {error}", self.shown))
    }

    pub(super) fn permanent(&self, error: &dyn std::fmt::Display, remedy: &str) -> Trouble {
        Trouble::permanent(format!("NATS at {}: {error}: {remedy}", self.shown))
    }
}

fn refused(shown: &str, error: &ConnectError) -> Trouble {
    match error.kind() {
        ConnectErrorKind::Authentication | ConnectErrorKind::AuthorizationViolation => {
            Trouble::permanent(format!("NATS at {shown}: {error}: check user and password"))
        }
        ConnectErrorKind::Tls | ConnectErrorKind::ServerParse => {
            Trouble::permanent(format!("NATS at {shown}: {error}: check the url and the certificate"))
        }
        _ if is_about_tls(error) => {
            Trouble::permanent(format!("NATS at {shown}: {error}: check the host's name and the connection's ca"))
        }
        _ => Trouble::transient(format!("NATS at {shown}: {error}")),
    }
}

/// Whether TLS itself was refused, such as a certificate. The client reports that like a broken connection.
fn is_about_tls(error: &ConnectError) -> bool {
    let mut cause = error.source();
    while let Some(error) = cause {
        let inner = error.downcast_ref::<std::io::Error>().and_then(std::io::Error::get_ref);
        if inner.is_some_and(|inner| inner.is::<Error>()) {
            return true;
        }
        cause = error.source();
    }
    false
}

/// TLS for a client that connects to addresses: certificates are checked against the host's name all the same.
fn tls(host: &str, ca: Option<&Path>) -> Result<ClientConfig, Trouble> {
    let refuse = |error: &dyn std::fmt::Display| Trouble::permanent(format!("no TLS on this server: {error}"));
    let provider = Arc::new(ring::default_provider());
    let inner = WebPkiServerVerifier::builder_with_provider(Arc::new(roots(ca)?), provider.clone())
        .build()
        .map_err(|error| refuse(&error))?;
    let verifier = Arc::new(Named { name: server_name(host)?, inner });
    let builder = ClientConfig::builder_with_provider(provider).with_safe_default_protocol_versions();
    let builder = builder.map_err(|error| refuse(&error))?;
    Ok(builder.dangerous().with_custom_certificate_verifier(verifier).with_no_client_auth())
}

/// Checks certificates as usual, for this name.
#[derive(Debug)]
struct Named {
    name: ServerName<'static>,
    inner: Arc<WebPkiServerVerifier>,
}

impl ServerCertVerifier for Named {
    fn verify_server_cert(
        &self,
        certificate: &CertificateDer<'_>,
        intermediates: &[CertificateDer<'_>],
        _address: &ServerName<'_>,
        ocsp: &[u8],
        now: UnixTime,
    ) -> Result<ServerCertVerified, Error> {
        self.inner.verify_server_cert(certificate, intermediates, &self.name, ocsp, now)
    }

    fn verify_tls12_signature(
        &self,
        message: &[u8],
        certificate: &CertificateDer<'_>,
        signature: &DigitallySignedStruct,
    ) -> Result<HandshakeSignatureValid, Error> {
        self.inner.verify_tls12_signature(message, certificate, signature)
    }

    fn verify_tls13_signature(
        &self,
        message: &[u8],
        certificate: &CertificateDer<'_>,
        signature: &DigitallySignedStruct,
    ) -> Result<HandshakeSignatureValid, Error> {
        self.inner.verify_tls13_signature(message, certificate, signature)
    }

    fn supported_verify_schemes(&self) -> Vec<SignatureScheme> {
        self.inner.supported_verify_schemes()
    }
}
