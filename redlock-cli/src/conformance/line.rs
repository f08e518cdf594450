//! The trial of what the waiting line needs.

use redis::Value;
use redlock_core::transport::Script;

use super::keys::{Keys, LIFE_MS, token};
use super::trial::{Word, ask, eval, expect, run, run_four, set};
use crate::nodes::{Connection, Node};

/// How long a turn lasts, in milliseconds: longer than this trial takes.
const TURN: Word<'_> = b"10000";

// The codes of `scripts/codes.lua`.
const GRANTED: i64 = 0;
const REFUSED: i64 = 1;
const WAITING: i64 = 8;

/// A client waits for a lock over one connection, and gets the call over another when the lock is released.
pub(super) async fn calls(
    connection: &mut Connection,
    node: &Node,
    keys: &Keys,
) -> Result<String, String> {
    let (channel, lock, queue) = (keys.channel(), keys.lock("line"), keys.queue("line"));
    let keys_of_line = [&*lock, &*queue];
    let life = LIFE_MS.to_string();
    let subscribed = node.subscribe(&channel).await;
    let mut subscriber = subscribed
        .map_err(|why| format!("a client cannot be called through its mailbox: {why}"))?;
    // If a script gets an error, it takes the client for alive, so the release below does not show it.
    const COUNT: &str = "return redis.call('pubsub', 'numsub', ARGV[1])[2]";
    match eval(connection, COUNT, &[], &[channel.as_bytes()]).await {
        Ok(Value::Int(1)) => {}
        Ok(_) => {
            return Err(
                "a script does not see the subscription of a client, and takes it for gone"
                    .to_owned(),
            );
        }
        Err(why) => return Err(format!("scripts may not call PUBSUB ({why})")),
    }

    let [acquire, release] = Script::QUEUED;
    let (holder, waiter, stranger) = (token(), token(), token());
    // A ticket of the past: the node takes one of the last minute.
    let place = |token, mailbox| -> [Word<'_>; 5] { [token, life.as_bytes(), b"1", mailbox, TURN] };
    let mailbox = keys.mailbox().as_bytes();
    set(connection, &lock, &holder, LIFE_MS).await?;
    let [code, .., position] = run_four(
        connection,
        acquire,
        &keys_of_line,
        &place(&waiter[..], mailbox),
    )
    .await?;
    expect("an acquire of a lock that is held", code, REFUSED)?;
    expect("the number of clients ahead", position % 1_024, 0)?;

    let released = run(
        connection,
        release,
        &keys_of_line,
        &[&holder[..], TURN, b""],
    )
    .await?;
    expect("a release that calls a client", released, 2)?;
    if !subscriber.receives(format!("1{lock}").as_bytes()).await? {
        return Err(
            "a release does not call the client that waits: no message arrives in its mailbox"
                .to_owned(),
        );
    }
    let members: [Word<'_>; 4] = [b"ZRANGE", queue.as_bytes(), b"0", b"0"];
    let first = redis::from_redis_value::<Vec<String>>(ask(connection, &members).await?);
    let turn = format!("!{}", keys.mailbox());
    expect(
        "the turn of the client that was called",
        first.unwrap_or_default(),
        vec![turn],
    )?;

    // It cannot be called, so it needs no subscription.
    let deaf = format!("{}~", keys.mailbox());
    let behind = place(&stranger[..], deaf.as_bytes());
    let [code, ..] = run_four(connection, acquire, &keys_of_line, &behind).await?;
    expect("an acquire of a client behind", code, WAITING)?;
    let [code, ..] = run_four(
        connection,
        acquire,
        &keys_of_line,
        &place(&waiter[..], mailbox),
    )
    .await?;
    expect("the acquire of the client that was called", code, GRANTED)?;
    Ok(
        "a release calls the client that waits first, and no other gets the lock meanwhile"
            .to_owned(),
    )
}
