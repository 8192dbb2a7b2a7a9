use crate::dial::Duplex;
use std::io;
use std::pin::Pin;
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::task::{Context, Poll, ready};
use tokio::io::{AsyncRead, AsyncWrite, ReadBuf};

/// A stream that fails when one answer is larger than allowed: the server decides how much it sends, and all of it would
/// be held in memory.
pub(super) struct Meter {
    inner: Box<dyn Duplex>,
    left: Allowance,
}

/// How many bytes the present answer may still have.
#[derive(Clone)]
pub(super) struct Allowance(Arc<AtomicUsize>);

const MOST_ANSWER_BYTES: usize = 256 << 20;

impl Allowance {
    pub(super) fn renew(&self) {
        self.0.store(MOST_ANSWER_BYTES, Ordering::Relaxed);
    }
}

impl Meter {
    pub(super) fn new(inner: Box<dyn Duplex>) -> (Meter, Allowance) {
        let left = Allowance(Arc::new(AtomicUsize::new(MOST_ANSWER_BYTES)));
        (Meter { inner, left: left.clone() }, left)
    }
}

impl AsyncRead for Meter {
    fn poll_read(mut self: Pin<&mut Self>, cx: &mut Context<'_>, buffer: &mut ReadBuf<'_>) -> Poll<io::Result<()>> {
        let before = buffer.filled().len();
        ready!(Pin::new(&mut self.inner).poll_read(cx, buffer))?;
        let read = buffer.filled().len() - before;
        let left = self.left.0.load(Ordering::Relaxed);
        if read > left {
            let why = format!("an answer is larger than {MOST_ANSWER_BYTES} bytes");
            return Poll::Ready(Err(io::Error::other(why)));
        }
        self.left.0.store(left - read, Ordering::Relaxed);
        Poll::Ready(Ok(()))
    }
}

impl AsyncWrite for Meter {
    fn poll_write(mut self: Pin<&mut Self>, cx: &mut Context<'_>, bytes: &[u8]) -> Poll<io::Result<usize>> {
        Pin::new(&mut self.inner).poll_write(cx, bytes)
    }

    fn poll_flush(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        Pin::new(&mut self.inner).poll_flush(cx)
    }

    fn poll_shutdown(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        Pin::new(&mut self.inner).poll_shutdown(cx)
    }
}
