//! Many more locks at once than the nodes can grant in one node timeout.

use std::time::Duration;

use redlock_std::{Options, Redlock};
use redlock_tests::eventually;

use crate::setup::five;

// Longer than the slowest machine takes, in a debug build beside other tests.
const TTL: Duration = Duration::from_secs(30);

#[tokio::test]
async fn a_burst_of_acquires_is_granted_on_one_thread_and_costs_no_other_guard() {
    burst(10_000).await;
}

#[tokio::test(flavor = "multi_thread")]
async fn a_burst_of_acquires_is_granted_on_many_threads_and_costs_no_other_guard() {
    burst(10_000).await;
}

async fn burst(count: usize) {
    let (servers, redlock) = five(Options::new(TTL).unwrap()).await;
    let mut kept = redlock.acquire("kept").await.unwrap();
    kept.keep_alive();
    let tasks: Vec<_> = (0..count)
        .map(|task| tokio::spawn(take(redlock.clone(), format!("dock-{task}"))))
        .collect();
    let mut guards = Vec::new();
    for task in tasks {
        guards.push(task.await.unwrap());
    }
    assert!(kept.is_valid());
    guards.push(kept);
    // In one go: more releases than a node takes at once.
    drop(guards);
    eventually("no key is left", TTL / 2, || {
        servers.iter().all(|server| server.key_count() == 0)
    })
    .await;
}

async fn take(redlock: Redlock, key: String) -> redlock_std::Guard {
    redlock.acquire(key).await.unwrap()
}
