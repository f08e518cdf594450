//! The scripts of fenced locks and of lines, as the node in memory knows them.

use redlock_core::transport::Script;
use redlock_core::{Instant, Token};
use std::collections::HashMap;

/// Which scripts the node knows, and the fences that it has accepted.
#[derive(Debug, Default)]
pub(crate) struct Scripts {
    loaded: Vec<usize>,
    /// Instead of loading one.
    pub(crate) refusal: Option<&'static str>,
    /// Another client flushes them as soon as they are loaded.
    pub(crate) is_flushed_at_once: bool,
    fences: HashMap<Vec<u8>, u64>,
}

/// What a script does to the key.
pub(crate) enum Change {
    Nothing,
    /// To this value, for so many milliseconds.
    Set(Vec<u8>, u64),
    Delete,
}

impl Scripts {
    /// By how much the clock of the node is ahead of the one of the tests, in microseconds.
    pub(crate) const AHEAD: u64 = 1_700_000_000_000_000;

    /// Forgets them, as `SCRIPT FLUSH` does.
    #[cfg(any(feature = "fence", feature = "queue"))]
    pub(crate) fn flush(&mut self) {
        self.loaded.clear();
    }

    pub(crate) fn load(&mut self, text: &[u8]) -> Vec<u8> {
        if let Some(refusal) = self.refusal {
            return format!("-{refusal}\r\n").into_bytes();
        }
        let number = Self::number_of(text);
        if !self.is_flushed_at_once {
            self.loaded.push(number);
        }
        format!("$40\r\n{}\r\n", all()[number].sha1()).into_bytes()
    }

    /// Which of them `text` is.
    pub(crate) fn number_of(text: &[u8]) -> usize {
        let is_it = |script: &&Script| script.text().as_bytes() == text;
        all().iter().position(is_it).unwrap()
    }

    /// The name of a call in tests: `ACQUIRE a`.
    pub(crate) fn name(sha1: &[u8], words: &[Vec<u8>]) -> String {
        let number = named(sha1);
        let verb = ["ACQUIRE", "RENEW", "GIVE BACK", "JOIN", "LEAVE"][number];
        let verb = match words.last() {
            Some(kept) if number == 1 && kept == Token::KEPT.as_bytes() => "KEEP",
            _ => verb,
        };
        // A release does not look at the guard.
        let token = &words[if number >= 2 { 2 } else { 3 }];
        format!("{verb} {}", char::from(token[0]))
    }

    /// Calls the script for a key with this value: the answer, and what becomes of the key.
    pub(crate) fn call(
        &mut self,
        sha1: &[u8],
        value: Option<Vec<u8>>,
        arguments: &[&[u8]],
        now: Instant,
    ) -> (Vec<u8>, Change) {
        let number = named(sha1);
        if !self.loaded.contains(&number) {
            let error = b"-NOSCRIPT No matching script. Please use EVAL.\r\n";
            return (error.to_vec(), Change::Nothing);
        }
        let number_in = |word: &[u8]| str::from_utf8(word).unwrap().parse::<u64>().unwrap();
        let now = now.as_micros() + Self::AHEAD;
        match (number, arguments) {
            (0, [fence_key, _, token, ttl, t, _, window, _, ..]) => {
                let (t, window) = (number_in(t), number_in(window) * 1_000);
                let fence = self.fences.entry(fence_key.to_vec()).or_default();
                let is_mine = value.as_deref() == Some(*token);
                let code = match value {
                    Some(_) if !is_mine => 1,
                    _ if t < *fence || t == *fence && !is_mine => 2,
                    _ if t + window <= now => 3,
                    _ if t > now + window => 4,
                    _ => 0,
                };
                if code == 0 {
                    *fence = t;
                }
                judged(code, now, *fence, token, number_in(ttl))
            }
            (1, [fence_key, _, token, ttl, t, time, window, _, kept @ ..]) => {
                let (t, time, window) = (number_in(t), number_in(time), number_in(window) * 1_000);
                let fence = self.fences.entry(fence_key.to_vec()).or_default();
                // With `~`, if the release lets the key live.
                let left = [token, &kept.concat()[..]].concat();
                let code = match value {
                    Some(holder) if holder != *token && holder != left => 1,
                    None if t != *fence => 1,
                    _ if time + window <= now => 3,
                    _ if time > now + window => 4,
                    _ => 0,
                };
                judged(code, now, *fence, &left, number_in(ttl))
            }
            (2, [fence_key, token, t, ..]) => {
                let fence = self.fences.entry(fence_key.to_vec()).or_default();
                *fence = (*fence).max(number_in(t));
                if value.as_deref() == Some(*token) {
                    (b":1\r\n".to_vec(), Change::Delete)
                } else {
                    (b":0\r\n".to_vec(), Change::Nothing)
                }
            }
            // There is no line here: a client that is refused is alone in it.
            (3, [_, token, ttl, ..]) => match value {
                Some(_) => {
                    let answer = format!("*4\r\n:1\r\n:{now}\r\n:0\r\n:1024000\r\n");
                    (answer.into_bytes(), Change::Nothing)
                }
                None => judged(0, now, 0, token, number_in(ttl)),
            },
            (4, [_, token, ..]) => match value {
                Some(holder) if holder == *token => (b":1\r\n".to_vec(), Change::Delete),
                _ => (b":0\r\n".to_vec(), Change::Nothing),
            },
            _ => panic!("a script with {} arguments", arguments.len()),
        }
    }
}

/// The answer of an acquire or an extension that ended with `code`, and what becomes of the key.
fn judged(code: u8, now: u64, fence: u64, token: &[u8], ttl_ms: u64) -> (Vec<u8>, Change) {
    let answer = format!("*4\r\n:{code}\r\n:{now}\r\n:{fence}\r\n:0\r\n");
    let change = if code == 0 {
        Change::Set(token.to_vec(), ttl_ms)
    } else {
        Change::Nothing
    };
    (answer.into_bytes(), change)
}

/// The number of the script that has this name.
fn named(sha1: &[u8]) -> usize {
    let is_it = |script: &&Script| script.sha1().as_bytes() == sha1;
    all().iter().position(is_it).unwrap()
}

/// Those of fenced locks, and those of plain ones with a line.
fn all() -> Vec<&'static Script> {
    [&Script::FENCED[..], &Script::QUEUED].concat()
}
