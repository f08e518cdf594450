//! Fenced locks.

use std::sync::Arc;
use std::time::{Duration, Instant};

use redlock_std::{AcquireError, Fence, FenceGate, Fencing, Options, Redlock};
use redlock_tests::{Server, Servers, eventually};

use crate::contention::{Resource, work};
use crate::setup::{connected, expect_key_on, patient};

const TTL: Duration = Duration::from_secs(10);

const LIMIT: Duration = Duration::from_secs(20);

fn fenced() -> Options {
    patient(TTL).fenced(Fencing::default()).unwrap()
}

async fn five() -> (Servers, Redlock) {
    crate::setup::five(fenced()).await
}

#[tokio::test(flavor = "multi_thread")]
async fn fences_grow_whoever_acquires() {
    let servers = Servers::start(5);
    let mut clients = Vec::new();
    for _ in 0..4 {
        clients.push(connected(&servers, fenced()).await);
    }
    let mut gate = FenceGate::new();
    let mut highest = Fence::ZERO;
    for turn in 0..200 {
        // One of them knows nothing of the nodes' clocks yet.
        let stranger = Redlock::connect(servers.urls(), fenced()).unwrap();
        let client = clients.get(turn % 5).unwrap_or(&stranger);
        let guard = client.acquire("dock-7").await.unwrap();
        let fence = guard.fence().unwrap();
        assert!(fence > highest, "{fence} after {highest}");
        assert!(gate.admit(fence) && !gate.admit(highest));
        highest = fence;
        guard.release().await;
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn a_lease_that_is_dropped_or_expires_is_followed_by_a_higher_fence() {
    let servers = Servers::start(5);
    let options = patient(Duration::from_millis(700));
    let options = options.fenced(Fencing::default()).unwrap().wait(LIMIT);
    let redlock = connected(&servers, options).await;
    let mut highest = Fence::ZERO;
    for is_kept in [false, true, false] {
        let guard = redlock.acquire("dock-7").await.unwrap();
        assert!(guard.fence() > Some(highest));
        highest = guard.fence().unwrap();
        if is_kept {
            guard.lost().await;
        }
        drop(guard);
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn a_plain_lock_has_no_fence() {
    let (_servers, redlock) = five().await;
    let plain = redlock
        .with_options(patient(TTL))
        .acquire("dock-7")
        .await
        .unwrap();
    assert_eq!(plain.fence(), None);
    plain.release().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn plain_and_fenced_clients_exclude_each_other() {
    const TURNS: u32 = 60;

    let servers = Servers::start(5);
    let ours = connected(&servers, fenced().wait(TTL * 3)).await;
    let plain = connected(&servers, patient(TTL).wait(TTL * 3)).await;
    for (holder, other) in [(&ours, &plain), (&plain, &ours)] {
        let guard = holder.acquire("dock-7").await.unwrap();
        let error = other.try_acquire("dock-7").await.unwrap_err();
        assert!(error.is_held(), "{error}");
        guard.release().await;
        servers.expect_no_keys().await;
    }
    let resource = Arc::new(Resource::default());
    let tasks = [ours, plain].map(|redlock| work(&redlock, &resource, TURNS));
    for task in tasks {
        task.await.unwrap();
    }
    assert_eq!(resource.count(), 2 * TURNS);
}

#[tokio::test(flavor = "multi_thread")]
async fn a_cycle_is_one_round_trip_to_acquire_and_one_to_release() {
    const CYCLES: u64 = 20;

    let (servers, redlock) = five().await;
    // On a machine that is busy a node may see a proposal so late that it takes another round.
    let mut counts = Vec::new();
    while counts.len() < 20 {
        let before = settled_scripts(&servers).await;
        for _ in 0..CYCLES {
            redlock.try_acquire("dock-7").await.unwrap().release().await;
        }
        servers.expect_no_keys().await;
        let count = settled_scripts(&servers).await - before;
        assert!(count >= CYCLES * 2 * 5, "{count}");
        if count == CYCLES * 2 * 5 {
            return;
        }
        counts.push(count);
    }
    panic!("never {} for {CYCLES} cycles: {counts:?}", CYCLES * 2 * 5);
}

#[tokio::test(flavor = "multi_thread")]
async fn an_acquire_that_fails_learns_the_time_for_the_next_and_for_all_clones() {
    let servers = Servers::start(5);
    let plain = connected(&servers, patient(TTL)).await;
    let held = plain.acquire("dock-7").await.unwrap();
    expect_key_on(&servers, "dock-7", 5).await;

    let stranger = Redlock::connect(servers.urls(), fenced()).unwrap();
    let clone = stranger.with_options(*stranger.options());
    let error = stranger.try_acquire("dock-7").await.unwrap_err();
    assert!(error.is_held(), "{error}");
    let before = settled_scripts(&servers).await;
    let guard = clone.try_acquire("another").await.unwrap();
    // One round. The nodes that had not answered when it was won are asked once more to restore their records.
    let scripts = settled_scripts(&servers).await - before;
    assert!((5..=7).contains(&scripts), "{scripts}");
    guard.release().await;
    held.release().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn a_client_with_other_rules_is_refused_with_words() {
    let (servers, redlock) = five().await;
    redlock.acquire("dock-7").await.unwrap().release().await;
    for other in [
        Fencing::new(Fencing::WINDOW * 2),
        Fencing::default().with_max_ttl(TTL),
        Fencing::default().with_step_back(TTL),
    ] {
        let other = patient(TTL).fenced(other.unwrap()).unwrap();
        let other = Redlock::connect(servers.urls(), other).unwrap();
        let error = other.try_acquire("dock-7").await.unwrap_err();
        assert!(error.is_unreachable(), "{error}");
        let words = "other clients have other rules: max_ttl, window and step_back";
        assert!(error.to_string().contains(words), "{error}");
    }
    servers.expect_no_keys().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn a_configuration_that_a_quorum_refuses_ends_the_wait_at_once() {
    const LONG: Duration = Duration::from_secs(600);

    let (servers, redlock) = five().await;
    redlock.acquire("dock-7").await.unwrap().release().await;
    let without_login = |count: usize| {
        let urls = servers.urls().into_iter().enumerate();
        urls.map(move |(node, url)| match node < count {
            true => url.replace("redis://", "redis://app:wrong@"),
            false => url,
        })
    };
    let plain = Options::new(TTL).unwrap().wait(LONG);
    let other_rules = Fencing::default().with_max_ttl(TTL).unwrap();
    let too_long = Options::new(Fencing::default().max_ttl() * 2).unwrap();
    for (wrong_logins, options, advice) in [
        (3, plain, "; check the users and the passwords in the URLs"),
        (0, too_long.wait(LONG), "; shorten it, or raise max_ttl"),
        (
            0,
            plain.fenced(other_rules).unwrap(),
            "must be the same for all",
        ),
    ] {
        let redlock = Redlock::connect(without_login(wrong_logins), options).unwrap();
        let start = Instant::now();
        let error = redlock.acquire("dock-7").await.unwrap_err();
        assert!(start.elapsed() < LONG / 10, "{error}");
        assert!(error.is_misconfigured(), "{error}");
        assert!(error.to_string().contains(advice), "{error}");
    }
    // As if a new server were among them: `redlock init` writes nothing where there are other rules.
    servers[4].query::<u64>(&["DEL", "redlock:guard"]).unwrap();
    let options = plain.fenced(other_rules).unwrap();
    let redlock = Redlock::connect(servers.urls(), options).unwrap();
    let error = redlock.acquire("dock-7").await.unwrap_err().to_string();
    assert!(error.contains("lost its guard record"), "{error}");
    assert!(!error.contains("redlock init"), "{error}");
    // Two of five are no reason.
    let redlock = Redlock::connect(without_login(2), plain).unwrap();
    redlock.acquire("dock-7").await.unwrap().release().await;
    servers.expect_no_keys().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn a_login_that_a_quorum_refuses_ends_the_wait_at_once_also_if_the_other_nodes_are_dead() {
    const LONG: Duration = Duration::from_secs(600);

    let mut servers = Servers::start(3);
    servers.iter_mut().next().unwrap().kill();
    let urls = servers.urls();
    let wrong = |url: &String| url.replace("redis://", "redis://app:wrong@");
    // A new server has no vote for one TTL.
    let options = Options::new(Duration::from_secs(1)).unwrap().wait(LONG);
    let redlock = Redlock::connect(urls.iter().map(wrong), options).unwrap();
    let start = Instant::now();
    let error = redlock.acquire("dock-7").await.unwrap_err();
    assert!(start.elapsed() < LONG / 10, "{error}");
    assert!(error.is_misconfigured(), "{error}");
    // Whether a call lets the client connect again or not.
    for attempt in 0..40 {
        let error = redlock.try_acquire("dock-7").await.unwrap_err();
        assert!(error.is_misconfigured(), "{attempt}: {error}");
        tokio::time::sleep(Duration::from_millis(attempt)).await;
    }
    // The servers are told of the user.
    for server in servers.iter().skip(1) {
        let user = ["ACL", "SETUSER", "app", "on", ">wrong", "~*", "&*", "+@all"];
        assert_eq!(server.query::<String>(&user).unwrap(), "OK");
    }
    let start = Instant::now();
    let guard = loop {
        match redlock.acquire("dock-7").await {
            Ok(guard) => break guard,
            Err(error) => assert!(start.elapsed() < LIMIT, "{error}"),
        }
        tokio::task::yield_now().await;
    };
    guard.release().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn an_extension_heals_a_node_that_lost_the_key() {
    let (servers, redlock) = five().await;
    let mut guard = redlock.acquire("dock-7").await.unwrap();
    expect_key_on(&servers, "dock-7", 5).await;
    servers[0].query::<u64>(&["DEL", "dock-7"]).unwrap();
    guard.extend().await.unwrap();
    expect_key_on(&servers, "dock-7", 5).await;
    let token: Vec<u8> = servers[0].query(&["GET", "dock-7"]).unwrap();
    assert_eq!(token, guard.token().as_bytes());
    guard.release().await;
    servers.expect_no_keys().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn an_acquire_dropped_at_any_moment_leaves_no_key_and_fences_that_expire() {
    let (servers, redlock) = five().await;
    let other = connected(&servers, fenced()).await;
    for limit in 0..40 {
        let limit = Duration::from_micros(limit * 50);
        for client in [&redlock, &other] {
            if let Ok(guard) = tokio::time::timeout(limit, client.acquire("dock-7")).await {
                drop(guard.unwrap());
            }
        }
    }
    servers.expect_no_keys().await;
    // No client has it: a fence that was never reported is no obstacle either.
    redlock.try_acquire("dock-7").await.unwrap().release().await;
    servers.expect_no_keys().await;
    for server in servers.iter() {
        let left: i64 = server.query(&["PTTL", "redlock:fence:dock-7"]).unwrap();
        // The step back, from the end of the last lease: no release shortens it.
        assert!((1..=60_000 + 10_000 + 2).contains(&left), "{left}");
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn a_fence_is_not_accepted_again_after_its_release_however_that_is_sent() {
    const FENCE: &str = "redlock:fence:dock-7";

    let (servers, redlock) = five().await;
    for is_awaited in [true, false] {
        let guard = redlock.acquire("dock-7").await.unwrap();
        let fence = guard.fence().unwrap().as_u64();
        expect_key_on(&servers, "dock-7", 5).await;
        for server in servers.iter() {
            assert_eq!(server.query::<u64>(&["DEL", FENCE]).unwrap(), 1);
        }
        if is_awaited {
            guard.release().await;
        } else {
            drop(guard);
        }
        eventually("all of them have a higher fence", LIMIT, || {
            servers.iter().all(|server| {
                let known: Option<String> = server.query(&["GET", FENCE]).unwrap();
                known == Some(format!("{}:0", fence + 1))
            })
        })
        .await;
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn scripts_that_a_server_has_forgotten_are_sent_again() {
    let (servers, redlock) = five().await;
    let flush = || {
        for server in servers.iter() {
            assert_eq!(server.query::<String>(&["SCRIPT", "FLUSH"]).unwrap(), "OK");
        }
    };
    flush();
    let mut guard = redlock.try_acquire("dock-7").await.unwrap();
    flush();
    guard.extend().await.unwrap();
    flush();
    let released = guard.release().await;
    // A node to which the acquire was not sent again, because its round was won by then, has nothing to release.
    assert!(released.released() + released.gone() >= 3, "{released:?}");
    servers.expect_no_keys().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn a_key_of_another_type_under_the_fence_or_the_guard_breaks_nothing() {
    for key in ["redlock:fence:dock-7", redlock_core::GUARD_KEY] {
        let (servers, redlock) = five().await;
        let spoil = |server: &Server| {
            server.query::<u64>(&["DEL", key]).unwrap();
            assert_eq!(server.query::<u64>(&["LPUSH", key, "x"]).unwrap(), 1);
        };
        servers[..2].iter().for_each(spoil);
        let mut guard = redlock.try_acquire("dock-7").await.unwrap();
        guard.extend().await.unwrap();
        guard.release().await;
        servers.expect_no_keys().await;

        spoil(&servers[2]);
        let error = redlock.try_acquire("dock-7").await.unwrap_err();
        assert!(error.is_unreachable(), "{error}");
        assert_eq!(error.to_string().matches("WRONGTYPE").count(), 3, "{error}");
        servers.expect_no_keys().await;

        // A plain client is not concerned, also one that has just met the servers.
        let plain = Redlock::connect(servers.urls(), patient(TTL).restart_guard(false)).unwrap();
        plain.try_acquire("dock-7").await.unwrap().release().await;
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn a_restarted_majority_has_no_vote_until_the_quarantine_is_over_and_fences_grow_on() {
    let (mut servers, redlock) = short_fleet().await;
    let before = fence_of(&redlock).await;
    for server in servers.iter_mut().take(3) {
        server.restart();
    }
    let start = Instant::now();
    expect_quarantine(&redlock, start, before).await;
}

#[tokio::test(flavor = "multi_thread")]
async fn a_flushed_majority_has_no_vote_until_the_quarantine_is_over() {
    let (servers, redlock) = short_fleet().await;
    let before = fence_of(&redlock).await;
    let start = Instant::now();
    for server in &servers[..3] {
        assert_eq!(server.query::<String>(&["FLUSHALL"]).unwrap(), "OK");
    }
    expect_quarantine(&redlock, start, before).await;
}

/// No lock is acquired before the quarantine that began at `start` is over, and the next fence is higher than `before`.
async fn expect_quarantine(redlock: &Redlock, start: Instant, before: Fence) {
    in_quarantine(redlock).await;
    let after = fence_of(redlock).await;
    assert!(start.elapsed() >= QUARANTINE, "{:?}", start.elapsed());
    assert!(after > before);
}

#[tokio::test(flavor = "multi_thread")]
async fn a_guard_record_lets_new_nodes_vote_at_once() {
    let servers = Servers::start(5);
    servers.iter().for_each(Server::disown);
    let redlock = Redlock::connect(servers.urls(), short_options()).unwrap();
    in_quarantine(&redlock).await;
    for server in servers.iter() {
        server.vouch(SHORT_FLEET);
    }
    redlock.try_acquire("dock-7").await.unwrap().release().await;
}

/// A fleet with a short quarantine: its `max_ttl`, which is also its `step_back`, four windows and a second.
const SHORT_TTL: Duration = Duration::from_millis(600);
const SHORT_WINDOW: Duration = Duration::from_millis(100);
const SHORT_FLEET: &str = "600:100:600";
const QUARANTINE: Duration = Duration::from_millis(600 + 4 * 100 + 1_000);

fn short_options() -> Options {
    let fencing = Fencing::new(SHORT_WINDOW).unwrap();
    let fencing = fencing.with_max_ttl(SHORT_TTL).unwrap();
    let fencing = fencing.with_step_back(SHORT_TTL).unwrap();
    patient(SHORT_TTL).fenced(fencing).unwrap().wait(LIMIT)
}

async fn short_fleet() -> (Servers, Redlock) {
    let servers = Servers::start(5);
    for server in servers.iter() {
        server.vouch(SHORT_FLEET);
    }
    let redlock = connected(&servers, short_options()).await;
    (servers, redlock)
}

async fn fence_of(redlock: &Redlock) -> Fence {
    let guard = redlock.acquire("dock-7").await.unwrap();
    let fence = guard.fence().unwrap();
    guard.release().await;
    fence
}

/// Waits until the error says that a majority has no vote, and how long that takes.
async fn in_quarantine(redlock: &Redlock) {
    let start = Instant::now();
    loop {
        let error = redlock.try_acquire("dock-7").await.unwrap_err();
        let words = "may have forgotten locks, its vote counts again in ";
        if error.to_string().matches(words).count() >= 3 {
            assert!(error.is_unreachable(), "{error}");
            return;
        }
        assert!(start.elapsed() < QUARANTINE, "{error}");
    }
}

/// How many scripts were called on all servers.
fn scripts(servers: &Servers) -> u64 {
    let calls = servers.iter().map(Server::calls);
    calls.map(|calls| calls["evalsha"] + calls["eval"]).sum()
}

/// That, once no more arrive.
async fn settled_scripts(servers: &Servers) -> u64 {
    let mut before = scripts(servers);
    loop {
        tokio::time::sleep(Duration::from_millis(50)).await;
        let now = scripts(servers);
        if now == before {
            return now;
        }
        before = now;
    }
}

#[test]
fn the_script_that_the_page_shows_lets_nobody_write_below_the_highest_fence() {
    const PAGE: &str = include_str!("../../../docs/what-can-go-wrong.md");

    let (_, from) = PAGE.split_once("```lua\n").unwrap();
    let (script, _) = from.split_once("```").unwrap();
    let server = Server::start();
    let write = |fence: &str, value: &str| {
        let words = ["EVAL", script, "1", "valve", fence, value];
        server.query::<u64>(&words).unwrap()
    };
    assert_eq!(write("9", "open"), 1);
    assert_eq!(write("7", "closed"), 0);
    assert_eq!(write("9", "half"), 1);
    // As numbers, and not as words.
    assert_eq!(write("1763735536000001", "shut"), 1);
    assert_eq!(write("1763735536000000", "open"), 0);
    let value: String = server.query(&["HGET", "valve", "value"]).unwrap();
    assert_eq!(value, "shut");
}

#[tokio::test(flavor = "multi_thread")]
async fn a_fenced_lock_that_a_min_hold_keeps_is_told_as_held_until_its_lease_ends() {
    let (_servers, redlock) = five().await;
    let job = redlock.with_options(fenced().min_hold(Duration::from_secs(1)).unwrap());
    let guard = job.acquire("job").await.unwrap();
    let lease_ends = Instant::now() + guard.remaining();
    assert!(guard.release().await.kept() >= 3);
    // A client that waits stands in the line of the lock, where another script answers.
    let other = redlock.with_options(fenced().wait(Duration::from_millis(200)));
    for waits in [false, true] {
        let asked = Instant::now();
        let error = match waits {
            true => other.acquire("job").await.unwrap_err(),
            false => other.try_acquire("job").await.unwrap_err(),
        };
        let AcquireError::Nodes(error) = error else {
            panic!("{error}");
        };
        let free_in = error.report().unwrap().free_in().unwrap();
        assert!(
            asked.elapsed() + free_in >= lease_ends - asked,
            "{free_in:?}"
        );
    }
}
