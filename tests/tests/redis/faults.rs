//! Servers that hang, die and come back.

use std::time::{Duration, Instant};

use redlock_std::{ExtendError, Options, Redlock};
use redlock_tests::{Proxy, Server, Servers, eventually, undisturbed};
use tokio::task::JoinSet;

use crate::setup::{expect_key_on, five, patient, with_five};

const TTL: Duration = Duration::from_secs(20);

#[tokio::test(flavor = "multi_thread")]
async fn a_hung_minority_costs_nothing_and_keeps_no_key() {
    let (servers, redlock) = five(patient(TTL)).await;
    for round in 0..20 {
        let hung = &servers[..=round % 2];
        hung.iter().for_each(Server::pause);
        let start = Instant::now();
        for _ in 0..10 {
            redlock.try_acquire("dock-7").await.unwrap().release().await;
        }
        // No task has waited for the hung ones: that would take a second a round.
        assert!(start.elapsed() < redlock.options().round_time());
        hung.iter().for_each(Server::resume);
        servers.expect_no_keys().await;
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn a_server_that_hangs_until_its_connection_is_replaced_keeps_no_key() {
    undisturbed(async || {
        let options = patient(TTL)
            .node_timeout(Duration::from_millis(50))
            .unwrap();
        let (servers, redlock) = five(options).await;
        let client_id = |server: &Server| -> String {
            let list: String = server.query(&["CLIENT", "LIST"]).unwrap();
            list.split_whitespace().next().unwrap().to_owned()
        };
        let before = client_id(&servers[0]);
        servers[0].pause();
        let start = Instant::now();
        while start.elapsed() < Duration::from_secs(2) {
            redlock.try_acquire("dock-7").await.unwrap().release().await;
        }
        servers[0].resume();
        servers.expect_no_keys().await;
        eventually("there is another connection", TTL, || {
            client_id(&servers[0]) != before
        })
        .await;
        eventually_votes(&servers, &redlock).await;
    })
    .await;
}

/// When it is back, it executes the acquires that it was sent before, so their keys live from then on.
#[tokio::test(flavor = "multi_thread")]
async fn a_server_that_hangs_for_longer_than_the_ttl_keeps_no_key() {
    let ttl = Duration::from_secs(4);
    undisturbed(async || {
        let (servers, redlock) = five(Options::new(ttl).unwrap()).await;
        servers[0].pause();
        let start = Instant::now();
        let mut tasks = JoinSet::new();
        for task in 0..64 {
            let redlock = redlock.clone();
            tasks.spawn(async move {
                let key = format!("dock-{task}");
                while start.elapsed() < ttl * 2 {
                    redlock.try_acquire(&key).await.unwrap().release().await;
                }
            });
        }
        tasks.join_all().await;
        servers[0].resume();
        eventually("no key is left", ttl / 2, || servers[0].key_count() == 0).await;
    })
    .await;
}

/// If the nodes that were down when the lock was acquired counted, the next client would find the lock held.
#[tokio::test(flavor = "multi_thread")]
async fn a_release_waits_for_a_quorum_of_the_nodes_that_may_have_the_key() {
    let (mut servers, redlock) = five(patient(TTL)).await;
    servers.iter_mut().take(2).for_each(Server::kill);
    eventually("the client has noticed it", TTL, || {
        redlock
            .status()
            .iter()
            .filter(|node| node.is_connected)
            .count()
            == 3
    })
    .await;
    for hung in [2, 3, 4] {
        let guard = redlock.acquire("dock-7").await.unwrap();
        servers[hung].pause();
        let released = guard.release().await;
        servers[hung].resume();
        let counts = (released.released(), released.gone(), released.unanswered());
        assert_eq!(counts, (2, 0, 3), "{released:?}");
        assert_eq!(
            released.report().failures().count(),
            3,
            "it waited for the hung one until the node timeout: {released:?}"
        );
    }
}

/// A process may end after that: the key would stay.
#[tokio::test(flavor = "multi_thread")]
async fn a_release_reaches_the_nodes_that_are_left_although_they_are_no_quorum() {
    let (mut servers, redlock) = five(patient(TTL)).await;
    let connected = async |count| {
        eventually("the client has noticed it", TTL, || {
            let status = redlock.status();
            status.iter().filter(|node| node.is_connected).count() == count
        })
        .await;
    };
    servers.iter_mut().take(2).for_each(Server::kill);
    connected(3).await;
    let guards = [
        redlock.acquire("dock-7").await.unwrap(),
        redlock.acquire("dock-8").await.unwrap(),
    ];
    servers[2].kill();
    connected(2).await;
    for guard in guards {
        let released = guard.release().await;
        assert_eq!(released.released(), 2, "{released:?}");
    }
    let left: usize = servers[3..].iter().map(Server::key_count).sum();
    assert_eq!(left, 0);
}

#[tokio::test(flavor = "multi_thread")]
async fn a_hung_majority_is_no_quorum_within_the_node_timeout_and_leaves_no_key() {
    undisturbed(async || {
        let (servers, redlock) = five(patient(TTL)).await;
        servers[..3].iter().for_each(Server::pause);
        let start = Instant::now();
        let error = redlock.try_acquire("dock-7").await.unwrap_err();
        let took = start.elapsed();
        let live_keys: usize = servers[3..].iter().map(Server::key_count).sum();

        assert_eq!(
            live_keys, 0,
            "cleaned up by the time that the error is known"
        );
        assert!(error.is_unreachable() && !error.is_held(), "{error}");
        let timeout = redlock.options().round_time();
        assert!(
            took >= timeout && took < timeout * 2,
            "one node timeout: {took:?}"
        );
        let message = error.to_string();
        assert!(
            message.starts_with("no quorum for dock-7: 2 of 5 nodes voted ("),
            "{message}"
        );
        for server in &servers[..3] {
            assert!(
                message.contains(&format!("127.0.0.1:{}: ", server.port())),
                "{message}"
            );
        }
        servers[..3].iter().for_each(Server::resume);
        servers.expect_no_keys().await;
    })
    .await;
}

#[tokio::test(flavor = "multi_thread")]
async fn a_majority_that_stays_silent_is_not_waited_for_again_and_again() {
    let options = patient(TTL)
        .node_timeout(Duration::from_millis(400))
        .unwrap();
    with_five(options, async |servers, redlock| {
        servers[..3].iter().for_each(Server::pause);
        let start = Instant::now();
        loop {
            let before = Instant::now();
            let error = redlock.try_acquire("dock-7").await.unwrap_err().to_string();
            if error.matches("no answer for").count() == 3 {
                assert!(
                    before.elapsed() < redlock.options().round_time(),
                    "left out at once"
                );
                break;
            }
            assert!(start.elapsed() < TTL, "{error}");
        }
        servers[..3].iter().for_each(Server::resume);
        redlock.acquire("dock-7").await.unwrap().release().await;
    })
    .await;
}

#[tokio::test(flavor = "multi_thread")]
async fn a_dead_majority_is_no_quorum_at_once() {
    let (mut servers, redlock) = five(patient(TTL)).await;
    for server in servers.iter_mut().take(3) {
        server.kill();
    }
    let mut message = String::new();
    let start = Instant::now();
    while !message.contains("connection refused") {
        message = redlock.try_acquire("dock-7").await.unwrap_err().to_string();
        assert!(start.elapsed() < TTL, "{message}");
        tokio::task::yield_now().await;
    }
    let start = Instant::now();
    assert!(
        redlock
            .try_acquire("dock-7")
            .await
            .unwrap_err()
            .is_unreachable()
    );
    assert!(
        start.elapsed() < redlock.options().round_time(),
        "a node that is down is not waited for"
    );
}

#[tokio::test(flavor = "multi_thread")]
async fn a_server_that_was_never_there_costs_nothing() {
    let mut servers = Servers::start(5);
    servers.iter_mut().next().unwrap().kill();
    let redlock = Redlock::connect(servers.urls(), patient(TTL)).unwrap();
    let start = Instant::now();
    for _ in 0..100 {
        redlock.acquire("dock-7").await.unwrap().release().await;
    }
    assert!(start.elapsed() < redlock.options().round_time());
}

#[tokio::test(flavor = "multi_thread")]
async fn a_server_killed_and_restarted_in_the_middle_of_traffic_is_not_noticed() {
    // Without the guard it takes part again at once.
    let (mut servers, redlock) = five(patient(TTL).restart_guard(false)).await;
    let traffic = {
        let redlock = redlock.clone();
        let stop = std::sync::Arc::new(std::sync::atomic::AtomicBool::new(false));
        let flag = std::sync::Arc::clone(&stop);
        let tasks: Vec<_> = (0..8)
            .map(|task| {
                let (redlock, flag) = (redlock.clone(), std::sync::Arc::clone(&flag));
                tokio::spawn(async move {
                    let key = format!("dock-{task}");
                    let mut count = 0_u32;
                    while !flag.load(std::sync::atomic::Ordering::Relaxed) {
                        redlock.try_acquire(&key).await.unwrap().release().await;
                        count += 1;
                    }
                    count
                })
            })
            .collect();
        (stop, tasks)
    };
    let (stop, tasks) = traffic;
    tokio::task::block_in_place(|| {
        let server = servers.iter_mut().next().unwrap();
        server.kill();
        server.restart();
    });
    eventually("the restarted server gets commands again", TTL, || {
        servers[0].calls()["set"] > 0
    })
    .await;
    stop.store(true, std::sync::atomic::Ordering::Relaxed);
    for task in tasks {
        assert!(task.await.unwrap() > 0);
    }
    servers.expect_no_keys().await;
    eventually_votes(&servers, &redlock).await;
}

#[tokio::test(flavor = "multi_thread")]
async fn a_minority_that_moves_is_not_noticed() {
    let servers = Servers::start(3);
    let mut proxies = Vec::new();
    for server in servers.iter() {
        proxies.push(Proxy::start(server, Duration::ZERO).await);
    }
    let redlock = Redlock::connect(proxies.iter().map(Proxy::url), patient(TTL)).unwrap();
    eventually_votes(&servers, &redlock).await;
    for node in 0..3 {
        let mut guard = redlock.acquire("dock-7").await.unwrap();
        expect_key_on(&servers, "dock-7", 3).await;
        proxies[node].cut();
        // By then it is connected to once a second.
        tokio::time::sleep(Duration::from_secs(3)).await;
        proxies[node].mend();
        tokio::time::sleep(Duration::from_millis(30)).await;
        let hung = &servers[(node + 1) % 3];
        hung.pause();
        let results = tokio::join!(guard.extend(), redlock.try_acquire("dock-8"));
        hung.resume();
        results.0.unwrap();
        results.1.unwrap().release().await;
        guard.release().await;
        servers.expect_no_keys().await;
        eventually_votes(&servers, &redlock).await;
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn calls_do_not_wait_for_a_connect_that_hangs() {
    let options = patient(TTL)
        .node_timeout(Duration::from_millis(500))
        .unwrap();
    with_five(options, async |servers, redlock| {
        servers[..3].iter().for_each(Server::pause);
        let start = Instant::now();
        let mut waited = 0;
        // The connections are replaced after 4 s, and the connects that follow take 2 s.
        while start.elapsed() < Duration::from_secs(12) {
            let before = Instant::now();
            assert!(redlock.try_acquire("dock-7").await.is_err());
            waited += u32::from(before.elapsed() >= Duration::from_millis(400));
            tokio::time::sleep(Duration::from_millis(5)).await;
        }
        assert!(waited <= 3, "{waited} calls have waited");
        servers[..3].iter().for_each(Server::resume);
    })
    .await;
}

#[tokio::test(flavor = "multi_thread")]
async fn locks_on_other_keys_do_not_wait_for_a_hung_server() {
    with_five(patient(TTL), async |servers, redlock| {
        servers[0].pause();
        let start = Instant::now();
        let tasks: Vec<_> = (0..8)
            .map(|task| {
                let redlock = redlock.clone();
                tokio::spawn(async move {
                    let guard = redlock.try_acquire(format!("dock-{task}")).await.unwrap();
                    guard.release().await;
                })
            })
            .collect();
        for task in tasks {
            task.await.unwrap();
        }
        assert!(start.elapsed() < redlock.options().round_time());
        servers[0].resume();
    })
    .await;
}

#[tokio::test(flavor = "multi_thread")]
async fn a_lease_survives_a_majority_that_is_away_for_less_than_its_validity() {
    let options = patient(TTL)
        .node_timeout(Duration::from_millis(100))
        .unwrap();
    with_five(options, async |servers, redlock| {
        let mut guard = redlock.acquire("dock-7").await.unwrap();
        expect_key_on(servers, "dock-7", 5).await;
        let before = guard.valid_until();

        servers[..3].iter().for_each(Server::pause);
        let error = guard.extend().await.unwrap_err();
        assert!(matches!(error, ExtendError::Unreachable(_)), "{error}");
        assert!(
            guard.is_valid() && guard.valid_until() == before,
            "as it was"
        );
        for server in &servers[3..] {
            assert_eq!(server.key_count(), 1, "the keys stay");
        }

        servers[..3].iter().for_each(Server::resume);
        let start = Instant::now();
        while let Err(error) = guard.extend().await {
            assert!(start.elapsed() < TTL / 2, "{error}");
        }
        assert!(guard.valid_until() > before);
        guard.release().await;
    })
    .await;
}

#[tokio::test(flavor = "multi_thread")]
async fn a_server_that_wants_a_password_says_so() {
    let (servers, redlock) = five(patient(TTL)).await;
    drop(redlock);
    for server in servers.iter() {
        let set = ["CONFIG", "SET", "requirepass", "secret"];
        assert_eq!(server.query::<String>(&set).unwrap(), "OK");
    }
    let options = patient(TTL);
    let without = Redlock::connect(servers.urls(), options).unwrap();
    let error = without.try_acquire("dock-7").await.unwrap_err();
    assert!(
        error.is_unreachable() && error.to_string().contains("NOAUTH"),
        "{error}"
    );

    let urls = servers
        .iter()
        .map(|server| format!("redis://:secret@127.0.0.1:{}", server.port()));
    let with = Redlock::connect(urls, options).unwrap();
    with.acquire("dock-7").await.unwrap().release().await;
}

/// Waits until all servers take part in a lock.
async fn eventually_votes(servers: &Servers, redlock: &Redlock) {
    let start = Instant::now();
    loop {
        let guard = redlock.acquire("votes").await.unwrap();
        let deadline = Instant::now() + Duration::from_millis(200);
        while Instant::now() < deadline {
            if servers.iter().all(|server| server.key_count() == 1) {
                guard.release().await;
                servers.expect_no_keys().await;
                return;
            }
        }
        guard.release().await;
        assert!(start.elapsed() < TTL, "a server takes no part");
    }
}
