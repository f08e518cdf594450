//! What nodes remember beside the locks: which attempt they accepted, whose rules they follow, which data they have.

use std::time::Duration;

use redis::Value;
use redlock_core::transport::{Argument, Command, Proposal, ScriptCall, VoteConditions};
use redlock_core::{Fence, GUARD_KEY, Token};
use redlock_std::{AcquireError, AdoptError, ExtendError, Fencing, Options, Redlock};
use redlock_tests::{Server, Servers, eventually};

use crate::setup::{connected, expect_key_on, let_evict, patient};

const KEY: &str = "dock-7";
const TTL: Duration = Duration::from_secs(10);
const LIMIT: Duration = Duration::from_secs(20);

fn fenced() -> Options {
    patient(TTL).fenced(Fencing::default()).unwrap()
}

#[test]
fn a_release_leaves_alone_what_another_attempt_holds_with_the_same_fence() {
    let server = Server::start();
    let [holder, other, third] = [1, 2, 3].map(token);
    let fence = now(&server) + 1_000;
    assert_eq!(acquire(&server, &holder, fence), 0);
    // The other has proposed the same, and was refused. Its release arrives late.
    assert_eq!(acquire(&server, &other, fence), 1);
    assert_eq!(release(&server, &other, fence), 0);
    // As a clock does that jumps forward past the TTL, and back.
    server.query::<u64>(&["DEL", KEY]).unwrap();
    assert_eq!(acquire(&server, &third, fence + 2), 1, "held until its end");
    assert_eq!(extend(&server, &other, fence), 1, "not the other's");
    assert_eq!(extend(&server, &holder, fence), 0, "healed for its holder");
    assert_eq!(release(&server, &holder, fence), 1);
    assert_eq!(acquire(&server, &third, fence + 2), 0);
}

#[test]
fn a_token_of_any_bytes_is_recognised_as_the_one_that_was_accepted() {
    let server = Server::start();
    for byte in [0, b'\n', b':', b'%', b'7', 0xff] {
        let token = token(byte);
        let fence = now(&server) + 1_000;
        assert_eq!(acquire(&server, &token, fence), 0);
        assert_eq!(acquire(&server, &token, fence), 0, "the same again");
        server.query::<u64>(&["DEL", KEY]).unwrap();
        assert_eq!(extend(&server, &token, fence), 0, "{byte}");
        assert_eq!(release(&server, &token, fence), 1);
    }
}

/// Master, replica and master again, as Sentinel does: the process stays, the guard record comes back by
/// replication, and the key of the lock does not.
#[tokio::test(flavor = "multi_thread")]
async fn a_node_that_failed_back_has_no_vote_until_the_quarantine_is_over() {
    let (servers, replica) = (Servers::start(3), Server::start());
    let redlock = connected(&servers, fenced()).await;
    servers[2].pause();
    let guard = redlock.acquire(KEY).await.unwrap();
    let record = record(&servers[0]).unwrap();
    let set = ["SET", GUARD_KEY, &record];
    assert_eq!(replica.query::<String>(&set).unwrap(), "OK");
    fail_over_and_back(&servers[0], &replica).await;
    assert_eq!(
        servers[0]
            .query::<u64>(&["EXISTS", KEY, GUARD_KEY])
            .unwrap(),
        1
    );
    servers[2].resume();

    let other = Redlock::connect(servers.urls(), fenced()).unwrap();
    let denied = format!("127.0.0.1:{}: may have forgotten locks", servers[0].port());
    quarantined(&other, &denied).await;
    assert!(guard.is_valid());
    guard.release().await;
    // The others are a quorum.
    other.acquire(KEY).await.unwrap().release().await;
}

