//! Reading the replies and messages that arrive on a connection, with a limit for each.

use std::future::poll_fn;
use std::mem::{self, MaybeUninit};
use std::pin::Pin;
use std::sync::{Arc, PoisonError};
use std::task::{Context, Poll, ready};
use std::time::Duration;

use redis::{RedisResult, Value, parse_redis_value};
use tokio::io::ReadBuf;
use tokio::time::{Instant, sleep_until};

use super::MAX_KEY;
use super::error::TransportError;
use super::framing::{Framing, NOT_RESP};
use super::metered::Credit;
use super::socket::Stream;
use crate::sync::Mutex;

/// The replies and messages that arrive on a stream, one after the other.
///
/// Each is limited, in its bytes and in its values: short values take up to some seventy times their bytes once they are parsed.
/// A message may come from any client of the node, and must not end the connection. So what is longer is skipped. No more than the
/// last read is kept beside it.
pub(crate) struct Replies {
    credit: Arc<Credit>,
    /// `None` if nothing but the credit that there is bounds what is read.
    budget: Option<Arc<Budget>>,
    most: Size,
    framing: Framing,
    buffer: Vec<u8>,
    /// How much of the buffer belongs to replies that were returned.
    returned: usize,
    /// How much of the buffer the framing has seen.
    seen: usize,
    /// The number of values of the current reply.
    values: usize,
    /// Whether the current reply is longer than the limits, so that nothing of it is kept.
    is_too_long: bool,
}

/// What has arrived.
#[derive(Debug, PartialEq)]
pub(crate) enum Reply {
    Value(Value),
    /// A reply that is longer than those to this client.
    TooLong,
}

/// How long a reply may be.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Size {
    pub(crate) bytes: usize,
    pub(crate) values: usize,
}

const MOST: Size = Size {
    // For a message with the longest key, its channel and its kind.
    bytes: MAX_KEY + 1024,
    // A message has four values, and the identity of a node five.
    values: 8,
};

/// How much is read at once. After that, other tasks have their turn, so that a flood of messages does not keep them waiting.
const READ: usize = 4 * 1024;

/// The credit of a read, in replies to commands of the lock: far more than [`READ`]. It bounds what TLS buffers.
const CREDIT: usize = 128;

/// How many bytes may be read per time, however many arrive. Without this, a client of the node that sends messages without end
/// would take much of the thread. What is not read fills the buffers of TCP and then those of the server, which ends the connection.
///
/// A second reads a megabyte, so ten thousand calls of usual keys, and time that was not used counts for up to four seconds: the calls
/// for 30,000 keys that are released together are read at once.
#[derive(Debug)]
pub(crate) struct Budget {
    /// Until then, the bytes that were read take all of the time.
    spent_until: Mutex<Instant>,
}

const TIME_OF_A_BYTE: Duration = Duration::from_micros(1);
const MOST_AHEAD: Duration = Duration::from_secs(4);

impl Budget {
    pub(crate) fn new() -> Arc<Self> {
        Arc::new(Self {
            spent_until: Mutex::new(Instant::now()),
        })
    }

    /// Waits until something may be read.
    async fn wait(&self) {
        let until = *self
            .spent_until
            .lock()
            .unwrap_or_else(PoisonError::into_inner);
        if until.saturating_duration_since(Instant::now()) > MOST_AHEAD {
            sleep_until(until - MOST_AHEAD).await;
        }
    }

    fn spend(&self, bytes: usize) {
        let bytes = u32::try_from(bytes).unwrap_or(u32::MAX);
        let mut until = self
            .spent_until
            .lock()
            .unwrap_or_else(PoisonError::into_inner);
        *until = (*until).max(Instant::now()) + TIME_OF_A_BYTE.saturating_mul(bytes);
    }
}

impl Replies {
    /// Of a connection that gets messages for as long as it lives.
    pub(crate) fn new(credit: Arc<Credit>, budget: Arc<Budget>) -> Self {
        Self {
            budget: Some(budget),
            ..Self::of_commands(credit)
        }
    }

