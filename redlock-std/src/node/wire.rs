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
/// Not the redis crate moves the bytes: it would need a channel, a boxed future and several copies for each write, and its parser has
/// no limit.
pub(crate) struct Wire {
    stream: Box<dyn Stream>,
    credit: Arc<Credit>,
    unsent: Vec<u8>,
    /// How much of them is written.
    written: usize,
    /// Whether TLS may keep something that was written.
    is_unflushed: bool,
    replies: Replies,
}

/// The room for commands that is kept: far more than they take, but for a script or the longest keys.
const KEPT: usize = 64 * 1024;

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
            is_unflushed: false,
            replies,
        }
    }

    /// Where to append commands that have this number of replies. They are written by the next [`poll_send`](Self::poll_send).
    pub(crate) fn send(&mut self, replies: usize) -> &mut Vec<u8> {
        self.credit.grant(replies);
        &mut self.unsent
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
            let count = ready!(Pin::new(&mut self.stream).poll_write(context, rest))?;
            if count == 0 {
                return Poll::Ready(Err(io::ErrorKind::WriteZero.into()));
            }
            self.written += count;
            self.is_unflushed = true;
        }
        self.unsent.clear();
        self.unsent.shrink_to(KEPT);
        self.written = 0;
        if self.is_unflushed {
            ready!(Pin::new(&mut self.stream).poll_flush(context))?;
            self.is_unflushed = false;
        }
        Poll::Ready(Ok(()))
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

    /// Whether something has arrived beside the replies that were returned.
    pub(crate) const fn has_unreturned(&self) -> bool {
        self.replies.unreturned() > 0
    }
}
