//! Locks for code without async, over nodes in memory.

#![expect(clippy::unwrap_used, reason = "what fails here fails a test")]

use std::sync::atomic::{AtomicU32, Ordering};
use std::sync::{Arc, Barrier};
use std::thread;
use std::time::{Duration, Instant};

use redlock_std::blocking::{Guard, Redlock};
use redlock_std::{AcquireError, HoldError, LossCause, MemoryNode, Options};

const TTL: Duration = Duration::from_secs(10);

/// Longer than anything here takes.
const LIMIT: Duration = Duration::from_secs(60);

fn fleet(options: Options) -> ([MemoryNode; 3], Redlock) {
    let nodes = MemoryNode::array();
    let redlock = Redlock::in_memory(&nodes, options).unwrap();
    (nodes, redlock)
}

/// With patience for a loaded machine.
fn patient() -> Options {
    let options = Options::new(TTL).unwrap().wait(LIMIT);
    options.node_timeout(Duration::from_secs(1)).unwrap()
}

fn lock_count(nodes: &[MemoryNode]) -> usize {
    nodes.iter().map(MemoryNode::lock_count).sum()
}

/// Waits for `fact`, which other threads bring about.
fn eventually(what: &str, fact: impl Fn() -> bool) {
    let start = Instant::now();
    while !fact() {
        assert!(start.elapsed() < LIMIT, "{what}");
        thread::yield_now();
    }
}

/// Every call, one after the other.
fn every_call() {
    let (nodes, redlock) = fleet(patient());
    let mut guard = redlock.acquire("dock-7").unwrap();
    assert_eq!(guard.key(), b"dock-7");
    assert!(redlock.try_acquire("dock-7").unwrap_err().is_held());
    let before = guard.valid_until();
    eventually("the clock goes on", || guard.remaining() < TTL);
    guard.extend().unwrap();
    assert!(guard.valid_until() > before);
    guard.keep_alive();
    assert!(guard.release().released() >= 2);
    let held = redlock.hold("dock-7", |guard: &Guard| guard.is_valid());
    assert_eq!(held, Ok(true));
    let handover = redlock.acquire("dock-7").unwrap().hand_over();
    let adopted = redlock.adopt(&handover).unwrap();
    assert_eq!(redlock.status().len(), 3);
    assert!(redlock.warnings().is_empty());
    drop(adopted);
    assert_eq!(redlock.close(), 0);
    let closed = redlock.acquire("dock-7").unwrap_err();
    assert!(matches!(closed, AcquireError::Closed(_)), "{closed}");
    assert_eq!(lock_count(&nodes), 0);
}

#[test]
fn every_call_works_without_a_runtime() {
    every_call();
}

