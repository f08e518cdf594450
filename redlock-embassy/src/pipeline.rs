//! What is on its way to a node and back, without any input or output of its own.

use core::fmt;

use heapless::Vec;
use redlock_core::Argument;

use crate::resp::{self, Decoder, Malformed, Value};

/// The state of one connection: bytes that are not sent yet, and replies that are still owed.
///
/// It outlives the calls. A call that is dropped half-way leaves the rest of its command here, to be
/// sent before the next one, and its reply, when it comes, is passed over: the next call gets its own.
///
/// `TX` is the room for commands; what is longer must be [fed](Self::feed). `RX` is the most that is read at
/// once.
pub struct Pipeline<const TX: usize, const RX: usize> {
    commands: Vec<u8, TX>,
    sent: usize,
    received: [u8; RX],
    decoder: Decoder,
    owed: u8,
    has_failed: bool,
    reply: Option<Value>,
}

/// Why a command was not taken. Nothing of it was.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Refused {
    /// It is longer than the room there is, even for it alone.
    TooLong,
    /// Too much is waiting: the node has not read or not answered for several commands.
    Full,
}

impl<const TX: usize, const RX: usize> Pipeline<TX, RX> {
    /// How many replies may be owed. A node that owes more has hung for many rounds.
    pub const OWED_MAX: u8 = 64;

    /// For a new connection.
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
            reply: None,
        }
    }

    /// Takes a command, whole or not at all.
    ///
    /// # Errors
    ///
    /// When there is no room for it.
    pub fn push<'a>(
        &mut self,
        words: impl ExactSizeIterator<Item = Argument<'a>>,
    ) -> Result<(), Refused> {
        self.forget_sent();
        let waiting = self.commands.len();
        // Written and measured in one pass; taken back if it does not fit.
        let (taken, len) = self.write(words, 0);
        if taken < len || self.owed >= Self::OWED_MAX {
            self.commands.truncate(waiting);
            return Err(if len > TX {
                Refused::TooLong
            } else {
                Refused::Full
            });
        }
        self.owe();
        Ok(())
    }

    /// Takes what there is room for of a command of any length, from its byte `from` on; returns where to go
    /// on once that is sent, or none when the command is in to its end.
    ///
    /// Until then nothing else may be pushed or fed.
    pub fn feed<'a>(
        &mut self,
        words: impl ExactSizeIterator<Item = Argument<'a>>,
        from: usize,
    ) -> Option<usize> {
        if self.owed >= Self::OWED_MAX {
            return Some(from);
        }
        self.forget_sent();
        let (taken, len) = self.write(words, from);
        if taken < len {
            return Some(taken);
        }
        self.owe();
        None
    }

    /// What is to be sent next.
    #[must_use]
    pub fn unsent(&self) -> &[u8] {
        self.commands.get(self.sent..).unwrap_or_default()
    }

    /// Says that the first `count` bytes of [`unsent`](Self::unsent) are sent.
    pub fn sent(&mut self, count: usize) {
        self.sent = self.sent.saturating_add(count).min(self.commands.len());
    }

    /// Where to put what the node sends.
    #[must_use]
    pub const fn room(&mut self) -> &mut [u8] {
        &mut self.received
    }

    /// Says that `count` bytes were put into [`room`](Self::room), and reads them.
    ///
    /// # Errors
    ///
    /// When they are no replies, or more of them than are owed. The connection is of no use any more.
    pub fn received(&mut self, count: usize) -> Result<(), Malformed> {
        let mut input = self.received.get(..count).unwrap_or(&self.received);
        while let Some(value) = self.decoder.decode(&mut input)? {
            self.owed = self.owed.checked_sub(1).ok_or(Malformed)?;
            self.has_failed |= matches!(value, Value::Error(_));
            if self.owed == 0 {
                self.reply = Some(value);
            }
        }
        Ok(())
    }

    /// The reply to the command that was pushed last, once it is there.
    pub const fn take_reply(&mut self) -> Option<Value> {
        self.reply.take()
    }

    /// How many commands have no reply yet.
    #[must_use]
    pub const fn owed(&self) -> u8 {
        self.owed
    }

    /// Whether a reply was an error, also one that was passed over, since they were last
    /// [forgotten](Self::forget_errors).
    #[must_use]
    pub const fn has_failed(&self) -> bool {
        self.has_failed
    }

    /// Forgets the errors that have come.
    pub const fn forget_errors(&mut self) {
        self.has_failed = false;
    }

    /// Whether everything is sent, and another reply may be owed.
    #[must_use]
    pub fn is_idle(&self) -> bool {
        self.unsent().is_empty() && self.owed < Self::OWED_MAX
    }

    /// Puts what there is room for of a command behind what is waiting, from its byte `from` on. Returns up
    /// to where, and how long the command is.
    fn write<'a>(
        &mut self,
        words: impl ExactSizeIterator<Item = Argument<'a>>,
        from: usize,
    ) -> (usize, usize) {
        let mut written = (from, 0);
        resp::encode(words, |piece| self.write_piece(piece, &mut written));
        written
    }

    // Called in many places: once in flash.
    #[inline(never)]
    fn write_piece(&mut self, piece: &[u8], (taken, len): &mut (usize, usize)) {
        // What was taken before, and of a piece that has begun its front.
        let rest = piece.get(taken.saturating_sub(*len)..).unwrap_or_default();
        let room = TX - self.commands.len();
        let fitting = rest.get(..room).unwrap_or(rest);
        let _full = self.commands.extend_from_slice(fitting);
        *taken = taken.saturating_add(fitting.len());
        *len = len.saturating_add(piece.len());
    }

    const fn owe(&mut self) {
        self.owed += 1;
        self.reply = None;
    }

    /// Makes room at the end by moving what is not sent to the front.
    fn forget_sent(&mut self) {
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
    /// Without the bytes, of which some may be a password or a token.
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Pipeline")
            .field("unsent", &self.unsent().len())
            .field("owed", &self.owed)
            .finish_non_exhaustive()
    }
}

#[cfg(test)]
mod tests;