/// The replicas were cut off before the release. All clients stay connected.
#[tokio::test(flavor = "multi_thread")]
async fn a_fenced_lease_that_a_failover_has_brought_back_is_not_adopted_while_another_client_holds_the_lock()
 {
    let (servers, replicas) = (Servers::start(3), Servers::start(2));
    for (replica, server) in replicas.iter().zip(servers.iter()) {
        // The first replica of a master gives it a new history, and so a new guard record.
        follow(replica, server).await;
        server.vouch("60000:250:60000");
    }
    let redlock = connected(&servers, fenced()).await;
    let other = connected(&servers, fenced()).await;
    let handover = redlock.acquire(KEY).await.unwrap().hand_over();
    expect_key_on(&replicas, KEY, 2).await;
    replicas.iter().for_each(lead);
    redlock.adopt(&handover).await.unwrap().release().await;
    let guard = redlock.acquire(KEY).await.unwrap();
    for (server, replica) in servers.iter().zip(replicas.iter()) {
        fail_over_and_back(server, replica).await;
    }
    let refused = other.adopt(&handover).await.unwrap_err();
    assert!(matches!(refused, AdoptError::Nodes(_)), "{refused}");
    assert!(guard.is_valid());
}

/// It has met them as replicas, so their data may be old, and it asks them again who they are.
#[tokio::test(flavor = "multi_thread")]
async fn a_lease_is_not_adopted_by_nodes_that_this_client_has_met_as_replicas() {
    let (servers, replicas) = (Servers::start(3), Servers::start(2));
    let redlock = connected(&servers, patient(TTL)).await;
    let other = connected(&servers, patient(TTL)).await;
    let handover = redlock.acquire(KEY).await.unwrap().hand_over();
    for (replica, server) in replicas.iter().zip(servers.iter()) {
        follow(replica, server).await;
        lead(replica);
        follow(server, replica).await;
    }
    let refused = other.try_acquire("another").await.unwrap_err();
    assert!(refused.is_unreachable(), "{refused}");
    servers[..2].iter().for_each(lead);
    expect_key_on(&servers, KEY, 3).await;
    let refused = other.adopt(&handover).await.unwrap_err();
    assert!(refused.to_string().contains("restarted"), "{refused}");
}

#[tokio::test(flavor = "multi_thread")]
async fn a_node_that_may_evict_has_no_vote_for_a_fenced_lock() {
    let servers = Servers::start(3);
    servers[..2].iter().for_each(let_evict);
    let redlock = Redlock::connect(servers.urls(), fenced()).unwrap();
    eventually("both have said so", LIMIT, || redlock.warnings().len() == 2).await;
    let error = redlock.try_acquire(KEY).await.unwrap_err().to_string();
    let words = "may evict locks when memory is short; set its maxmemory-policy to noeviction";
    assert_eq!(error.matches(words).count(), 2, "{error}");
    assert_eq!(servers[0].calls()["evalsha"], 0, "it is not even asked");
}

/// Else it would take the nodes that lose their data one by one, each with a quarantine that is too short.
#[tokio::test(flavor = "multi_thread")]
async fn a_client_with_other_rules_does_not_take_a_node_that_lost_its_record() {
    let servers = Servers::start(3);
    let longer = Duration::from_secs(120);
    let fencing = Fencing::default().with_max_ttl(longer).unwrap();
    let fencing = fencing.with_step_back(longer).unwrap();
    let longer = patient(TTL).fenced(fencing).unwrap();
    for server in servers.iter() {
        server.vouch("120000:250:120000");
    }
    let right = connected(&servers, longer).await;
    let wrong = Redlock::connect(servers.urls(), fenced()).unwrap();
    for flushed in &servers[..2] {
        assert_eq!(flushed.query::<String>(&["FLUSHALL"]).unwrap(), "OK");
        for _ in 0..3 {
            let error = wrong.try_acquire(KEY).await.unwrap_err();
            assert!(error.is_unreachable(), "{error}");
        }
        assert_eq!(record(flushed), None, "other rules are not written");
    }
    // Two of three have lost it: the third confirms the rules of the client that has had them before.
    quarantined(&right, "its vote counts again in 122 s").await;
    for flushed in &servers[..2] {
        let record = record(flushed).unwrap();
        assert!(record.contains(":120000:250:120000:"), "{record}");
    }
}

