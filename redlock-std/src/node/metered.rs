//! What a node may send: no more than what it was asked can explain.

use std::io;
use std::pin::Pin;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use std::task::{Context, Poll, ready};

use tokio::io::{AsyncRead, AsyncWrite, ReadBuf};

/// How many bytes may still arrive on a connection.
///
/// The parser of replies knows no limit: it keeps what it has not understood yet, in memory, for as long as more
/// comes. So the bytes are limited ahead of it, also while nothing is on its way, and whatever they are.
#[derive(Debug)]
pub(crate) struct Credit {
    left: AtomicUsize,
    is_overdrawn: AtomicBool,
}

/// A socket on which no more arrives than there is credit for: then reading fails, for good.
///
/// It is below TLS, which makes no fewer bytes of what it carries, so that what TLS keeps is bounded too.
#[derive(Debug)]
pub(crate) struct Metered<S> {
    inner: S,
    credit: Arc<Credit>,
}

impl Credit {
    /// For the login, the scripts and what a server says unasked. TLS 1.3 servers send tickets, which may carry the
    /// certificate of the client.
    const BASE: usize = 16 * 1024;

    /// For the certificates of a TLS server.
    #[cfg(feature = "tls-rustls")]
    const HANDSHAKE: usize = 128 * 1024;

    /// For the reply to a command of the lock: four numbers, or the words of an error.
    const REPLY: usize = 512;

    pub(crate) fn new() -> Arc<Self> {
        Arc::new(Self {
            left: AtomicUsize::new(Self::BASE),
            is_overdrawn: AtomicBool::new(false),
        })
    }

    /// A TLS handshake begins.
    #[cfg(feature = "tls-rustls")]
    pub(crate) fn grant_handshake(&self) {
        self.grant_bytes(Self::HANDSHAKE);
    }

    /// So many commands were sent.
    pub(crate) fn grant(&self, commands: usize) {
        self.grant_bytes(commands.saturating_mul(Self::REPLY));
    }

    pub(crate) fn grant_bytes(&self, bytes: usize) {
        // One task sends and reads: nothing comes in between.
        let left = self.left.load(Ordering::Relaxed);
        self.left
            .store(left.saturating_add(bytes), Ordering::Relaxed);
    }

    /// What was asked has been answered, except so many commands. Credit does not pile up over the life of a
    /// connection, nor does a long answer wear it out.
    pub(crate) fn settle(&self, commands: usize) {
        let left = Self::BASE.saturating_add(commands.saturating_mul(Self::REPLY));
        self.left.store(left, Ordering::Relaxed);
    }

    /// Whether more has arrived than there was credit for.
    pub(crate) fn is_overdrawn(&self) -> bool {
        self.is_overdrawn.load(Ordering::Relaxed)
    }

    fn spend(&self, bytes: usize) -> io::Result<()> {
        let left = self.left.load(Ordering::Relaxed).checked_sub(bytes);
        match left {
            Some(left) if !self.is_overdrawn() => {
                self.left.store(left, Ordering::Relaxed);
                Ok(())
            }
            _ => {
                self.is_overdrawn.store(true, Ordering::Relaxed);
                Err(io::Error::new(
                    // A kind after which the redis crate reads no further.
                    io::ErrorKind::ConnectionAborted,
                    "more has arrived than was asked for",
                ))
            }
        }
    }
}

impl<S> Metered<S> {
    pub(crate) const fn new(inner: S, credit: Arc<Credit>) -> Self {
        Self { inner, credit }
    }
}

impl<S: AsyncRead + Unpin> AsyncRead for Metered<S> {
    fn poll_read(
        mut self: Pin<&mut Self>,
        context: &mut Context<'_>,
        buffer: &mut ReadBuf<'_>,
    ) -> Poll<io::Result<()>> {
        let before = buffer.filled().len();
        ready!(Pin::new(&mut self.inner).poll_read(context, buffer))?;
        let arrived = buffer.filled().len().saturating_sub(before);
        let spent = self.credit.spend(arrived);
        if spent.is_err() {
            buffer.set_filled(before);
        }
        Poll::Ready(spent)
    }
}

impl<S: AsyncWrite + Unpin> AsyncWrite for Metered<S> {
    fn poll_write(
        mut self: Pin<&mut Self>,
        context: &mut Context<'_>,
        bytes: &[u8],
    ) -> Poll<io::Result<usize>> {
        Pin::new(&mut self.inner).poll_write(context, bytes)
    }

    fn poll_write_vectored(
        mut self: Pin<&mut Self>,
        context: &mut Context<'_>,
        bytes: &[io::IoSlice<'_>],
    ) -> Poll<io::Result<usize>> {
        Pin::new(&mut self.inner).poll_write_vectored(context, bytes)
    }

    fn is_write_vectored(&self) -> bool {
        self.inner.is_write_vectored()
    }

    fn poll_flush(mut self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<io::Result<()>> {
        Pin::new(&mut self.inner).poll_flush(context)
    }

    fn poll_shutdown(mut self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<io::Result<()>> {
        Pin::new(&mut self.inner).poll_shutdown(context)
    }
}

#[cfg(test)]
mod tests {
    use tokio::io::AsyncReadExt;

    use super::*;

    /// How many bytes can be read until reading fails.
    async fn read_all(credit: &Arc<Credit>) -> usize {
        let mut stream = Metered::new(tokio::io::repeat(b'+'), Arc::clone(credit));
        let mut count = 0;
        while let Ok(read) = stream.read(&mut [0; 100]).await {
            count += read;
        }
        assert!(credit.is_overdrawn());
        assert!(stream.read(&mut [0; 1]).await.is_err(), "for good");
        count
    }

    #[tokio::test]
    async fn no_more_is_read_than_the_commands_on_their_way_explain() {
        let ends = |limit: usize| limit.saturating_sub(99)..=limit;
        let credit = Credit::new();
        assert!(ends(Credit::BASE).contains(&read_all(&credit).await));

        let credit = Credit::new();
        credit.grant(3);
        let limit = Credit::BASE + 3 * Credit::REPLY;
        assert!(ends(limit).contains(&read_all(&credit).await));
    }

    #[tokio::test]
    async fn credit_does_not_pile_up() {
        let credit = Credit::new();
        for _ in 0..1_000 {
            credit.grant(128);
            credit.settle(2);
        }
        let read = read_all(&credit).await;
        assert!(read <= Credit::BASE + 2 * Credit::REPLY, "{read}");
    }
}
