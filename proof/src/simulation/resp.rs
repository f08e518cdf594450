//! What devices and nodes write to each other: commands in RESP, read as a Redis server reads them, and its answers.

use core::time::Duration;

use arrayvec::ArrayVec;
use redlock_core::transport::{
    Answer, Argument, Arguments, Command, NodeInfo, Proposal, Reply, Script, ScriptCall, Verb,
    VoteConditions,
};
use redlock_core::{Denial, FENCE_KEY_PREFIX, Fence, Fencing, Token};

use super::history::Message;
use super::place::KEYS;

/// What a device asks of a node.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Request {
    Command(Order),
    /// Who the node is.
    Question,
    /// That it loads this script of fenced locks.
    Load(usize),
    /// A Redis server would answer with an error.
    Unknown,
}

/// A command of a lock, without what only the client knows: the conditions of its vote, other than that it is an adoption.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct Order {
    pub(crate) verb: Verb,
    pub(crate) key: usize,
    pub(crate) token: Token,
    pub(crate) proposal: Option<Proposal>,
}

type Words<'a> = ArrayVec<&'a [u8], { Arguments::MAX }>;

impl Request {
    /// The first request in `bytes`, and its length. `None` if it is not there to its end.
    pub(crate) fn take(bytes: &[u8]) -> Option<(Self, usize)> {
        let mut rest = bytes;
        let Some(count) = header(&mut rest, b'*')? else {
            return Some((Self::Unknown, bytes.len()));
        };
        let mut words = Words::new();
        for _ in 0..count {
            let Some(len) = header(&mut rest, b'$')? else {
                return Some((Self::Unknown, bytes.len()));
            };
            let (word, after) = rest.split_at_checked(len)?;
            let (end, after) = after.split_at_checked(2)?;
            if end != b"\r\n" || words.try_push(word).is_err() {
                return Some((Self::Unknown, bytes.len()));
            }
            rest = after;
        }
        Some((
            Self::of(&words).unwrap_or(Self::Unknown),
            bytes.len() - rest.len(),
        ))
    }

    fn of(words: &[&[u8]]) -> Option<Self> {
        match words {
            [b"SCRIPT", b"LOAD", text] => {
                let is_it = |script: &&Script| script.text().as_bytes() == *text;
                return Script::FENCED.iter().position(is_it).map(Self::Load);
            }
            [b"EVAL", _, b"1", _] if are(words, NodeInfo::question()) => {
                return Some(Self::Question);
            }
            _ => {}
        }
        let order = Order::of(words)?;
        let call = match order.proposal {
            Some(_) => ScriptCall::Hash,
            None => ScriptCall::Text,
        };
        // To the last byte what the core writes.
        are(words, order.command().arguments(call)).then_some(Self::Command(order))
    }
}

impl Order {
    fn of(words: &[&[u8]]) -> Option<Self> {
        let [_, script, ..] = words else {
            return None;
        };
        let is_called = |number: usize| Script::FENCED[number].sha1().as_bytes() == *script;
        let (verb, key, token, proposal) = match words {
            [b"SET", key, token, _, _, ttl] => (acquire(ttl)?, key, token, None),
            [b"EVAL", _, _, key, token] => (Verb::Release, key, token, None),
            [b"EVAL", text, _, key, token, rest] if is_keep(text) => {
                (keep(rest)?, key, token, None)
            }
            [b"EVAL", _, _, key, token, ttl] => (extend(ttl, false)?, key, token, None),
            [
                b"EVALSHA",
                _,
                _,
                key,
                _,
                _,
                token,
                ttl,
                fence,
                max_ttl,
                window,
                step_back,
                vouches @ ..,
            ] if is_called(0) => {
                let rules = [*max_ttl, *window, *step_back];
                let proposal = proposal(fence, rules, b"0", !vouches.is_empty())?;
                (acquire(ttl)?, key, token, Some(proposal))
            }
            [
                b"EVALSHA",
                _,
                _,
                key,
                _,
                _,
                token,
                ttl,
                fence,
                time,
                window,
                step_back,
                adopts @ ..,
            ] if is_called(1) => {
                let proposal = proposal(fence, [NO_TTL, window, step_back], time, false)?;
                let verb = match adopts {
                    [b"~"] => keep(ttl)?,
                    _ => extend(ttl, !adopts.is_empty())?,
                };
                (verb, key, token, Some(proposal))
            }
            [b"EVALSHA", _, _, key, _, token, fence, window, step_back] if is_called(2) => {
                let proposal = proposal(fence, [NO_TTL, window, step_back], b"0", false)?;
                (Verb::Release, key, token, Some(proposal))
            }
            _ => return None,
        };
        Some(Self {
            verb,
            key: KEYS.iter().position(|name| name.as_bytes() == *key)?,
            token: Token::from_bytes((*token).try_into().ok()?),
            proposal,
        })
    }

