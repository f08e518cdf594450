//! The status of nodes, and what a guard tells about its acquire.

use std::time::{Duration, Instant};

use redlock_std::{Denial, Fencing, NodeStatus, Redlock};
use redlock_tests::{Server, Servers, eventually};

use crate::setup::{connected, patient};

const TTL: Duration = Duration::from_secs(10);

#[tokio::test(flavor = "multi_thread")]
async fn a_dead_minority_is_in_the_status_within_a_second_and_so_is_its_return() {
    let mut servers = Servers::start(3);
    let redlock = connected(&servers, patient(TTL)).await;
    let status = redlock.status();
    assert!(status.iter().all(NodeStatus::has_vote), "{status:?}");
    assert!(status.iter().all(|node| node.round_trip.is_some()));

    servers[1].kill();
    eventually("the dead node is known", Duration::from_secs(1), || {
        redlock.status()[1].error.is_some()
    })
    .await;
    let status = redlock.status();
    assert!(status[0].has_vote() && status[2].has_vote(), "{status:?}");
    let name = format!("127.0.0.1:{}", servers[1].port());
    assert_eq!(*status[1].node, *name);
    assert!(!status[1].is_connected);
    assert!(status[1].to_string().starts_with(&name), "{}", status[1]);
    // Locks do not suffer from it, so nothing else tells.
    redlock.acquire("dock-7").await.unwrap().release().await;

    servers[1].restart();
    eventually("it is back", Duration::from_secs(5), || {
        redlock.status()[1].is_connected
    })
    .await;
    let denial = redlock.status()[1]
        .error
        .as_ref()
        .and_then(|error| error.denial());
    let is_restarted = matches!(denial, Some(Denial::Restarted { .. }));
    assert!(is_restarted, "{denial:?}");
}

#[tokio::test(flavor = "multi_thread")]
async fn a_node_whose_memory_is_full_has_no_vote_in_the_status_until_it_grants_again() {
    let servers = Servers::start(3);
    let redlock = connected(&servers, patient(TTL)).await;
    let set_limit = |limit: &str| {
        let _ok: String = servers[1]
            .query(&["CONFIG", "SET", "maxmemory", limit])
            .unwrap();
    };
    set_limit("1");
    redlock.acquire("dock-7").await.unwrap().release().await;
    // The other two are a quorum, so its answer may come after theirs.
    eventually("the refusal is known", Duration::from_secs(5), || {
        !redlock.status()[1].has_vote()
    })
    .await;
    let status = redlock.status();
    assert!(status[1].to_string().contains("OOM"), "{}", status[1]);
    assert!(status[1].is_connected && status[0].has_vote() && status[2].has_vote());

    // What it has refused on an earlier connection is no more than that.
    let _killed: u64 = servers[1]
        .query(&["CLIENT", "KILL", "TYPE", "normal"])
        .unwrap();
    set_limit("0");
    let voting = tokio::time::timeout(TTL, async {
        while !redlock.status()[1].has_vote() {
            redlock.acquire("dock-7").await.unwrap().release().await;
        }
    });
    assert!(voting.await.is_ok(), "{}", redlock.status()[1]);
}

#[tokio::test(flavor = "multi_thread")]
async fn the_quarantine_of_a_fenced_lock_is_in_the_status_after_an_acquire() {
    let servers = Servers::start(3);
    let options = patient(TTL).fenced(Fencing::default()).unwrap();
    let redlock = connected(&servers, options).await;
    assert!(redlock.status().iter().all(NodeStatus::has_vote));
    servers.iter().for_each(Server::disown);
    let error = redlock.try_acquire("dock-7").await.unwrap_err();
    assert!(error.is_unreachable(), "{error}");
    let has_vote = |node: &NodeStatus| node.has_vote();
    assert!(!redlock.status().iter().any(has_vote), "{error}");
    // A plain lock has no guard record.
    let plain = redlock.with_options(patient(TTL));
    assert!(plain.status().iter().all(has_vote));
}

#[tokio::test(flavor = "multi_thread")]
async fn a_guard_tells_how_long_its_acquire_took_and_which_nodes_granted_it() {
    let mut servers = Servers::start(3);
    let redlock = connected(&servers, patient(TTL)).await;
    servers[0].kill();
    eventually("the dead node is known", TTL, || {
        redlock.status()[0].error.is_some()
    })
    .await;
    let first = redlock.acquire("dock-7").await.unwrap();
    assert_eq!(first.attempts(), 1);
    let living = servers[1..].iter();
    let living: Vec<_> = living
        .map(|server| format!("127.0.0.1:{}", server.port()))
        .collect();
    let names: Vec<_> = first.granted_by().iter().map(ToString::to_string).collect();
    assert_eq!(names, living);

    let other = Redlock::connect(servers.urls(), patient(TTL)).unwrap();
    let waiting = tokio::spawn(async move {
        let start = Instant::now();
        let guard = other.acquire("dock-7").await.unwrap();
        (guard, start.elapsed())
    });
    eventually("the other client stands in the line", TTL / 2, || {
        let count = ["ZCARD", "redlock:queue:dock-7"];
        servers[1].query::<u32>(&count).unwrap() > 0
    })
    .await;
    first.release().await;
    let (second, took) = waiting.await.unwrap();
    assert!(second.attempts() > 1);
    assert!(!second.waited().is_zero() && second.waited() <= took);
}

/// One wrong handle does not make the readiness check of a right one fail.
#[tokio::test(flavor = "multi_thread")]
async fn the_rules_of_another_handle_change_nothing_about_the_votes_of_this_one() {
    let servers = Servers::start(3);
    let redlock = connected(&servers, patient(TTL).fenced(Fencing::default()).unwrap()).await;
    let other_rules = Fencing::new(Fencing::WINDOW * 2).unwrap();
    let other = redlock.with_options(patient(TTL).fenced(other_rules).unwrap());
    let votes = |redlock: &Redlock| {
        let status = redlock.status();
        status.iter().filter(|node| node.has_vote()).count()
    };
    for _ in 0..2 {
        other.try_acquire("crane").await.unwrap_err();
        assert_eq!(votes(&redlock), 3, "{:?}", redlock.status());
        assert!(votes(&other) < 2, "{:?}", other.status());
        redlock.try_acquire("dock-7").await.unwrap().release().await;
        assert!(votes(&other) < 2, "{:?}", other.status());
    }
}
