//! What every suite here begins with.

use std::time::Duration;

use redlock_std::{Options, Redlock};
use redlock_tests::{Server, Servers, eventually, undisturbed};

/// Five servers, and a lock over them that is connected.
pub(crate) async fn five(options: Options) -> (Servers, Redlock) {
    let servers = Servers::start(5);
    let redlock = connected(&servers, options).await;
    (servers, redlock)
}

/// Runs `test` with [`five`] as [`undisturbed`] does. No key may be left.
pub(crate) async fn with_five(options: Options, test: impl AsyncFn(&Servers, Redlock)) {
    undisturbed(async || {
        let (servers, redlock) = five(options).await;
        test(&servers, redlock).await;
        servers.expect_no_keys().await;
    })
    .await;
}

/// A lock over `servers` whose connections are up: a lock of all of them has been taken.
pub(crate) async fn connected(servers: &Servers, options: Options) -> Redlock {
    let redlock = Redlock::connect(servers.urls(), options).unwrap();
    for _ in 0..500 {
        if let Ok(guard) = redlock.try_acquire("set-up").await {
            let released = guard.release().await;
            let count = servers.len();
            // A release returns at the quorum: who did not answer is asked by looking.
            if released.released() + released.unanswered() == count
                && servers.iter().all(|server| server.client_count() > 0)
            {
                servers.expect_no_keys().await;
                return redlock;
            }
        }
        tokio::time::sleep(Duration::from_millis(2)).await;
    }
    panic!("the servers did not become reachable");
}

/// A lease of `ttl`, and patience for a loaded machine: a round waits for a second.
pub(crate) fn patient(ttl: Duration) -> Options {
    let options = Options::new(ttl).unwrap();
    options
        .node_timeout(Duration::from_secs(1).min(options.validity() / 2))
        .unwrap()
}

/// Waits until `count` of the servers have `key`: a quorum's answer comes before the others'.
pub(crate) async fn expect_key_on(servers: &Servers, key: &str, count: usize) {
    eventually(
        "the key is where it should be",
        Duration::from_secs(2),
        || {
            let holders = servers.iter().filter(|server| {
                server
                    .query::<u64>(&["EXISTS", key])
                    .is_ok_and(|exists| exists == 1)
            });
            holders.count() == count
        },
    )
    .await;
}

/// Lets the server evict keys, as a cache does.
pub(crate) fn let_evict(server: &Server) {
    let set = ["CONFIG", "SET", "maxmemory-policy", "allkeys-lru"];
    assert_eq!(server.query::<String>(&set).unwrap(), "OK");
}
