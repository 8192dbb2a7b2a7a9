//! Whom connectors trust.

#[path = "net/mod.rs"]
mod support;

use everbeat_flows::{Class, Settings};
use rustls_pki_types::pem::PemObject;
use rustls_pki_types::{CertificateDer, PrivateKeyDer};
use serde_json::json;
use std::io::{Read, Write};
use std::net::{SocketAddr, TcpListener};
use std::path::{Path, PathBuf};
use std::process::Command;
use std::sync::Arc;
use support::server::{Server, json as json_answer, secured};
use support::{ROOM, assert_trouble, open_source, operator, run_to_end, trouble_of};
use tokio_rustls::rustls::ServerConfig;
use tokio_rustls::rustls::crypto::ring;

/// A certificate for this name that nobody has signed, and what a server needs to show it.
fn certificate(folder: &Path, name: &str) -> (PathBuf, Arc<ServerConfig>) {
    let (cert, key) = (folder.join(format!("{name}.pem")), folder.join(format!("{name}.key")));
    let made = Command::new("openssl")
        .args(["req", "-x509", "-newkey", "ec", "-pkeyopt", "ec_paramgen_curve:prime256v1", "-nodes", "-days", "2"])
        .args(["-subj", &format!("/CN={name}"), "-addext", &format!("subjectAltName=DNS:{name}")])
        .args(["-addext", "basicConstraints=critical,CA:FALSE"])
        .arg("-keyout")
        .arg(&key)
        .arg("-out")
        .arg(&cert)
        .output()
        .expect("openssl");
    assert!(made.status.success(), "{}", String::from_utf8_lossy(&made.stderr));
    let chain = vec![CertificateDer::from_pem_file(&cert).unwrap()];
    let config = ServerConfig::builder_with_provider(Arc::new(ring::default_provider()))
        .with_safe_default_protocol_versions()
        .unwrap()
        .with_no_client_auth()
        .with_single_cert(chain, PrivateKeyDer::from_pem_file(&key).unwrap());
    (cert, Arc::new(config.unwrap()))
}

/// Settings of an operator who trusts this authority, too.
fn trusting(name: &str, url: &str, ca: Option<&Path>) -> Settings {
    let mut settings = operator(name, url);
    settings.connections.get_mut(name).unwrap().ca = ca.map(Path::to_path_buf);
    settings
}

#[tokio::test]
async fn http_servers_are_trusted_by_authority_and_name() {
    let folder = tempfile::tempdir().unwrap();
    let (ca, tls) = certificate(folder.path(), "localhost");
    let (other_ca, other_tls) = certificate(folder.path(), "other.example");
    let [server, other] =
        [tls, other_tls].map(|tls| Server::start_with(Some(tls), |_| json_answer(&json!([{"a": 1}]))));
    let source = json!({"type": "http"});
    let url = |server: &Server| format!("https://localhost:{}", server.address.port());
    let mut opened = open_source(&source, &trusting("http", &url(&server), Some(&ca)), None).await.unwrap();
    assert_eq!(run_to_end(&mut *opened, ROOM).await.unwrap().values(), [json!({"a": 1})]);
    for settings in [
        trusting("http", &url(&server), None),
        trusting("http", &url(&server), Some(&other_ca)),
        trusting("http", &url(&other), Some(&other_ca)),
    ] {
        assert_trouble(&trouble_of(&source, &settings).await, Class::Permanent, "no TLS with localhost");
    }
    assert_eq!(server.seen().len(), 1);
    let missing = trusting("http", &url(&server), Some(&folder.path().join("absent")));
    assert_trouble(&trouble_of(&source, &missing).await, Class::Permanent, "absent");
}

/// A NATS server that asks for TLS and then refuses everybody.
fn nats(tls: Arc<ServerConfig>) -> SocketAddr {
    let listener = TcpListener::bind("127.0.0.1:0").unwrap();
    let address = listener.local_addr().unwrap();
    std::thread::spawn(move || {
        for mut stream in listener.incoming().flatten() {
            let info = json!({
                "server_id": "x", "server_name": "x", "version": "2.9.0", "host": "127.0.0.1", "port": 4222, "proto": 1,
                "max_payload": 1024, "tls_required": true, "headers": true, "client_id": 1, "go": "",
            });
            stream.write_all(format!("INFO {info}\r\n").as_bytes()).unwrap();
            let mut stream = secured(stream, tls.clone());
            let mut some = [0; 1024];
            if stream.read(&mut some).is_ok_and(|read| read > 0) {
                let _ = stream.write_all(b"-ERR 'Authorization Violation'\r\n").and_then(|()| stream.flush());
            }
        }
    });
    address
}

#[tokio::test]
async fn nats_servers_are_trusted_by_authority_and_name_though_addresses_are_connected_to() {
    let folder = tempfile::tempdir().unwrap();
    let (ca, tls) = certificate(folder.path(), "localhost");
    let (other_ca, other_tls) = certificate(folder.path(), "other.example");
    let source = json!({"type": "nats", "stream": "s"});
    let url = |address: SocketAddr| format!("nats://u:hunter2@localhost:{}", address.port());
    let (server, other) = (url(nats(tls)), url(nats(other_tls)));
    // Whoever is refused for the password has shown it to a server that is trusted.
    let trusted = trouble_of(&source, &trusting("nats", &server, Some(&ca))).await;
    assert_trouble(&trusted, Class::Permanent, "check user and password");
    for settings in [trusting("nats", &server, None), trusting("nats", &other, Some(&other_ca))] {
        assert_trouble(&trouble_of(&source, &settings).await, Class::Permanent, "certificate");
    }
}
