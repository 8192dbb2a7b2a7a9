//! What gRPC lays over HTTP/2: messages with a prefix, and a status at the end.

use crate::problem::{Kind, Problem};
use axum::http::{HeaderMap, HeaderValue, Response, StatusCode};
use bytes::{Buf, BufMut, Bytes, BytesMut};
use everbeat_engine::pools::Refused;
use h2::server::SendResponse;
use h2::{RecvStream, SendStream};
use prost::Message;
use std::fmt::Write;
use std::future::poll_fn;

/// Larger messages of workers are refused: a value may have 4 MiB, and the rest is what stands around it.
pub(super) const MESSAGE_LIMIT: usize = (4 << 20) + (64 << 10);
/// A flag and a length stand before each message.
const PREFIX: usize = 5;
/// So much is offered to the connection at a time, so that other frames come in between.
const PART: usize = 64 << 10;

/// How a stream ends.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct Status {
    code: Code,
    message: String,
}

/// The codes of gRPC that this server uses.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Code {
    Ok = 0,
    InvalidArgument = 3,
    DeadlineExceeded = 4,
    PermissionDenied = 7,
    ResourceExhausted = 8,
    FailedPrecondition = 9,
    Unimplemented = 12,
    Unavailable = 14,
    Unauthenticated = 16,
}

impl Status {
    pub(super) fn new(code: Code, message: impl Into<String>) -> Status {
        Status { code, message: message.into() }
    }

    pub(super) fn invalid(message: impl Into<String>) -> Status {
        Status::new(Code::InvalidArgument, message)
    }

    pub(super) fn ok() -> Status {
        Status::new(Code::Ok, "")
    }

    pub(super) fn message(&self) -> &str {
        &self.message
    }

    fn write_to(&self, headers: &mut HeaderMap) {
        headers.insert("grpc-status", HeaderValue::from(self.code as u16));
        if let Ok(message) = HeaderValue::try_from(escaped(&self.message)) {
            headers.insert("grpc-message", message);
        }
    }
}

impl From<Refused> for Status {
    fn from(refused: Refused) -> Status {
        let code = match &refused {
            Refused::Stranger(_) => Code::Unauthenticated,
            Refused::Invalid(_) => Code::InvalidArgument,
            Refused::Over(_) => Code::FailedPrecondition,
            Refused::Later(_) => Code::Unavailable,
        };
        Status::new(code, refused.to_string())
    }
}

impl From<Problem> for Status {
    fn from(problem: Problem) -> Status {
        let code = match problem.kind() {
            Kind::Unauthenticated => Code::Unauthenticated,
            _ => Code::PermissionDenied,
        };
        Status::new(code, problem.told())
    }
}

/// Longer explanations are cut: a header has its bounds too.
const MOST_MESSAGE: usize = 1000;

/// As gRPC wants it: bytes other than visible ASCII, and the percent sign, by their numbers.
fn escaped(message: &str) -> String {
    let mut text = String::new();
    for byte in message[..message.floor_char_boundary(MOST_MESSAGE)].bytes() {
        match byte {
            b'%' | 0..=0x1f | 0x7f.. => _ = write!(text, "%{byte:02X}"),
            _ => text.push(char::from(byte)),
        }
    }
    text
}

/// Refuses a stream of which nothing was answered yet.
pub(super) fn refuse(respond: &mut SendResponse<Bytes>, status: &Status) {
    let mut response = head();
    status.write_to(response.headers_mut());
    let _nobody_listens = respond.send_response(response, true);
}

/// Begins to answer.
pub(super) fn accept(respond: &mut SendResponse<Bytes>) -> Result<SendStream<Bytes>, h2::Error> {
    respond.send_response(head(), false)
}

/// Ends a stream that was answered.
pub(super) fn end(outgoing: &mut SendStream<Bytes>, status: &Status) {
    let mut trailers = HeaderMap::new();
    status.write_to(&mut trailers);
    let _nobody_listens = outgoing.send_trailers(trailers);
}

fn head() -> Response<()> {
    let mut response = Response::new(());
    *response.status_mut() = StatusCode::OK;
    response.headers_mut().insert("content-type", HeaderValue::from_static("application/grpc"));
    response
}

/// Writes a message, as fast as it is read at the other end. False: nobody reads any more.
pub(super) async fn send(outgoing: &mut SendStream<Bytes>, message: &impl Message) -> bool {
    let mut frame = framed(message);
    while !frame.is_empty() {
        outgoing.reserve_capacity(frame.len().min(PART));
        if outgoing.capacity() == 0 && !matches!(poll_fn(|cx| outgoing.poll_capacity(cx)).await, Some(Ok(_))) {
            return false;
        }
        let part = frame.split_to(outgoing.capacity().min(frame.len()));
        if !part.is_empty() && outgoing.send_data(part, false).is_err() {
            return false;
        }
    }
    true
}

