//! Clients that wait to be called.
#![expect(
    clippy::expect_used,
    reason = "for tests, which fail where a server does not answer"
)]

use std::time::Duration;

use redlock_std::{Guard, Redlock};
use tokio::task::JoinHandle;
use tokio::time::{Instant, sleep};

use crate::Server;

/// Longer than a node takes until it can call, also on a busy machine.
const LIMIT: Duration = Duration::from_secs(30);

/// How long one wait may take until all servers can call.
const ONE_WAIT: Duration = Duration::from_secs(1);

/// Has `client` wait for the lock `key`, and returns when it stands in the line of each server as one that the server can call. The lock
/// must be held until then.
///
/// A wait that begins before a server can call goes on without its calls. On a busy machine this happens; then `client` waits anew.
///
/// # Panics
///
/// When the servers can still not call after half a minute.
pub async fn wait_to_be_called(
    client: &Redlock,
    key: &str,
    servers: &[&Server],
) -> JoinHandle<Guard> {
    let start = Instant::now();
    loop {
        let (waiter, lock) = (client.clone(), key.to_owned());
        let waiting = tokio::spawn(async move { waiter.acquire(lock).await.expect("the lock") });
        let begin = Instant::now();
        while begin.elapsed() < ONE_WAIT {
            if servers.iter().all(|server| can_call(server, key)) {
                return waiting;
            }
            sleep(Duration::from_millis(2)).await;
        }
        waiting.abort();
        assert!(start.elapsed() < LIMIT, "the servers cannot call");
    }
}

/// Whether a client that `server` can call stands in the line of the lock `key`.
fn can_call(server: &Server, key: &str) -> bool {
    let line = format!("redlock:queue:{key}");
    let line: Vec<String> = server.query(&["ZRANGE", &line, "0", "-1"]).expect("ZRANGE");
    // During a turn, `!` stands before the client whose turn it is.
    line.iter()
        .any(|mailbox| !mailbox.starts_with('!') && !mailbox.ends_with('~'))
}
