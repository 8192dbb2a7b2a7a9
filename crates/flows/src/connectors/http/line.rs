use crate::dial::dial;
use crate::{Guard, Trouble};
use bytes::Bytes;
use http_body_util::{BodyExt, Full, LengthLimitError, Limited};
use hyper::body::Body;
use hyper::client::conn::http1::{SendRequest, handshake};
use hyper::header::HeaderMap;
use hyper::{Request, Response, StatusCode};
use hyper_util::rt::TokioIo;
use std::pin::Pin;
use std::sync::Arc;
use tokio_rustls::rustls::ClientConfig;
use url::Origin;

/// A larger answer is refused: all of it would be held in memory.
pub(super) const MOST_ANSWER_BYTES: usize = 32 << 20;

/// One connection to a server, kept from one request to the next. Nothing of it goes on in the background: it moves while
/// somebody asks.
pub(super) struct Line {
    origin: Origin,
    sender: SendRequest<Full<Bytes>>,
    /// Carries requests and answers. None when it has ended.
    driver: Option<Pin<Box<dyn Future<Output = ()> + Send>>>,
}

/// What a server answered.
pub(super) struct Answer {
    pub(super) status: StatusCode,
    pub(super) headers: HeaderMap,
    pub(super) body: Bytes,
}

/// Why there is no answer.
pub(super) enum Broken {
    /// Nothing of the request was sent: it may be sent again.
    Unsent(Box<Request<Full<Bytes>>>),
    /// The connection ended before the answer did.
    Cut(String),
    /// The answer is larger than allowed.
    Large,
    /// What came is no answer.
    Garbage(String),
}

impl Line {
    pub(super) async fn open(
        guard: Guard,
        origin: &Origin,
        host: &str,
        port: u16,
        tls: Option<&Arc<ClientConfig>>,
    ) -> Result<Line, Trouble> {
        let stream = dial(guard, host, port, tls).await?;
        let (sender, connection) = handshake(TokioIo::new(stream))
            .await
            .map_err(|error| Trouble::transient(format!("cannot speak HTTP with {host}:{port}: {error}")))?;
        let driver = Box::pin(async move {
            // What went wrong is told to whoever waits for the answer.
            let _ = connection.await;
        });
        Ok(Line { origin: origin.clone(), sender, driver: Some(driver) })
    }

    /// Whether another request to this place may go this way.
    pub(super) fn leads_to(&self, origin: &Origin) -> bool {
        self.driver.is_some() && self.origin == *origin && !self.sender.is_closed()
    }

    pub(super) async fn ask(&mut self, request: Request<Full<Bytes>>) -> Result<Answer, Broken> {
        let Line { sender, driver, .. } = self;
        let exchange = async {
            if sender.ready().await.is_err() {
                return Err(Broken::Unsent(Box::new(request)));
            }
            match sender.try_send_request(request).await {
                Ok(response) => collect(response).await,
                Err(mut error) => Err(match error.take_message() {
                    Some(request) => Broken::Unsent(Box::new(request)),
                    None => broken(&error.into_error()),
                }),
            }
        };
        tokio::pin!(exchange);
        loop {
            let Some(driving) = driver.as_mut() else { return exchange.await };
            tokio::select! {
                biased;
                answer = &mut exchange => return answer,
                () = driving => *driver = None,
            }
        }
    }
}

async fn collect(response: Response<hyper::body::Incoming>) -> Result<Answer, Broken> {
    let (parts, body) = response.into_parts();
    if body.size_hint().lower() > MOST_ANSWER_BYTES as u64 {
        return Err(Broken::Large);
    }
    match Limited::new(body, MOST_ANSWER_BYTES).collect().await {
        Ok(body) => Ok(Answer { status: parts.status, headers: parts.headers, body: body.to_bytes() }),
        Err(error) if error.is::<LengthLimitError>() => Err(Broken::Large),
        Err(error) => Err(Broken::Cut(error.to_string())),
    }
}

fn broken(error: &hyper::Error) -> Broken {
    if error.is_parse() { Broken::Garbage(error.to_string()) } else { Broken::Cut(error.to_string()) }
}
