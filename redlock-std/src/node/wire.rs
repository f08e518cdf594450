//! The bytes of a connection: what is to be written, and what has arrived.

use std::io;
use std::pin::Pin;
use std::sync::Arc;
use std::task::{Context, Poll, ready};

use redis::Value;
use tokio::io::AsyncWrite;

use super::error::TransportError;
use super::metered::Credit;
use super::replies::Replies;
#[cfg(feature = "probe")]
use super::replies::Size;
use super::socket::Stream;

/// A connection that is logged in. Its owner polls it: no other task must be woken for a command or a reply, and the owner notices at
/// once that the node has closed the connection, also when no command is in flight.
///
/// The connection of the redis crate would need a channel, a boxed future and several copies for each write, and it has no limit for
/// what arrives.
pub(crate) struct Wire {
    stream: Box<dyn Stream>,
    credit: Arc<Credit>,
    unsent: Vec<u8>,
    /// How much of them is written.
    written: usize,
    /// How many bytes were written before them.
    before: u64,
    /// Whether TLS may keep something that was written.
    is_unflushed: bool,
    replies: Replies,
}

/// If so many bytes wait to be written, the node reads slowly, and is sent no more. Also the room that is kept: far more than commands
/// take, but for a script or the longest keys.
const MANY: usize = 64 * 1024;

impl Wire {
    pub(crate) const fn new(
        stream: Box<dyn Stream>,
        replies: Replies,
        credit: Arc<Credit>,
    ) -> Self {
        Self {
            stream,
            credit,
            unsent: Vec::new(),
            written: 0,
            before: 0,
            is_unflushed: false,
            replies,
        }
    }

    /// Where to append commands that have this number of replies. They are written by the next [`poll_send`](Self::poll_send).
    pub(crate) fn send(&mut self, replies: usize) -> &mut Vec<u8> {
        self.credit.grant(replies);
        &mut self.unsent
    }

    /// Whether the node is sent no more for now.
    pub(crate) const fn is_full(&self) -> bool {
        self.unsent.len() - self.written >= MANY
    }

    /// Where the next command begins, in bytes since the login.
    pub(crate) const fn end(&self) -> u64 {
        self.before + self.unsent.len() as u64
    }

    /// Up to where commands are written.
    pub(crate) const fn written_to(&self) -> u64 {
        self.before + self.written as u64
    }

    /// Lets so many bytes arrive, and replies be so long.
    #[cfg(feature = "probe")]
    pub(crate) fn grant(&mut self, most: Size) {
        self.credit.grant_bytes(most.bytes);
        self.replies.set_most(most);
    }

    /// Takes back what was granted beyond this number of replies.
    ///
    /// # Errors
    ///
    /// If more than that has arrived.
    pub(crate) fn settle(&self, replies: usize) -> Result<(), TransportError> {
        self.credit.settle(replies, self.replies.unreturned())
    }

    /// Writes what was appended. Pending until all of it is written.
    pub(crate) fn poll_send(
        &mut self,
        context: &mut Context<'_>,
    ) -> Poll<Result<(), TransportError>> {
        let sent = ready!(self.poll_write(context));
        Poll::Ready(sent.map_err(|error| self.credit.why(&error.into())))
    }

    fn poll_write(&mut self, context: &mut Context<'_>) -> Poll<io::Result<()>> {
        while let Some(rest @ [_, ..]) = self.unsent.get(self.written..) {
            let Poll::Ready(count) = Pin::new(&mut self.stream).poll_write(context, rest)? else {
                // Not each time: the rest is moved.
                if self.written >= self.unsent.len() / 2 {
                    self.forget_written();
                }
                return Poll::Pending;
            };
            if count == 0 {
                return Poll::Ready(Err(io::ErrorKind::WriteZero.into()));
            }
            self.written += count;
            self.is_unflushed = true;
        }
        self.forget_written();
        if self.is_unflushed {
            ready!(Pin::new(&mut self.stream).poll_flush(context))?;
            self.is_unflushed = false;
        }
        Poll::Ready(Ok(()))
    }

    fn forget_written(&mut self) {
        self.before = self.written_to();
        self.unsent.drain(..self.written);
        self.unsent.shrink_to(MANY);
        self.written = 0;
    }

    /// Returns the next reply. It is not waited for if there is none: what has arrived beyond the replies is an error then.
    pub(crate) fn poll_reply(
        &mut self,
        context: &mut Context<'_>,
    ) -> Poll<Result<Value, TransportError>> {
        loop {
            if let Some(reply) = self.replies.arrived()? {
                return Poll::Ready(Ok(reply));
            }
            ready!(self.replies.poll_read(&mut *self.stream, context))?;
        }
    }

    /// Closes the connection.
    pub(crate) fn close(&mut self) {
        self.stream = Box::new(tokio::io::empty());
    }

    /// Whether something has arrived beside the replies that were returned.
    pub(crate) const fn has_unreturned(&self) -> bool {
        self.replies.unreturned() > 0
    }
}

#[cfg(test)]
mod tests {
    use std::future::poll_fn;
    use std::task::Waker;

    use tokio::io::{AsyncReadExt, AsyncWriteExt, DuplexStream, duplex};

    use super::super::metered::Metered;
    use super::*;

