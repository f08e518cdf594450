//! Many more locks at once than the nodes can grant in one node timeout.

use std::pin::{Pin, pin};
use std::task::{Context, Poll, Waker};
use std::time::Duration;

use redlock_std::{ExtendError, LossCause, Options, Redlock};
use redlock_tests::{eventually, undisturbed};

use crate::setup::{five, patient};

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

#[tokio::test]
async fn acquires_that_are_dropped_at_once_leave_others_their_place_in_the_nodes_queues() {
    let (servers, redlock) = five(Options::new(TTL).unwrap()).await;
    for dock in 0..20_000 {
        let key = format!("dock-{dock}");
        drop(poll_once(pin!(redlock.try_acquire(key))));
    }
    let guard = redlock.try_acquire("mine").await.unwrap();
    guard.release().await;
    servers.expect_no_keys().await;
}

#[tokio::test]
async fn extends_that_are_dropped_at_once_leave_others_their_place_in_the_nodes_queues() {
    let (servers, redlock) = five(Options::new(TTL).unwrap()).await;
    let mut dropped = redlock.acquire("dropped").await.unwrap();
    let mut mine = redlock.acquire("mine").await.unwrap();
    for _ in 0..50_000 {
        drop(poll_once(pin!(dropped.extend())));
    }
    mine.extend().await.unwrap();
    let another = redlock.try_acquire("another").await.unwrap();
    for guard in [dropped, mine, another] {
        guard.release().await;
    }
    servers.expect_no_keys().await;
}

#[tokio::test]
async fn a_lease_whose_extension_could_not_begin_in_time_says_that_others_were_ahead() {
    undisturbed(async || {
        const OTHERS: usize = 128;

        let (_servers, redlock) = five(patient(TTL)).await;
        let mut others = Vec::new();
        for other in 0..OTHERS {
            others.push(redlock.acquire(format!("other-{other}")).await.unwrap());
        }
        // Shorter than the two seconds for which the extensions of the others count.
        let short = redlock.with_options(patient(Duration::from_millis(700)));
        let mut mine = short.acquire("mine").await.unwrap();
        let mut kept = short.acquire("kept").await.unwrap();
        let mut extensions: Vec<_> = others
            .iter_mut()
            .map(|guard| Box::pin(guard.extend()))
            .collect();
        for extension in &mut extensions {
            assert!(poll_once(extension.as_mut()).is_none());
        }
        kept.keep_alive();
        let error = mine.extend().await.unwrap_err();
        let is_true = matches!(error, ExtendError::NotAsked { nodes_answer: true });
        assert!(is_true, "{error}");
        assert!(error.to_string().contains("too many extensions"), "{error}");
        assert!(!mine.is_valid());
        for guard in [mine, kept] {
            let cause = guard.lost().await;
            let is_true = matches!(cause, LossCause::NotAsked { nodes_answer: true });
            assert!(is_true, "{cause}");
        }
        for extension in extensions {
            extension.await.unwrap();
        }
    })
    .await;
}

fn poll_once<F: Future>(future: Pin<&mut F>) -> Option<F::Output> {
    match future.poll(&mut Context::from_waker(Waker::noop())) {
        Poll::Ready(output) => Some(output),
        Poll::Pending => None,
    }
}