pub(super) fn framed(message: &impl Message) -> Bytes {
    let length = message.encoded_len();
    let mut frame = BytesMut::with_capacity(PREFIX + length);
    frame.put_u8(0);
    frame.put_u32(u32::try_from(length).unwrap_or(u32::MAX));
    // Only a buffer of a fixed size can be too small.
    let _it_fits = message.encode(&mut frame);
    frame.freeze()
}

/// The messages of a worker, one after the other.
pub(super) struct Incoming {
    stream: RecvStream,
    /// At most one message that is not whole yet, and one frame.
    buffer: BytesMut,
    /// What the worker may not send again yet.
    taken: usize,
}

impl Incoming {
    pub(super) fn new(stream: RecvStream) -> Incoming {
        Incoming { stream, buffer: BytesMut::new(), taken: 0 }
    }

    /// The next message; none when the worker has ended the stream. Whoever asks has dealt with the message before:
    /// only then the worker may send as much again. Of a message that is not whole yet no more than its bound is held.
    pub(super) async fn next<M: Message + Default>(&mut self, most: usize) -> Result<Option<M>, Status> {
        loop {
            if let Some(message) = whole(&mut self.buffer, most)? {
                let read = M::decode(message);
                return read.map(Some).map_err(|error| Status::invalid(format!("a message cannot be read: {error}")));
            }
            let taken = std::mem::take(&mut self.taken);
            let _the_stream_is_gone = self.stream.flow_control().release_capacity(taken);
            match self.stream.data().await {
                Some(Ok(part)) => {
                    self.taken += part.len();
                    self.buffer.extend_from_slice(&part);
                }
                Some(Err(error)) => return Err(Status::new(Code::Unavailable, format!("the stream broke: {error}"))),
                None if self.buffer.is_empty() => return Ok(None),
                None => return Err(Status::invalid("the stream ends within a message")),
            }
        }
    }
}

/// Takes the first message out of what has arrived, if all of it is there.
fn whole(buffer: &mut BytesMut, most: usize) -> Result<Option<Bytes>, Status> {
    let Some(mut prefix) = buffer.get(..PREFIX) else { return Ok(None) };
    match prefix.get_u8() {
        0 => {}
        1 => return Err(Status::new(Code::Unimplemented, "compressed messages are not understood")),
        flag => return Err(Status::invalid(format!("a message begins with the unknown flag {flag}"))),
    }
    let length = usize::try_from(prefix.get_u32()).unwrap_or(usize::MAX);
    if length > most {
        let problem = format!("a message has {length} bytes, more than {most}");
        return Err(Status::new(Code::ResourceExhausted, problem));
    }
    if buffer.len() < PREFIX + length {
        return Ok(None);
    }
    buffer.advance(PREFIX);
    let message = buffer.split_to(length).freeze();
    if buffer.is_empty() {
        // A large message leaves no large buffer behind.
        *buffer = BytesMut::new();
    }
    Ok(Some(message))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn messages_are_taken_one_by_one_and_only_when_they_are_whole() {
        let mut buffer = BytesMut::new();
        for (arrived, expected) in [
            (&[0, 0, 0][..], None),
            (&[0, 2][..], None),
            (&[7][..], None),
            (&[8, 0, 0, 0, 0, 0][..], Some(&[7, 8][..])),
            (&[][..], Some(&[][..])),
            (&[][..], None),
        ] {
            buffer.extend_from_slice(arrived);
            assert_eq!(whole(&mut buffer, 10).expect("fine").as_deref(), expected);
        }
        assert!(buffer.is_empty());
    }

    #[test]
    fn what_is_compressed_too_long_or_garbage_is_refused_before_it_is_read() {
        for (arrived, code) in [
            ([1, 0, 0, 0, 1], Code::Unimplemented),
            ([71, 69, 84, 32, 47], Code::InvalidArgument),
            ([0, 0, 0, 0, 11], Code::ResourceExhausted),
            ([0, 255, 255, 255, 255], Code::ResourceExhausted),
        ] {
            let refused = whole(&mut BytesMut::from(&arrived[..]), 10).expect_err("refused");
            assert_eq!(refused.code, code, "{refused:?}");
        }
    }

    #[test]
    fn a_status_stays_within_ascii() {
        assert_eq!(escaped("100 % über\n"), "100 %25 %C3%BCber%0A");
        assert!(escaped(&"ü".repeat(5000)).len() <= 3 * MOST_MESSAGE);
    }
}
