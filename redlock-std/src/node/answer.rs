//! What a node answers, as the lock reads it.

use redis::{ServerError, Value};
use redlock_core::Answer;

use super::error::NodeErrorKind;

pub(crate) fn read(value: Value) -> Result<Answer, NodeErrorKind> {
    match value {
        Value::Okay => Ok(Answer::Ok),
        Value::Nil => Ok(Answer::Nil),
        Value::Int(number) => Ok(Answer::Integer(number)),
        Value::Array(values) => match values[..] {
            [Value::Int(a), Value::Int(b), Value::Int(c), Value::Int(d)] => {
                Ok(Answer::Integers([a, b, c, d]))
            }
            _ => Err(NodeErrorKind::Unexpected),
        },
        Value::ServerError(error) => {
            let message = format!("{} {}", error.code(), error.details().unwrap_or_default());
            Err(NodeErrorKind::Rejected(message.trim_end().into()))
        }
        _ => Err(NodeErrorKind::Unexpected),
    }
}

/// Whether the user may not do what it was asked for. What a script may not do, servers before and after
/// Redis 7.2 say in other words.
pub(crate) fn is_forbidden(error: &ServerError) -> bool {
    let details = error.details().unwrap_or_default();
    error.code() == "NOPERM"
        || details.starts_with("ACL failure")
        || details.starts_with("The user executing the script")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_array_of_four_numbers_is_an_answer_and_no_other_array_is() {
        let numbers = |count| Value::Array((0..count).map(Value::Int).collect());
        assert_eq!(read(numbers(4)), Ok(Answer::Integers([0, 1, 2, 3])));
        for wrong in [
            numbers(0),
            numbers(3),
            numbers(5),
            Value::Array(vec![Value::Okay, Value::Nil, Value::Int(0), Value::Int(0)]),
        ] {
            assert_eq!(read(wrong), Err(NodeErrorKind::Unexpected));
        }
    }
}
