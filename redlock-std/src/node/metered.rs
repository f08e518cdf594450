//! A limit for the data that a node may send: no more than the replies to its commands can take, and nothing else.

use std::io;
use std::pin::Pin;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Arc, OnceLock};
use std::task::{Context, Poll, ready};

use redis::RedisError;
use tokio::io::{AsyncRead, AsyncWrite, ReadBuf};

use super::error::{TransportError, in_words};
use super::framing::{Framing, Size};

/// The number of bytes and of values that may still arrive on a connection.
///
/// The reply parser has no limit: it keeps an incomplete reply in memory while more data arrives. So the bytes are
/// limited before the parser, also while no command is in flight, and whatever their content is. Short values take up to some
/// seventy times their bytes once they are parsed, so the values are limited too.
#[derive(Debug)]
pub(crate) struct Credit {
    bytes: AtomicUsize,
    values: AtomicUsize,
    /// What has arrived of a reply that has not ended: the parser keeps it.
    incomplete_bytes: AtomicUsize,
    incomplete_values: AtomicUsize,
    violation: OnceLock<TransportError>,
}

/// A stream that limits reading. If data arrives that there is no credit for, or that the parser must not get, reading fails
/// for good.
#[derive(Debug)]
pub(crate) struct Metered<S> {
    inner: S,
    credit: Arc<Credit>,
    unit: Unit,
}

/// What a stream counts.
#[derive(Debug)]
pub(crate) enum Unit {
    /// Below TLS, so that the data that TLS buffers is bounded too. TLS never decrypts to more bytes than it receives.
    Bytes,
    /// Above TLS.
    Values(Framing),
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

    /// There is credit for one value for each of so many bytes: eight values for a reply, which has five at most.
    const VALUE: usize = 64;

    pub(crate) fn new() -> Arc<Self> {
        Arc::new(Self {
            bytes: AtomicUsize::new(Self::BASE),
            values: AtomicUsize::new(Self::BASE / Self::VALUE),
            incomplete_bytes: AtomicUsize::new(0),
            incomplete_values: AtomicUsize::new(0),
            violation: OnceLock::new(),
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
        for (credit, more) in [(&self.bytes, bytes), (&self.values, bytes / Self::VALUE)] {
            let left = credit.load(Ordering::Relaxed);
            credit.store(left.saturating_add(more), Ordering::Relaxed);
        }
    }

    /// Resets the credit to that of this number of unanswered commands, less what has arrived of an incomplete reply. So credit
    /// does not accumulate over the life of a connection, and long replies do not use it up.
    ///
    /// # Errors
    ///
    /// If more than that has arrived.
    pub(crate) fn settle(&self, commands: usize) -> Result<(), TransportError> {
        let bytes = Self::BASE.saturating_add(commands.saturating_mul(Self::REPLY));
        for (credit, limit, incomplete) in [
            (&self.bytes, bytes, &self.incomplete_bytes),
            (&self.values, bytes / Self::VALUE, &self.incomplete_values),
        ] {
            let left = limit.checked_sub(incomplete.load(Ordering::Relaxed));
            credit.store(left.ok_or(TransportError::Flooded)?, Ordering::Relaxed);
        }
        Ok(())
    }

    /// How many bytes may still arrive.
    pub(crate) fn left(&self) -> usize {
        self.bytes.load(Ordering::Relaxed)
    }

    /// Returns what the node has sent against the rules, if it has.
    pub(crate) fn violation(&self) -> Option<TransportError> {
        self.violation.get().cloned()
    }

    /// Why a connection with this credit fails with `error`.
    pub(crate) fn why(&self, error: &RedisError) -> TransportError {
        self.violation().unwrap_or_else(|| {
            if error.is_connection_dropped() {
                TransportError::Disconnected
            } else {
                TransportError::Unreachable(in_words(error))
            }
        })
    }

    fn spend(&self, arrived: &[u8], unit: &mut Unit) -> io::Result<()> {
        if self.violation.get().is_some() {
            return Err(cut_off());
        }
        let (credit, spent) = match unit {
            Unit::Bytes => (&self.bytes, Ok(arrived.len())),
            Unit::Values(framing) => {
                let begun = framing.read(arrived);
                let Size { bytes, values } = framing.incomplete();
                self.incomplete_bytes.store(bytes, Ordering::Relaxed);
                self.incomplete_values.store(values, Ordering::Relaxed);
                (&self.values, begun)
            }
        };
        let left = spent.map_err(TransportError::Protocol).and_then(|spent| {
            let left = credit.load(Ordering::Relaxed).checked_sub(spent);
            left.ok_or(TransportError::Flooded)
        });
        match left {
            Ok(left) => {
                credit.store(left, Ordering::Relaxed);
                Ok(())
            }
            Err(violation) => {
                let _first = self.violation.set(violation);
                Err(cut_off())
            }
        }
    }
}

fn cut_off() -> io::Error {
    io::Error::new(
        // After an error of this kind the redis crate stops reading.
        io::ErrorKind::ConnectionAborted,
        "other data arrived than was asked for",
    )
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
        let arrived = buffer.filled_mut().get_mut(before..).unwrap_or_default();
        let Self { credit, unit, .. } = &mut *self;
        if let Unit::Values(framing) = unit {
            framing.make_ascii(arrived);
        }
        let spent = credit.spend(arrived, unit);
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

    /// The number of bytes, or of values, that can be read until reading fails.
    async fn read_all(credit: &Arc<Credit>, of_bytes: bool) -> usize {
        let (unit, value) = if of_bytes {
            (Unit::Bytes, "+")
        } else {
            (Unit::Values(Framing::default()), "_\r\n")
        };
        let endless = value.repeat(100_000);
        let mut stream = Metered::new(endless.as_bytes(), Arc::clone(credit), unit);
        let mut count = 0;
        while let Ok(read) = stream.read(&mut [0; 99]).await {
            count += read;
        }
        assert_eq!(credit.violation(), Some(TransportError::Flooded));
        assert!(stream.read(&mut [0; 1]).await.is_err(), "for good");
        count / value.len()
    }

    #[tokio::test]
    async fn no_more_is_read_than_the_replies_to_commands_in_flight() {
        let ends = |limit: usize| limit.saturating_sub(99)..=limit;
        for (of_bytes, size) in [(true, 1), (false, Credit::VALUE)] {
            let credit = Credit::new();
            assert!(ends(Credit::BASE / size).contains(&read_all(&credit, of_bytes).await));

            let credit = Credit::new();
            credit.grant(3);
            let limit = (Credit::BASE + 3 * Credit::REPLY) / size;
            assert!(ends(limit).contains(&read_all(&credit, of_bytes).await));
        }
    }

    #[tokio::test]
    async fn credit_does_not_accumulate() {
        for (of_bytes, size) in [(true, 1), (false, Credit::VALUE)] {
            let credit = Credit::new();
            for _ in 0..1_000 {
                credit.grant(128);
                credit.settle(2).unwrap();
            }
            let read = read_all(&credit, of_bytes).await;
            assert!(read <= (Credit::BASE + 2 * Credit::REPLY) / size, "{read}");
        }
    }

    /// A stream of these bytes, counted in both units.
    fn counted<'a>(sent: &'a [u8], credit: &Arc<Credit>) -> Metered<Metered<&'a [u8]>> {
        let wire = Metered::new(sent, Arc::clone(credit), Unit::Bytes);
        let values = Unit::Values(Framing::default());
        Metered::new(wire, Arc::clone(credit), values)
    }

