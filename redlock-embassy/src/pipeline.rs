//! The unsent commands of a connection and its outstanding replies, without I/O.

use core::fmt;

use heapless::Vec;
use redlock_core::transport::Argument;

use crate::mail::Mail;
#[cfg(not(feature = "queue"))]
use crate::resp::Decoder;
#[cfg(feature = "client-name")]
use crate::resp::Rejection;
use crate::resp::{self, Malformed, Value};
#[cfg(feature = "queue")]
use crate::resp3::{Decoder, Event};

/// The unsent bytes and the outstanding replies of one connection.
///
/// The pipeline outlives the calls. If a call is dropped, the unsent rest of its command stays in the pipeline and is sent
/// before the next command. The reply to the dropped call is skipped, so the next call gets its own reply.
///
/// `TX` is the size of the send buffer, in bytes; use [`feed`](Self::feed) for a longer command. `RX` is the number of
/// bytes that are read at once.
pub struct Pipeline<const TX: usize, const RX: usize> {
    commands: Vec<u8, TX>,
    sent: usize,
    received: [u8; RX],
    decoder: Decoder,
    outstanding: u8,
    has_error_reply: bool,
    /// Whether the outstanding commands were queued by [`feed`](Self::feed).
    #[cfg(feature = "scripts")]
    is_fed: bool,
    #[cfg(feature = "scripts")]
    has_lost_script: bool,
    #[cfg(feature = "scripts")]
    has_refusal: bool,
    /// Whether the last command but one may be answered with an error.
    #[cfg(feature = "client-name")]
    tolerates_error: bool,
    /// The error that was tolerated last, if nothing has been answered since.
    #[cfg(feature = "client-name")]
    tolerated: Option<Rejection>,
    reply: Option<Value>,
}

/// Why the pipeline refused a command. None of it was queued.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Refused {
    /// The command is longer than the send buffer.
    TooLong,
    /// The send buffer has too little room, or [`Pipeline::OUTSTANDING_MAX`] replies are outstanding.
    Full,
}

impl<const TX: usize, const RX: usize> Pipeline<TX, RX> {
    /// The largest number of outstanding replies. A node that reaches it has hung for many rounds.
    pub const OUTSTANDING_MAX: u8 = 64;

    /// The pipeline of a new connection.
    #[must_use]
    pub const fn new() -> Self {
        const { assert!(TX > 0, "there must be room to send a byte") };
        const { assert!(RX > 0, "there must be room to read a byte") };
        Self {
            commands: Vec::new(),
            sent: 0,
            received: [0; RX],
            decoder: Decoder::new(),
            outstanding: 0,
            has_error_reply: false,
            #[cfg(feature = "scripts")]
            is_fed: false,
            #[cfg(feature = "scripts")]
            has_lost_script: false,
            #[cfg(feature = "scripts")]
            has_refusal: false,
            #[cfg(feature = "client-name")]
            tolerates_error: false,
            #[cfg(feature = "client-name")]
            tolerated: None,
            reply: None,
        }
    }