#[tokio::test(flavor = "current_thread")]
async fn every_call_works_inside_of_a_runtime_with_one_thread() {
    every_call();
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn every_call_works_inside_of_a_runtime_with_several_threads() {
    tokio::spawn(async { every_call() }).await.unwrap();
    tokio::task::spawn_blocking(every_call).await.unwrap();
}

#[test]
fn of_32_threads_that_want_one_key_never_two_have_it_and_each_gets_it() {
    const THREADS: u32 = 32;

    let (nodes, redlock) = fleet(patient());
    let inside = AtomicU32::new(0);
    let granted = AtomicU32::new(0);
    let start = Barrier::new(THREADS.try_into().unwrap());
    thread::scope(|scope| {
        for _ in 0..THREADS {
            scope.spawn(|| {
                start.wait();
                let guard = redlock.acquire("dock-7").unwrap();
                assert_eq!(inside.fetch_add(1, Ordering::SeqCst), 0, "two at once");
                thread::yield_now();
                inside.fetch_sub(1, Ordering::SeqCst);
                granted.fetch_add(1, Ordering::SeqCst);
                guard.release();
            });
        }
    });
    assert_eq!(granted.into_inner(), THREADS);
    assert_eq!(lock_count(&nodes), 0);
}

#[test]
fn a_thread_that_panics_releases_its_lock() {
    let (nodes, redlock) = fleet(patient());
    for holds in [false, true] {
        let redlock = redlock.clone();
        let worker = thread::spawn(move || {
            if holds {
                let _never = redlock.hold("dock-7", |_guard| panic!("on purpose"));
            } else {
                let _guard = redlock.acquire("dock-7").unwrap();
                panic!("on purpose");
            }
        });
        assert!(worker.join().is_err());
        eventually("the lock is free", || lock_count(&nodes) == 0);
    }
}

#[test]
fn a_guard_that_a_thread_has_forgotten_keeps_the_lock_until_its_validity_is_over() {
    let short = Options::new(Duration::from_millis(500)).unwrap();
    let (_nodes, redlock) = fleet(short.wait(LIMIT));
    let forgetful = {
        let redlock = redlock.clone();
        thread::spawn(move || std::mem::forget(redlock.acquire("dock-7").unwrap()))
    };
    forgetful.join().unwrap();
    assert!(redlock.try_acquire("dock-7").unwrap_err().is_held());
    redlock.acquire("dock-7").unwrap().release();
}

#[test]
fn clones_that_wait_get_the_lock_after_the_handle_was_dropped() {
    let (nodes, redlock) = fleet(patient());
    let guard = redlock.acquire("dock-7").unwrap();
    let waiting = Arc::new(AtomicU32::new(0));
    let waiters: Vec<_> = (0..4)
        .map(|_| {
            let (redlock, waiting) = (redlock.clone(), Arc::clone(&waiting));
            thread::spawn(move || {
                waiting.fetch_add(1, Ordering::SeqCst);
                redlock.acquire("dock-7").map(drop)
            })
        })
        .collect();
    eventually("four threads wait", || waiting.load(Ordering::SeqCst) == 4);
    drop(redlock);
    drop(guard);
    for waiter in waiters {
        assert!(waiter.join().unwrap().is_ok());
    }
    eventually("the lock is free", || lock_count(&nodes) == 0);
}

#[test]
fn a_close_ends_the_acquires_that_wait_in_other_threads() {
    let (_nodes, redlock) = fleet(patient());
    let guard = redlock.acquire("dock-7").unwrap();
    let waiter = {
        let redlock = redlock.clone();
        thread::spawn(move || redlock.acquire("dock-7").unwrap_err())
    };
    // It ends whether the acquire has begun by now or not.
    redlock.close();
    let error = waiter.join().unwrap();
    assert!(matches!(error, AcquireError::Closed(_)), "{error}");
    assert!(guard.is_valid(), "a guard outlives the close");
}

#[test]
fn a_hold_outlasts_its_ttl_and_tells_if_the_lock_was_lost_meanwhile() {
    let short = Duration::from_secs(1);
    let (nodes, redlock) = fleet(Options::new(short).unwrap());
    let held = redlock.hold("dock-7", |guard| {
        thread::sleep(short * 2);
        assert!(guard.is_valid(), "{guard:?}");
        "done"
    });
    assert_eq!(held, Ok("done"));
    let lost = redlock.hold("dock-7", |guard| {
        nodes[0].kill();
        nodes[1].kill();
        let cause = guard.lost();
        assert!(!guard.is_valid());
        cause
    });
    let Err(HoldError::Lost(cause)) = lost else {
        panic!("{lost:?}");
    };
    assert!(matches!(*cause, LossCause::Unreachable(_)), "{cause}");
    assert!(cause.to_string().contains("node 1"), "{cause}");
}

#[test]
fn a_connect_with_a_bad_url_fails_and_one_without_nodes_too() {
    let options = Options::new(TTL).unwrap();
    assert!(Redlock::connect(["nonsense"], options).is_err());
    assert!(Redlock::connect::<&str>([], options).is_err());
}
