//! Opening a PostgreSQL store: what cannot get better by waiting is told at once, by its cause.

mod support;

use everbeat_store::{Cause, Error};
use everbeat_store_sql::{Postgres, PostgresOptions};
use support::{Database, server_url};
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::TcpListener;

async fn refusal(url: &str, options: PostgresOptions) -> (Cause, String) {
    match Postgres::open(url, options).await {
        Err(Error::Refused(cause, said)) => (cause, said),
        Err(error) => panic!("{error:?}"),
        Ok(_) => panic!("it was opened"),
    }
}

/// The URL of the server, for another user.
fn as_user(url: &str, user: &str) -> String {
    let (_, place) = url.split_once('@').expect("a user in the URL");
    format!("postgres://{user}@{place}")
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn an_unknown_database_or_role_and_missing_rights_are_told_apart() {
    let database = Database::create().await;
    let name = &database.schema;
    let server = server_url();
    let (place, _) = server.rsplit_once('/').expect("a database in the URL");
    let (cause, said) = refusal(&format!("{place}/does_not_exist"), database.options()).await;
    assert!(cause == Cause::NoDatabase && said.contains("does_not_exist"), "{cause:?} {said}");
    let (cause, said) = refusal(&as_user(&database.url, "nobody_of_that_name"), database.options()).await;
    assert!(cause == Cause::Login && said.contains("nobody_of_that_name"), "{cause:?} {said}");
    let role = format!("{name}_{}", std::process::id());
    let admin = database.session().await;
    admin.batch_execute(&format!("create role {role} login")).await.expect("a role without rights");
    let (cause, said) = refusal(&as_user(&database.url, &role), database.options()).await;
    assert!(cause == Cause::Rights, "{cause:?} {said}");
    admin.batch_execute(&format!("drop role {role}")).await.expect("drop the role");
}

/// A server that answers the first messages of a client with these bytes, one after the other.
async fn scripted(answers: &'static [&'static [u8]]) -> String {
    let listener = TcpListener::bind("127.0.0.1:0").await.expect("a port");
    let port = listener.local_addr().expect("its address").port();
    tokio::task::spawn_blocking(move || {
        tokio::runtime::Handle::current().block_on(async move {
            while let Ok((mut socket, _)) = listener.accept().await {
                for answer in answers {
                    let mut asked = [0; 1024];
                    let _whatever_it_says = socket.read(&mut asked).await;
                    let _it_may_be_gone = socket.write_all(answer).await;
                }
            }
        });
    });
    format!("postgres://u@127.0.0.1:{port}/d")
}

/// `AuthenticationSASL` with SCRAM-SHA-256.
const ASKS_FOR_PASSWORD: &[u8] = b"R\0\0\0\x17\0\0\0\x0aSCRAM-SHA-256\0\0";
/// SQLSTATE 28P01.
const WRONG_PASSWORD: &[u8] = b"E\0\0\0\x2aSFATAL\0VFATAL\0C28P01\0Mnot so, friend\0\0";
/// SQLSTATE 57P03.
const STARTING: &[u8] = b"E\0\0\0\x27SFATAL\0VFATAL\0C57P03\0Mstarting up\0\0";

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_missing_or_wrong_password_is_no_matter_of_waiting() {
    let url = scripted(&[b"N", ASKS_FOR_PASSWORD]).await;
    let (cause, said) = refusal(&url, PostgresOptions::default()).await;
    assert!(cause == Cause::Login && said.contains("password missing"), "{cause:?} {said}");
    let url = scripted(&[b"N", WRONG_PASSWORD]).await;
    let (cause, said) = refusal(&url, PostgresOptions::default()).await;
    assert!(cause == Cause::Login && said.contains("28P01"), "{cause:?} {said}");
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_server_without_tls_is_refused_when_it_is_required() {
    let url = scripted(&[b"N"]).await;
    for mode in ["require", "verify-full"] {
        let (cause, said) = refusal(&format!("{url}?sslmode={mode}"), PostgresOptions::default()).await;
        assert!(cause == Cause::Tls && said.contains("TLS"), "{cause:?} {said}");
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_server_that_is_starting_or_not_there_is_worth_waiting_for() {
    let url = scripted(&[b"N", STARTING]).await;
    let opened = Postgres::open(&url, PostgresOptions::default()).await;
    assert!(matches!(opened, Err(Error::Unavailable { .. })), "{:?}", opened.err());
    let free = TcpListener::bind("127.0.0.1:0").await.expect("a port").local_addr().expect("its address").port();
    let opened = Postgres::open(&format!("postgres://u@127.0.0.1:{free}/d"), PostgresOptions::default()).await;
    assert!(matches!(opened, Err(Error::Unavailable { .. })), "{:?}", opened.err());
}
