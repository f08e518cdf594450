//! How long which client waits for a node.

use std::time::{Duration, Instant};

use redlock_std::{AcquireError, Failure, MemoryNode, Options, Redlock, TransportError};
use redlock_tests::{Proxy, Server, Servers, eventually, undisturbed};

use crate::setup::{connected, patient};

const TTL: Duration = Duration::from_secs(20);

/// Longer than anything here takes.
const LIMIT: Duration = Duration::from_secs(20);

#[tokio::test(flavor = "multi_thread")]
async fn longer_options_wait_for_a_slow_network_however_short_those_of_the_connect_were() {
    undisturbed(async || {
        const TASKS: u32 = 64;
        const ROUND_TRIP: Duration = Duration::from_millis(60);

        let short = Options::new(Duration::from_secs(1)).unwrap();
        let short = short.node_timeout(Duration::from_millis(20)).unwrap();
        let (servers, _proxies, hasty) = far(3, ROUND_TRIP / 2, short).await;
        let redlock = hasty.with_options(patient(TTL));
        redlock.acquire("first").await.unwrap().release().await;

        let tasks: Vec<_> = (0..TASKS)
            .map(|task| {
                let (redlock, hasty) = (redlock.clone(), hasty.clone());
                tokio::spawn(async move {
                    // Each at its own time: some are always on their way.
                    tokio::time::sleep(ROUND_TRIP * task / TASKS).await;
                    for _ in 0..10 {
                        let guard = redlock.try_acquire(format!("dock-{task}")).await.unwrap();
                        guard.release().await;
                        if task == 0 {
                            // Some cannot wait: that is theirs to know.
                            assert!(hasty.try_acquire("hasty").await.is_err());
                        }
                    }
                })
            })
            .collect();
        for task in tasks {
            task.await.unwrap();
        }
        servers.expect_no_keys().await;
    })
    .await;
}

#[tokio::test(flavor = "multi_thread")]
async fn every_error_of_a_new_client_names_node_timeout_if_all_nodes_are_farther_away() {
    undisturbed(async || {
        let options = Options::new(TTL).unwrap();
        let near = options.node_timeout(Duration::from_millis(20)).unwrap();
        let (_servers, _proxies, redlock) = far(3, Duration::from_millis(50), near).await;
        let start = Instant::now();
        // Before the nodes are connected, and after.
        while start.elapsed() < Duration::from_secs(2) {
            let error = redlock.try_acquire("dock-7").await.unwrap_err().to_string();
            assert!(error.contains("raise node_timeout"), "{error}");
        }
    })
    .await;
}

#[tokio::test(flavor = "multi_thread")]
async fn a_node_that_is_farther_away_than_its_node_timeout_names_that_option() {
    undisturbed(async || {
        let options = Options::new(TTL).unwrap();
        let near = options.node_timeout(Duration::from_millis(20)).unwrap();
        let (_servers, _proxies, redlock) = far(1, Duration::from_millis(50), near).await;
        let patient = redlock.with_options(patient(TTL));
        patient.acquire("first").await.unwrap().release().await;
        for _ in 0..20 {
            let error = redlock.try_acquire("dock-7").await.unwrap_err().to_string();
            assert!(error.contains("raise node_timeout"), "{error}");
        }
    })
    .await;
}

#[tokio::test(flavor = "multi_thread")]
async fn a_hung_node_that_was_never_connected_to_is_not_said_to_have_too_many_commands_waiting() {
    let servers = Servers::start(1);
    servers[0].pause();
    let connect = || Redlock::connect(servers.urls(), Options::new(TTL).unwrap()).unwrap();
    let other = Redlock::in_memory(&MemoryNode::array::<1>(), Options::new(TTL).unwrap()).unwrap();
    let handover = other.acquire("dock-8").await.unwrap().hand_over();
    let error = connect().adopt(&handover).await.unwrap_err().to_string();
    assert!(error.contains(": not connected yet after "), "{error}");

    let AcquireError::Nodes(error) = connect().try_acquire("dock-7").await.unwrap_err() else {
        panic!("the node was asked");
    };
    let failure = error.report().unwrap().failures().next().unwrap();
    let is_not_connected = matches!(
        failure.failure(),
        Failure::Transport(TransportError::NotConnected(_))
    );
    assert!(is_not_connected, "{failure}");
    let words = failure.to_string();
    assert!(words.contains(": not connected yet after "), "{words}");
}

