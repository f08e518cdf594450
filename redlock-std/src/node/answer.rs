//! Conversion of replies to answers of the core.

use redis::{ServerError, Value};
use redlock_core::transport::Answer;

use super::error::{TransportError, is_of_a_command};
use super::printable::{printable, without_arguments};

pub(crate) fn read(value: Value) -> Result<Answer, TransportError> {
    match value {
        Value::Okay => Ok(Answer::Ok),
        Value::Nil => Ok(Answer::Nil),
        Value::Int(number) => Ok(Answer::Integer(number)),
        Value::Array(values) => match values[..] {
            [Value::Int(a), Value::Int(b), Value::Int(c), Value::Int(d)] => {
                Ok(Answer::Integers([a, b, c, d]))
            }
            _ => Err(TransportError::Unexpected),
        },
        Value::ServerError(error) => {
            let message = format!("{} {}", error.code(), error.details().unwrap_or_default());
            Err(TransportError::Rejected(match message.trim() {
                "" => "an error without a text".into(),
                message => printable(without_arguments(message)).into(),
            }))
        }
        _ => Err(TransportError::Unexpected),
    }
}

/// The code of an error. If a command in a script fails, servers before Redis 7 put its code into the text.
pub(crate) fn code(error: &ServerError) -> &str {
    if error.code() != "ERR" {
        return error.code();
    }
    let details = error.details().unwrap_or_default();
    let nested = details
        .split_once(": -")
        .and_then(|(_, nested)| nested.split(' ').next());
    nested.unwrap_or("ERR")
}

/// Whether the command may succeed if it is sent again later.
pub(crate) fn is_transient(code: &str) -> bool {
    /// Error codes of a node that may execute a release later.
    const CODES: [&str; 9] = [
        "BUSY",
        "CLUSTERDOWN",
        "LOADING",
        "MASTERDOWN",
        "MISCONF",
        "NOREPLICAS",
        "OOM",
        "READONLY",
        "TRYAGAIN",
    ];
    CODES.contains(&code)
}

/// Whether a node with this error refuses the command for every key, until its state or the permissions of the user change.
pub(crate) fn is_of_any_key(error: &ServerError) -> bool {
    let details = error.details().unwrap_or_default();
    match code(error) {
        "NOPERM" | "ERR" => is_of_a_command(details),
        code => is_transient(code),
    }
}

/// Whether a node with this error has refused the login.
pub(crate) fn is_login(code: &str) -> bool {
    ["NOAUTH", "WRONGPASS"].contains(&code)
}

/// Whether this error, as the answer to the identity request, means that the node cannot be used: it is busy or loading
/// its data, or the login is wrong. After any other error, only its identity is unknown: its script may not call INFO or
/// TIME.
pub(crate) fn is_unusable(code: &str) -> bool {
    const CODES: [&str; 6] = [
        "BUSY",
        "CLUSTERDOWN",
        "LOADING",
        "MASTERDOWN",
        "NOAUTH",
        "READONLY",
    ];
    CODES.contains(&code)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_an_array_of_four_numbers_is_an_answer() {
        let numbers = |count| Value::Array((0..count).map(Value::Int).collect());
        assert_eq!(read(numbers(4)), Ok(Answer::Integers([0, 1, 2, 3])));
        for wrong in [
            numbers(0),
            numbers(3),
            numbers(5),
            Value::Array(vec![Value::Okay, Value::Nil, Value::Int(0), Value::Int(0)]),
        ] {
            assert_eq!(read(wrong), Err(TransportError::Unexpected));
        }
    }
}