    /// Of a connection that gets replies to its commands, and nothing else.
    pub(crate) fn of_commands(credit: Arc<Credit>) -> Self {
        Self {
            credit,
            budget: None,
            most: MOST,
            framing: Framing::default(),
            buffer: Vec::new(),
            returned: 0,
            seen: 0,
            values: 0,
            is_too_long: false,
        }
    }

    /// Returns the next reply or message. Dropping the future loses nothing.
    pub(crate) async fn next(
        &mut self,
        stream: &mut (impl Stream + ?Sized),
    ) -> Result<Reply, TransportError> {
        loop {
            if let Some(reply) = self.take()? {
                return Ok(reply);
            }
            self.read_more(stream).await?;
        }
    }

    /// Returns the next reply of a set-up.
    ///
    /// # Errors
    ///
    /// Those of [`next`](Self::next). Also if the reply is longer than those to this client, before its end.
    pub(crate) async fn answer(
        &mut self,
        stream: &mut (impl Stream + ?Sized),
    ) -> Result<Value, TransportError> {
        loop {
            match self.arrived()? {
                Some(reply) => return Ok(reply),
                None => self.read_more(stream).await?,
            }
        }
    }

    /// Lets replies be so long.
    #[cfg(feature = "probe")]
    pub(crate) const fn set_most(&mut self, most: Size) {
        self.most = most;
    }

    /// Returns the next reply if all of it has arrived.
    ///
    /// # Errors
    ///
    /// Those of [`answer`](Self::answer).
    pub(crate) fn arrived(&mut self) -> Result<Option<Value>, TransportError> {
        match self.take()? {
            Some(Reply::Value(reply)) => Ok(Some(reply)),
            None if !self.is_too_long => Ok(None),
            Some(Reply::TooLong) | None => Err(TransportError::Flooded),
        }
    }

    /// How many bytes have arrived beside the replies that were returned.
    pub(crate) const fn unreturned(&self) -> usize {
        self.buffer.len() - self.returned
    }

    async fn read_more(
        &mut self,
        stream: &mut (impl Stream + ?Sized),
    ) -> Result<(), TransportError> {
        if let Some(budget) = &self.budget {
            budget.wait().await;
            self.credit.settle(CREDIT, 0)?;
        }
        // On the wire: TLS may take many bytes for one.
        let left = self.credit.left();
        poll_fn(|context| self.poll_read(stream, context)).await?;
        let read = left.saturating_sub(self.credit.left());
        if let Some(budget) = &self.budget {
            budget.spend(read);
        }
        if read >= READ {
            tokio::task::yield_now().await;
        }
        Ok(())
    }

    /// Removes and returns the first reply of the buffer if all of it has arrived.
    fn take(&mut self) -> Result<Option<Reply>, TransportError> {
        let new = self.buffer.get(self.seen..).unwrap_or_default();
        if let Some((reply, length)) = short(new).filter(|_| self.framing.is_between_replies()) {
            self.seen += length;
            self.returned = self.seen;
            return Ok(Some(Reply::Value(reply)));
        }
        let mut end = None;
        // A reply ends with a line.
        for line in new.split_inclusive(|byte| *byte == b'\n') {
            let begun = self.framing.read(line).map_err(TransportError::Protocol)?;
            self.values += begun;
            self.seen += line.len();
            if self.values > self.most.values || self.seen - self.returned > self.most.bytes {
                self.is_too_long = true;
            }
            if self.is_too_long {
                self.returned = self.seen;
            }
            if self.framing.is_between_replies() {
                end = Some(self.seen);
                break;
            }
        }
        let Some(end) = end else {
            return Ok(None);
        };
        self.values = 0;
        if mem::take(&mut self.is_too_long) {
            return Ok(Some(Reply::TooLong));
        }
        let reply = self.buffer.get_mut(self.returned..end).unwrap_or_default();
        self.returned = end;
        let reply = value(reply).map_err(|_error| TransportError::Protocol(NOT_RESP))?;
        Ok(Some(Reply::Value(reply)))
    }

