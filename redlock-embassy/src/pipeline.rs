//! The commands on their way to a node and the replies on their way back, without I/O.

use core::fmt;

use heapless::Vec;
use redlock_core::transport::Argument;

use crate::resp::{self, Decoder, Malformed, Value};

/// The state of one connection: bytes that are not sent yet, and replies that are outstanding.
///
/// It outlives the calls. If a call is dropped half-way, the rest of its command stays here and is sent
/// before the next command. Its reply is skipped, so the next call gets its own reply.
///
/// `TX` is the room for commands, in bytes; a longer command must be [fed](Self::feed). `RX` is the most bytes that
/// are read at once.
pub struct Pipeline<const TX: usize, const RX: usize> {
    commands: Vec<u8, TX>,
    sent: usize,
    received: [u8; RX],
    decoder: Decoder,
    owed: u8,
    has_failed: bool,
    #[cfg(feature = "fence")]
    has_lost_script: bool,
    reply: Option<Value>,
}

/// Why a command was rejected. None of it was queued.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Refused {
    /// It is longer than the whole room.
    TooLong,
    /// Too much is waiting: the node has not read or not answered several commands.
    Full,
}

impl<const TX: usize, const RX: usize> Pipeline<TX, RX> {
    /// How many replies may be outstanding. If there are more, the node has hung for many rounds.
    pub const OWED_MAX: u8 = 64;

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
            owed: 0,
            has_failed: false,
            #[cfg(feature = "fence")]
            has_lost_script: false,
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
        words: impl ExactSizeIterator<Item = Argument<'a>>,
    ) -> Result<(), Refused> {
        self.compact();
        let waiting = self.commands.len();
        // Written and measured in one pass, and removed again if it does not fit.
        let (taken, len) = self.write(words, 0);
        if taken < len || self.owed >= Self::OWED_MAX {
            self.commands.truncate(waiting);
            return Err(if len > TX {
                Refused::TooLong
            } else {
                Refused::Full
            });
        }
        self.expect_reply();
        Ok(())
    }

    /// Queues as much of a command of any length as there is room for, from its byte `from` on. Returns the byte from
    /// which to continue once that is sent, or `None` if the whole command is queued.
    ///
    /// Until it returns `None`, nothing else may be pushed or fed.
    pub fn feed<'a>(
        &mut self,
        words: impl ExactSizeIterator<Item = Argument<'a>>,
        from: usize,
    ) -> Option<usize> {
        if self.owed >= Self::OWED_MAX {
            return Some(from);
        }
        self.compact();
        let (taken, len) = self.write(words, from);
        if taken < len {
            return Some(taken);
        }
        self.expect_reply();
        None
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

    /// Parses the `count` bytes that were put into [`room`](Self::room).
    ///
    /// # Errors
    ///
    /// Fails if they are not valid replies, or more replies than are outstanding. The connection is then no longer
    /// usable.
    pub fn received(&mut self, count: usize) -> Result<(), Malformed> {
        let mut input = self.received.get(..count).unwrap_or(&self.received);
        while let Some(value) = self.decoder.decode(&mut input)? {
            self.owed = self.owed.checked_sub(1).ok_or(Malformed)?;
            self.has_failed |= matches!(value, Value::Error(_));
            #[cfg(feature = "fence")]
            {
                self.has_lost_script |=
                    matches!(value, Value::Error(error) if error.code() == b"NOSCRIPT");
            }
            if self.owed == 0 {
                self.reply = Some(value);
            }
        }
        Ok(())
    }

    /// The reply to the command that was queued last, once it has arrived.
    pub const fn take_reply(&mut self) -> Option<Value> {
        self.reply.take()
    }

    /// How many commands have no reply yet.
    #[must_use]
    pub const fn owed(&self) -> u8 {
        self.owed
    }

    /// Whether any reply, including skipped ones, was an error since the last call of
    /// [`forget_errors`](Self::forget_errors).
    #[must_use]
    pub const fn has_failed(&self) -> bool {
        self.has_failed
    }

    /// Whether any of the errors that [`has_failed`](Self::has_failed) counts was `NOSCRIPT`.
    #[cfg(feature = "fence")]
    #[must_use]
    pub const fn has_lost_script(&self) -> bool {
        self.has_lost_script
    }

    /// Forgets the errors so far.
    pub const fn forget_errors(&mut self) {
        self.has_failed = false;
        #[cfg(feature = "fence")]
        {
            self.has_lost_script = false;
        }
    }

    /// Whether everything is sent, and one more reply may be outstanding.
    #[must_use]
    pub fn is_idle(&self) -> bool {
        self.unsent().is_empty() && self.owed < Self::OWED_MAX
    }

    /// Appends as much of a command as there is room for, from its byte `from` on. Returns the byte up to which it is
    /// written, and the length of the command.
    fn write<'a>(
        &mut self,
        words: impl ExactSizeIterator<Item = Argument<'a>>,
        from: usize,
    ) -> (usize, usize) {
        let mut written = (from, 0);
        resp::encode(words, |piece| self.write_piece(piece, &mut written));
        written
    }

    // `inline(never)`: many callers, one copy in flash.
    #[inline(never)]
    fn write_piece(&mut self, piece: &[u8], (taken, len): &mut (usize, usize)) {
        // Skips the bytes that were taken before, also at the front of a piece.
        let rest = piece.get(taken.saturating_sub(*len)..).unwrap_or_default();
        let room = TX - self.commands.len();
        let fitting = rest.get(..room).unwrap_or(rest);
        let _full = self.commands.extend_from_slice(fitting);
        *taken = taken.saturating_add(fitting.len());
        *len = len.saturating_add(piece.len());
    }

    const fn expect_reply(&mut self) {
        self.owed += 1;
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
            .field("owed", &self.owed)
            .finish_non_exhaustive()
    }
}

#[cfg(test)]
mod tests;
