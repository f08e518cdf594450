//! Places in a line with the feature `queue` or `mock`.
//!
//! The types in `disabled.rs` must have the same methods.

use core::fmt;

use crate::key::{MAILBOX_PREFIX, QUEUE_KEY_PREFIX};
use crate::line::Refusal;

/// The name of a client in the lines of the nodes, and of the channel through which a node calls it:
/// [`MAILBOX_PREFIX`], then 16 hexadecimal digits.
///
/// A client that a node cannot call, because the connection has not subscribed to the channel, stands in the line of this node
/// with `~` behind its digits.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Mailbox {
    digits: [u8; Self::DIGITS],
    /// [`MARK`], or zero. Behind the digits, so that mailboxes have the order of the members in Redis, and two clients with the same
    /// ticket have the same order on all nodes.
    mark: [u8; 1],
}

/// The mark of a client that a node cannot call.
const MARK: u8 = b'~';

impl Mailbox {
    /// How many hexadecimal digits a mailbox has.
    pub const DIGITS: usize = 16;

    /// The mailbox with the name `bytes`, which must be random: each client has its own mailbox. The node can call the client.
    #[must_use]
    pub fn new(bytes: [u8; 8]) -> Self {
        let mut digits = [0; Self::DIGITS];
        for (pair, byte) in digits.chunks_exact_mut(2).zip(bytes) {
            let halves = [byte >> 4, byte & 15];
            for (digit, half) in pair.iter_mut().zip(halves) {
                *digit = half + if half < 10 { b'0' } else { b'a' - 10 };
            }
        }
        Self { digits, mark: [0] }
    }

    /// The same mailbox for a node that cannot call the client.
    #[must_use]
    pub const fn uncallable(mut self) -> Self {
        self.mark = [MARK];
        self
    }

    /// Whether the node can call the client.
    #[must_use]
    pub const fn is_callable(&self) -> bool {
        self.mark[0] != MARK
    }

    /// The digits, in lower case.
    #[must_use]
    pub const fn digits(&self) -> &[u8; Self::DIGITS] {
        &self.digits
    }

    const fn as_str(&self) -> &str {
        match str::from_utf8(&self.digits) {
            Ok(digits) => digits,
            Err(_) => "",
        }
    }

    const fn mark(&self) -> &[u8] {
        if self.is_callable() { &[] } else { &self.mark }
    }
}

/// Writes the mailbox as it stands in the line.
impl fmt::Display for Mailbox {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.as_str())?;
        f.write_str(if self.is_callable() { "" } else { "~" })
    }
}

impl fmt::Debug for Mailbox {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "Mailbox({self})")
    }
}

#[cfg(feature = "defmt")]
impl defmt::Format for Mailbox {
    fn format(&self, f: defmt::Formatter<'_>) {
        defmt::write!(f, "{=str}{=[u8]:a}", self.as_str(), self.mark());
    }
}

/// What a client tells a node about its place in the line of a lock, with an acquire or a release.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
#[cfg_attr(feature = "defmt", derive(defmt::Format))]
#[non_exhaustive]
pub struct Place {
    /// The mailbox of the client. `None` if it has not stood in the line.
    pub mailbox: Option<Mailbox>,
    /// If the client stands in the line after the command: when its wait began, in microseconds of the nodes' time.
    pub ticket: Option<u64>,
    /// How long the turn of the client lasts that the node calls, in milliseconds.
    pub turn_ms: u32,
}

impl Place {
    /// The ticket of a client that does not know the nodes' time yet: the node replaces it by its own time.
    pub const NOW: u64 = (1 << 53) - 1;

    /// The place of a client that waits for the lock since `ticket`. For an acquire, and for the release of an acquire that was
    /// lost: if the node had granted, the client returns to its place.
    #[must_use]
    pub const fn waiting(mailbox: Mailbox, ticket: u64, turn_ms: u32) -> Self {
        Self {
            mailbox: Some(mailbox),
            ticket: Some(ticket),
            turn_ms,
        }
    }

    /// The place of a client that leaves the line. For the release of a lease that was won in the line, and of a client that
    /// no longer waits.
    #[must_use]
    pub const fn left(mailbox: Mailbox, turn_ms: u32) -> Self {
        Self {
            mailbox: Some(mailbox),
            ticket: None,
            turn_ms,
        }
    }

    /// The place of a client that has not stood in the line. For the release of a lease that was won without waiting.
    #[must_use]
    pub const fn outside(turn_ms: u32) -> Self {
        Self {
            mailbox: None,
            ticket: None,
            turn_ms,
        }
    }

    /// The same place in the line of a node that calls this client at `mailbox`. `None` if the node keeps no line.
    pub(crate) fn at(self, mailbox: Option<Mailbox>) -> Option<Self> {
        let node = mailbox?;
        // The node may call the client only since this place was chosen, or no longer.
        let mailbox = self.mailbox.and(Some(node));
        Some(Self { mailbox, ..self })
    }

    pub(crate) fn mailbox_word<'a>(&self) -> Option<LineWord<'a>> {
        self.mailbox.map(LineWord::Mailbox)
    }

    pub(crate) const fn is_outside(&self) -> bool {
        self.mailbox.is_none()
    }

