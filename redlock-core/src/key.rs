//! The keys on a node: the keys of locks, and the records beside them.

use core::fmt;

use crate::escape::write_printable;

/// The key of the guard record. It holds the rules of the fleet, and `until`, the time from which the vote of the node counts:
/// `run_id:until:max_ttl:window:step_back:replication_id`. All times are in milliseconds.
///
/// Clients of older versions do not know the replication ID. It is the last field, so they take the record for one with other
/// rules: they get no vote from the node, and never overwrite the record.
pub const GUARD_KEY: &str = "redlock:guard";

/// The prefix that turns the key of a lock into the key of its fence record: `highest:held_until:accepted`.
///
/// - `highest` is a fence.
/// - `held_until` is a time in milliseconds.
/// - `accepted` is the token whose acquire or extend was accepted last. After its release, `:accepted` is missing.
pub const FENCE_KEY_PREFIX: &str = "redlock:fence:";

/// The prefix that turns the key of a lock into the key of its waiting line. The line is a sorted set: its members are mailboxes,
/// its scores are tickets.
pub const QUEUE_KEY_PREFIX: &str = "redlock:queue:";

/// The prefix that turns a mailbox into the channel through which nodes call its client. A message is `1` or `2`, then the key of
/// the lock: see `transport::Call`.
pub const MAILBOX_PREFIX: &str = "redlock:mail:";

/// The prefix of the keys of guard and fence records, and of waiting lines. No lock may have a key with this prefix.
pub const RESERVED_PREFIX: &str = "redlock:";

/// A key as messages show it: its first 64 bytes. Bytes that are not printable text are escaped.
#[derive(Clone, Copy, PartialEq, Eq, Hash)]
pub struct KeyName {
    bytes: [u8; Self::LEN],
    len: usize,
}

impl KeyName {
    const LEN: usize = 64;

    /// The name of `key` in messages.
    #[must_use]
    // `inline(never)`: many callers, one copy in flash.
    #[inline(never)]
    pub fn new(key: &[u8]) -> Self {
        let mut bytes = [0; Self::LEN];
        bytes.iter_mut().zip(key).for_each(|(to, from)| *to = *from);
        Self {
            bytes,
            len: key.len(),
        }
    }

    /// The whole key. `None` if it is longer than 64 bytes.
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
            for character in chunk.valid().chars() {
                match character {
                    '\'' | '"' | '\\' => write!(f, "\\{character}")?,
                    other => write_printable(f, other)?,
                }
            }
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
        match str::from_utf8(self.shown()) {
            // No control character reaches the terminal of a reader.
            Ok(text) if text.bytes().all(|byte| matches!(byte, b' '..=b'~')) => {
                defmt::write!(f, "{=str}", text);
            }
            _ => defmt::write!(f, "{=[u8]:a}", self.shown()),
        }
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
    fn a_key_is_shown_on_one_line_for_any_bytes() {
        assert_eq!(KeyName::new(b"dock-7").to_string(), "dock-7");
        assert_eq!(
            KeyName::new("d\u{f6}ck\n".as_bytes()).to_string(),
            "d\u{f6}ck\\n"
        );
        assert_eq!(KeyName::new(b"\xff\x00").to_string(), "\\xff\\0");
        assert_eq!(KeyName::new(b"\"\\xff").to_string(), "\\\"\\\\xff");
        assert_eq!(
            KeyName::new("a\u{3164}\u{2800}\u{202e}".as_bytes()).to_string(),
            "a\\u{3164}\\u{2800}\\u{202e}"
        );
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
