//! A limit for the data that a node may send: no more than the replies to its commands can take, and nothing else.

use std::io;
use std::pin::Pin;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use std::task::{Context, Poll, ready};

use redis::RedisError;
use tokio::io::{AsyncRead, AsyncWrite, ReadBuf};

use super::error::{TransportError, in_words};

/// The number of bytes that may still arrive on a connection.
///
/// What has arrived is kept until its reply has ended. So the bytes are limited where they arrive, also while no command is in
/// flight, and whatever their content is.
#[derive(Debug)]
pub(crate) struct Credit {
    bytes: AtomicUsize,
    /// Whether more than that has arrived.
    is_exceeded: AtomicBool,
}

/// A stream that limits reading, below TLS: so the data that TLS buffers is bounded too. TLS never decrypts to more bytes than it
/// receives. If data arrives that there is no credit for, reading fails for good.
#[derive(Debug)]
pub(crate) struct Metered<S> {
    inner: S,
    credit: Arc<Credit>,
}

impl Credit {
    /// For the login, the scripts and unrequested data. TLS 1.3 servers send tickets, which may contain the certificate
    /// of the client.
    const BASE: usize = 16 * 1024;

    /// For the certificates of a TLS server.
    #[cfg(feature = "tls-rustls")]
    const HANDSHAKE: usize = 128 * 1024;

    /// For the reply to a command of the lock: four numbers, or the text of an error.
    const REPLY: usize = 512;

    pub(crate) fn new() -> Arc<Self> {
        Arc::new(Self {
            bytes: AtomicUsize::new(Self::BASE),
            is_exceeded: AtomicBool::new(false),
        })
    }

    /// Grants the bytes of a TLS handshake.
    #[cfg(feature = "tls-rustls")]
    pub(crate) fn grant_handshake(&self) {
        self.grant_bytes(Self::HANDSHAKE);
    }

    /// Grants the bytes of the replies to this number of commands.
    pub(crate) fn grant(&self, commands: usize) {
        self.grant_bytes(commands.saturating_mul(Self::REPLY));
    }

    pub(crate) fn grant_bytes(&self, bytes: usize) {
        // The same task sends and reads, so there is no race.
        let left = self.bytes.load(Ordering::Relaxed);
        self.bytes
            .store(left.saturating_add(bytes), Ordering::Relaxed);
    }

    /// Resets the credit to that of this number of unanswered commands, less the bytes that have arrived of a reply that has not
    /// ended. So credit does not accumulate over the life of a connection, and long replies do not use it up.
    ///
    /// # Errors
    ///
    /// If more than that has arrived.
    pub(crate) fn settle(&self, commands: usize, incomplete: usize) -> Result<(), TransportError> {
        let limit = Self::BASE.saturating_add(commands.saturating_mul(Self::REPLY));
        let left = limit.checked_sub(incomplete);
        self.bytes
            .store(left.ok_or(TransportError::Flooded)?, Ordering::Relaxed);
        Ok(())
    }

    /// How many bytes may still arrive.
    pub(crate) fn left(&self) -> usize {
        self.bytes.load(Ordering::Relaxed)
    }

    /// Why a connection with this credit fails with `error`.
    pub(crate) fn why(&self, error: &RedisError) -> TransportError {
        if self.is_exceeded.load(Ordering::Relaxed) {
            TransportError::Flooded
        } else if error.is_connection_dropped() {
            TransportError::Disconnected
        } else {
            TransportError::Unreachable(in_words(error))
        }
    }

    fn spend(&self, arrived: usize) -> io::Result<()> {
        let left = self.bytes.load(Ordering::Relaxed).checked_sub(arrived);
        let is_exceeded = &self.is_exceeded;
        match left {
            Some(left) if !is_exceeded.load(Ordering::Relaxed) => {
                self.bytes.store(left, Ordering::Relaxed);
                Ok(())
            }
            _ => {
                is_exceeded.store(true, Ordering::Relaxed);
                Err(io::Error::other("more data arrived than was asked for"))
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
        let spent = self.credit.spend(buffer.filled().len() - before);
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

    /// The number of bytes that can be read until reading fails.
    async fn read_all(credit: &Arc<Credit>) -> usize {
        let endless = "+".repeat(100_000);
        let mut stream = Metered::new(endless.as_bytes(), Arc::clone(credit));
        let mut count = 0;
        let error = loop {
            match stream.read(&mut [0; 99]).await {
                Ok(read) => count += read,
                Err(error) => break error,
            }
        };
        assert_eq!(credit.why(&error.into()), TransportError::Flooded);
        credit.grant(9);
        assert!(stream.read(&mut [0; 1]).await.is_err(), "for good");
        count
    }

    #[tokio::test]
    async fn no_more_is_read_than_the_replies_to_commands_in_flight() {
        let ends = |limit: usize| limit - 99..=limit;
        let credit = Credit::new();
        assert!(ends(Credit::BASE).contains(&read_all(&credit).await));

        let credit = Credit::new();
        credit.grant(3);
        let limit = Credit::BASE + 3 * Credit::REPLY;
        assert!(ends(limit).contains(&read_all(&credit).await));
    }

    #[tokio::test]
    async fn credit_does_not_accumulate() {
        let credit = Credit::new();
        for _ in 0..1_000 {
            credit.grant(128);
            credit.settle(2, 0).unwrap();
        }
        let read = read_all(&credit).await;
        assert!(read <= Credit::BASE + 2 * Credit::REPLY, "{read}");
    }

    #[tokio::test]
    async fn an_answered_command_does_not_double_what_an_incomplete_reply_may_take() {
        let credit = Credit::new();
        credit.settle(1, 1_000).unwrap();
        let read = read_all(&credit).await;
        assert!(read <= Credit::BASE + Credit::REPLY - 1_000, "{read}");
    }

    #[test]
    fn an_incomplete_reply_that_is_longer_than_the_limit_of_the_commands_left_is_a_violation() {
        let credit = Credit::new();
        let arrived = Credit::BASE + Credit::REPLY + 1;
        assert_eq!(credit.settle(2, arrived), Ok(()));
        assert_eq!(credit.settle(1, arrived), Err(TransportError::Flooded));
    }
}
