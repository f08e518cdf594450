//! Commands of the trials, and their replies.

use redis::{Cmd, Value};
use redlock_core::transport::Script;
use redlock_std::printable;

use crate::nodes::{Connection, in_words};

/// The names of the trials that have a lock, for its keys.
pub(super) const NAMES: [&str; 10] = [
    "set", "expiry", "release", "extend", "cache", "atomic", "server", "fenced", "window", "line",
];

/// A word of a command.
pub(super) type Word<'a> = &'a [u8];

/// Sends one command. `Err` if there is no reply, or it is an error.
pub(super) async fn ask(connection: &mut Connection, words: &[Word<'_>]) -> Result<Value, String> {
    match raw(connection, words).await? {
        Value::ServerError(error) => Err(in_words(&error)),
        reply => Ok(reply),
    }
}

/// Sends one command. `Err` if there is no reply.
pub(super) async fn raw(connection: &mut Connection, words: &[Word<'_>]) -> Result<Value, String> {
    let mut pipeline = redis::pipe();
    pipeline.add_command(command(words));
    let replies = connection.ask(&pipeline).await?;
    replies
        .into_iter()
        .next()
        .ok_or_else(|| "no answer".to_owned())
}

pub(super) fn command(words: &[Word<'_>]) -> Cmd {
    let mut command = Cmd::new();
    for word in words {
        command.arg(*word);
    }
    command
}

/// Runs a script, sent as text.
pub(super) async fn eval(
    connection: &mut Connection,
    script: &str,
    keys: &[&str],
    arguments: &[Word<'_>],
) -> Result<Value, String> {
    let count = keys.len().to_string();
    let mut words: Vec<Word<'_>> = vec![b"EVAL", script.as_bytes(), count.as_bytes()];
    words.extend(keys.iter().map(|key| key.as_bytes()));
    words.extend(arguments);
    ask(connection, &words).await
}

/// Runs a script of the lock whose answer is one number.
pub(super) async fn run(
    connection: &mut Connection,
    script: &Script,
    keys: &[&str],
    arguments: &[Word<'_>],
) -> Result<i64, String> {
    match eval(connection, script.text(), keys, arguments).await? {
        Value::Int(number) => Ok(number),
        reply => Err(unexpected("the script", &reply)),
    }
}

/// Runs a script of the lock whose answer is four numbers.
pub(super) async fn run_four(
    connection: &mut Connection,
    script: &Script,
    keys: &[&str],
    arguments: &[Word<'_>],
) -> Result<[i64; 4], String> {
    let reply = eval(connection, script.text(), keys, arguments).await?;
    four(&reply).ok_or_else(|| unexpected("the script", &reply))
}

/// Four numbers.
pub(super) fn four(reply: &Value) -> Option<[i64; 4]> {
    let Value::Array(values) = reply else {
        return None;
    };
    match values[..] {
        [Value::Int(a), Value::Int(b), Value::Int(c), Value::Int(d)] => Some([a, b, c, d]),
        _ => None,
    }
}

/// The PTTL of a key, in milliseconds. `None` if the user may not ask: clients of plain locks do not.
pub(super) async fn pttl(connection: &mut Connection, key: &str) -> Result<Option<i64>, String> {
    match raw(connection, &[b"PTTL", key.as_bytes()]).await? {
        Value::Int(ms) => Ok(Some(ms)),
        Value::ServerError(_) => Ok(None),
        reply => Err(unexpected("PTTL", &reply)),
    }
}

/// Sets a key to `value` if it does not exist. Returns whether it did.
pub(super) async fn set(
    connection: &mut Connection,
    key: &str,
    value: Word<'_>,
    ttl_ms: u32,
) -> Result<bool, String> {
    let ttl = ttl_ms.to_string();
    let words: [Word<'_>; 6] = [b"SET", key.as_bytes(), value, b"NX", b"PX", ttl.as_bytes()];
    match ask(connection, &words).await? {
        Value::Okay => Ok(true),
        Value::Nil => Ok(false),
        reply => Err(unexpected("SET NX PX", &reply)),
    }
}

/// The value of a key.
pub(super) async fn get(connection: &mut Connection, key: &str) -> Result<Option<Vec<u8>>, String> {
    match ask(connection, &[b"GET", key.as_bytes()]).await? {
        Value::BulkString(value) => Ok(Some(value)),
        Value::Nil => Ok(None),
        reply => Err(unexpected("GET", &reply)),
    }
}

fn unexpected(what: &str, reply: &Value) -> String {
    let kind = match reply {
        Value::Nil => "nil",
        Value::Int(_) => "a number",
        Value::BulkString(_) | Value::SimpleString(_) => "a text",
        Value::Array(_) => "another array",
        Value::Okay => "OK",
        _ => "something else",
    };
    format!("{what} answered {kind}")
}

/// `Err` if `seen` is not `wanted`. What a server has sent is cut and escaped.
pub(super) fn expect<T: PartialEq + core::fmt::Debug>(
    what: &str,
    seen: T,
    wanted: T,
) -> Result<(), String> {
    if seen == wanted {
        Ok(())
    } else {
        let seen = printable(&format!("{seen:?}"));
        Err(format!("{what}: {seen} instead of {wanted:?}"))
    }
}
