//! The question that every client asks a node first. A node that does not answer it has no vote.

use redis::{Cmd, Value, from_redis_value};
use redlock_core::transport::{Answer, Argument, NodeInfo};

use crate::nodes::{Connection, in_words};

/// Asks `connection` what clients ask, in their words. Returns why clients give the node no vote, if that is so.
pub(super) async fn ask(connection: &mut Connection) -> Result<Option<String>, String> {
    let mut question = Cmd::new();
    for argument in NodeInfo::question() {
        match argument {
            Argument::Bytes(word) => question.arg(word),
            Argument::Integer(number) => question.arg(number),
            // A question about the node names no lock.
            Argument::FenceKey(_) | Argument::Line(_) => &mut question,
        };
    }
    let mut questions = redis::pipe();
    questions.add_command(question);
    let replies = connection.ask(&questions).await?;
    Ok(match replies.first() {
        Some(Value::ServerError(error)) => Some(in_words(error)),
        Some(reply) if is_introduction(reply) => None,
        _ => Some("unexpected reply".to_owned()),
    })
}

fn is_introduction(reply: &Value) -> bool {
    let numbers: Option<[i64; 4]> = from_redis_value(reply.clone()).ok();
    numbers.is_some_and(|numbers| NodeInfo::read(Answer::Integers(numbers)).is_some())
}
