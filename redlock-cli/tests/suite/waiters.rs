//! Clients that stand in the waiting line of a lock, as `docs/line.md` says.

use redis::Connection;
use redlock_tests::Server;

use crate::server::now_ms;

/// The lock of the tests.
const KEY: &str = "dock-7";
pub(crate) const LINE: &str = "redlock:queue:dock-7";

/// How long a turn lasts, in milliseconds.
const TURN: &str = "10000";

/// Stands in the line, or acquires the lock, with a wait that began so long ago. Returns the code of the answer.
pub(crate) fn wait(server: &Server, mailbox: &str, waits_for_ms: u64) -> i64 {
    let ticket = (now_ms(server) - waits_for_ms) * 1_000;
    let [code, ..]: [i64; 4] = server
        .query(&[
            "EVAL",
            include_str!("../../../redlock-core/src/scripts/sent/acquire_queued.lua"),
            "2",
            KEY,
            LINE,
            &format!("token of {mailbox}"),
            "60000",
            &ticket.to_string(),
            mailbox,
            TURN,
        ])
        .unwrap();
    code
}

/// Releases the lock, and calls the first client in the line.
pub(crate) fn release(server: &Server, token: &str) {
    let answer: i64 = server
        .query(&[
            "EVAL",
            include_str!("../../../redlock-core/src/scripts/sent/release_queued.lua"),
            "2",
            KEY,
            LINE,
            token,
            TURN,
            "",
        ])
        .unwrap();
    assert_eq!(answer, 2, "released, and a client waits");
}

/// A connection that gets the messages to a mailbox, until it is dropped.
pub(crate) fn subscribe(server: &Server, mailbox: &str) -> Connection {
    let client = redis::Client::open(server.url()).unwrap();
    let mut connection = client.get_connection().unwrap();
    let channel = format!("redlock:mail:{mailbox}");
    let subscribe = redis::cmd("SUBSCRIBE").arg(channel).exec(&mut connection);
    subscribe.unwrap();
    connection
}
