//! Connections to addresses that the guard has let through, plain or with TLS.

use crate::timely::within;
use crate::{Guard, Trouble};
use rustls_pki_types::pem::PemObject;
use rustls_pki_types::{CertificateDer, ServerName};
use std::path::Path;
use std::sync::Arc;
use std::time::Duration;
use tokio::io::{AsyncRead, AsyncWrite};
use tokio::net::{TcpStream, UnixStream};
use tokio_rustls::TlsConnector;
use tokio_rustls::rustls::crypto::ring;
use tokio_rustls::rustls::{ClientConfig, RootCertStore};

/// Bytes in both directions.
pub(crate) trait Duplex: AsyncRead + AsyncWrite + Unpin + Send {}
impl<T: AsyncRead + AsyncWrite + Unpin + Send> Duplex for T {}

/// One address that does not answer must not use up the time of the others.
const LONGEST_CONNECT: Duration = Duration::from_secs(10);

/// Connects to the first address of the host that answers.
pub(crate) async fn dial(
    guard: Guard,
    host: &str,
    port: u16,
    tls: Option<&Arc<ClientConfig>>,
) -> Result<Box<dyn Duplex>, Trouble> {
    let mut last = None;
    for address in guard.resolve(host, port).await? {
        match within(LONGEST_CONNECT, TcpStream::connect(address)).await {
            Some(Ok(stream)) => {
                // Without it small requests wait for the answers of earlier ones. A stream works without it, too.
                let _ = stream.set_nodelay(true);
                return match tls {
                    None => Ok(Box::new(stream)),
                    Some(tls) => secure(stream, host, tls).await,
                };
            }
            Some(Err(error)) => last = Some(error.to_string()),
            None => last = Some("no answer".to_string()),
        }
    }
    let why = last.unwrap_or_else(|| "no address".to_string());
    Err(Trouble::transient(format!("cannot connect to {host}:{port}: {why}")))
}

pub(crate) async fn dial_unix(path: &str) -> Result<Box<dyn Duplex>, Trouble> {
    match within(LONGEST_CONNECT, UnixStream::connect(path)).await {
        Some(Ok(stream)) => Ok(Box::new(stream)),
        Some(Err(error)) => Err(Trouble::transient(format!("cannot connect to {path}: {error}"))),
        None => Err(Trouble::transient(format!("cannot connect to {path}: no answer"))),
    }
}

async fn secure(stream: TcpStream, host: &str, tls: &Arc<ClientConfig>) -> Result<Box<dyn Duplex>, Trouble> {
    let handshake = TlsConnector::from(tls.clone()).connect(server_name(host)?, stream);
    match within(LONGEST_CONNECT, handshake).await {
        Some(Ok(stream)) => Ok(Box::new(stream)),
        // Rustls reports what it refuses itself, such as a certificate, as invalid data.
        Some(Err(error)) if error.kind() == std::io::ErrorKind::InvalidData => {
            Err(Trouble::permanent(format!("no TLS with {host}: {error}")))
        }
        Some(Err(error)) => Err(Trouble::transient(format!("no TLS with {host}: {error}"))),
        None => Err(Trouble::transient(format!("no TLS with {host}: no answer"))),
    }
}

pub(crate) fn server_name(host: &str) -> Result<ServerName<'static>, Trouble> {
    ServerName::try_from(host.trim_matches(['[', ']']).to_string())
        .map_err(|_| Trouble::permanent(format!("{host} is no name that a certificate can have")))
}

/// Public authorities, and those of a file.
pub(crate) fn roots(ca: Option<&Path>) -> Result<RootCertStore, Trouble> {
    let mut roots = RootCertStore { roots: webpki_roots::TLS_SERVER_ROOTS.to_vec() };
    if let Some(path) = ca {
        let refuse = |error: &dyn std::fmt::Display| {
            Trouble::permanent(format!("cannot read the certificates of {}: {error}", path.display()))
        };
        for certificate in CertificateDer::pem_file_iter(path).map_err(|error| refuse(&error))? {
            let certificate = certificate.map_err(|error| refuse(&error))?;
            roots.add(certificate).map_err(|error| refuse(&error))?;
        }
    }
    Ok(roots)
}

pub(crate) fn tls(ca: Option<&Path>) -> Result<Arc<ClientConfig>, Trouble> {
    let provider = Arc::new(ring::default_provider());
    let builder = ClientConfig::builder_with_provider(provider).with_safe_default_protocol_versions();
    let builder = builder.map_err(|error| Trouble::permanent(format!("no TLS on this server: {error}")))?;
    Ok(Arc::new(builder.with_root_certificates(roots(ca)?).with_no_client_auth()))
}