/// Clients of the new rules rely on margins that the lease does not keep.
#[tokio::test(flavor = "multi_thread")]
async fn a_lease_is_not_extended_when_the_rules_have_changed() {
    let servers = Servers::start(3);
    let redlock = connected(&servers, fenced()).await;
    for changed in [":60000:1000:60000:", ":60000:250:300000:"] {
        let mut guard = redlock.acquire(KEY).await.unwrap();
        guard.extend().await.unwrap();
        let before = servers.iter().map(|server| record(server).unwrap());
        let before: Vec<_> = before.collect();
        for (server, before) in servers.iter().zip(&before) {
            let after = before.replace(":60000:250:60000:", changed);
            assert_ne!(*before, after);
            server
                .query::<()>(&["SET", "redlock:guard", &after])
                .unwrap();
        }
        let error = guard.extend().await.unwrap_err();
        assert!(matches!(error, ExtendError::Lost(_)), "{error}");
        guard.release().await;
        for (server, before) in servers.iter().zip(&before) {
            server
                .query::<()>(&["SET", "redlock:guard", before])
                .unwrap();
        }
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn a_new_fleet_without_records_begins_with_a_quarantine_also_for_a_client_that_tries_once() {
    let servers = Servers::start(3);
    servers.iter().for_each(Server::disown);
    let redlock = Redlock::connect(servers.urls(), fenced()).unwrap();
    quarantined(
        &redlock,
        "may have forgotten locks, its vote counts again in ",
    )
    .await;
    eventually("every node has a record", LIMIT, || {
        servers.iter().all(|server| record(server).is_some())
    })
    .await;
}

#[tokio::test(flavor = "multi_thread")]
async fn a_quarantine_that_was_written_by_a_clock_that_was_ahead_is_cut_to_its_length() {
    let servers = Servers::start(3);
    let year = 365 * 86_400_000;
    for server in &servers[..2] {
        let until = now(server) / 1_000 + year;
        let record = record(server)
            .unwrap()
            .replacen(":0:", &format!(":{until}:"), 1);
        let set = ["SET", GUARD_KEY, &record];
        assert_eq!(server.query::<String>(&set).unwrap(), "OK");
    }
    let redlock = Redlock::connect(servers.urls(), fenced()).unwrap();
    quarantined(&redlock, "its vote counts again in 62 s").await;
    for server in &servers[..2] {
        let record = record(server).unwrap();
        let until: u64 = record.split(':').nth(1).unwrap().parse().unwrap();
        assert!(until <= now(server) / 1_000 + 62_001, "{record}");
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn a_key_that_nodes_use_for_themselves_is_refused() {
    let servers = Servers::start(3);
    let redlock = connected(&servers, fenced()).await;
    for key in ["redlock:guard", "redlock:fence:dock-7", "redlock:"] {
        for options in [fenced(), patient(TTL)] {
            let error = redlock
                .with_options(options)
                .acquire(key)
                .await
                .unwrap_err();
            assert!(error.to_string().contains("are reserved"), "{error}");
        }
    }
    let prefixed = redlock.with_prefix("redlock:");
    assert!(prefixed.try_acquire("guard").await.is_err());
}

// Versions before this one, whose scripts are kept in `before/`.

/// The scripts of the version before, as its clients call them.
#[derive(Debug, Clone, Copy)]
enum Before {
    Acquire,
    Extend,
    Release,
}

impl Before {
    fn call(self, server: &Server, token: &Token, fence: u64) -> Vec<i64> {
        let fence = fence.to_string();
        let (script, keys, rest): (_, _, &[&str]) = match self {
            Self::Acquire => (
                include_str!("before/acquire_fenced.lua"),
                "3",
                &["10000", &fence, "60000", "250", "60000"],
            ),
            Self::Extend => (
                include_str!("before/extend_fenced.lua"),
                "3",
                &["10000", &fence, &fence, "250", "60000"],
            ),
            Self::Release => (
                include_str!("before/release_fenced.lua"),
                "2",
                &[&fence, "250", "60000"],
            ),
        };
        let mut words = vec!["EVAL".as_bytes(), script.as_bytes(), keys.as_bytes()];
        let keys = [KEY, "redlock:fence:dock-7", GUARD_KEY].map(str::as_bytes);
        words.extend(keys.iter().take(if keys_of(self) { 3 } else { 2 }));
        words.push(token.as_bytes());
        words.extend(rest.iter().map(|word| word.as_bytes()));
        match server.query::<Value>(&words) {
            Ok(Value::Int(number)) => vec![number],
            Ok(value) => redis::from_redis_value(value).unwrap(),
            // No vote.
            Err(_) => Vec::new(),
        }
    }
}

const fn keys_of(script: Before) -> bool {
    !matches!(script, Before::Release)
}

/// Nodes go over to the new record one by one, each through a quarantine that outlasts every lease from before.
#[tokio::test(flavor = "multi_thread")]
async fn after_an_upgrade_new_clients_wait_for_a_quarantine_and_old_ones_have_no_vote() {
    let servers = Servers::start(3);
    for server in servers.iter() {
        let record = record(server).unwrap();
        let (old, _replication_id) = record.rsplit_once(':').unwrap();
        let set = ["SET", GUARD_KEY, old];
        assert_eq!(server.query::<String>(&set).unwrap(), "OK");
    }
    let old = token(1);
    let fence = now(&servers[0]) + 1_000;
    for server in servers.iter() {
        assert_eq!(Before::Acquire.call(server, &old, fence)[0], 0);
    }
    let new = Redlock::connect(servers.urls(), fenced()).unwrap();
    quarantined(&new, "its vote counts again in 62 s").await;
    for server in servers.iter() {
        let record = record(server).unwrap();
        assert_eq!(record.split(':').count(), 6, "{record}");
        // The old lease lives on, is extended and given back, and no old client gets another.
        let later = now(server) + 1_000;
        assert_eq!(Before::Extend.call(server, &old, fence)[0], 0);
        assert_eq!(Before::Acquire.call(server, &token(2), later)[0], 6);
        assert_eq!(Before::Release.call(server, &old, fence), [1]);
        assert_eq!(Before::Acquire.call(server, &token(2), later + 2)[0], 6);
    }
}

#[test]
fn a_client_of_the_version_before_can_take_nothing_from_the_holder_of_a_new_lease() {
    let server = Server::start();
    let (holder, old) = (token(1), token(2));
    let fence = now(&server) + 1_000;
    assert_eq!(acquire(&server, &holder, fence), 0);
    for script in [Before::Acquire, Before::Extend, Before::Release] {
        let answer = script.call(&server, &old, fence);
        assert_ne!(
            answer.first(),
            Some(&i64::from(matches!(script, Before::Release)))
        );
    }
    server.query::<u64>(&["DEL", KEY]).unwrap();
    // Also where the key is gone and the fence is the same.
    for script in [Before::Acquire, Before::Extend, Before::Release] {
        script.call(&server, &old, fence);
        assert_eq!(
            server.query::<u64>(&["EXISTS", KEY]).unwrap(),
            0,
            "{script:?}"
        );
    }
    assert_eq!(extend(&server, &holder, fence), 0);
}

#[test]
fn a_fence_record_of_the_version_before_is_understood() {
    let server = Server::start();
    let (fence, until) = (now(&server) + 1_000, now(&server) / 1_000 + 5_000);
    let old = format!("{fence}:{until}");
    let set = ["SET", "redlock:fence:dock-7", &old];
    assert_eq!(server.query::<String>(&set).unwrap(), "OK");
    assert_eq!(acquire(&server, &token(1), fence + 1), 1, "held until then");
    let old = format!("{fence}:0");
    let set = ["SET", "redlock:fence:dock-7", &old];
    assert_eq!(server.query::<String>(&set).unwrap(), "OK");
    assert_eq!(acquire(&server, &token(1), fence), 2, "not higher");
    assert_eq!(acquire(&server, &token(1), fence + 1), 0);
}

fn token(byte: u8) -> Token {
    Token::from_bytes([byte; Token::LEN])
}

/// By the server's clock, in microseconds.
fn now(server: &Server) -> u64 {
    let [seconds, micros]: [u64; 2] = server.query(&["TIME"]).unwrap();
    seconds * 1_000_000 + micros
}

fn record(server: &Server) -> Option<String> {
    server.query(&["GET", GUARD_KEY]).unwrap()
}

fn proposal(fence: u64) -> Option<Proposal> {
    let fencing = Fencing::default();
    Some(Proposal::new(Fence::from_u64(fence), fencing, fence, false))
}

fn acquire(server: &Server, token: &Token, fence: u64) -> i64 {
    let command = Command::acquire(KEY.as_bytes(), token, 10_000, VoteConditions::NONE)
        .with_proposal(proposal(fence));
    code(server, &command)
}

fn extend(server: &Server, token: &Token, fence: u64) -> i64 {
    let command = Command::extend(KEY.as_bytes(), token, 10_000).with_proposal(proposal(fence));
    code(server, &command)
}

fn release(server: &Server, token: &Token, fence: u64) -> i64 {
    let command = Command::release(KEY.as_bytes(), token).with_proposal(proposal(fence));
    match send(server, &command) {
        Value::Int(number) => number,
        other => panic!("{other:?}"),
    }
}

/// The first of four numbers.
fn code(server: &Server, command: &Command<'_>) -> i64 {
    let numbers: Vec<i64> = redis::from_redis_value(send(server, command)).unwrap();
    assert_eq!(numbers.len(), 4);
    numbers[0]
}

fn send(server: &Server, command: &Command<'_>) -> Value {
    let words = command.arguments(ScriptCall::Text).map(|word| match word {
        Argument::Bytes(bytes) => bytes.to_vec(),
        Argument::Integer(number) => number.to_string().into_bytes(),
        Argument::FenceKey(key) => [redlock_core::FENCE_KEY_PREFIX.as_bytes(), key].concat(),
        Argument::Line(word) => {
            let (prefix, bytes) = word.pieces();
            [prefix.as_bytes(), bytes].concat()
        }
    });
    let words: Vec<_> = words.collect();
    server.query(&words).unwrap()
}

/// `node` becomes a replica of `other`, takes over its data, and is a master again.
async fn fail_over_and_back(node: &Server, other: &Server) {
    follow(node, other).await;
    lead(node);
}

/// Makes `node` a replica of `other`, with its data.
async fn follow(node: &Server, other: &Server) {
    // A replica is served at once, so that no lease ends meanwhile.
    let set = ["CONFIG", "SET", "repl-diskless-sync-delay", "0"];
    assert_eq!(other.query::<String>(&set).unwrap(), "OK");
    let follow = ["REPLICAOF", "127.0.0.1", &other.port().to_string()];
    assert_eq!(node.query::<String>(&follow).unwrap(), "OK");
    eventually("it has the data of its master", LIMIT, || {
        let info: String = node.query(&["INFO", "replication"]).unwrap();
        info.contains("master_link_status:up")
    })
    .await;
}

/// Makes `node` a master.
fn lead(node: &Server) {
    let stop = ["REPLICAOF", "NO", "ONE"];
    assert_eq!(node.query::<String>(&stop).unwrap(), "OK");
}

/// Tries until the error says `words`.
async fn quarantined(redlock: &Redlock, words: &str) {
    for _ in 0..2_000 {
        let error: AcquireError = redlock.try_acquire(KEY).await.unwrap_err();
        if error.to_string().contains(words) {
            return;
        }
        tokio::time::sleep(Duration::from_millis(5)).await;
    }
    panic!("never: {words}");
}