    fn command(&self) -> Command<'_> {
        let key = KEYS[self.key].as_bytes();
        let command = match self.verb {
            Verb::Acquire { ttl_ms, conditions } => {
                Command::acquire(key, &self.token, ttl_ms, conditions)
            }
            Verb::Extend { ttl_ms, conditions } => {
                Command::adopt(key, &self.token, ttl_ms, conditions)
            }
            Verb::Keep { rest_ms } => Command::keep(key, &self.token, rest_ms),
            Verb::Release => Command::release(key, &self.token),
        };
        command.with_proposal(self.proposal)
    }
}

/// Neither an extend nor a release tells the longest TTL of its fleet.
const NO_TTL: &[u8] = b"0";

fn acquire(ttl: &[u8]) -> Option<Verb> {
    let ttl_ms = number(ttl)?.try_into().ok()?;
    let conditions = VoteConditions::NONE;
    Some(Verb::Acquire { ttl_ms, conditions })
}

fn extend(ttl: &[u8], adopts: bool) -> Option<Verb> {
    let ttl_ms = number(ttl)?.try_into().ok()?;
    let mut conditions = VoteConditions::NONE;
    conditions.restart_guard = adopts;
    Some(Verb::Extend { ttl_ms, conditions })
}

/// Whether it is the text of the script that ends a plain lease before its `min_hold` is over.
fn is_keep(text: &[u8]) -> bool {
    let is_it = |script: &&Script| script.text().as_bytes() == text;
    !Script::PLAIN.iter().any(is_it)
}

fn keep(rest: &[u8]) -> Option<Verb> {
    let rest_ms = number(rest)?.try_into().ok()?;
    Some(Verb::Keep { rest_ms })
}

fn proposal(fence: &[u8], rules: [&[u8]; 3], time: &[u8], vouches: bool) -> Option<Proposal> {
    let [max_ttl, window, step_back] = rules.map(|ms| number(ms).map(Duration::from_millis));
    let fencing = Fencing::new(window?).ok()?;
    let fencing = fencing.with_max_ttl(max_ttl?).ok()?;
    let fencing = fencing.with_step_back(step_back?).ok()?;
    let fence = Fence::from_u64(number(fence)?);
    Some(Proposal::new(fence, fencing, number(time)?, vouches))
}

fn are(words: &[&[u8]], arguments: Arguments<'_>) -> bool {
    words.len() == arguments.len()
        && words
            .iter()
            .zip(arguments)
            .all(|(word, argument)| match argument {
                Argument::Bytes(bytes) => *word == bytes,
                Argument::Integer(wanted) => number(word) == Some(wanted),
                Argument::FenceKey(key) => {
                    word.strip_prefix(FENCE_KEY_PREFIX.as_bytes()) == Some(key)
                }
                Argument::Line(line) => {
                    let (prefix, bytes) = line.pieces();
                    word.strip_prefix(prefix.as_bytes()) == Some(bytes)
                }
            })
}

/// Takes `*3` or `$3` and the end of its line. `None` if it is not there; `Some(None)` if it is something else.
fn header(rest: &mut &[u8], kind: u8) -> Option<Option<usize>> {
    let (first, digits) = rest.split_first()?;
    if *first != kind {
        return Some(None);
    }
    let end = digits.iter().position(|byte| *byte == b'\n')?;
    let line = &digits[..end];
    *rest = &digits[end + 1..];
    let digits = line.strip_suffix(b"\r").and_then(number);
    Some(digits.and_then(|len| usize::try_from(len).ok()))
}