    /// Reads what has arrived, at most [`READ`] bytes.
    pub(crate) fn poll_read(
        &mut self,
        stream: &mut (impl Stream + ?Sized),
        context: &mut Context<'_>,
    ) -> Poll<Result<(), TransportError>> {
        let mut chunk = [MaybeUninit::uninit(); READ];
        let mut chunk = ReadBuf::uninit(&mut chunk);
        let read = ready!(Pin::new(stream).poll_read(context, &mut chunk));
        read.map_err(|error| self.credit.why(&error.into()))?;
        if chunk.filled().is_empty() {
            return Poll::Ready(Err(TransportError::Disconnected));
        }
        self.buffer.drain(..self.returned);
        self.seen -= self.returned;
        self.returned = 0;
        self.buffer.extend_from_slice(chunk.filled());
        Poll::Ready(Ok(()))
    }
}

/// The first reply of these bytes, and its length, if it is one of nearly all answers to plain locks. Any other reply takes a multiple
/// of the time.
fn short(bytes: &[u8]) -> Option<(Value, usize)> {
    const SHORT: [(&[u8], Value); 4] = [
        (b"+OK\r\n", Value::Okay),
        (b":1\r\n", Value::Int(1)),
        (b":0\r\n", Value::Int(0)),
        (b"$-1\r\n", Value::Nil),
    ];
    let found = SHORT.iter().find(|(short, _)| bytes.starts_with(short));
    found.map(|(short, value)| (value.clone(), short.len()))
}

/// Parses a whole reply.
fn value(reply: &mut [u8]) -> RedisResult<Value> {
    Framing::make_ascii(reply);
    parse_redis_value(reply)
}

#[cfg(test)]
mod tests {
    use tokio::io::{AsyncWriteExt, DuplexStream};
    use tokio::time::timeout_at;

    use super::super::metered::Metered;
    use super::*;

    type Wire = Metered<DuplexStream>;

    /// A connection whose bytes are counted, and its other end.
    fn connection(budget: Arc<Budget>, room: usize) -> (Replies, Wire, DuplexStream) {
        let credit = Credit::new();
        let (stream, sender) = tokio::io::duplex(room);
        let stream = Metered::new(stream, Arc::clone(&credit));
        (Replies::new(credit, budget), stream, sender)
    }

    async fn read_all(sent: &[u8]) -> (Vec<Value>, TransportError) {
        let (mut replies, mut stream, mut sender) = connection(Budget::new(), 100_000);
        let sent = sent.to_vec();
        let sending = tokio::spawn(async move {
            // Fails once the reader has ended the connection.
            drop(sender.write_all(&sent).await);
        });
        let mut read = Vec::new();
        let error = loop {
            match replies.next(&mut stream).await {
                Ok(Reply::Value(reply)) => read.push(reply),
                Ok(Reply::TooLong) => {}
                Err(error) => break error,
            }
            assert!(replies.buffer.len() <= MOST.bytes + READ);
        };
        drop(stream);
        sending.await.unwrap();
        (read, error)
    }

    fn message(payload: &[u8]) -> Vec<u8> {
        let head = format!("*3\r\n$7\r\nmessage\r\n$1\r\nc\r\n${}\r\n", payload.len());
        [head.as_bytes(), payload, b"\r\n"].concat()
    }

    #[tokio::test]
    async fn each_reply_is_read_wherever_reads_are_cut() {
        let payload = b"1dock\n\r\n7".repeat(300);
        let sent = [b"+OK\r\n", &message(&payload)[..], b"$-1\r\n:7\r\n"].concat();
        let (replies, error) = read_all(&sent.repeat(20)).await;
        assert_eq!(error, TransportError::Disconnected);
        assert_eq!(replies.len(), 80);
        for four in replies.chunks(4) {
            let message = Value::Array(vec![
                Value::BulkString(b"message".to_vec()),
                Value::BulkString(b"c".to_vec()),
                Value::BulkString(payload.clone()),
            ]);
            assert_eq!(*four, [Value::Okay, message, Value::Nil, Value::Int(7)]);
        }
    }

