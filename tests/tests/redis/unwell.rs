//! Servers that answer, and cannot do what they are asked for now, or may not say who they are.

use std::time::{Duration, Instant};

use redlock_std::{AcquireError, Redlock};
use redlock_tests::{Server, Servers, eventually};

use crate::setup::{connected, expect_key_on, patient};

/// No key of these expires in the time that a test takes.
const TTL: Duration = Duration::from_secs(50);

const LIMIT: Duration = Duration::from_secs(10);

#[tokio::test(flavor = "multi_thread")]
async fn a_release_that_a_node_cannot_carry_out_is_sent_again_until_it_can() {
    for fault in [Fault::Busy, Fault::ReadOnly, Fault::NoReplicas] {
        for is_awaited in [true, false] {
            let servers = Servers::start(3);
            // So long that nothing but the release itself wakes the task of the node.
            let options = patient(TTL).node_timeout(LIMIT * 2).unwrap();
            let redlock = connected(&servers, options).await;
            let guard = redlock.acquire("dock-7").await.unwrap();
            expect_key_on(&servers, "dock-7", 3).await;
            servers.iter().for_each(|server| fault.begin(server));
            if is_awaited {
                let released = guard.release().await;
                let failures = format!("{:?}", released.report());
                assert!(failures.contains(fault.code()), "{failures}");
            } else {
                drop(guard);
                eventually("the node has refused", LIMIT, || {
                    servers.iter().all(|server| fault.has_refused(server))
                })
                .await;
            }
            servers.iter().for_each(|server| fault.end(server));
            servers.expect_no_keys().await;
            // The last handle waits for none of them any more.
            drop(redlock);
            eventually("no client is left", LIMIT, || {
                servers.iter().all(|server| server.client_count() == 0)
            })
            .await;
        }
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn a_node_that_answered_as_a_replica_is_asked_who_it_is_before_its_next_vote() {
    let servers = Servers::start(3);
    let redlock = connected(&servers, patient(TTL)).await;
    servers[..2]
        .iter()
        .for_each(|server| Fault::ReadOnly.begin(server));
    let error = redlock.try_acquire("dock-7").await.unwrap_err();
    assert!(error.to_string().contains("a replica"), "{error}");
    servers[..2]
        .iter()
        .for_each(|server| Fault::ReadOnly.end(server));
    // Masters again, on the same connections; their data may be older.
    let error = redlock.try_acquire("dock-7").await.unwrap_err();
    assert!(error.to_string().contains("restarted "), "{error}");
    // They were asked in the same write as the acquire, whose key is gone again.
    servers.expect_no_keys().await;
    let unguarded = redlock.with_options(patient(TTL).restart_guard(false));
    unguarded.acquire("dock-7").await.unwrap().release().await;
    servers.expect_no_keys().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn a_denial_that_was_put_right_ends_on_the_same_connection() {
    let servers = Servers::start(3);
    for server in servers.iter() {
        // What they may have evicted is over after a second.
        server.vouch("1000:250:60000");
        config(server, "maxmemory-policy", "allkeys-lru");
    }
    let strict = patient(Duration::from_secs(1));
    let strict = strict.refuse_eviction(true).wait(LIMIT);
    let redlock = Redlock::connect(servers.urls(), strict).unwrap();
    let error = redlock.try_acquire("dock-7").await.unwrap_err();
    assert!(error.to_string().contains("may evict"), "{error}");
    for server in servers.iter() {
        config(server, "maxmemory-policy", "noeviction");
    }
    redlock.acquire("dock-7").await.unwrap().release().await;
    // An acquire returns at the quorum: the last node has said so a moment later.
    eventually("no node is warned of", LIMIT, || {
        redlock.warnings().is_empty()
    })
    .await;
    servers.expect_no_keys().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn a_server_whose_scripts_may_not_call_info_or_time_says_so_and_locks_without_the_guard() {
    for command in ["INFO", "TIME"] {
        let servers: Vec<_> = (0..3).map(|_| Server::start_without(command)).collect();
        let redlock = Redlock::connect(servers.iter().map(Server::url), patient(TTL)).unwrap();
        let error = redlock.try_acquire("dock-7").await.unwrap_err();
        let words = "+info +time ~redlock:guard";
        assert!(error.to_string().contains(words), "{command}: {error}");

        let unguarded = redlock.with_options(patient(TTL).restart_guard(false));
        let mut guard = unguarded.try_acquire("dock-7").await.unwrap();
        guard.extend().await.unwrap();
        let released = guard.release().await;
        assert!(released.released() >= 2, "{released:?}");
        eventually("no key is left", LIMIT, || {
            servers.iter().map(Server::key_count).sum::<usize>() == 0
        })
        .await;
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn a_server_that_is_busy_when_it_is_met_is_asked_again() {
    let servers = Servers::start(3);
    servers.iter().for_each(|server| Fault::Busy.begin(server));
    let redlock = Redlock::connect(servers.urls(), patient(TTL).wait(LIMIT)).unwrap();
    // It neither gets a command nor counts as one that does not say who it is.
    let error = redlock.try_acquire("dock-7").await.unwrap_err();
    assert_unusable(&error);
    servers.iter().for_each(|server| Fault::Busy.end(server));
    let start = Instant::now();
    redlock.acquire("dock-7").await.unwrap().release().await;
    assert!(start.elapsed() < LIMIT);
    servers.expect_no_keys().await;
}

fn assert_unusable(error: &AcquireError) {
    assert!(error.is_unreachable(), "{error}");
    assert!(error.to_string().contains("BUSY"), "{error}");
}

/// Why a server cannot carry out a release for now.
#[derive(Debug, Clone, Copy)]
enum Fault {
    /// A script takes long.
    Busy,
    /// It is a replica, of a master that does not answer.
    ReadOnly,
    /// It wants a replica that there is not.
    NoReplicas,
}

impl Fault {
    const fn code(self) -> &'static str {
        match self {
            Self::Busy => "BUSY",
            Self::ReadOnly => "READONLY",
            Self::NoReplicas => "NOREPLICAS",
        }
    }

    fn begin(self, server: &Server) {
        match self {
            Self::Busy => {
                config(server, "lua-time-limit", "1");
                let url = server.url();
                // Ends when the script is killed.
                std::thread::spawn(move || {
                    let client = redis::Client::open(url).unwrap();
                    let mut connection = client.get_connection().unwrap();
                    let script = ["while true do end", "0"];
                    let mut command = redis::cmd("EVAL");
                    assert!(command.arg(&script).query::<()>(&mut connection).is_err());
                });
                let start = Instant::now();
                while server.query::<String>(&["PING"]).is_ok() {
                    assert!(start.elapsed() < LIMIT);
                }
            }
            Self::ReadOnly => {
                // Nothing listens there.
                let follow = ["REPLICAOF", "127.0.0.1", "1"];
                assert_eq!(server.query::<String>(&follow).unwrap(), "OK");
            }
            Self::NoReplicas => config(server, "min-replicas-to-write", "1"),
        }
    }

    fn end(self, server: &Server) {
        match self {
            Self::Busy => {
                let kill = ["SCRIPT", "KILL"];
                assert_eq!(server.query::<String>(&kill).unwrap(), "OK");
            }
            Self::ReadOnly => {
                let follow = ["REPLICAOF", "NO", "ONE"];
                assert_eq!(server.query::<String>(&follow).unwrap(), "OK");
            }
            Self::NoReplicas => config(server, "min-replicas-to-write", "0"),
        }
    }

    /// Whether a release has come while it lasts. A busy server does not tell.
    fn has_refused(self, server: &Server) -> bool {
        match self {
            Self::Busy => true,
            _ => server.calls()["evalsha"] > 1,
        }
    }
}

fn config(server: &Server, name: &str, value: &str) {
    let set = ["CONFIG", "SET", name, value];
    assert_eq!(server.query::<String>(&set).unwrap(), "OK");
}