fn number(digits: &[u8]) -> Option<u64> {
    if digits.is_empty() {
        return None;
    }
    digits.iter().try_fold(0_u64, |number, digit| {
        let digit = digit.checked_sub(b'0').filter(|digit| *digit < 10)?;
        number.checked_mul(10)?.checked_add(digit.into())
    })
}

/// The answer of a node whose scripts another client has flushed, or which has just been started.
pub(crate) const NO_SCRIPT: &[u8] = b"-NOSCRIPT No matching script. Please use EVAL.\r\n";

/// The answer to what is no command.
pub(crate) const UNKNOWN: &[u8] = b"-ERR unknown command\r\n";

const READ_ONLY: &[u8] = b"-READONLY You can't write against a read only replica.\r\n";

/// The answer to `message`, of which the client makes `reply` again.
pub(crate) fn answer(message: &Message, token: &Token, reply: Result<Reply, Denial>) -> Vec<u8> {
    if reply == Err(Denial::Replica) {
        return READ_ONLY.to_vec();
    }
    let plain = [
        Answer::Ok,
        Answer::Nil,
        Answer::Integer(0),
        Answer::Integer(1),
    ];
    // The core alone knows the codes.
    let [time, fence, ms] = numbers(reply);
    let fenced = (0..CODES).map(|code| Answer::Integers([code, time, fence, ms]));
    let command = message.command(token);
    let mut answers = plain.into_iter().chain(fenced);
    match answers.find(|answer| command.reply(*answer) == Some(reply)) {
        Some(Answer::Ok) => b"+OK\r\n".to_vec(),
        Some(Answer::Nil) => b"$-1\r\n".to_vec(),
        Some(Answer::Integer(number)) => format!(":{number}\r\n").into_bytes(),
        Some(Answer::Integers(numbers)) => array(numbers),
        _ => unreachable!("no answer of a node means {reply:?}"),
    }
}

/// How many codes a script answers with.
const CODES: i64 = 8;

/// The node's time, the highest fence and what is left, as far as the client makes something of them.
fn numbers(reply: Result<Reply, Denial>) -> [i64; 3] {
    let (reading, ms) = match reply {
        Ok(Reply::Acquired(Some(reading)) | Reply::Extended(Some(reading)))
        | Err(
            Denial::Stale(reading)
            | Denial::TooOld(reading)
            | Denial::TooNew(reading)
            | Denial::FencingMismatch(reading),
        ) => (reading, 0),
        Ok(Reply::Held(Some(reading))) => (reading, reading.held_ms),
        Err(Denial::Quarantined { left_ms, reading }) => (reading, left_ms),
        Err(Denial::Unguarded {
            has_record,
            reading,
        }) => (reading, has_record.into()),
        _ => return [0; 3],
    };
    [reading.time, reading.fence.as_u64(), ms.into()].map(u64::cast_signed)
}

/// What a node says of itself, under these numbers of its process and its history.
pub(crate) fn node_info(node_info: &NodeInfo, [run_id, replication_id]: [u64; 2]) -> Vec<u8> {
    let flags = 2 * i64::from(node_info.is_master) + i64::from(!node_info.may_evict);
    let uptime = node_info.uptime.as_secs().cast_signed();
    let max_ttl = i64::from(node_info.max_ttl_ms.unwrap_or(0));
    let vouched = if node_info.is_vouched {
        max_ttl
    } else {
        -max_ttl
    };
    array([
        run_id.cast_signed(),
        replication_id.cast_signed(),
        4 * uptime + flags,
        vouched,
    ])
}

/// The name of a script that was loaded.
pub(crate) fn loaded(script: usize) -> Vec<u8> {
    format!("$40\r\n{}\r\n", Script::FENCED[script].sha1()).into_bytes()
}

fn array([a, b, c, d]: [i64; 4]) -> Vec<u8> {
    format!("*4\r\n:{a}\r\n:{b}\r\n:{c}\r\n:{d}\r\n").into_bytes()
}
