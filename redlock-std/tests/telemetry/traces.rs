//! Spans and events.

use std::time::Duration;

use redlock_std::{Fencing, Options, Redlock};
use tokio::time::sleep;

use crate::recorder::Traces;
use crate::{KEY, TTL, fleet, handle};

#[tokio::test(start_paused = true)]
async fn an_acquire_its_rounds_and_the_release_are_spans_with_their_results() {
    let (traces, _guard) = Traces::install();
    let (_nodes, redlock) = fleet();
    let redlock = redlock.with_label(|_key| Some("invoice"));
    redlock.acquire(KEY).await.unwrap().release().await;
    assert_eq!(
        traces.spans(),
        [
            "redlock.acquire lock=invoice outcome=acquired tries=1",
            "redlock.round number=1",
            "redlock.release lock=invoice",
        ]
    );
    assert_eq!(traces.open_spans(), 0);
}

#[tokio::test(start_paused = true)]
async fn the_span_of_an_acquire_has_the_fence_and_how_it_failed() {
    let (traces, _guard) = Traces::install();
    let (nodes, _plain) = fleet();
    let fencing = Fencing::new(Duration::from_millis(100)).unwrap();
    let options = Options::new(TTL).unwrap().fenced(fencing).unwrap();
    let options = options.wait(Duration::from_secs(120));
    let redlock = Redlock::in_memory(&nodes, options).unwrap();
    let guard = redlock.acquire(KEY).await.unwrap();
    let fence = format!("fence={}", guard.fence().unwrap().as_u64());
    let spans = traces.spans();
    assert!(spans[0].contains(&fence), "{spans:?}");
    assert!(spans[0].contains("outcome=acquired"), "{spans:?}");
    handle(&nodes).try_acquire(KEY).await.unwrap_err();
    let spans = traces.spans();
    assert!(spans.iter().any(|span| span.contains("outcome=held")));
    drop(Box::pin(redlock.acquire("never polled")));
    let dropped = tokio::time::timeout(Duration::ZERO, redlock.acquire(KEY));
    dropped.await.map(drop).unwrap_err();
    let spans = traces.spans();
    assert!(spans.iter().any(|span| span.contains("outcome=dropped")));
}

#[tokio::test(start_paused = true)]
async fn a_lost_lock_and_a_lost_node_are_warnings() {
    let (traces, _guard) = Traces::install();
    let (nodes, redlock) = fleet();
    let redlock = redlock.with_label(|_key| Some("invoice"));
    let mut guard = redlock.acquire(KEY).await.unwrap();
    guard.keep_alive();
    sleep(TTL / 2).await;
    nodes[0].kill();
    nodes[1].kill();
    guard.lost().await;
    let events = traces.events();
    let has = |words: &[&str]| {
        let matching = |event: &&String| words.iter().all(|word| event.contains(word));
        events.iter().find(matching).is_some()
    };
    assert!(has(&["DEBUG", "extended", "lock=invoice"]), "{events:#?}");
    assert!(
        has(&["WARN", "not extended", "error.type=unreachable"]),
        "{events:#?}"
    );
    assert!(
        has(&["WARN", "a lock is lost", "cause=unreachable"]),
        "{events:#?}"
    );
    assert!(
        has(&[
            "WARN",
            "is not reached",
            "server.address=node 1",
            "connection refused"
        ]),
        "{events:#?}"
    );
    assert!(
        has(&["DEBUG", "gave no vote", "server.address=node 2"]),
        "{events:#?}"
    );
    assert!(
        has(&["INFO", "connected", "server.address=node 3"]),
        "{events:#?}"
    );
}

#[tokio::test(start_paused = true)]
async fn neither_key_nor_token_is_in_a_span_or_an_event() {
    let (traces, _guard) = Traces::install();
    let (nodes, redlock) = fleet();
    let mut guard = redlock.acquire(KEY).await.unwrap();
    let token = format!("{:?}", guard.token().as_bytes());
    let hex: String = guard
        .token()
        .as_bytes()
        .iter()
        .map(|byte| format!("{byte:02x}"))
        .collect();
    redlock.try_acquire(KEY).await.unwrap_err();
    handle(&nodes).try_acquire(KEY).await.unwrap_err();
    guard.extend().await.unwrap();
    guard.keep_alive();
    nodes[0].kill();
    nodes[1].kill();
    guard.lost().await;
    drop(guard);
    let all = [traces.spans(), traces.events()].concat().join("\n");
    assert!(all.contains("redlock.extend"), "{all}");
    for secret in [KEY, &token, &hex, &hex[..8]] {
        assert!(!all.contains(secret), "{secret}: {all}");
    }
}
