//! The words of a command.

use core::fmt;

use crate::line::LineWord;

/// One word of a command on the wire.
///
/// `Debug` and `Format` do not show its bytes: they may be a token or a password.
#[derive(Clone, Copy, PartialEq, Eq)]
pub enum Argument<'a> {
    /// Bytes as they are.
    Bytes(&'a [u8]),
    /// A number, written in decimal.
    Integer(u64),
    /// The key of the fence record of this key: [`FENCE_KEY_PREFIX`](crate::FENCE_KEY_PREFIX), then these bytes.
    FenceKey(&'a [u8]),
    /// A word that concerns the waiting line: its [`pieces`](LineWord::pieces), one after the other.
    Line(LineWord<'a>),
}

impl fmt::Debug for Argument<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Bytes(bytes) => write!(f, "Bytes({} of them)", bytes.len()),
            Self::Integer(number) => write!(f, "Integer({number})"),
            Self::FenceKey(key) => write!(f, "FenceKey({} bytes)", key.len()),
            Self::Line(word) => write!(f, "Line({} bytes)", length(word)),
        }
    }
}

#[cfg(feature = "defmt")]
impl defmt::Format for Argument<'_> {
    fn format(&self, f: defmt::Formatter<'_>) {
        match self {
            Self::Bytes(bytes) => defmt::write!(f, "Bytes({=usize} of them)", bytes.len()),
            Self::Integer(number) => defmt::write!(f, "Integer({=u64})", *number),
            Self::FenceKey(key) => defmt::write!(f, "FenceKey({=usize} bytes)", key.len()),
            Self::Line(word) => defmt::write!(f, "Line({=usize} bytes)", length(word)),
        }
    }
}

const fn length(word: &LineWord<'_>) -> usize {
    let (prefix, bytes) = word.pieces();
    prefix.len().saturating_add(bytes.len())
}

pub(crate) const fn word(word: &str) -> Argument<'_> {
    Argument::Bytes(word.as_bytes())
}

/// The words of a command, in order.
///
/// One type for every command, so that the code that sends them exists once.
#[derive(Debug, Clone)]
pub struct Arguments<'a> {
    words: [Option<Argument<'a>>; WORDS_MAX],
    next: usize,
    end: usize,
}

/// Those of a fenced acquire in the line, of a fenced acquire, or of a plain extend.
const WORDS_MAX: usize = if cfg!(any(feature = "queue", feature = "mock")) {
    17
} else if cfg!(feature = "fence") {
    13
} else {
    6
};

impl<'a> Arguments<'a> {
    /// The largest number of words of a command.
    pub const MAX: usize = WORDS_MAX;

    /// The arguments with these words. Words beyond [`MAX`](Self::MAX) are left out.
    #[must_use]
    // `inline(never)`: many callers, one copy in flash.
    #[inline(never)]
    pub fn of(words: &[Argument<'a>]) -> Self {
        let mut arguments = Self {
            words: [None; Self::MAX],
            next: 0,
            end: words.len().min(Self::MAX),
        };
        let slots = arguments.words.iter_mut().zip(words);
        slots.for_each(|(slot, word)| *slot = Some(*word));
        arguments
    }

    pub(crate) fn and(mut self, word: Option<Argument<'a>>) -> Self {
        self.push(word);
        self
    }

    // `inline(never)`: many callers, one copy in flash.
    #[inline(never)]
    pub(crate) fn push(&mut self, word: Option<Argument<'a>>) {
        if let (Some(slot), Some(_)) = (self.words.get_mut(self.end), word) {
            *slot = word;
            self.end += 1;
        }
    }
}

impl<'a> Iterator for Arguments<'a> {
    type Item = Argument<'a>;

    fn next(&mut self) -> Option<Argument<'a>> {
        let word = (*self.words.get(self.next)?)?;
        self.next += 1;
        Some(word)
    }

    fn size_hint(&self) -> (usize, Option<usize>) {
        let len = self.end - self.next;
        (len, Some(len))
    }
}

impl ExactSizeIterator for Arguments<'_> {}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn debug_of_an_argument_shows_no_bytes() {
        let word = Argument::Bytes(&[0xab; 20]);
        assert_eq!(std::format!("{word:?}"), "Bytes(20 of them)");
    }
}
