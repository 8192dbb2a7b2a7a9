//! Encryption of connections.

use everbeat_store::{Cause, Error, Result};
use futures_util::FutureExt;
use futures_util::future::BoxFuture;
use rustls::client::danger::{HandshakeSignatureValid, ServerCertVerified, ServerCertVerifier};
use rustls::crypto::{CryptoProvider, verify_tls12_signature, verify_tls13_signature};
use rustls::pki_types::pem::PemObject;
use rustls::pki_types::{CertificateDer, ServerName, UnixTime};
use rustls::{ClientConfig, DigitallySignedStruct, RootCertStore, SignatureScheme};
use std::path::PathBuf;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use tokio_postgres::Socket;
use tokio_postgres::config::SslMode;
use tokio_postgres::tls::{MakeTlsConnect, TlsConnect};
use tokio_postgres_rustls::MakeRustlsConnect;

/// `sslmode=require` checks the server's certificate; `prefer` takes any, as libpq does: it guards
/// against listeners, not against impostors, and works with the certificate a server came with.
pub(super) fn connector(mode: SslMode, root_certificates: Option<PathBuf>) -> Result<Connector> {
    let provider = Arc::new(rustls::crypto::ring::default_provider());
    let refused = |error: rustls::Error| Error::Refused(Cause::Tls, format!("cannot set up TLS: {error}"));
    let builder =
        ClientConfig::builder_with_provider(provider.clone()).with_safe_default_protocol_versions().map_err(refused)?;
    let config = if mode == SslMode::Require {
        builder.with_root_certificates(roots(root_certificates)?).with_no_client_auth()
    } else {
        let any = Arc::new(AnyCertificate(provider));
        builder.dangerous().with_custom_certificate_verifier(any).with_no_client_auth()
    };
    Ok(Connector { inner: MakeRustlsConnect::new(config), agreed: Arc::default() })
}

/// Notes whether a connection is encrypted: an error of the driver does not say how far it came.
#[derive(Clone)]
pub(super) struct Connector {
    inner: MakeRustlsConnect,
    agreed: Arc<AtomicBool>,
}

impl Connector {
    /// For one connection.
    pub(super) fn fresh(&self) -> Connector {
        Connector { inner: self.inner.clone(), agreed: Arc::default() }
    }

    pub(super) fn agreed(&self) -> bool {
        self.agreed.load(Ordering::Relaxed)
    }
}

type Maker = <MakeRustlsConnect as MakeTlsConnect<Socket>>::TlsConnect;
type Secured = <MakeRustlsConnect as MakeTlsConnect<Socket>>::Stream;

impl MakeTlsConnect<Socket> for Connector {
    type Stream = Secured;
    type TlsConnect = Noted;
    type Error = <MakeRustlsConnect as MakeTlsConnect<Socket>>::Error;

    fn make_tls_connect(&mut self, host: &str) -> std::result::Result<Noted, Self::Error> {
        let inner = MakeTlsConnect::<Socket>::make_tls_connect(&mut self.inner, host)?;
        Ok(Noted { inner, agreed: self.agreed.clone() })
    }
}

pub(super) struct Noted {
    inner: Maker,
    agreed: Arc<AtomicBool>,
}

impl TlsConnect<Socket> for Noted {
    type Stream = Secured;
    type Error = <Maker as TlsConnect<Socket>>::Error;
    type Future = BoxFuture<'static, std::result::Result<Secured, Self::Error>>;

    fn connect(self, socket: Socket) -> Self::Future {
        async move {
            let secured = self.inner.connect(socket).await?;
            self.agreed.store(true, Ordering::Relaxed);
            Ok(secured)
        }
        .boxed()
    }
}

fn roots(extra: Option<PathBuf>) -> Result<RootCertStore> {
    let mut roots = RootCertStore { roots: webpki_roots::TLS_SERVER_ROOTS.to_vec() };
    if let Some(path) = &extra {
        let refused = |error: &dyn std::fmt::Display| {
            Error::Refused(Cause::Tls, format!("cannot read certificates of {}: {error}", path.display()))
        };
        for certificate in CertificateDer::pem_file_iter(path).map_err(|error| refused(&error))? {
            roots.add(certificate.map_err(|error| refused(&error))?).map_err(|error| refused(&error))?;
        }
    }
    Ok(roots)
}

#[derive(Debug)]
struct AnyCertificate(Arc<CryptoProvider>);

impl ServerCertVerifier for AnyCertificate {
    fn verify_server_cert(
        &self,
        _certificate: &CertificateDer<'_>,
        _intermediates: &[CertificateDer<'_>],
        _server: &ServerName<'_>,
        _ocsp: &[u8],
        _now: UnixTime,
    ) -> std::result::Result<ServerCertVerified, rustls::Error> {
        Ok(ServerCertVerified::assertion())
    }

    fn verify_tls12_signature(
        &self,
        message: &[u8],
        certificate: &CertificateDer<'_>,
        signature: &DigitallySignedStruct,
    ) -> std::result::Result<HandshakeSignatureValid, rustls::Error> {
        verify_tls12_signature(message, certificate, signature, &self.0.signature_verification_algorithms)
    }

    fn verify_tls13_signature(
        &self,
        message: &[u8],
        certificate: &CertificateDer<'_>,
        signature: &DigitallySignedStruct,
    ) -> std::result::Result<HandshakeSignatureValid, rustls::Error> {
        verify_tls13_signature(message, certificate, signature, &self.0.signature_verification_algorithms)
    }

    fn supported_verify_schemes(&self) -> Vec<SignatureScheme> {
        self.0.signature_verification_algorithms.supported_schemes()
    }
}