    pub(crate) const fn queue_key<'a>(&self, key: &'a [u8]) -> LineWord<'a> {
        LineWord::QueueKey(key)
    }

    pub(crate) const fn ticket(&self) -> Option<u64> {
        self.ticket
    }

    pub(crate) const fn turn_ms(&self) -> u32 {
        self.turn_ms
    }

    pub(crate) const fn position(
        &self,
        refusal: Refusal,
        time: u64,
        left_ms: u32,
        ahead: u32,
    ) -> Position {
        Position {
            refusal,
            time,
            left_ms,
            ahead,
        }
    }

    pub(crate) const fn line_report(&self, ahead: Option<u32>, has_waiters: bool) -> LineReport {
        LineReport { ahead, has_waiters }
    }

    pub(crate) const fn waiters(&self) -> Waiters {
        Waiters(())
    }
}

/// The answer of a node that refuses a client in its line.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
#[cfg_attr(feature = "defmt", derive(defmt::Format))]
#[non_exhaustive]
pub struct Position {
    /// Why the node refuses.
    pub refusal: Refusal,
    /// The node's clock, in microseconds.
    pub time: u64,
    /// If the lock is held: how long its key still lives. If another client is ahead: how long its turn lasts, zero if it is
    /// no client's turn. In milliseconds. `u32::MAX` if the key has no TTL.
    pub left_ms: u32,
    /// How many clients are ahead in the line: 1,000 if the line is full.
    pub ahead: u32,
}

impl Position {
    /// Creates a position, for your own transport. The parameters are the fields.
    #[must_use]
    pub const fn new(refusal: Refusal, time: u64, left_ms: u32, ahead: u32) -> Self {
        Self {
            refusal,
            time,
            left_ms,
            ahead,
        }
    }
}

/// What a round tells its caller about the line.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
#[cfg_attr(feature = "defmt", derive(defmt::Format))]
pub(crate) struct LineReport {
    ahead: Option<u32>,
    has_waiters: bool,
}

impl LineReport {
    pub(crate) const fn ahead(&self) -> Option<u32> {
        self.ahead
    }

    pub(crate) const fn has_waiters(&self) -> bool {
        self.has_waiters
    }
}

/// A marker in the answer to a release: other clients wait for the lock.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
#[cfg_attr(feature = "defmt", derive(defmt::Format))]
pub struct Waiters(());

impl Waiters {
    /// Creates the marker, for your own transport.
    #[must_use]
    pub const fn new() -> Self {
        Self(())
    }
}

impl Default for Waiters {
    fn default() -> Self {
        Self::new()
    }
}

/// A word of a command that concerns the line.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
#[cfg_attr(feature = "defmt", derive(defmt::Format))]
#[non_exhaustive]
pub enum LineWord<'a> {
    /// The key of the line of this key: [`QUEUE_KEY_PREFIX`], then these bytes.
    QueueKey(&'a [u8]),
    /// A mailbox as it stands in the line.
    Mailbox(Mailbox),
    /// The channel of a mailbox: [`MAILBOX_PREFIX`], then the digits of the mailbox.
    Channel(Mailbox),
}

impl LineWord<'_> {
    /// The word in two pieces.
    #[must_use]
    pub const fn pieces(&self) -> (&str, &[u8]) {
        match self {
            Self::QueueKey(key) => (QUEUE_KEY_PREFIX, key),
            Self::Mailbox(mailbox) => (mailbox.as_str(), mailbox.mark()),
            Self::Channel(mailbox) => (MAILBOX_PREFIX, mailbox.digits()),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::string::ToString;

    #[test]
    fn a_mailbox_is_sixteen_digits_and_a_mark_if_it_cannot_be_called() {
        let mailbox = Mailbox::new([0, 1, 0x2a, 0x9f, 0xa0, 0xff, 0x7e, 0xcd]);
        assert_eq!(mailbox.to_string(), "00012a9fa0ff7ecd");
        let uncallable = mailbox.uncallable();
        assert_eq!(uncallable.to_string(), "00012a9fa0ff7ecd~");
        assert_eq!(uncallable.digits(), mailbox.digits());
        let channel = ("redlock:mail:", &b"00012a9fa0ff7ecd"[..]);
        for mailbox in [mailbox, uncallable] {
            assert_eq!(LineWord::Channel(mailbox).pieces(), channel);
        }
        let [before, after] = [0, 0xff].map(|byte| Mailbox::new([byte; 8]));
        assert!(before < mailbox && mailbox < uncallable && uncallable < after);
    }

    #[test]
    fn a_place_at_a_node_is_marked_as_the_node_can_call_and_missing_without_a_line() {
        let mailbox = Mailbox::new([7; 8]);
        let place = Place::waiting(mailbox, 42, 9);
        assert_eq!(place.at(Some(mailbox)), Some(place));
        let marked = Place::waiting(mailbox.uncallable(), 42, 9);
        assert_eq!(place.at(Some(mailbox.uncallable())), Some(marked));
        assert_eq!(place.at(None), None);
        let outside = Place::outside(9);
        assert_eq!(outside.at(Some(mailbox.uncallable())), Some(outside));
    }
}
