//! The end of a process, and locks that outlast their release.

use std::time::{Duration, Instant};

use redis::Value;
use redlock_core::transport::Script;
use redlock_core::{FENCE_KEY_PREFIX, GUARD_KEY};
use redlock_std::{AcquireError, AdoptError, Fencing, MemoryNode, Options, Redlock};
use redlock_tests::{Server, Servers};

const TTL: Duration = Duration::from_secs(60);

/// What a process does that ends right after it has dropped a guard.
fn end_after_a_lock(servers: &Servers, options: Options, closes: bool) {
    let mut runtime = tokio::runtime::Builder::new_current_thread();
    let runtime = runtime.enable_all().build().unwrap();
    runtime.block_on(async {
        let redlock = Redlock::connect(servers.urls(), options).unwrap();
        drop(redlock.acquire("dock-7").await.unwrap());
        if closes {
            assert_eq!(redlock.close().await, 0);
        }
    });
}

#[test]
fn a_process_that_closes_the_handle_before_it_ends_leaves_no_key_in_200_runs() {
    let servers = Servers::start(3);
    let options = Options::new(TTL).unwrap();
    for run in 0..200 {
        end_after_a_lock(&servers, options, true);
        assert_eq!(servers.key_count(), 0, "run {run}");
    }
    // Without it, the test would show nothing.
    end_after_a_lock(&servers, options, false);
    assert!(servers.key_count() > 0, "the release was not sent");
}

#[tokio::test(flavor = "multi_thread")]
async fn a_close_waits_for_nodes_that_have_just_closed_a_young_connection() {
    let servers = Servers::start(3);
    for micros in (0..30_000).step_by(500) {
        let redlock = Redlock::connect(servers.urls(), Options::new(TTL).unwrap()).unwrap();
        let guard = redlock.acquire("dock-7").await.unwrap();
        for server in servers.iter() {
            let _killed: u64 = server.query(&["CLIENT", "KILL", "TYPE", "normal"]).unwrap();
        }
        tokio::time::sleep(Duration::from_micros(micros)).await;
        drop(guard);
        let unanswered = redlock.close().await;
        assert_eq!((unanswered, servers.key_count()), (0, 0), "{micros} us");
    }
}

#[test]
fn a_close_counts_the_releases_that_were_lost_with_the_runtime_of_the_connections() {
    let servers = Servers::start(3);
    let mut builder = tokio::runtime::Builder::new_current_thread();
    let [first, second] = [(); 2].map(|()| builder.enable_all().build().unwrap());
    let options = Options::new(TTL).unwrap();
    let (redlock, guard) = first.block_on(async {
        let redlock = crate::setup::connected(&servers, options).await;
        let guard = redlock.acquire("dock-7").await.unwrap();
        crate::setup::expect_key_on(&servers, "dock-7", 3).await;
        // The set-up has released a lock, and the last answer may not have been read.
        tokio::time::sleep(Duration::from_millis(50)).await;
        (redlock, guard)
    });
    assert!(redlock.has_sent_releases());
    drop(first);
    drop(guard);
    assert!(!redlock.has_sent_releases(), "none is sent any more");
    assert_eq!(second.block_on(redlock.close()), 3);

    // Those in flight count too.
    for server in servers.iter() {
        assert_eq!(server.query::<u64>(&["DEL", "dock-7"]).unwrap(), 1);
    }
    let first = builder.enable_all().build().unwrap();
    let redlock = first.block_on(async {
        let redlock = crate::setup::connected(&servers, options).await;
        let guard = redlock.acquire("dock-8").await.unwrap();
        crate::setup::expect_key_on(&servers, "dock-8", 3).await;
        servers.iter().for_each(Server::pause);
        drop(guard);
        tokio::time::sleep(Duration::from_millis(50)).await;
        redlock
    });
    drop(first);
    assert_eq!(second.block_on(redlock.close()), 3);
    servers.iter().for_each(Server::resume);
}

