//! A limit for the data that a node may send: no more than the replies to its commands can take.

use std::io;
use std::pin::Pin;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use std::task::{Context, Poll, ready};

use tokio::io::{AsyncRead, AsyncWrite, ReadBuf};

/// The number of bytes and of lines that may still arrive on a connection.
///
/// The reply parser has no limit: it keeps an incomplete reply in memory while more data arrives. So the bytes are
/// limited before the parser, also while no command is in flight, and whatever their content is. Short values take up to some
/// seventy times their bytes once they are parsed. Each value begins a line, so the lines are limited too.
#[derive(Debug)]
pub(crate) struct Credit {
    bytes: AtomicUsize,
    lines: AtomicUsize,
    is_overdrawn: AtomicBool,
}

/// A stream that limits reading. If more data arrives than there is credit for, reading fails for good.
#[derive(Debug)]
pub(crate) struct Metered<S> {
    inner: S,
    credit: Arc<Credit>,
    unit: Unit,
}

/// What a stream counts.
#[derive(Debug, Clone, Copy)]
pub(crate) enum Unit {
    /// Below TLS, so that the data that TLS buffers is bounded too. TLS never decrypts to more bytes than it receives.
    Bytes,
    /// Above TLS.
    Lines,
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

    /// There is credit for one line for each of so many bytes: eight lines for a reply, which has five at most.
    const LINE: usize = 64;

    pub(crate) fn new() -> Arc<Self> {
        Arc::new(Self {
            bytes: AtomicUsize::new(Self::BASE),
            lines: AtomicUsize::new(Self::BASE / Self::LINE),
            is_overdrawn: AtomicBool::new(false),
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
        for (credit, more) in [(&self.bytes, bytes), (&self.lines, bytes / Self::LINE)] {
            let left = credit.load(Ordering::Relaxed);
            credit.store(left.saturating_add(more), Ordering::Relaxed);
        }
    }

    /// Resets the credit to that of this number of unanswered commands. So credit does not accumulate over the life of a
    /// connection, and long replies do not use it up.
    pub(crate) fn settle(&self, commands: usize) {
        let bytes = Self::BASE.saturating_add(commands.saturating_mul(Self::REPLY));
        self.bytes.store(bytes, Ordering::Relaxed);
        self.lines.store(bytes / Self::LINE, Ordering::Relaxed);
    }

    /// Whether more has arrived than there was credit for.
    pub(crate) fn is_overdrawn(&self) -> bool {
        self.is_overdrawn.load(Ordering::Relaxed)
    }

    fn spend(&self, arrived: &[u8], unit: Unit) -> io::Result<()> {
        let (credit, spent) = match unit {
            Unit::Bytes => (&self.bytes, arrived.len()),
            Unit::Lines => {
                let ends = arrived.iter().filter(|byte| **byte == b'\n');
                (&self.lines, ends.count())
            }
        };
        match credit.load(Ordering::Relaxed).checked_sub(spent) {
            Some(left) if !self.is_overdrawn() => {
                credit.store(left, Ordering::Relaxed);
                Ok(())
            }
            _ => {
                self.is_overdrawn.store(true, Ordering::Relaxed);
                Err(io::Error::new(
                    // After an error of this kind the redis crate stops reading.
                    io::ErrorKind::ConnectionAborted,
                    "more data arrived than was asked for",
                ))
            }
        }
    }
}

impl<S> Metered<S> {
    pub(crate) const fn new(inner: S, credit: Arc<Credit>, unit: Unit) -> Self {
        Self {
            inner,
            credit,
            unit,
        }
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
        let arrived = buffer.filled().get(before..).unwrap_or_default();
        let spent = self.credit.spend(arrived, self.unit);
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

    /// The number of these that can be read until reading fails.
    async fn read_all(credit: &Arc<Credit>, unit: Unit) -> usize {
        let byte = match unit {
            Unit::Bytes => b'+',
            Unit::Lines => b'\n',
        };
        let mut stream = Metered::new(tokio::io::repeat(byte), Arc::clone(credit), unit);
        let mut count = 0;
        while let Ok(read) = stream.read(&mut [0; 100]).await {
            count += read;
        }
        assert!(credit.is_overdrawn());
        assert!(stream.read(&mut [0; 1]).await.is_err(), "for good");
        count
    }

    #[tokio::test]
    async fn no_more_is_read_than_the_replies_to_commands_in_flight() {
        let ends = |limit: usize| limit.saturating_sub(99)..=limit;
        for (unit, size) in [(Unit::Bytes, 1), (Unit::Lines, Credit::LINE)] {
            let credit = Credit::new();
            assert!(ends(Credit::BASE / size).contains(&read_all(&credit, unit).await));

            let credit = Credit::new();
            credit.grant(3);
            let limit = (Credit::BASE + 3 * Credit::REPLY) / size;
            assert!(ends(limit).contains(&read_all(&credit, unit).await));
        }
    }

    #[tokio::test]
    async fn credit_does_not_accumulate() {
        for (unit, size) in [(Unit::Bytes, 1), (Unit::Lines, Credit::LINE)] {
            let credit = Credit::new();
            for _ in 0..1_000 {
                credit.grant(128);
                credit.settle(2);
            }
            let read = read_all(&credit, unit).await;
            assert!(read <= (Credit::BASE + 2 * Credit::REPLY) / size, "{read}");
        }
    }
}