#[tokio::test(flavor = "multi_thread")]
async fn a_node_that_is_there_and_slow_to_set_up_gets_more_time_from_attempt_to_attempt() {
    const ROUND_TRIP: Duration = Duration::from_millis(1_400);

    let options = Options::new(TTL).unwrap();
    let options = options.node_timeout(Duration::from_millis(100)).unwrap();
    let (servers, _proxies, _redlock) = far(1, ROUND_TRIP / 2, options).await;
    // The login and the scripts take two round trips. The first attempts are given up before that.
    eventually("a connection that lasts", LIMIT, || {
        let clients: String = servers[0].query(&["CLIENT", "LIST"]).unwrap();
        let ages = clients
            .split(' ')
            .filter_map(|field| field.strip_prefix("age="));
        ages.filter_map(|age| age.parse::<u32>().ok())
            .any(|age| age > 5)
    })
    .await;
}

#[tokio::test(flavor = "multi_thread")]
async fn a_connect_takes_as_many_round_trips_as_a_round_may_wait_for_and_not_a_second() {
    undisturbed(async || {
        let options = Options::new(TTL).unwrap();
        let options = options.node_timeout(Duration::from_secs(3)).unwrap();
        let (servers, _proxies, redlock) = far(3, Duration::from_millis(400), options).await;
        let guard = redlock.acquire("dock-7").await.unwrap();
        guard.release().await;
        servers.expect_no_keys().await;
    })
    .await;
}

/// The connections take two round trips here, and the round a third.
#[tokio::test(flavor = "multi_thread")]
async fn the_first_call_of_a_new_client_waits_for_the_connections_and_not_for_a_node_that_hangs() {
    undisturbed(async || {
        const ROUND_TRIP: Duration = Duration::from_millis(100);

        let options = Options::new(TTL).unwrap();
        let options = options.node_timeout(ROUND_TRIP * 5 / 2).unwrap();
        let (servers, proxies, redlock) = far(3, ROUND_TRIP / 2, options).await;
        let guard = redlock.try_acquire("dock-7").await.unwrap();
        let handover = guard.hand_over();

        servers[1].pause();
        let urls = || proxies.iter().map(Proxy::url);
        let successor = Redlock::connect(urls(), options).unwrap();
        let guard = successor.adopt(&handover).await.unwrap();
        guard.release().await;
        // The near ones have answered long before the far one: one is connected, and one refuses that.
        let near = [servers.urls()[0].clone(), "redis://127.0.0.1:1".to_owned()];
        let refusing = near.into_iter().chain([proxies[2].url()]);
        let other = Redlock::connect(refusing, options).unwrap();
        other.try_acquire("dock-8").await.unwrap().release().await;
        let other = Redlock::connect(urls(), options).unwrap();
        other.try_acquire("dock-8").await.unwrap().release().await;
        servers[1].resume();
        // Two are one server, which has one vote.
        let localhost = servers.urls()[0].replace("127.0.0.1", "localhost");
        let same = [servers.urls()[0].clone(), localhost, proxies[2].url()];
        let other = Redlock::connect(same, options).unwrap();
        other.try_acquire("dock-9").await.unwrap().release().await;
        servers.expect_no_keys().await;
    })
    .await;
}

/// The connections on which nodes call the client take a round trip each.
#[tokio::test(flavor = "multi_thread")]
async fn an_acquire_whose_wait_is_over_does_not_wait_for_connections_before_its_last_attempt() {
    undisturbed(async || {
        const ROUND_TRIP: Duration = Duration::from_millis(140);
        const WAIT: Duration = Duration::from_millis(160);

        let options = Options::new(TTL).unwrap();
        let options = options.node_timeout(Duration::from_millis(190)).unwrap();
        let servers = Servers::start(3);
        let mut proxies = Vec::new();
        for (server, delay) in servers
            .iter()
            .zip([ROUND_TRIP / 2, ROUND_TRIP / 2, ROUND_TRIP])
        {
            proxies.push(Proxy::start(server, delay).await);
        }
        let near = Redlock::connect(servers.urls(), options).unwrap();
        let _held = near.acquire("dock-7").await.unwrap();
        let far = proxies.iter().map(Proxy::url);
        let far = Redlock::connect(far, options.wait(WAIT)).unwrap();
        far.try_acquire("dock-7").await.unwrap_err();
        let start = Instant::now();
        assert!(far.acquire("dock-7").await.unwrap_err().is_held());
        // One round for the last attempt, and one for its cleanup.
        let took = start.elapsed();
        assert!(took < WAIT + options.round_time() * 2, "{took:?}");
    })
    .await;
}