#[test]
fn a_process_that_closes_the_handle_before_it_ends_leaves_its_locks_held_for_their_min_hold() {
    let servers = Servers::start(3);
    servers
        .iter()
        .for_each(|server| server.vouch("600000:250:60000"));
    let options = Options::new(TTL).unwrap().min_hold(TTL * 9).unwrap();
    end_after_a_lock(&servers, options, true);
    for server in servers.iter() {
        let left: i64 = server.query(&["PTTL", "dock-7"]).unwrap();
        assert!(left > 540_000 - 60_000, "{left} ms");
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn a_lock_that_is_released_or_dropped_stays_held_on_the_nodes_for_its_min_hold() {
    let servers = Servers::start(3);
    let [plain, fenced] = kept_for_long(&servers);
    let unkept = crate::setup::connected(&servers, crate::setup::patient(TTL)).await;
    for (key, options, releases) in [
        ("released", plain, true),
        ("dropped", plain, false),
        ("fenced and released", fenced, true),
        ("fenced and dropped", fenced, false),
    ] {
        let redlock = unkept.with_options(options);
        let guard = redlock.acquire(key).await.unwrap();
        crate::setup::expect_key_on(&servers, key, 3).await;
        if releases {
            let released = guard.release().await;
            assert!(released.kept() >= 2, "{released:?}");
        } else {
            drop(guard);
        }
        redlock_tests::eventually("the keys live on", TTL, || {
            servers.iter().all(|server| {
                let left: u64 = server.query(&["PTTL", key]).unwrap();
                left > 540_000 - 60_000
            })
        })
        .await;
        assert!(redlock.try_acquire(key).await.unwrap_err().is_held());
    }
    let redlock = unkept.with_options(plain);
    let guard = redlock.acquire("freed").await.unwrap();
    assert!(guard.release_now().await.released() >= 2);
    let held = crate::setup::patient(TTL);
    let guard = redlock
        .with_options(held)
        .try_acquire("freed")
        .await
        .unwrap();
    guard.release().await;
}

/// A connection that breaks can leave an extension behind, which the node executes after the release.
#[tokio::test(flavor = "multi_thread")]
async fn an_extension_that_is_executed_after_the_release_does_not_cut_the_min_hold_short() {
    let servers = Servers::start(3);
    let [plain, fenced] = kept_for_long(&servers);
    let unkept = crate::setup::connected(&servers, crate::setup::patient(TTL)).await;
    for (key, options) in [("plain", plain), ("fenced", fenced)] {
        let redlock = unkept.with_options(options);
        let guard = redlock.acquire(key).await.unwrap();
        let (token, fence) = (guard.token().as_bytes().to_vec(), guard.fence());
        let extend = |server: &Server| {
            let mut words = match fence {
                None => words(&["EVAL", Script::PLAIN[0].text(), "1", key]),
                Some(_) => {
                    let fence_key = format!("{FENCE_KEY_PREFIX}{key}");
                    words(&[
                        "EVAL",
                        Script::FENCED[1].text(),
                        "3",
                        key,
                        &fence_key,
                        GUARD_KEY,
                    ])
                }
            };
            words.push(token.clone());
            words.push(b"20000".to_vec());
            if let Some(fence) = fence {
                let (fence, time) = (fence.to_string(), fence.to_string());
                words.extend(self::words(&[&fence, &time, "250", "60000"]));
            }
            let answer: Value = server.query(&words).unwrap();
            let left: u64 = server.query(&["PTTL", key]).unwrap();
            (answer, left)
        };
        let [first, others @ ..] = &servers[..] else {
            panic!("three servers");
        };
        // It has not been released there, so it is extended.
        let (_granted, left) = extend(first);
        assert!(left <= 20_000, "{left} ms");
        assert!(guard.release().await.kept() >= 2);
        for server in core::iter::once(first).chain(others) {
            redlock_tests::eventually("the release", TTL, || {
                server.query::<u64>(&["PTTL", key]).unwrap() > 60_000
            })
            .await;
            let (refused, left) = extend(server);
            assert!(left > 540_000 - 60_000, "{left} ms, {refused:?}");
        }
    }
}

/// A plain lock and a fenced one with a long `min_hold`, over a fleet whose guard records allow it.
fn kept_for_long(servers: &Servers) -> [Options; 2] {
    servers
        .iter()
        .for_each(|server| server.vouch("600000:250:60000"));
    let plain = Options::new(TTL).unwrap().min_hold(TTL * 9).unwrap();
    let fencing = Fencing::default().with_max_ttl(TTL * 10).unwrap();
    [plain, plain.fenced(fencing).unwrap()]
}

fn words(words: &[&str]) -> Vec<Vec<u8>> {
    words.iter().map(|word| word.as_bytes().to_vec()).collect()
}

#[tokio::test(flavor = "multi_thread")]
async fn a_min_hold_that_the_guard_records_do_not_allow_is_refused() {
    let servers = Servers::start(3);
    servers
        .iter()
        .for_each(|server| server.vouch("60000:250:60000"));
    let options = Options::new(TTL / 2).unwrap().min_hold(TTL * 9).unwrap();
    let redlock = Redlock::connect(servers.urls(), options.wait(TTL / 60)).unwrap();
    let error = redlock.acquire("dock-7").await.unwrap_err().to_string();
    assert!(
        error.contains("its guard record allows a TTL or min_hold of up to 60000 ms"),
        "{error}"
    );
}

#[tokio::test(flavor = "multi_thread")]
async fn a_close_waits_for_nodes_that_are_silent_for_a_moment() {
    let servers = Servers::start(3);
    // So a close waits for four seconds, and two node timeouts make a node silent.
    let options = Options::new(TTL).unwrap().node_timeout(TTL / 60).unwrap();
    let redlock = crate::setup::connected(&servers, options).await;
    let [first, second] = [
        redlock.acquire("dock-7").await.unwrap(),
        redlock.acquire("dock-8").await.unwrap(),
    ];
    servers.iter().for_each(Server::pause);
    drop(first);
    tokio::time::sleep(TTL / 20).await;
    drop(second);
    let resumed = async {
        tokio::time::sleep(TTL / 60).await;
        servers.iter().for_each(Server::resume);
    };
    let (unanswered, ()) = tokio::join!(redlock.close(), resumed);
    assert_eq!(unanswered, 0);
    servers.expect_no_keys().await;
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

#[tokio::test(flavor = "multi_thread")]
async fn a_close_ends_the_calls_that_wait_for_the_first_connections() {
    let servers = Servers::start(3);
    servers.iter().for_each(Server::pause);
    let options = Options::new(TTL).unwrap();
    // The calls would wait for six seconds, and for their round after that.
    let options = options.node_timeout(Duration::from_secs(3)).unwrap();
    let redlock = Redlock::connect(servers.urls(), options).unwrap();
    let handover = {
        let nodes = MemoryNode::array::<3>();
        let other = Redlock::in_memory(&nodes, options).unwrap();
        other.acquire("dock-7").await.unwrap().hand_over()
    };
    let start = Instant::now();
    let (tried, adopted, unanswered) = tokio::join!(
        redlock.try_acquire("dock-8"),
        redlock.adopt(&handover),
        redlock.close()
    );
    assert!(matches!(tried.unwrap_err(), AcquireError::Closed(_)));
    assert!(matches!(adopted.unwrap_err(), AdoptError::Closed(_)));
    assert_eq!(unanswered, 0);
    assert!(start.elapsed() < options.round_time());
    servers.iter().for_each(Server::resume);
    servers.expect_no_keys().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn a_close_counts_the_release_of_an_adopted_lease_on_a_node_that_was_never_connected() {
    let servers = Servers::start(3);
    let options = Options::new(TTL).unwrap();
    let first = crate::setup::connected(&servers, options).await;
    let handover = first.acquire("dock-7").await.unwrap().hand_over();
    crate::setup::expect_key_on(&servers, "dock-7", 3).await;
    servers[2].pause();
    let second = Redlock::connect(servers.urls(), options).unwrap();
    let adopted = second.adopt(&handover).await.unwrap();
    adopted.release().await;
    assert!(!second.has_sent_releases());
    assert_eq!(second.close().await, 1);
    servers[2].resume();
    servers.expect_no_keys().await;
}
