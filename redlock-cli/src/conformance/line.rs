//! The trial of what the waiting line needs.

use redlock_core::transport::Script;

use super::keys::{Keys, LIFE_MS, token};
use super::trial::{Word, ask, expect, run, run_four, set};
use crate::nodes::Connection;

/// How long a turn lasts, in milliseconds: longer than this trial takes.
const TURN: Word<'_> = b"10000";

// The codes of `scripts/codes.lua`.
const GRANTED: i64 = 0;
const REFUSED: i64 = 1;
const WAITING: i64 = 8;

/// A client waits for a lock over one connection, and is called over another when the lock is released.
pub(super) async fn calls(
    connection: &mut Connection,
    subscriber: &mut Connection,
    keys: &Keys,
) -> Result<String, String> {
    let (channel, lock, queue) = (keys.channel(), keys.lock("line"), keys.queue("line"));
    let keys_of_line = [&*lock, &*queue];
    let life = LIFE_MS.to_string();
    let subscribe: [Word<'_>; 2] = [b"SUBSCRIBE", channel.as_bytes()];
    let subscribed = ask(subscriber, &subscribe).await;
    subscribed.map_err(|why| format!("a client cannot subscribe to its mailbox: {why}"))?;

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