    /// Queues a whole command, or none of it.
    ///
    /// # Errors
    ///
    /// Fails if there is no room for it.
    pub fn push<'a>(
        &mut self,
        arguments: impl ExactSizeIterator<Item = Argument<'a>>,
    ) -> Result<(), Refused> {
        self.compact();
        let waiting = self.commands.len();
        // One pass writes and measures the command. A command that does not fit is removed again.
        let (taken, len) = self.write(arguments, 0);
        if taken < len || self.outstanding >= Self::OUTSTANDING_MAX {
            self.commands.truncate(waiting);
            return Err(if len > TX {
                Refused::TooLong
            } else {
                Refused::Full
            });
        }
        #[cfg(feature = "scripts")]
        {
            self.is_fed = false;
        }
        self.expect_reply();
        Ok(())
    }

    /// Queues a command of any length piece by piece. Each call starts at byte `from` of the command, and queues as many
    /// bytes as there is room for.
    ///
    /// Returns `None` when the whole command is queued. Otherwise returns the `from` of the next call, which is due when
    /// the bytes so far are sent. Push and feed no other command in between.
    ///
    /// With the feature `fence` or `queue`, several commands that were fed may be outstanding: see [`take_reply`](Self::take_reply).
    pub fn feed<'a>(
        &mut self,
        arguments: impl ExactSizeIterator<Item = Argument<'a>>,
        from: usize,
    ) -> Option<usize> {
        if self.outstanding >= Self::OUTSTANDING_MAX {
            return Some(from);
        }
        self.compact();
        let (taken, len) = self.write(arguments, from);
        if taken < len {
            return Some(taken);
        }
        #[cfg(feature = "scripts")]
        {
            self.is_fed = true;
        }
        self.expect_reply();
        None
    }

    /// Ignores the reply to the command that was fed last, whatever it is. Feed one more command, and no other until that one is
    /// answered.
    #[cfg(feature = "client-name")]
    pub const fn tolerate_error(&mut self) {
        self.tolerates_error = true;
    }

    /// The bytes to send next.
    #[must_use]
    pub fn unsent(&self) -> &[u8] {
        self.commands.get(self.sent..).unwrap_or_default()
    }

    /// Records that the first `count` bytes of [`unsent`](Self::unsent) are sent.
    pub fn sent(&mut self, count: usize) {
        self.sent = self.sent.saturating_add(count).min(self.commands.len());
    }

    /// The buffer for bytes from the node.
    #[must_use]
    pub const fn room(&mut self) -> &mut [u8] {
        &mut self.received
    }

    /// Parses the `count` bytes that were put into [`room`](Self::room). Messages go to `mail`.
    ///
    /// # Errors
    ///
    /// Fails if they are not valid replies, or more replies than are outstanding. The connection is then no longer
    /// usable.
    pub fn received(&mut self, count: usize, mail: &mut Mail) -> Result<(), Malformed> {
        let mut input = self.received.get(..count).unwrap_or(&self.received);
        while let Some(value) = self.decoder.decode(&mut input)? {
            #[cfg(feature = "queue")]
            let value = match value {
                Event::Reply(value) => value,
                // A subscription has no other answer.
                Event::Subscribed if mail.subscribed() => Value::Ok,
                Event::Subscribed => continue,
                Event::Message => {
                    mail.deliver(self.decoder.message());
                    continue;
                }
            };
            self.outstanding = self.outstanding.checked_sub(1).ok_or(Malformed)?;
            mail.replied();
            #[cfg(feature = "client-name")]
            {
                self.tolerated = None;
            }
            #[cfg(feature = "client-name")]
            if self.outstanding == 1 && core::mem::take(&mut self.tolerates_error) {
                if let Value::Error(error) = value {
                    self.tolerated = Some(error);
                }
                continue;
            }
            self.has_error_reply |= matches!(value, Value::Error(_));
            #[cfg(feature = "scripts")]
            {
                self.has_lost_script |=
                    matches!(value, Value::Error(error) if error.code() == b"NOSCRIPT");
            }
            #[cfg(feature = "scripts")]
            {
                self.has_refusal |= matches!(
                    value,
                    Value::Error(error) if error.code() != b"NOSCRIPT" && !error.is_temporary()
                );
            }
            #[cfg(feature = "scripts")]
            if self.is_fed && self.outstanding > 0 && !matches!(value, Value::Ok) {
                self.reply = Some(value);
                break;
            }
            if self.outstanding == 0 {
                self.reply = Some(value);
            }
        }
        Ok(())
    }

    /// The error that was tolerated, if it is the last reply so far.
    #[cfg(feature = "client-name")]
    #[must_use]
    pub const fn tolerated(&self) -> Option<Rejection> {
        self.tolerated
    }

    /// Returns the reply to the last queued command. `None` if it has not arrived.
    ///
    /// If several commands that were [fed](Self::feed) are outstanding, all but the last must be answered with `OK`. The first
    /// other answer is returned when it arrives. If it is not the answer to the last command, the connection is no longer
    /// usable.
    pub const fn take_reply(&mut self) -> Option<Value> {
        self.reply.take()
    }

    /// The number of outstanding replies.
    #[must_use]
    pub const fn outstanding(&self) -> u8 {
        self.outstanding
    }

    /// Whether any reply since the last [`forget_errors`](Self::forget_errors) was an error. Skipped replies count too.
    #[must_use]
    pub const fn has_error_reply(&self) -> bool {
        self.has_error_reply
    }

    /// Whether any reply since the last [`forget_errors`](Self::forget_errors) was `NOSCRIPT`. Skipped replies count too.
    #[cfg(feature = "scripts")]
    #[must_use]
    pub const fn has_lost_script(&self) -> bool {
        self.has_lost_script
    }

    /// Forgets the errors so far.
    pub const fn forget_errors(&mut self) {
        self.has_error_reply = false;
        #[cfg(feature = "scripts")]
        {
            self.has_lost_script = false;
        }
        #[cfg(feature = "scripts")]
        self.forget_refusal();
    }

    /// Whether any reply since the last [`forget_errors`](Self::forget_errors) or [`forget_refusal`](Self::forget_refusal) was an
    /// error that is neither temporary nor `NOSCRIPT`. Skipped replies count too.
    #[cfg(feature = "scripts")]
    #[must_use]
    pub const fn has_refusal(&self) -> bool {
        self.has_refusal
    }

    /// Forgets the refusals so far.
    #[cfg(feature = "scripts")]
    pub const fn forget_refusal(&mut self) {
        self.has_refusal = false;
    }

    /// Whether a command of up to `TX` bytes can be queued at once: every byte is sent, and fewer than
    /// [`OUTSTANDING_MAX`](Self::OUTSTANDING_MAX) replies are outstanding.
    #[must_use]
    pub fn can_queue(&self) -> bool {
        self.unsent().is_empty() && self.outstanding < Self::OUTSTANDING_MAX
    }

    /// Appends as many bytes of a command as there is room for, starting at byte `from`. Returns the end of the written
    /// bytes, counted from the start of the command, and the length of the command.
    fn write<'a>(
        &mut self,
        arguments: impl ExactSizeIterator<Item = Argument<'a>>,
        from: usize,
    ) -> (usize, usize) {
        let mut written = (from, 0);
        resp::encode(arguments, |piece| self.write_piece(piece, &mut written));
        written
    }

    // `inline(never)`: many callers, one copy in flash.
    #[inline(never)]
    fn write_piece(&mut self, piece: &[u8], (taken, len): &mut (usize, usize)) {
        // Skips the bytes that were written by an earlier call. They may end inside of this piece.
        let rest = piece.get(taken.saturating_sub(*len)..).unwrap_or_default();
        let room = TX - self.commands.len();
        let fitting = rest.get(..room).unwrap_or(rest);
        let _full = self.commands.extend_from_slice(fitting);
        *taken = taken.saturating_add(fitting.len());
        *len = len.saturating_add(piece.len());
    }

    const fn expect_reply(&mut self) {
        self.outstanding += 1;
        self.reply = None;
    }

    /// Makes room at the end by moving the unsent bytes to the front.
    fn compact(&mut self) {
        let unsent = self.unsent().len();
        let len = self.commands.len();
        self.commands.copy_within(self.sent..len, 0);
        self.commands.truncate(unsent);
        self.sent = 0;
    }
}

impl<const TX: usize, const RX: usize> Default for Pipeline<TX, RX> {
    fn default() -> Self {
        Self::new()
    }
}

impl<const TX: usize, const RX: usize> fmt::Debug for Pipeline<TX, RX> {
    /// Without the bytes, because they may contain a password or a token.
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Pipeline")
            .field("unsent", &self.unsent().len())
            .field("outstanding", &self.outstanding)
            .finish_non_exhaustive()
    }
}

#[cfg(test)]
mod tests;
