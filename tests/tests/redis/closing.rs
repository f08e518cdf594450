//! The end of a process.

use std::time::{Duration, Instant};

use redlock_std::{Options, Redlock};
use redlock_tests::{Server, Servers};

const TTL: Duration = Duration::from_secs(60);

/// What a process does that ends right after it has dropped a guard.
fn end_after_a_lock(servers: &Servers, closes: bool) {
    let mut runtime = tokio::runtime::Builder::new_current_thread();
    let runtime = runtime.enable_all().build().unwrap();
    runtime.block_on(async {
        let redlock = Redlock::connect(servers.urls(), Options::new(TTL).unwrap()).unwrap();
        drop(redlock.acquire("dock-7").await.unwrap());
        if closes {
            assert_eq!(redlock.close().await, 0);
        }
    });
}

#[test]
fn a_process_that_closes_the_handle_before_it_ends_leaves_no_key_in_200_runs() {
    let servers = Servers::start(3);
    for run in 0..200 {
        end_after_a_lock(&servers, true);
        assert_eq!(servers.key_count(), 0, "run {run}");
    }
    // Without it, the test would show nothing.
    end_after_a_lock(&servers, false);
    assert!(servers.key_count() > 0, "the release was not sent");
}

#[tokio::test(flavor = "multi_thread")]
async fn a_close_does_not_wait_for_nodes_that_are_dead_and_not_for_long_for_those_that_hang() {
    let mut servers = Servers::start(5);
    let redlock = crate::setup::connected(&servers, Options::new(TTL).unwrap()).await;
    let guard = redlock.acquire("dock-7").await.unwrap();
    crate::setup::expect_key_on(&servers, "dock-7", 5).await;
    servers[0].kill();
    servers[1].pause();
    drop(guard);
    let start = Instant::now();
    let unanswered = redlock.close().await;
    assert!((1..=2).contains(&unanswered), "{unanswered}");
    // A second is the bound. The rest is for a busy machine.
    assert!(start.elapsed() < Duration::from_secs(10));
    for server in &servers[2..] {
        assert_eq!(server.key_count(), 0);
    }
    Server::resume(&servers[1]);
}
