//! What came of a round, node by node.

use core::array;
use core::fmt;
use core::time::Duration;

use crate::command::{Command, Reply};

/// What came of one node.
#[derive(Debug, Clone, PartialEq, Eq)]
#[cfg_attr(feature = "defmt", derive(defmt::Format))]
pub enum Outcome<E> {
    /// No answer by the time the round was decided without it.
    Unanswered,
    /// The node did what it was asked.
    Granted,
    /// The node said no: the key is held by another, or gone.
    Refused,
    /// The node could not be asked or gave no answer in time. It may have done what it was asked.
    Failed(E),
}

impl<E> Outcome<E> {
    /// Reads `result`; a reply that belongs to another kind of command is no answer.
    pub(crate) fn of(command: &Command<'_>, result: Result<Reply, E>) -> Self {
        let reply = match result {
            Err(error) => return Self::Failed(error),
            Ok(reply) => reply,
        };
        match (command, reply) {
            (Command::Acquire { .. }, Reply::Acquired(_))
            | (Command::Extend { .. }, Reply::Extended(_))
            | (Command::Release { .. }, Reply::Released) => Self::Granted,
            (Command::Acquire { .. }, Reply::Held(_))
            | (Command::Extend { .. } | Command::Release { .. }, Reply::NotMine) => Self::Refused,
            _ => Self::Unanswered,
        }
    }
}

/// How many nodes said what.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
#[cfg_attr(feature = "defmt", derive(defmt::Format))]
pub struct Tally {
    /// How many nodes there are.
    pub nodes: usize,
    /// How many did what they were asked.
    pub granted: usize,
    /// How many said no.
    pub refused: usize,
    /// How many said nothing that counts.
    pub unknown: usize,
}

/// What came of a round: the key, and the outcome of each node.
#[derive(Debug, Clone, PartialEq, Eq)]
#[cfg_attr(feature = "defmt", derive(defmt::Format))]
pub struct Report<E, const MAX: usize> {
    key: KeyName,
    nodes: usize,
    outcomes: [Outcome<E>; MAX],
    free_in_ms: Option<u32>,
}

impl<E, const MAX: usize> Report<E, MAX> {
    pub(crate) fn new(key: &[u8], nodes: usize) -> Self {
        Self {
            key: KeyName::new(key),
            nodes,
            outcomes: array::from_fn(|_| Outcome::Unanswered),
            free_in_ms: None,
        }
    }

    pub(crate) const fn set_free_in_ms(&mut self, free_in_ms: Option<u32>) {
        self.free_in_ms = free_in_ms;
    }

    pub(crate) const fn free_in_ms(&self) -> Option<u32> {
        self.free_in_ms
    }

    /// How long a quorum of nodes keeps the key of another client at the most, unless it is extended. A
    /// fenced lock tells, if so many nodes had answered; a plain one cannot.
    #[must_use]
    pub fn free_in(&self) -> Option<Duration> {
        self.free_in_ms.map(|ms| Duration::from_millis(ms.into()))
    }

    pub(crate) fn record(&mut self, node: usize, outcome: Outcome<E>) {
        if let Some(place) = self.outcomes.get_mut(node) {
            *place = outcome;
        }
    }

    pub(crate) fn is_unanswered(&self, node: usize) -> bool {
        matches!(self.outcomes.get(node), Some(Outcome::Unanswered))
    }

    /// The key, as far as it can be shown.
    #[must_use]
    pub const fn key(&self) -> &KeyName {
        &self.key
    }

    /// The outcome of each node, in the order in which the nodes were given.
    #[must_use]
    pub fn outcomes(&self) -> &[Outcome<E>] {
        self.outcomes.get(..self.nodes).unwrap_or_default()
    }

    /// How many nodes said what.
    #[must_use]
    pub fn tally(&self) -> Tally {
        let mut tally = Tally {
            nodes: self.nodes,
            granted: 0,
            refused: 0,
            unknown: 0,
        };
        for outcome in self.outcomes() {
            match outcome {
                Outcome::Granted => tally.granted += 1,
                Outcome::Refused => tally.refused += 1,
                Outcome::Unanswered | Outcome::Failed(_) => tally.unknown += 1,
            }
        }
        tally
    }

