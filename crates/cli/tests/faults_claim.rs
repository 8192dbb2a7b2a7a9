//! The connection breaks after a claim was committed and before its answer arrived.

mod common;
mod postgres;

use common::{FINISH, Server, quick, until};
use postgres::Postgres;
use serde_json::{Value, json};
use std::io::{Read, Write};
use std::net::{Shutdown, TcpListener, TcpStream};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

/// A claim's answer is the only one of its connection with so many columns.
const COLUMNS_OF_A_CLAIM: u16 = 6;

#[test]
fn a_claim_whose_answer_was_lost_is_found_and_released_by_its_owners_next_sweep() {
    let postgres = Postgres::start();
    let proxy = Proxy::start(postgres.port());
    let server = Server::start(quick().store(format!("postgres://postgres@127.0.0.1:{}/postgres", proxy.port)));
    let owner = server.replica_id();

    proxy.armed.store(true, Ordering::SeqCst);
    // The connection that breaks may be the one on which this is still to be answered: the key makes asking again safe.
    let body = json!({ "task": "echo", "input": "found", "policy": { "max_attempts": 1 } });
    let run = until(FINISH, "the submission is answered", || {
        let (status, run) = server.post_with("/api/v1/runs", &body, &[("Idempotency-Key", "once")]);
        assert!([200, 201, 503].contains(&status), "{status} {run}");
        run["id"].as_str().map(ToString::to_string)
    });
    until(FINISH, "a claim's answer is cut off", || (!proxy.armed.load(Ordering::SeqCst)).then_some(()));

    let finished = server.wait(&run);
    assert_eq!(
        (&finished["state"], &finished["result"], &finished["attempt"]),
        (&json!("succeeded"), &json!("found"), &json!(2))
    );
    let attempts = server.get(&format!("/api/v1/runs/{run}/attempts"));
    let first = &attempts["items"][0];
    assert_eq!(
        (&first["outcome"], &first["error"]["reason"], &first["replica_id"]),
        (&json!("released"), &json!("not_performed"), &Value::from(owner))
    );
    assert_eq!(server.get("/api/v1/verdicts")["items"], json!([]), "the owner was alive all the time");
    server.assert_sound();
}

/// Passes connections on to the database, and once, when armed, cuts the one on which a claim is
/// being answered.
struct Proxy {
    port: u16,
    armed: Arc<AtomicBool>,
}

impl Proxy {
    fn start(database: u16) -> Proxy {
        let listener = TcpListener::bind("127.0.0.1:0").unwrap();
        let proxy = Proxy { port: listener.local_addr().unwrap().port(), armed: Arc::default() };
        let armed = proxy.armed.clone();
        std::thread::spawn(move || {
            for client in listener.incoming().flatten() {
                let Ok(server) = TcpStream::connect(("127.0.0.1", database)) else { continue };
                let (mut from_client, mut to_server) = (client.try_clone().unwrap(), server.try_clone().unwrap());
                std::thread::spawn(move || {
                    let _either_side_ended = std::io::copy(&mut from_client, &mut to_server);
                    let _already_closed = to_server.shutdown(Shutdown::Both);
                });
                let armed = armed.clone();
                std::thread::spawn(move || answers(server, client, &armed));
            }
        });
        proxy
    }
}

/// Passes the server's messages on one by one.
fn answers(mut server: TcpStream, mut client: TcpStream, armed: &AtomicBool) {
    // The answer to the request for encryption has no length: one byte.
    let mut head = [0; 5];
    let mut begun = false;
    loop {
        if !begun {
            let mut first = [0; 1];
            if server.read_exact(&mut first).is_err() {
                break;
            }
            begun = true;
            if first == *b"N" {
                begun = client.write_all(&first).is_err();
                continue;
            }
            head[0] = first[0];
            if server.read_exact(&mut head[1..]).is_err() {
                break;
            }
        } else if server.read_exact(&mut head).is_err() {
            break;
        }
        let length = u32::from_be_bytes([head[1], head[2], head[3], head[4]]) as usize;
        let mut body = vec![0; length - 4];
        if server.read_exact(&mut body).is_err() {
            break;
        }
        let columns = if head[0] == b'D' { u16::from_be_bytes([body[0], body[1]]) } else { 0 };
        if columns >= COLUMNS_OF_A_CLAIM && is_claim(&body) && armed.swap(false, Ordering::SeqCst) {
            // The statement is over on the server: its rows are sent after it has been committed or
            // just before; waiting for the rest of the answer makes it certain.
            let mut rest = Vec::new();
            let _cut_off = server.set_read_timeout(Some(Duration::from_millis(200)));
            let _until_silence = server.read_to_end(&mut rest);
            break;
        }
        if client.write_all(&head).and_then(|()| client.write_all(&body)).is_err() {
            break;
        }
    }
    let _already_closed = (server.shutdown(Shutdown::Both), client.shutdown(Shutdown::Both));
}

/// A claim answers with the run's input and task.
fn is_claim(row: &[u8]) -> bool {
    row.windows(7).any(|part| part == b"\"found\"") && row.windows(4).any(|part| part == b"echo")
}
