//! The floor of the `redis` crate: one task for each node sends what all tasks have queued as one pipeline.

use std::sync::Arc;

use redis::aio::MultiplexedConnection;
use redis::{Cmd, Pipeline, Value};
use tokio::sync::mpsc::{UnboundedReceiver, UnboundedSender, unbounded_channel};

use super::{Node, Votes};

/// The queue of the task.
pub(crate) struct Actor(UnboundedSender<Call>);

type Call = (Arc<Cmd>, Arc<Votes>);

/// The largest number of commands in one pipeline.
const MAX_BATCH: usize = 256;

impl Node for Actor {
    const NAME: &'static str = "redis-rs actors";
    type Command = Cmd;

    async fn connect(url: &str) -> Self {
        let client = redis::Client::open(url).unwrap();
        // No response timeout: a timer for each command is no part of a floor.
        let config = redis::AsyncConnectionConfig::new().set_response_timeout(None);
        let connection = client.get_multiplexed_async_connection_with_config(&config);
        let (queue, calls) = unbounded_channel();
        tokio::spawn(serve(calls, connection.await.unwrap()));
        Self(queue)
    }

    fn send(&self, command: &Arc<Cmd>, votes: &Arc<Votes>) {
        self.0
            .send((Arc::clone(command), Arc::clone(votes)))
            .unwrap();
    }
}

async fn serve(mut queue: UnboundedReceiver<Call>, mut connection: MultiplexedConnection) {
    let mut calls = Vec::with_capacity(MAX_BATCH);
    while queue.recv_many(&mut calls, MAX_BATCH).await > 0 {
        let answers = if let [(command, _)] = &calls[..] {
            connection
                .send_packed_command(command)
                .await
                .map(|answer| vec![answer])
        } else {
            let mut pipeline = Pipeline::with_capacity(calls.len());
            for (command, _) in &calls {
                pipeline.add_command(Cmd::clone(command));
            }
            connection
                .send_packed_commands(&pipeline, 0, calls.len())
                .await
        };
        for ((_, votes), answer) in calls.drain(..).zip(answers.unwrap()) {
            votes.count(matches!(answer, Value::Okay | Value::Int(1)));
        }
    }
}