    /// A connection that takes so many bytes at once, and its other end.
    fn wire(room: usize) -> (Wire, DuplexStream) {
        let credit = Credit::new();
        let (stream, node) = duplex(room);
        let stream = Metered::new(stream, Arc::clone(&credit));
        let replies = Replies::of_commands(Arc::clone(&credit));
        (Wire::new(Box::new(stream), replies, credit), node)
    }

    async fn reply(wire: &mut Wire) -> Result<Value, TransportError> {
        poll_fn(|context| wire.poll_reply(context)).await
    }

    #[tokio::test]
    async fn all_is_written_in_order_however_little_the_node_takes_at_once() {
        let (mut wire, mut node) = wire(7);
        let commands: Vec<Vec<u8>> = (1..50).map(|n| vec![n; 10 * usize::from(n)]).collect();
        let sent = commands.concat();
        let mut arrived = vec![0; sent.len()];
        let reading = node.read_exact(&mut arrived);
        let writing = async {
            for command in &commands {
                wire.send(1).extend_from_slice(command);
                // Some are appended while others are half written.
                let once = poll_fn(|context| Poll::Ready(wire.poll_send(context).is_ready()));
                once.await;
                tokio::task::yield_now().await;
            }
            poll_fn(|context| wire.poll_send(context)).await
        };
        let (written, read) = tokio::join!(writing, reading);
        assert_eq!(written, Ok(()));
        read.unwrap();
        assert_eq!(arrived, sent);
        let length = sent.len() as u64;
        assert_eq!((wire.written_to(), wire.end()), (length, length));
    }

    #[tokio::test]
    async fn the_room_of_a_long_command_is_given_back() {
        let (mut wire, _node) = wire(2_000_000);
        wire.send(1).extend_from_slice(&[b'x'; 1_000_000]);
        assert!(wire.unsent.capacity() > MANY);
        poll_fn(|context| wire.poll_send(context)).await.unwrap();
        assert!(wire.unsent.capacity() <= MANY);
    }

    #[tokio::test]
    async fn what_is_written_is_forgotten_also_if_something_is_always_left() {
        const PIECE: usize = 10_000;

        let (mut wire, mut node) = wire(PIECE);
        wire.send(1).extend_from_slice(&[0; MANY]);
        for _ in 0..1_000 {
            let once = poll_fn(|context| Poll::Ready(wire.poll_send(context)));
            assert!(tokio::task::unconstrained(once).await.is_pending());
            node.read_exact(&mut [0; PIECE]).await.unwrap();
            wire.send(1).extend_from_slice(&[0; PIECE]);
        }
        assert!(wire.is_full());
        assert!(wire.unsent.len() <= 3 * MANY, "{}", wire.unsent.len());
        assert_eq!(wire.written_to() / PIECE as u64, 1_000);
    }

    #[tokio::test]
    async fn what_has_arrived_before_a_connection_breaks_is_returned() {
        let (mut wire, mut node) = wire(1_000);
        node.write_all(b"+OK\r\n:1\r\n*4\r\n:1\r\n").await.unwrap();
        drop(node);
        wire.send(3).extend_from_slice(b"a command");
        let sent = poll_fn(|context| wire.poll_send(context)).await;
        assert_eq!(sent, Err(TransportError::Disconnected));
        assert_eq!(reply(&mut wire).await, Ok(Value::Okay));
        assert_eq!(reply(&mut wire).await, Ok(Value::Int(1)));
        assert_eq!(reply(&mut wire).await, Err(TransportError::Disconnected));
    }

    #[tokio::test]
    async fn replies_are_whole_wherever_reads_are_cut() {
        let (mut wire, mut node) = wire(1_000);
        let context = &mut Context::from_waker(Waker::noop());
        let sent = b"$-1\r\n*4\r\n:1\r\n:-2\r\n:3\r\n:4\r\n-ERR no\r\n:0\r\n";
        let mut replies = Vec::new();
        for (index, byte) in sent.iter().enumerate() {
            node.write_all(&[*byte]).await.unwrap();
            match wire.poll_reply(context) {
                Poll::Ready(reply) => replies.push((index + 1, reply.unwrap())),
                Poll::Pending => assert!(wire.has_unreturned()),
            }
        }
        let ends: Vec<_> = replies.iter().map(|(end, _)| *end).collect();
        assert_eq!(ends, [5, 26, 35, 39]);
        assert!(!wire.has_unreturned());
        let values: Vec<_> = replies.into_iter().map(|(_, value)| value).collect();
        let four = [1, -2, 3, 4].map(Value::Int).to_vec();
        assert_eq!(values[0], Value::Nil);
        assert_eq!(values[1], Value::Array(four));
        assert!(matches!(&values[2], Value::ServerError(_)));
        assert_eq!(values[3], Value::Int(0));
    }

    #[tokio::test]
    async fn a_reply_with_more_values_than_any_answer_has_ends_the_connection() {
        let (mut wire, mut node) = wire(1_000);
        node.write_all(b"*7\r\n").await.unwrap();
        node.write_all(&b":1\r\n".repeat(7)).await.unwrap();
        assert!(reply(&mut wire).await.is_ok());
        node.write_all(b"*8\r\n").await.unwrap();
        node.write_all(&b":1\r\n".repeat(8)).await.unwrap();
        assert_eq!(reply(&mut wire).await, Err(TransportError::Flooded));
    }
}
