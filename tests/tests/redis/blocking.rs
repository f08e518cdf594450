//! Locks for code without async.

use std::sync::Barrier;
use std::sync::atomic::{AtomicU32, Ordering};
use std::thread;
use std::time::{Duration, Instant};

use redlock_std::blocking::Redlock;
use redlock_std::{AcquireError, Options};
use redlock_tests::{Server, Servers};

const TTL: Duration = Duration::from_secs(60);

/// Longer than anything here takes.
const LIMIT: Duration = Duration::from_secs(60);

fn patient() -> Options {
    let options = Options::new(TTL).unwrap().wait(LIMIT);
    options.node_timeout(Duration::from_secs(1)).unwrap()
}

fn eventually(what: &str, fact: impl Fn() -> bool) {
    let start = Instant::now();
    while !fact() {
        assert!(start.elapsed() < LIMIT, "{what}");
        thread::sleep(Duration::from_millis(1));
    }
}

#[test]
fn of_32_threads_of_two_handles_that_want_one_key_never_two_have_it_and_each_gets_it() {
    const THREADS: u32 = 32;

    let servers = Servers::start(3);
    let handles = [(); 2].map(|()| Redlock::connect(servers.urls(), patient()).unwrap());
    let (inside, granted) = (AtomicU32::new(0), AtomicU32::new(0));
    let start = Barrier::new(THREADS.try_into().unwrap());
    thread::scope(|scope| {
        for number in 0..THREADS {
            let redlock = &handles[usize::from(number % 2 == 0)];
            let (inside, granted, start) = (&inside, &granted, &start);
            scope.spawn(move || {
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
    eventually("no key is left", || servers.key_count() == 0);
}

#[tokio::test(flavor = "current_thread")]
async fn calls_inside_of_a_runtime_do_not_panic_and_close_sends_what_was_dropped() {
    let servers = Servers::start(3);
    let redlock = Redlock::connect(servers.urls(), patient()).unwrap();
    let mut guard = redlock.acquire("dock-7").unwrap();
    guard.extend().unwrap();
    let mine = redlock.hold("dock-8", |guard| guard.is_valid());
    assert_eq!(mine, Ok(true));
    drop(guard);
    assert_eq!(redlock.close(), 0);
    assert_eq!(servers.key_count(), 0);
}

#[test]
fn what_was_dropped_last_is_released_after_the_handle_and_then_the_thread_ends() {
    let servers = Servers::start(3);
    let redlock = Redlock::connect(servers.urls(), patient()).unwrap();
    let guard = redlock.acquire("dock-7").unwrap();
    drop(redlock);
    assert!(guard.is_valid());
    drop(guard);
    eventually("no key is left", || servers.key_count() == 0);
    // Its connections end with the thread.
    eventually("no client is left", || {
        servers.iter().all(|server| server.client_count() == 0)
    });
}

#[test]
fn a_majority_that_hangs_is_no_quorum_and_the_call_returns_in_time() {
    let servers = Servers::start(3);
    let redlock = Redlock::connect(servers.urls(), patient()).unwrap();
    redlock.acquire("dock-7").unwrap().release();
    servers[..2].iter().for_each(Server::pause);
    let start = Instant::now();
    let error = redlock.try_acquire("dock-7").unwrap_err();
    assert!(error.is_unreachable(), "{error}");
    assert!(matches!(error, AcquireError::Nodes(_)), "{error}");
    assert!(start.elapsed() < LIMIT / 2);
    servers[..2].iter().for_each(Server::resume);
    redlock.acquire("dock-7").unwrap().release();
}