    #[tokio::test]
    async fn an_answered_command_does_not_double_what_an_incomplete_reply_may_take() {
        for (head, body, size) in [
            ("$90000\r\n", "x", 1),
            ("*90000\r\n", "_\r\n", Credit::VALUE),
        ] {
            let limit = (Credit::BASE + Credit::REPLY) / size;
            let answered = format!("+OK\r\n{head}{}", body.repeat(limit - head.len()));
            let sent = answered.clone() + &body.repeat(90_000);
            let credit = Credit::new();
            credit.grant(2);
            let mut stream = counted(sent.as_bytes(), &credit);
            let mut arrived = vec![0; answered.len()];
            stream.read_exact(&mut arrived).await.unwrap();

            credit.settle(1).unwrap();
            let mut rest = 0;
            while let Ok(read) = stream.read(&mut [0; 9]).await {
                rest += read;
            }
            assert!(rest <= head.len() * body.len(), "{rest}");
            assert_eq!(credit.violation(), Some(TransportError::Flooded));
        }
    }

    #[tokio::test]
    async fn an_incomplete_reply_that_is_longer_than_the_limit_of_the_commands_left_is_a_violation()
    {
        let sent = format!("$90000\r\n{}", "x".repeat(Credit::BASE + Credit::REPLY));
        let credit = Credit::new();
        credit.grant(9);
        let mut stream = counted(sent.as_bytes(), &credit);
        stream.read_exact(&mut vec![0; sent.len()]).await.unwrap();
        assert_eq!(credit.settle(2), Ok(()));
        assert_eq!(credit.settle(1), Err(TransportError::Flooded));
    }

    #[tokio::test]
    async fn of_a_read_with_a_push_message_nothing_reaches_the_parser() {
        let credit = Credit::new();
        let sent = &b"+OK\r\n>3\r\n$9\r\nsubscribe\r\n$1\r\na\r\n:1\r\n"[..];
        let unit = Unit::Values(Framing::default());
        let mut stream = Metered::new(sent, Arc::clone(&credit), unit);
        let mut read = Vec::new();
        assert!(stream.read_to_end(&mut read).await.is_err());
        assert!(read.is_empty(), "{read:?}");
        let violation = credit.violation();
        assert!(
            matches!(violation, Some(TransportError::Protocol(_))),
            "{violation:?}"
        );
        assert!(stream.read(&mut [0; 1]).await.is_err(), "for good");
    }
}
