//! One lock: acquire, extend, release, hold, and what a user can do wrong.

use core::future::Future;
use core::pin::pin;
use core::task::{Context, Poll, Waker};
use std::collections::HashSet;
use std::time::{Duration, Instant};

use redlock_std::{
    AcquireError, BuildError, ConnectError, ExtendError, HoldError, LossCause, MAX_KEY, MAX_NODES,
    Options, Redlock,
};
use redlock_tests::{Servers, eventually, undisturbed};

use crate::setup::{connected, expect_key_on, five, patient, with_five};

const TTL: Duration = Duration::from_secs(10);

#[tokio::test(flavor = "multi_thread")]
async fn a_lock_is_on_all_servers_until_it_is_released() {
    let (servers, redlock) = five(patient(TTL)).await;
    let guard = redlock.acquire("dock-7").await.unwrap();
    expect_key_on(&servers, "dock-7", 5).await;
    let token: Vec<u8> = servers[0].query(&["GET", "dock-7"]).unwrap();
    assert_eq!(token, guard.token().as_bytes());
    assert!(guard.is_valid() && guard.remaining() <= TTL);

    let released = guard.release().await;
    assert!(
        released.released() >= 3 && released.gone() == 0,
        "{released:?}"
    );
    servers.expect_no_keys().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn a_key_that_is_too_long_is_refused_with_its_prefix() {
    let (servers, redlock) = five(patient(TTL)).await;
    let prefixed = redlock.with_prefix("lock:");
    let longest = vec![b'k'; MAX_KEY - 5];
    assert!(prefixed.acquire(&longest).await.is_ok());
    let longer = vec![b'k'; MAX_KEY - 4];
    let error = prefixed.acquire(&longer).await.unwrap_err();
    assert_eq!(error, AcquireError::KeyTooLong(MAX_KEY + 1));
    let error = prefixed.try_acquire(&longer).await.unwrap_err();
    let words = "a key of 65537 bytes is too long: at most 65536; use a digest of it";
    assert_eq!(error.to_string(), words);
    servers.expect_no_keys().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn a_held_lock_is_refused_and_says_so() {
    let (servers, redlock) = five(patient(TTL)).await;
    let _guard = redlock.acquire("dock-7").await.unwrap();
    expect_key_on(&servers, "dock-7", 5).await;

    let same_process = redlock.try_acquire("dock-7").await.unwrap_err();
    assert!(matches!(same_process, AcquireError::HeldHere(_)));
    assert_eq!(
        same_process.to_string(),
        "dock-7 is held by this process, or another of its tasks is ahead in the queue for it; a task that acquires a lock that \
         it holds waits for itself"
    );

    let other = connected_beside(&servers).await;
    let error = other.try_acquire("dock-7").await.unwrap_err();
    assert!(error.is_held() && !error.is_unreachable());
    assert!(
        error
            .to_string()
            .starts_with("dock-7 is held by another client: "),
        "{error}"
    );
    // The refused client has left the holder's keys alone.
    expect_key_on(&servers, "dock-7", 5).await;
}

#[tokio::test(flavor = "multi_thread")]
async fn a_waiting_client_gets_the_lock_when_it_is_released() {
    let (servers, redlock) = five(patient(TTL)).await;
    let guard = redlock.acquire("dock-7").await.unwrap();
    let other = connected_beside(&servers).await;
    let waiting = tokio::spawn(async move { other.acquire("dock-7").await.map(drop) });
    eventually("the other one has asked", TTL, || {
        servers[0].calls()["set"] > 2
    })
    .await;
    assert!(!waiting.is_finished());
    guard.release().await;
    waiting.await.unwrap().unwrap();
    servers.expect_no_keys().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn waiting_ends_with_the_option() {
    undisturbed(async || {
        let (servers, redlock) = five(patient(TTL)).await;
        let _guard = redlock.acquire("dock-7").await.unwrap();
        let wait = Duration::from_millis(100);

        let start = Instant::now();
        let error = redlock
            .with_options(patient(TTL).wait(wait))
            .acquire("dock-7")
            .await
            .unwrap_err();
        assert!(matches!(error, AcquireError::HeldHere(_)), "{error}");
        assert!(start.elapsed() >= wait);

        let other = connected_beside(&servers)
            .await
            .with_options(patient(TTL).wait(wait));
        let start = Instant::now();
        assert!(other.acquire("dock-7").await.unwrap_err().is_held());
        assert!(start.elapsed() >= wait);
    })
    .await;
}

#[tokio::test(flavor = "multi_thread")]
async fn an_extension_resets_the_ttl() {
    let (servers, redlock) = five(patient(TTL)).await;
    let mut guard = redlock.acquire("dock-7").await.unwrap();
    expect_key_on(&servers, "dock-7", 5).await;
    for server in servers.iter() {
        assert_eq!(
            server.query::<u64>(&["PEXPIRE", "dock-7", "5000"]).unwrap(),
            1
        );
    }
    let before = guard.valid_until();
    guard.extend().await.unwrap();
    assert!(guard.valid_until() > before);
    eventually("all servers extended it", TTL, || {
        servers
            .iter()
            .all(|server| server.query::<u64>(&["PTTL", "dock-7"]).unwrap() > 5_000)
    })
    .await;
    let ttl: u64 = servers[0].query(&["PTTL", "dock-7"]).unwrap();
    assert!(ttl <= 10_000, "reset, not added to: {ttl}");
}

#[tokio::test(flavor = "multi_thread")]
async fn a_dropped_guard_gives_the_lock_back() {
    let (servers, redlock) = five(patient(TTL)).await;
    drop(redlock.acquire("dock-7").await.unwrap());
    servers.expect_no_keys().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn a_guard_dropped_outside_of_the_runtime_gives_the_lock_back() {
    let (servers, redlock) = five(patient(TTL)).await;
    let guard = redlock.acquire("dock-7").await.unwrap();
    std::thread::spawn(move || drop(guard)).join().unwrap();
    servers.expect_no_keys().await;
}

#[test]
fn a_guard_that_outlives_its_runtime_is_dropped_without_a_panic() {
    let servers = Servers::start(1);
    let runtime = tokio::runtime::Runtime::new().unwrap();
    let mut guard = runtime.block_on(async {
        connected(&servers, patient(TTL))
            .await
            .acquire("dock-7")
            .await
            .unwrap()
    });
    drop(runtime);
    guard.keep_alive();
    drop(guard);
}

#[tokio::test(flavor = "multi_thread")]
async fn the_last_handle_closes_the_connections() {
    let (servers, redlock) = five(patient(TTL)).await;
    let guard = redlock.acquire("dock-7").await.unwrap();
    drop(redlock);
    assert!(servers.iter().all(|server| server.client_count() == 1));
    drop(guard);
    servers.expect_no_keys().await;
    eventually("no client is left", TTL, || {
        servers.iter().all(|server| server.client_count() == 0)
    })
    .await;
}

#[tokio::test(flavor = "multi_thread")]
async fn an_acquire_dropped_at_any_await_leaves_no_key() {
    let (servers, redlock) = five(patient(TTL)).await;
    let mut polls = 0;
    loop {
        let done = Box::pin(poll_times(polls, redlock.acquire("dock-7"))).await;
        servers.expect_no_keys().await;
        if done {
            break;
        }
        polls += 1;
    }
    assert!(
        polls > 0,
        "the acquire was dropped at least once in the middle"
    );
}

#[tokio::test(flavor = "multi_thread")]
async fn an_acquire_dropped_while_it_waits_leaves_no_key_and_no_place_in_the_line() {
    let (servers, redlock) = five(patient(TTL)).await;
    let other = connected_beside(&servers).await;
    let guard = redlock.acquire("dock-7").await.unwrap();
    for limit in [0, 1, 5, 20, 60] {
        let limit = Duration::from_millis(limit);
        assert!(
            tokio::time::timeout(limit, redlock.acquire("dock-7"))
                .await
                .is_err()
        );
        assert!(
            tokio::time::timeout(limit, other.acquire("dock-7"))
                .await
                .is_err()
        );
    }
    guard.release().await;
    servers.expect_no_keys().await;
    redlock.try_acquire("dock-7").await.unwrap().release().await;
    servers.expect_no_keys().await;
    other.try_acquire("dock-7").await.unwrap().release().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn release_and_extend_dropped_at_any_await_leave_no_key() {
    let (servers, redlock) = five(patient(TTL)).await;
    for polls in 0..4 {
        let mut guard = redlock.acquire("dock-7").await.unwrap();
        poll_times(polls, guard.extend()).await;
        poll_times(polls, guard.release()).await;
        servers.expect_no_keys().await;
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn releasing_an_expired_lock_is_an_answer() {
    let (servers, redlock) = five(patient(Duration::from_millis(700))).await;
    let mut guard = redlock.acquire("dock-7").await.unwrap();
    assert!(matches!(guard.lost().await, LossCause::Expired));
    servers.expect_no_keys().await;
    assert!(!guard.is_valid());
    assert!(matches!(guard.extend().await, Err(ExtendError::Expired)));
    let released = guard.release().await;
    assert!(
        released.released() == 0 && released.gone() >= 3,
        "{released:?}"
    );
}

#[tokio::test(flavor = "multi_thread")]
async fn releasing_a_stolen_lock_leaves_the_thief_alone() {
    let (servers, redlock) = five(patient(TTL)).await;
    let mut guard = redlock.acquire("dock-7").await.unwrap();
    expect_key_on(&servers, "dock-7", 5).await;
    for server in servers.iter() {
        assert_eq!(
            server.query::<String>(&["SET", "dock-7", "thief"]).unwrap(),
            "OK"
        );
    }
    let error = guard.extend().await.unwrap_err();
    assert!(matches!(error, ExtendError::Lost(_)), "{error}");
    assert!(guard.release().await.gone() >= 3);
    for server in servers.iter() {
        assert_eq!(server.query::<String>(&["GET", "dock-7"]).unwrap(), "thief");
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn a_key_of_another_type_is_held_and_its_error_is_named() {
    let (servers, redlock) = five(patient(TTL)).await;
    let mut guard = redlock.acquire("dock-7").await.unwrap();
    expect_key_on(&servers, "dock-7", 5).await;
    for server in servers.iter() {
        assert_eq!(server.query::<u64>(&["DEL", "dock-7"]).unwrap(), 1);
        assert_eq!(server.query::<u64>(&["LPUSH", "dock-7", "x"]).unwrap(), 1);
    }
    let error = guard.extend().await.unwrap_err();
    assert!(matches!(error, ExtendError::Unreachable(_)), "{error}");
    assert!(error.to_string().contains("WRONGTYPE"), "{error}");
    guard.release().await;
    assert!(redlock.try_acquire("dock-7").await.unwrap_err().is_held());
    expect_key_on(&servers, "dock-7", 5).await;
}

#[tokio::test(flavor = "multi_thread")]
async fn scripts_that_a_server_has_forgotten_are_sent_again() {
    let (servers, redlock) = five(patient(TTL)).await;
    let mut guard = redlock.acquire("dock-7").await.unwrap();
    flush_scripts(&servers);
    guard.extend().await.unwrap();
    flush_scripts(&servers);
    let released = guard.release().await;
    assert!(released.released() >= 3, "{released:?}");
    servers.expect_no_keys().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn a_token_is_never_used_twice() {
    let (servers, redlock) = five(patient(TTL)).await;
    let mut tokens = HashSet::new();
    for _ in 0..1_000 {
        let guard = redlock.acquire("dock-7").await.unwrap();
        assert!(tokens.insert(*guard.token()));
        guard.release().await;
    }
    servers.expect_no_keys().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn a_prefix_stands_before_the_key() {
    let (servers, redlock) = five(patient(TTL)).await;
    let guard = redlock
        .with_prefix("lock:")
        .acquire("dock-7")
        .await
        .unwrap();
    assert_eq!(guard.key(), b"lock:dock-7");
    expect_key_on(&servers, "lock:dock-7", 5).await;
    // Another name, another lock.
    redlock.try_acquire("dock-7").await.unwrap().release().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn a_node_can_be_a_socket_and_a_database_of_its_own() {
    let servers = Servers::start(3);
    let urls = servers
        .iter()
        .map(|server| format!("{}?db=3", server.socket_url()));
    // The guard record that vouches for the servers is in their first database.
    let redlock = Redlock::connect(urls, patient(TTL).restart_guard(false)).unwrap();
    let guard = redlock.acquire("dock-7").await.unwrap();
    eventually("every server has the key in that database", TTL, || {
        servers.iter().all(|server| {
            let keyspace: String = server.query(&["INFO", "keyspace"]).unwrap();
            keyspace.contains("db3:keys=1")
        })
    })
    .await;
    guard.release().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn a_kept_guard_outlives_its_ttl() {
    undisturbed(async || {
        let ttl = Duration::from_secs(2);
        let (servers, redlock) = five(patient(ttl)).await;
        let mut guard = redlock.acquire("dock-7").await.unwrap();
        guard.keep_alive();
        assert!(tokio::time::timeout(ttl * 2, guard.lost()).await.is_err());
        assert!(guard.is_valid());
        expect_key_on(&servers, "dock-7", 5).await;
        guard.release().await;
        servers.expect_no_keys().await;
    })
    .await;
}

#[tokio::test(flavor = "multi_thread")]
async fn a_kept_guard_says_at_once_that_a_quorum_has_lost_it() {
    undisturbed(async || {
        let (servers, redlock) = five(patient(Duration::from_secs(3))).await;
        let mut guard = redlock.acquire("dock-7").await.unwrap();
        guard.keep_alive();
        expect_key_on(&servers, "dock-7", 5).await;
        for server in &servers[..3] {
            assert_eq!(server.query::<u64>(&["DEL", "dock-7"]).unwrap(), 1);
        }
        let cause = guard.lost().await;
        assert!(matches!(cause, LossCause::Lost(_)), "{cause}");
        assert!(!guard.is_valid(), "known to be lost");
    })
    .await;
}

#[tokio::test(flavor = "multi_thread")]
async fn a_kept_guard_is_lost_no_later_than_its_validity_when_the_majority_hangs() {
    undisturbed(async || {
        use redlock_std::SystemClock;
        let (servers, redlock) = five(patient(Duration::from_secs(1))).await;
        let mut guard = redlock.acquire("dock-7").await.unwrap();
        guard.keep_alive();
        servers[..3].iter().for_each(redlock_tests::Server::pause);
        guard.lost().await;
        let now = redlock_core::Clock::now(&SystemClock);
        let margin = Duration::from_millis(500);
        assert!(
            now <= guard.valid_until().saturating_add(margin),
            "only the machine's own delay"
        );
        servers[..3].iter().for_each(redlock_tests::Server::resume);
    })
    .await;
}

#[tokio::test(flavor = "multi_thread")]
async fn a_kept_guard_says_why_its_validity_ended() {
    undisturbed(async || {
        let ttl = Duration::from_millis(1_500);
        for _ in 0..2 {
            let (servers, redlock) = five(patient(ttl).max_extensions(1)).await;
            let mut guard = redlock.acquire("dock-7").await.unwrap();
            guard.keep_alive();
            let cause = guard.lost().await;
            assert!(matches!(cause, LossCause::ExtensionsSpent), "{cause}");
            drop(guard);

            let redlock = redlock.with_options(patient(ttl));
            let mut guard = redlock.acquire("dock-7").await.unwrap();
            guard.keep_alive();
            servers[..3].iter().for_each(redlock_tests::Server::pause);
            let cause = guard.lost().await;
            assert!(matches!(cause, LossCause::Unreachable(_)), "{cause}");
            assert_eq!(guard.lost().await, cause);
            servers[..3].iter().for_each(redlock_tests::Server::resume);
        }
    })
    .await;
}

#[tokio::test(flavor = "multi_thread")]
async fn a_guard_that_says_lost_stays_lost_whatever_extension_comes_later() {
    undisturbed(async || {
        let ttl = Duration::from_millis(300);
        let options = patient(ttl)
            .retry_delay(Duration::ZERO, Duration::from_millis(1))
            .unwrap();
        let (servers, redlock) = five(options).await;
        let hung = &servers[..3];
        for round in 0..30 {
            let mut guard = redlock.acquire("dock-7").await.unwrap();
            guard.keep_alive();
            hung.iter().for_each(redlock_tests::Server::pause);
            let early = Duration::from_micros(3_000 - 100 * round);
            let pause = guard.remaining().saturating_sub(early);
            let cause = std::thread::scope(|scope| {
                // They come back when the validity ends.
                scope.spawn(|| {
                    std::thread::sleep(pause);
                    hung.iter().for_each(redlock_tests::Server::resume);
                });
                tokio::task::block_in_place(|| {
                    tokio::runtime::Handle::current()
                        .block_on(async { tokio::time::timeout(ttl * 2, guard.lost()).await })
                })
            });
            // Unless the extension was in time.
            if let Ok(cause) = cause {
                tokio::time::sleep(Duration::from_millis(20)).await;
                assert!(!guard.is_valid(), "{cause}");
            }
            drop(guard);
            servers.expect_no_keys().await;
        }
    })
    .await;
}

#[test]
fn lost_resolves_before_the_validity_is_over_and_ends_it() {
    let servers = Servers::start(1);
    let runtime = tokio::runtime::Builder::new_current_thread()
        .enable_all()
        .build()
        .unwrap();
    runtime.block_on(async {
        let redlock = connected(&servers, patient(Duration::from_millis(200))).await;
        // A busy machine may be late, but not each time.
        let mut is_in_time = false;
        for _ in 0..100 {
            let guard = redlock.acquire("dock-7").await.unwrap();
            let end = guard.valid_until();
            assert_eq!(guard.lost().await, LossCause::Expired);
            assert!(!guard.is_valid() && guard.valid_until() <= end);
            is_in_time = redlock_core::Clock::now(&redlock_std::SystemClock) <= end;
            if is_in_time {
                break;
            }
        }
        assert!(is_in_time, "the timer is a tick early");
    });
}

#[tokio::test(flavor = "multi_thread")]
async fn a_guard_whose_extension_says_lost_is_lost_everywhere_at_once() {
    undisturbed(async || {
        for is_kept in [false, true] {
            let (servers, redlock) = five(patient(TTL)).await;
            let mut guard = redlock.acquire("dock-7").await.unwrap();
            expect_key_on(&servers, "dock-7", 5).await;
            if is_kept {
                guard.keep_alive();
            }
            let waiting = tokio::spawn({
                let redlock = redlock.clone();
                async move { redlock.acquire("dock-7").await.map(drop) }
            });
            for server in servers.iter() {
                assert_eq!(server.query::<u64>(&["DEL", "dock-7"]).unwrap(), 1);
            }
            let error = guard.extend().await.unwrap_err();
            assert!(matches!(error, ExtendError::Lost(_)), "{error}");
            assert!(!guard.is_valid() && guard.remaining().is_zero());
            let now = redlock_core::Clock::now(&redlock_std::SystemClock);
            assert!(guard.valid_until() <= now);
            {
                let mut context = Context::from_waker(Waker::noop());
                let cause = pin!(guard.lost()).poll(&mut context);
                let is_known = matches!(cause, Poll::Ready(LossCause::Lost(_)));
                assert!(is_known, "{cause:?}");
            }
            // Its task is not in the way of others, although the guard is still there.
            let waiting = tokio::time::timeout(TTL / 2, waiting).await.unwrap();
            waiting.unwrap().unwrap();
            assert!(matches!(guard.extend().await, Err(ExtendError::Expired)));
            drop(guard);
            servers.expect_no_keys().await;
        }
    })
    .await;
}

#[tokio::test(flavor = "multi_thread")]
async fn a_guard_that_was_kept_for_many_ttls_can_be_extended() {
    undisturbed(async || {
        let ttl = Duration::from_secs(2);
        let (servers, redlock) = five(patient(ttl)).await;
        let mut guard = redlock.acquire("dock-7").await.unwrap();
        guard.keep_alive();
        assert!(tokio::time::timeout(ttl * 3, guard.lost()).await.is_err());
        let before = guard.valid_until();
        guard.extend().await.unwrap();
        assert!(guard.is_valid() && guard.valid_until() > before);
        guard.release().await;
        servers.expect_no_keys().await;
    })
    .await;
}

#[tokio::test(flavor = "multi_thread")]
async fn a_kept_guard_is_not_lost_while_it_is_extended_beside_the_keeper() {
    let ttl = Duration::from_secs(2);
    // The keeper has no extension of its own.
    let options = patient(ttl).max_extensions(0);
    with_five(options, async |_, redlock| {
        let mut guard = redlock.acquire("dock-7").await.unwrap();
        guard.keep_alive();
        let start = Instant::now();
        while start.elapsed() < ttl * 2 {
            guard.extend().await.unwrap();
            let pause = tokio::time::timeout(ttl / 5, guard.lost()).await;
            assert!(pause.is_err(), "{pause:?}");
        }
        guard.lost().await;
        drop(guard);
    })
    .await;
}

#[tokio::test(flavor = "multi_thread")]
async fn one_guard_is_kept_extended_and_dropped_at_any_time() {
    let ttl = Duration::from_millis(300);
    with_five(patient(ttl), async |_, redlock| {
        let longer = redlock.with_options(patient(ttl * 2));
        for round in 0..40_u32 {
            let lock = if round % 2 == 0 { &redlock } else { &longer };
            let mut guard = lock.acquire("dock-7").await.unwrap();
            let mut until = guard.valid_until();
            guard.keep_alive();
            for _ in 0..round {
                poll_times(round as usize % 5, guard.extend()).await;
                assert!(guard.is_valid() && guard.valid_until() >= until);
                until = guard.valid_until();
            }
            if round % 3 == 0 {
                guard.release().await;
            } else {
                drop(guard);
            }
        }
    })
    .await;
}

#[tokio::test(flavor = "multi_thread")]
async fn held_work_outlives_the_ttl_and_gives_its_result() {
    let ttl = Duration::from_secs(1);
    with_five(patient(ttl), async |_, redlock| {
        let result = redlock
            .hold("dock-7", async |guard| {
                tokio::time::sleep(ttl * 3).await;
                guard.is_valid()
            })
            .await;
        assert!(result.unwrap());
    })
    .await;
}

#[tokio::test(flavor = "multi_thread")]
async fn held_work_is_dropped_when_the_lock_is_lost() {
    with_five(patient(Duration::from_secs(1)), async |servers, redlock| {
        let result = redlock
            .hold("dock-7", async |_guard| {
                for server in &servers[..3] {
                    server.query::<u64>(&["DEL", "dock-7"]).unwrap();
                }
                core::future::pending::<()>().await;
            })
            .await;
        assert!(matches!(result, Err(HoldError::Lost(_))), "{result:?}");
    })
    .await;
}

#[tokio::test]
async fn a_lock_cannot_be_made_of_wrong_urls() {
    let options = Options::new(TTL).unwrap();
    let connect = |urls: &[&str]| Redlock::connect(urls, options).map(drop).unwrap_err();
    assert_eq!(connect(&[]), ConnectError::Build(BuildError::NoNode));
    assert!(matches!(
        connect(&["http://10.0.0.1"]),
        ConnectError::BadUrl { .. }
    ));
    let second = connect(&["redis://10.0.0.1", "redis://:secret@10.0.0.1:no"]);
    assert!(
        second.to_string().starts_with("bad node URL number 2 "),
        "{second}"
    );
    assert_eq!(
        connect(&["redis://10.0.0.1", "redis://10.0.0.1:6379/0"]),
        ConnectError::DuplicateNode {
            node: "10.0.0.1:6379".to_owned()
        },
    );
    let many: Vec<_> = (0..=MAX_NODES)
        .map(|node| format!("redis://10.0.0.{node}"))
        .collect();
    let many: Vec<_> = many.iter().map(String::as_str).collect();
    assert_eq!(
        connect(&many),
        ConnectError::Build(BuildError::TooManyNodes { max: MAX_NODES }),
    );
}

#[tokio::test]
async fn options_that_no_lock_can_be_made_of_are_refused_by_connect_and_by_every_acquire() {
    let servers = Servers::start(1);
    let redlock = connected(&servers, patient(TTL)).await;
    for (ttl, is_refused) in [(3, true), (200, false)] {
        let options = Options::new(Duration::from_millis(ttl)).unwrap();
        let connect = Redlock::connect(servers.urls(), options).map(drop);
        let refusal = ConnectError::Build(BuildError::ClockTooCoarse);
        assert_eq!(connect.err(), is_refused.then_some(refusal));
        let redlock = redlock.with_options(options);
        for result in [
            redlock.try_acquire("dock-7").await,
            redlock.acquire("dock-7").await,
        ] {
            let refusal = AcquireError::Build(BuildError::ClockTooCoarse);
            assert_eq!(result.err(), is_refused.then_some(refusal));
        }
    }
    servers.expect_no_keys().await;
}

#[test]
fn a_lock_needs_a_runtime() {
    let error = Redlock::connect(["redis://127.0.0.1"], Options::new(TTL).unwrap()).unwrap_err();
    assert_eq!(error, ConnectError::NoRuntime);
}

/// A second client, as another process would be.
async fn connected_beside(servers: &Servers) -> Redlock {
    let redlock = Redlock::connect(servers.urls(), patient(TTL)).unwrap();
    eventually("the second client is connected", TTL, || {
        servers.iter().all(|server| server.client_count() > 1)
    })
    .await;
    redlock
}

fn flush_scripts(servers: &Servers) {
    for server in servers.iter() {
        assert_eq!(server.query::<String>(&["SCRIPT", "FLUSH"]).unwrap(), "OK");
    }
}

/// Polls `future` at most `times` times, with time in between for what it waits for, and drops it.
/// Says whether it was done.
async fn poll_times<F: Future>(times: usize, future: F) -> bool {
    let mut future = pin!(future);
    for _ in 0..times {
        let mut context = Context::from_waker(Waker::noop());
        if let Poll::Ready(_output) = future.as_mut().poll(&mut context) {
            return true;
        }
        tokio::time::sleep(Duration::from_millis(1)).await;
    }
    false
}