    #[tokio::test]
    async fn a_message_may_be_as_long_as_a_key_and_a_longer_one_is_skipped() {
        let (replies, _end) = read_all(&message(&[b'\n'; MAX_KEY + 1])).await;
        assert_eq!(replies.len(), 1);
        for long in [
            message(&[b'x'; MOST.bytes]),
            message(&[b'\n'; MOST.bytes]),
            message(&[b'x'; 10 * MOST.bytes]),
            [b"+", &b"x".repeat(2 * MOST.bytes)[..], b"\r\n"].concat(),
            [&b"*9\r\n"[..], &b"_\r\n".repeat(9)].concat(),
            [&b"*2\r\n*9000\r\n"[..], &b"_\r\n".repeat(9_000), b":1\r\n"].concat(),
        ] {
            let sent = [b"+OK\r\n", &long[..], b":7\r\n", &long, &long, b":8\r\n"].concat();
            let (replies, error) = read_all(&sent).await;
            assert_eq!(error, TransportError::Disconnected);
            assert_eq!(replies, [Value::Okay, Value::Int(7), Value::Int(8)]);
        }
    }

    /// Reads for `time`, and returns the number of bytes of the replies.
    async fn read_for(time: Duration, replies: &mut Replies, stream: &mut Wire) -> usize {
        let until = Instant::now() + time;
        let mut bytes = 0;
        while bytes < TOO_MANY
            && let Ok(reply) = timeout_at(until, replies.next(stream)).await
        {
            assert_ne!(reply, Ok(Reply::TooLong));
            bytes += message(CALL).len();
        }
        bytes
    }

    const TOO_MANY: usize = 8_000_000;

    const CALL: &[u8] = b"1a-key-that-is-so-long-that-its-call-takes-about-a-hundred-bytes";

    #[tokio::test(start_paused = true)]
    async fn messages_without_end_are_read_no_faster_than_a_megabyte_a_second() {
        const SECOND: Duration = Duration::from_secs(1);

        let budget = Budget::new();
        let mut first_second = Vec::new();
        // The second connection is made because the server has ended the first one.
        for _ in 0..2 {
            let (mut replies, mut stream, mut sender) = connection(Arc::clone(&budget), 100_000);
            let flood = tokio::spawn(async move {
                let messages = message(CALL).repeat(1_000);
                while sender.write_all(&messages).await.is_ok() {}
            });
            first_second.push(read_for(SECOND, &mut replies, &mut stream).await);
            for _ in 0..3 {
                let read = read_for(SECOND, &mut replies, &mut stream).await;
                assert!((900_000..1_100_000).contains(&read), "{read}");
            }
            drop(stream);
            flood.await.unwrap();
        }
        assert!(
            first_second.iter().sum::<usize>() < TOO_MANY,
            "{first_second:?}"
        );
    }

    #[tokio::test(start_paused = true)]
    async fn the_calls_for_all_keys_of_a_client_that_waits_for_very_many_are_read_without_delay() {
        const KEYS: usize = 30_000;

        let budget = Budget::new();
        // Their rate is a fifth of the limit.
        for _ in 0..3 {
            let (mut replies, mut stream, mut sender) = connection(Arc::clone(&budget), KEYS * 200);
            sender.write_all(&message(CALL).repeat(KEYS)).await.unwrap();
            let start = Instant::now();
            for _ in 0..KEYS {
                replies.next(&mut stream).await.unwrap();
            }
            assert_eq!(start.elapsed(), Duration::ZERO);
            tokio::time::advance(Duration::from_secs(15)).await;
        }
    }

    #[tokio::test]
    async fn what_is_not_resp_ends_the_connection() {
        for garbage in [&b"HTTP/1.1 400 Bad Request\r\n"[..], b">1\r\n+x\r\n"] {
            let (replies, error) = read_all(&[b"+OK\r\n", garbage].concat()).await;
            assert_eq!(replies, [Value::Okay]);
            assert!(matches!(error, TransportError::Protocol(_)), "{error}");
        }
    }
}