    /// What went wrong, for each node that failed.
    pub fn failures(&self) -> impl Iterator<Item = &E> {
        self.outcomes().iter().filter_map(|outcome| match outcome {
            Outcome::Failed(error) => Some(error),
            _ => None,
        })
    }
}

impl<E: fmt::Display, const MAX: usize> Report<E, MAX> {
    /// Writes `(` the count, then what went wrong on which node, `)`.
    pub(crate) fn write_nodes(
        &self,
        f: &mut fmt::Formatter<'_>,
        count: usize,
        what: &str,
    ) -> fmt::Result {
        write!(f, "{count} of {} nodes{what}", self.nodes)?;
        let mut separator = " (";
        for failure in self.failures() {
            write!(f, "{separator}{failure}")?;
            separator = "; ";
        }
        if separator == "; " {
            f.write_str(")")
        } else {
            Ok(())
        }
    }
}

/// A key as it is shown in messages: its first bytes, what is not text escaped.
#[derive(Clone, Copy, PartialEq, Eq)]
pub struct KeyName {
    bytes: [u8; Self::LEN],
    len: usize,
}

impl KeyName {
    const LEN: usize = 64;

    /// How `key` is shown.
    #[must_use]
    // Called in many places: once in flash.
    #[inline(never)]
    pub fn new(key: &[u8]) -> Self {
        let mut bytes = [0; Self::LEN];
        bytes.iter_mut().zip(key).for_each(|(to, from)| *to = *from);
        Self {
            bytes,
            len: key.len(),
        }
    }

    /// The whole key; none when it is too long to be kept.
    pub(crate) fn whole(&self) -> Option<&[u8]> {
        self.bytes.get(..self.len)
    }

    fn shown(&self) -> &[u8] {
        self.whole().unwrap_or(&self.bytes)
    }
}

impl fmt::Display for KeyName {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        for chunk in self.shown().utf8_chunks() {
            write!(f, "{}", chunk.valid().escape_debug())?;
            for byte in chunk.invalid() {
                write!(f, "\\x{byte:02x}")?;
            }
        }
        if self.len > Self::LEN {
            f.write_str("..")
        } else {
            Ok(())
        }
    }
}

#[cfg(feature = "defmt")]
impl defmt::Format for KeyName {
    fn format(&self, f: defmt::Formatter<'_>) {
        defmt::write!(f, "{=[u8]:a}", self.shown());
        if self.len > Self::LEN {
            defmt::write!(f, "..");
        }
    }
}

impl fmt::Debug for KeyName {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "\"{self}\"")
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::string::ToString;

    #[test]
    fn a_key_is_shown_in_one_line_whatever_its_bytes_are() {
        assert_eq!(KeyName::new(b"dock-7").to_string(), "dock-7");
        assert_eq!(
            KeyName::new("d\u{f6}ck\n".as_bytes()).to_string(),
            "d\u{f6}ck\\n"
        );
        assert_eq!(KeyName::new(b"\xff\x00").to_string(), "\\xff\\0");
        let whole = KeyName::new(&[b'k'; 64]);
        assert_eq!(whole.to_string(), "k".repeat(64));
        let long = KeyName::new(&[b'k'; 65]).to_string();
        assert_eq!(long, std::format!("{}..", "k".repeat(64)));
        assert_eq!(std::format!("{:?}", KeyName::new(b"dock-7")), "\"dock-7\"");
    }

    #[test]
    fn a_key_is_kept_whole_or_not_at_all() {
        assert_eq!(KeyName::new(&[b'k'; 64]).whole(), Some(&[b'k'; 64][..]));
        assert_eq!(KeyName::new(&[b'k'; 65]).whole(), None);
        assert_eq!(KeyName::new(b"").whole(), Some(&b""[..]));
    }
}