#[test]
fn when_the_runtime_of_the_connect_is_gone_every_call_fails_at_once_and_says_so() {
    let servers = Servers::start(3);
    let first = tokio::runtime::Runtime::new().unwrap();
    let (redlock, guard) = first.block_on(async {
        let redlock = connected(&servers, patient(TTL)).await;
        let guard = redlock.acquire("dock-7").await.unwrap();
        (redlock, guard)
    });
    servers.iter().for_each(Server::pause);
    let second = tokio::runtime::Runtime::new().unwrap();
    let pending = second.spawn({
        let redlock = redlock.clone();
        async move { redlock.try_acquire("pending").await.map(drop) }
    });
    // Whether it is on its way by now or not.
    std::thread::yield_now();
    drop(first);

    let start = Instant::now();
    expect_runtime_gone(&second.block_on(pending).unwrap().unwrap_err());
    for number in 0..1_000 {
        let error = second.block_on(redlock.try_acquire(format!("other-{number}")));
        expect_runtime_gone(&error.unwrap_err());
    }
    let mut guard = guard;
    let error = second.block_on(guard.extend()).unwrap_err();
    assert!(error.to_string().contains("runtime"), "{error}");
    let released = second.block_on(guard.release());
    assert_eq!((released.released(), released.unanswered()), (0, 3));
    assert!(start.elapsed() < redlock.options().round_time());
    servers.iter().for_each(Server::resume);
}

fn expect_runtime_gone(error: &AcquireError) {
    let AcquireError::Nodes(error) = error else {
        panic!("{error}");
    };
    let mut failures = error.report().unwrap().failures();
    let gone = Failure::Transport(TransportError::RuntimeGone);
    assert!(failures.all(|error| *error.failure() == gone), "{error}");
    let words = "the tokio runtime of the connection has shut down; connect again on a running one";
    assert!(error.to_string().contains(words), "{error}");
}

#[tokio::test(flavor = "multi_thread")]
async fn releases_that_wait_for_a_connection_are_delivered_after_the_last_handle_is_gone() {
    let (servers, proxies, redlock) = far(3, Duration::ZERO, patient(TTL * 3)).await;
    let guard = redlock.acquire("dock-7").await.unwrap();
    crate::setup::expect_key_on(&servers, "dock-7", 3).await;
    proxies.iter().for_each(Proxy::cut);
    let start = Instant::now();
    while !all_failed(&redlock.try_acquire("other").await.unwrap_err()) {
        assert!(start.elapsed() < LIMIT);
        tokio::task::yield_now().await;
    }
    drop(guard);
    drop(redlock);
    proxies.iter().for_each(Proxy::mend);
    servers.expect_no_keys().await;
    eventually("the connections are closed then", LIMIT, || {
        servers.iter().all(|server| server.client_count() == 0)
    })
    .await;
}

/// They take several seconds, and the connection of a silent node is replaced after one.
#[tokio::test(flavor = "multi_thread")]
async fn many_long_releases_on_a_narrow_way_are_sent_once_and_cost_no_other_guard() {
    const TTL: Duration = Duration::from_secs(20);

    let (servers, proxies, redlock) = far(3, Duration::ZERO, Options::new(TTL).unwrap()).await;
    let mut kept = redlock.acquire("kept").await.unwrap();
    kept.keep_alive();
    let mut guards = Vec::new();
    for dock in 0..120 {
        guards.push(redlock.acquire(format!("{dock:4000}")).await.unwrap());
    }
    proxies.iter().for_each(|proxy| proxy.narrow(200_000));
    drop(guards);
    eventually("one key is left", TTL / 2, || {
        servers.iter().all(|server| server.key_count() == 1)
    })
    .await;
    assert!(kept.is_valid());
    for server in servers.iter() {
        let sent = server.calls()["evalsha"];
        // And a few extensions of the other guard.
        assert!((120..130).contains(&sent), "{sent}");
    }
    kept.release().await;
    servers.expect_no_keys().await;
}

/// It takes a second and a half, and then as long again on each new connection.
#[tokio::test(flavor = "multi_thread")]
async fn a_release_that_takes_longer_than_a_node_may_be_silent_arrives() {
    const TTL: Duration = Duration::from_secs(60);

    let (servers, proxies, redlock) = far(3, Duration::ZERO, Options::new(TTL).unwrap()).await;
    let guard = redlock.acquire("k".repeat(60_000)).await.unwrap();
    eventually("each node has the key", TTL / 3, || {
        servers.key_count() == 3
    })
    .await;
    proxies.iter().for_each(|proxy| proxy.narrow(40_000));
    drop(guard);
    eventually("no key is left", TTL / 3, || servers.key_count() == 0).await;
}

/// Whether no node could be reached at all.
fn all_failed(error: &AcquireError) -> bool {
    let AcquireError::Nodes(error) = error else {
        return false;
    };
    let report = error.report().unwrap();
    report.failures().count() == 3
}

/// `count` servers, each behind a proxy that delays what goes either way by `delay`, and a lock over them.
async fn far(count: usize, delay: Duration, options: Options) -> (Servers, Vec<Proxy>, Redlock) {
    let servers = Servers::start(count);
    let mut proxies = Vec::new();
    for server in servers.iter() {
        proxies.push(Proxy::start(server, delay).await);
    }
    let redlock = Redlock::connect(proxies.iter().map(Proxy::url), options).unwrap();
    (servers, proxies, redlock)
}
