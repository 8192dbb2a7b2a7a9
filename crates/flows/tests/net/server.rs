//! Small servers that answer as a test wants.

use std::io::{BufRead, BufReader, Read, Write};
use std::net::{SocketAddr, TcpListener, TcpStream};
use std::sync::{Arc, Mutex};
use tokio_rustls::rustls::{ServerConfig, ServerConnection, StreamOwned};

/// A request as it came.
#[derive(Clone, Debug)]
pub(crate) struct Request {
    pub(crate) line: String,
    /// Names in lower case.
    pub(crate) headers: Vec<(String, String)>,
    pub(crate) body: String,
}

impl Request {
    pub(crate) fn header(&self, name: &str) -> Option<&str> {
        self.headers.iter().find(|(known, _)| known == name).map(|(_, value)| value.as_str())
    }

    pub(crate) fn path(&self) -> &str {
        self.line.split(' ').nth(1).unwrap_or_default()
    }
}

pub(crate) struct Server {
    pub(crate) address: SocketAddr,
    seen: Arc<Mutex<Vec<Request>>>,
}

impl Server {
    /// An HTTP server. What `answer` gives is sent as it is; nothing at all closes the connection.
    pub(crate) fn start(answer: impl Fn(&Request) -> Vec<u8> + Send + Sync + 'static) -> Server {
        Server::start_with(None, answer)
    }

    pub(crate) fn start_with(
        tls: Option<Arc<ServerConfig>>,
        answer: impl Fn(&Request) -> Vec<u8> + Send + Sync + 'static,
    ) -> Server {
        let listener = TcpListener::bind("127.0.0.1:0").unwrap();
        let address = listener.local_addr().unwrap();
        let seen: Arc<Mutex<Vec<Request>>> = Arc::default();
        let (answer, noted) = (Arc::new(answer), seen.clone());
        std::thread::spawn(move || {
            for stream in listener.incoming().flatten() {
                let (answer, noted) = (answer.clone(), noted.clone());
                let tls = tls.clone();
                std::thread::spawn(move || match tls {
                    None => serve(stream, &*answer, &noted),
                    Some(tls) => serve(secured(stream, tls), &*answer, &noted),
                });
            }
        });
        Server { address, seen }
    }

    pub(crate) fn url(&self) -> String {
        format!("http://{}", self.address)
    }

    pub(crate) fn seen(&self) -> Vec<Request> {
        self.seen.lock().unwrap().clone()
    }
}

pub(crate) fn secured(stream: TcpStream, tls: Arc<ServerConfig>) -> impl Read + Write {
    StreamOwned::new(ServerConnection::new(tls).unwrap(), stream)
}

fn serve(stream: impl Read + Write, answer: &dyn Fn(&Request) -> Vec<u8>, seen: &Mutex<Vec<Request>>) {
    let mut reader = BufReader::new(stream);
    while let Some(request) = read_request(&mut reader) {
        let answer = answer(&request);
        seen.lock().unwrap().push(request);
        let stream = reader.get_mut();
        if answer.is_empty() || stream.write_all(&answer).and_then(|()| stream.flush()).is_err() {
            return;
        }
    }
}

fn read_request(reader: &mut impl BufRead) -> Option<Request> {
    let mut line = || {
        let mut line = String::new();
        reader.read_line(&mut line).ok().filter(|read| *read > 0)?;
        Some(line.trim_end().to_string())
    };
    let first = line()?;
    let mut headers = Vec::new();
    loop {
        let line = line()?;
        let Some((name, value)) = line.split_once(": ") else { break };
        headers.push((name.to_lowercase(), value.to_string()));
    }
    let length =
        headers.iter().find(|(name, _)| name == "content-length").map_or(0, |(_, value)| value.parse().unwrap());
    let mut body = vec![0; length];
    reader.read_exact(&mut body).ok()?;
    Some(Request { line: first, headers, body: String::from_utf8(body).unwrap() })
}

pub(crate) fn answer(status: &str, headers: &str, body: &str) -> Vec<u8> {
    format!("HTTP/1.1 {status}\r\n{headers}content-length: {}\r\n\r\n{body}", body.len()).into_bytes()
}

pub(crate) fn json(body: &serde_json::Value) -> Vec<u8> {
    answer("200 OK", "content-type: application/json\r\n", &body.to_string())
}

/// A server that sends this to whoever connects, and again whenever it is asked something.
pub(crate) fn babbler(greeting: &'static [u8], babble: &'static [u8]) -> SocketAddr {
    let listener = TcpListener::bind("127.0.0.1:0").unwrap();
    let address = listener.local_addr().unwrap();
    std::thread::spawn(move || {
        for mut stream in listener.incoming().flatten() {
            let mut some = [0; 1024];
            let _ = stream.write_all(greeting);
            while stream.read(&mut some).is_ok_and(|read| read > 0) {
                let _ = stream.write_all(babble);
            }
        }
    });
    address
}

/// An address where nobody listens.
pub(crate) fn nobody() -> SocketAddr {
    TcpListener::bind("127.0.0.1:0").unwrap().local_addr().unwrap()
}
