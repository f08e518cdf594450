//! Which nodes have a vote.

use std::time::{Duration, Instant};

use redlock_std::{AcquireError, Fencing, InitError, Options, Redlock};
use redlock_tests::{Proxy, Server, Servers, eventually};

use crate::setup::{connected, let_evict, patient};

/// Short, so that a quarantine is.
const TTL: Duration = Duration::from_millis(1_500);

/// The rules of a fleet with no longer TTL than this.
const SHORT_FLEET: &str = "1500:250:60000";

/// Longer than any quarantine here.
const LIMIT: Duration = Duration::from_secs(20);

#[tokio::test(flavor = "multi_thread")]
async fn a_node_that_restarts_without_its_data_has_no_vote_until_what_it_forgot_is_over() {
    let mut servers = Servers::start(3);
    servers.iter().for_each(|server| server.vouch(SHORT_FLEET));
    let redlock = connected(&servers, patient(TTL)).await;
    let restarted_at = restart_majority(&mut servers);

    let error = denied(&redlock, "restarted").await;
    assert!(error.is_unreachable(), "{error}");
    let message = error.to_string();
    for server in &servers[..2] {
        let node = format!("127.0.0.1:{}: restarted ", server.port());
        assert!(message.contains(&node), "{message}");
        assert_eq!(server.calls()["set"], 0, "it is not even asked");
    }
    assert!(message.contains("its vote counts again in "), "{message}");

    // A wait that is long enough succeeds by itself.
    let patient = redlock.with_options(patient(TTL).wait(LIMIT));
    let guard = patient.acquire("dock-7").await.unwrap();
    let after = restarted_at.elapsed();
    assert!(after >= TTL, "whatever it forgot is over: {after:?}");
    guard.release().await;
    servers.expect_no_keys().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn a_node_that_is_young_when_it_is_met_has_no_vote_either() {
    let started_at = Instant::now();
    let servers = young(3);
    let options = patient(TTL).wait(LIMIT);
    let redlock = Redlock::connect(servers.urls(), options).unwrap();
    let error = redlock.try_acquire("dock-7").await.unwrap_err();
    assert!(error.to_string().contains("restarted "), "{error}");
    assert!(
        redlock.acquire("dock-7").await.is_ok() && started_at.elapsed() >= TTL,
        "after the quarantine, and not before"
    );
}

#[tokio::test(flavor = "multi_thread")]
async fn the_first_program_on_new_servers_gets_its_lock_with_the_default_wait() {
    let fencing = Fencing::new(Duration::from_millis(50)).unwrap();
    let fencing = fencing.with_step_back(Duration::ZERO).unwrap();
    let fencing = fencing.with_max_ttl(TTL).unwrap();
    let plain = Options::new(TTL).unwrap();
    for options in [plain, plain.fenced(fencing).unwrap()] {
        let servers = young(3);
        let redlock = Redlock::connect(servers.urls(), options).unwrap();
        let guard = redlock.acquire("dock-7").await.unwrap();
        guard.release().await;

        let servers = young(3);
        let redlock = Redlock::connect(servers.urls(), options.wait(TTL / 10)).unwrap();
        let error = redlock.acquire("dock-7").await.unwrap_err().to_string();
        let words = "; if these servers are new, run `redlock init` to skip this wait";
        // The fenced client has just written the records, and `redlock init` keeps them.
        assert_eq!(error.ends_with(words), options == plain, "{error}");
    }
}

/// The record of `redlock init` does not vouch for leases as long as those of this client, and `redlock init` keeps records.
#[tokio::test(flavor = "multi_thread")]
async fn init_is_no_advice_where_a_record_allows_only_shorter_leases() {
    let servers = young(3);
    let fencing = Fencing::default().with_max_ttl(TTL).unwrap();
    redlock_std::init(servers.urls(), fencing).await.unwrap();
    let options = patient(TTL / 2).max_ttl(LIMIT).unwrap();
    let redlock = Redlock::connect(servers.urls(), options).unwrap();
    let error = redlock.try_acquire("dock-7").await.unwrap_err().to_string();
    assert!(error.contains("restarted "), "{error}");
    assert!(!error.contains("redlock init"), "{error}");

    // Nor where only the others have a record. A round may end with the answers of two nodes.
    servers[2].disown();
    let redlock = Redlock::connect(servers.urls(), options).unwrap();
    let error = redlock.try_acquire("dock-7").await.unwrap_err().to_string();
    assert!(
        error.contains("restarted ") && !error.contains("redlock init"),
        "{error}"
    );
}

#[tokio::test(flavor = "multi_thread")]
async fn init_from_code_lets_the_votes_of_new_servers_count_at_once_plain_and_fenced() {
    let servers = young(3);
    redlock_std::init(servers.urls(), Fencing::default())
        .await
        .unwrap();
    let plain = Redlock::connect(servers.urls(), patient(TTL)).unwrap();
    plain.try_acquire("dock-7").await.unwrap().release().await;
    let options = patient(TTL).fenced(Fencing::default()).unwrap();
    let fenced = Redlock::connect(servers.urls(), options).unwrap();
    let guard = fenced.acquire("dock-7").await.unwrap();

    // There is nothing to do, but a node that has lost its record while a lease is out is not new.
    redlock_std::init(servers.urls(), Fencing::default())
        .await
        .unwrap();
    servers[1].disown();
    let error = redlock_std::init(servers.urls(), Fencing::default())
        .await
        .unwrap_err();
    let message = error.to_string();
    assert!(matches!(error, InitError::Failed { .. }), "{message}");
    assert!(
        message.starts_with("nothing was written on any node"),
        "{message}"
    );
    guard.release().await;
}

/// As tests do that run side by side.
#[tokio::test(flavor = "multi_thread")]
async fn two_calls_of_init_at_the_same_moment_succeed() {
    for _ in 0..5 {
        let servers = young(3);
        let init = || redlock_std::init(servers.urls(), Fencing::default());
        let (one, other) = tokio::join!(init(), init());
        assert_eq!((one, other), (Ok(()), Ok(())));
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn a_server_with_two_names_has_one_vote_in_the_status_too() {
    let servers = Servers::start(2);
    let mut urls = servers.urls();
    urls.push(format!("redis://localhost:{}", servers[0].port()));
    let redlock = Redlock::connect(urls, patient(TTL)).unwrap();
    eventually("all are connected", TTL, || {
        redlock.status().iter().all(|node| node.is_connected)
    })
    .await;
    let votes = redlock.status().into_iter().map(|node| node.has_vote());
    assert_eq!(votes.collect::<Vec<_>>(), [true, true, false]);
    let twin = redlock.status().pop().unwrap().to_string();
    assert!(twin.contains("the same server as"), "{twin}");
}

/// As after a failover, or when the address of a server was given to another one.
#[tokio::test(flavor = "multi_thread")]
async fn a_name_that_leads_elsewhere_is_followed_if_the_server_behind_it_is_a_replica_or_another_node()
 {
    for is_replica in [false, true] {
        let servers = Servers::start(3);
        servers.iter().for_each(|server| server.vouch(SHORT_FLEET));
        if is_replica {
            let master = servers[0].port().to_string();
            let follow = ["REPLICAOF", "127.0.0.1", &master];
            assert_eq!(servers[2].query::<String>(&follow).unwrap(), "OK");
        }
        let wrong = &servers[if is_replica { 2 } else { 1 }];
        let name = Proxy::start(wrong, Duration::ZERO).await;
        let nobody = "redis://127.0.0.1:1".to_owned();
        let urls = [name.url(), servers[1].url(), nobody];
        let redlock = Redlock::connect(urls, patient(TTL).wait(LIMIT * 2)).unwrap();
        let words = if is_replica {
            "replica"
        } else {
            "the same server as"
        };
        eventually("it is told", LIMIT, || {
            let mut status = redlock.status().into_iter();
            status.any(|node| node.to_string().contains(words))
        })
        .await;
        let error = redlock.try_acquire("dock-7").await.unwrap_err();
        assert!(error.to_string().contains(words), "{error}");
        name.lead_to(&servers[0]);
        // The connection to the wrong one stays open.
        let guard = redlock.acquire("dock-7").await.unwrap();
        assert!(servers[0].query::<bool>(&["EXISTS", "dock-7"]).unwrap());
        guard.release().await;
    }
}

/// Only extensions and a release are sent: no acquire asks the node what it is. The wrong server answers sooner than the right name of
/// it.
#[tokio::test(flavor = "multi_thread")]
async fn a_lease_is_extended_and_released_although_a_name_has_led_elsewhere_for_a_moment() {
    const TTL: Duration = Duration::from_secs(60);
    const FLEET: &str = "60000:250:60000";

    let servers = Servers::start(3);
    let master = servers[0].port().to_string();
    let follow = ["REPLICAOF", "127.0.0.1", &master];
    assert_eq!(servers[2].query::<String>(&follow).unwrap(), "OK");
    eventually("it follows", LIMIT, || {
        let info: String = servers[2].query(&["INFO", "replication"]).unwrap();
        info.contains("master_link_status:up")
    })
    .await;
    // With its first replica, the history of its data begins anew.
    servers[0].vouch(FLEET);
    let name = Proxy::start(&servers[0], Duration::ZERO).await;
    let other = Proxy::start(&servers[1], Duration::from_millis(10)).await;
    let nobody = "redis://127.0.0.1:1".to_owned();
    let urls = [name.url(), other.url(), nobody];
    let redlock = Redlock::connect(urls, patient(TTL)).unwrap();
    let mut guard = redlock.acquire("dock-7").await.unwrap();
    let lead_to = async |server: &Server, words: &str| {
        name.lead_to(server);
        name.cut();
        eventually("it has lost its connection", LIMIT, || {
            !redlock.status()[0].is_connected
        })
        .await;
        name.mend();
        eventually("it has met the wrong server", LIMIT, || {
            let mut status = redlock.status().into_iter();
            status.any(|node| node.to_string().contains(words))
        })
        .await;
    };

    for (wrong, words, why) in [
        (&servers[2], "a replica", "READONLY"),
        (&servers[1], "the same server as", "name each server once"),
    ] {
        lead_to(wrong, words).await;
        let error = guard.extend().await.unwrap_err().to_string();
        assert!(error.contains(why), "{error}");
        name.lead_to(&servers[0]);
        let start = Instant::now();
        while let Err(error) = guard.extend().await {
            assert!(start.elapsed() < LIMIT, "{error}");
            tokio::time::sleep(Duration::from_millis(50)).await;
        }
    }

    lead_to(&servers[2], "a replica").await;
    guard.release().await;
    name.lead_to(&servers[0]);
    eventually("the key is deleted", LIMIT, || servers[0].key_count() == 0).await;
}

#[tokio::test(flavor = "multi_thread")]
async fn a_name_is_followed_although_the_server_to_which_it_led_gives_no_vote_under_either_name() {
    const OTHER_RULES: &str = "60000:500:60000";

    let servers = Servers::start(3);
    servers[1].vouch(OTHER_RULES);
    let name = Proxy::start(&servers[1], Duration::ZERO).await;
    let urls = [name.url(), servers[1].url(), servers[2].url()];
    let options = patient(Duration::from_secs(10));
    let options = options.fenced(Fencing::default()).unwrap();
    let redlock = Redlock::connect(urls, options).unwrap();
    eventually("it is connected", LIMIT, || {
        redlock.status().iter().all(|node| node.is_connected)
    })
    .await;
    let error = redlock.try_acquire("dock-7").await.unwrap_err().to_string();
    assert_eq!(error.matches("other rules").count(), 2, "{error}");
    name.lead_to(&servers[0]);
    let start = Instant::now();
    while let Err(error) = redlock.try_acquire("dock-7").await {
        assert!(start.elapsed() < LIMIT, "{error}");
        tokio::time::sleep(Duration::from_millis(50)).await;
    }
}

/// A clock that falls below the time of the write may not make the node forget a quarantine that was over by then.
#[tokio::test(flavor = "multi_thread")]
async fn a_record_of_init_counts_from_the_time_of_its_write_and_not_before() {
    let servers = young(1);
    let [seconds, micros]: [u64; 2] = servers[0].query(&["TIME"]).unwrap();
    redlock_std::init(servers.urls(), Fencing::default())
        .await
        .unwrap();
    let record: String = servers[0].query(&["GET", redlock_core::GUARD_KEY]).unwrap();
    let until_ms: u64 = record.split(':').nth(1).unwrap().parse().unwrap();
    assert!(until_ms >= seconds * 1_000 + micros / 1_000, "{record}");
}

#[tokio::test(flavor = "multi_thread")]
async fn init_from_code_says_that_a_quarantine_is_not_over() {
    let servers = young(3);
    let fencing = Fencing::default();
    let options = patient(TTL).fenced(fencing).unwrap().wait(TTL);
    let redlock = Redlock::connect(servers.urls(), options).unwrap();
    let error = redlock.acquire("dock-7").await.unwrap_err();
    assert!(error.to_string().contains("counts again"), "{error}");
    let error = redlock_std::init(servers.urls(), fencing)
        .await
        .unwrap_err();
    let InitError::NoVote { left, .. } = &error else {
        panic!("{error}");
    };
    assert!(!left.is_zero() && *left <= fencing.quarantine(), "{error}");
}

#[tokio::test(flavor = "multi_thread")]
async fn with_the_guard_off_a_young_node_votes_at_once() {
    let servers = young(3);
    let options = patient(TTL).restart_guard(false);
    let redlock = Redlock::connect(servers.urls(), options).unwrap();
    let guard = redlock.try_acquire("dock-7").await.unwrap();
    guard.release().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn a_guard_record_vouches_for_a_young_node_up_to_its_longest_ttl() {
    let servers = young(3);
    for server in servers.iter() {
        server.vouch(SHORT_FLEET);
    }
    let redlock = Redlock::connect(servers.urls(), patient(TTL)).unwrap();
    let guard = redlock.try_acquire("dock-7").await.unwrap();
    guard.release().await;
    // Fenced clients of these nodes would not wait for it after a restart.
    let longer = redlock.with_options(patient(TTL + Duration::from_millis(1)));
    let error = longer.try_acquire("dock-7").await.unwrap_err();
    let words = "its guard record allows a TTL or min_hold of up to 1500 ms";
    assert!(error.to_string().contains(words), "{error}");
}

#[tokio::test(flavor = "multi_thread")]
async fn a_lease_is_not_extended_by_more_than_a_later_guard_record_allows() {
    let servers = Servers::start(3);
    let redlock = connected(&servers, patient(LIMIT)).await;
    let mut guard = redlock.acquire("dock-7").await.unwrap();
    for server in servers.iter() {
        server.vouch(SHORT_FLEET);
        let kill = ["CLIENT", "KILL", "TYPE", "normal"];
        assert_eq!(server.query::<u32>(&kill).unwrap(), 1);
    }
    let words = "its guard record allows a TTL or min_hold of up to 1500 ms";
    let start = Instant::now();
    // Until the client has met the nodes again.
    loop {
        let extended = guard.extend().await;
        let error = extended.map_or_else(|error| error.to_string(), |()| "extended".to_owned());
        if error.contains(words) {
            break;
        }
        assert!(start.elapsed() < LIMIT / 2, "{error}");
    }
    assert!(guard.is_valid(), "for the rest of its TTL");
    // From a second on, the nodes are asked again in the same write.
    for _ in 0..2 {
        tokio::time::sleep(Duration::from_millis(1_050)).await;
        let error = guard.extend().await.unwrap_err().to_string();
        assert!(error.contains(words), "{error}");
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn a_guard_record_vouches_also_for_a_node_that_was_met_before_it_was_written() {
    let servers = young(3);
    let options = patient(LIMIT * 10).wait(LIMIT);
    let redlock = Redlock::connect(servers.urls(), options).unwrap();
    denied(&redlock, "restarted").await;
    for server in servers.iter() {
        server.vouch("200000:250:60000");
    }
    // Long before the quarantine is over.
    redlock.acquire("dock-7").await.unwrap().release().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn a_guard_record_of_another_process_vouches_for_nobody() {
    let mut servers = Servers::start(3);
    let record: String = servers[0].query(&["GET", redlock_core::GUARD_KEY]).unwrap();
    restart_majority(&mut servers);
    for server in &servers[..2] {
        let set = ["SET", redlock_core::GUARD_KEY, &record];
        assert_eq!(server.query::<String>(&set).unwrap(), "OK");
    }
    let redlock = Redlock::connect(servers.urls(), patient(TTL)).unwrap();
    let error = redlock.try_acquire("dock-7").await.unwrap_err();
    assert!(error.to_string().contains("restarted "), "{error}");
}

#[tokio::test(flavor = "multi_thread")]
async fn a_server_that_is_named_twice_has_one_vote() {
    let mut servers = Servers::start(2);
    let port = servers[0].port();
    let urls = [
        servers[0].url(),
        format!("redis://localhost:{port}"),
        servers[1].url(),
    ];
    let redlock = Redlock::connect(&urls, patient(TTL)).unwrap();
    // Two of three are a quorum, when both are there.
    let guard = redlock.acquire("dock-7").await.unwrap();
    guard.release().await;
    servers.expect_no_keys().await;

    servers.get_mut(1).unwrap().kill();
    for redlock in [redlock, Redlock::connect(&urls, patient(TTL)).unwrap()] {
        let error = redlock.try_acquire("dock-7").await.unwrap_err();
        assert!(error.is_unreachable(), "{error}");
        // The name that has voted first is the first one.
        let [one, other] = ["localhost", "127.0.0.1"].map(|host| format!("{host}:{port}"));
        let said = [(&one, &other), (&other, &one)].map(|(one, other)| {
            format!("{one}: the same server as {other}; name each server once")
        });
        let error = error.to_string();
        assert!(said.iter().any(|said| error.contains(said)), "{error}");
    }
    eventually("no key is left", LIMIT, || servers[0].key_count() == 0).await;
}

#[tokio::test(flavor = "multi_thread")]
async fn a_replica_has_no_vote() {
    let servers = Servers::start(3);
    let master = servers[0].port().to_string();
    for replica in &servers[1..] {
        let follow = ["REPLICAOF", "127.0.0.1", &master];
        assert_eq!(replica.query::<String>(&follow).unwrap(), "OK");
    }
    // Also where nothing is asked of an age.
    let options = patient(TTL).restart_guard(false);
    let redlock = Redlock::connect(servers.urls(), options).unwrap();
    let error = redlock.try_acquire("dock-7").await.unwrap_err();
    assert!(error.is_unreachable(), "{error}");
    let words = format!(
        "127.0.0.1:{}: a replica, which has no vote; name its master",
        servers[1].port()
    );
    assert!(error.to_string().contains(&words), "{error}");
}

#[tokio::test(flavor = "multi_thread")]
async fn a_node_that_may_evict_is_warned_of_and_refused_when_the_option_says_so() {
    let servers = Servers::start(3);
    servers[..2].iter().for_each(let_evict);
    let redlock = connected(&servers, patient(TTL)).await;
    let warnings: Vec<_> = redlock.warnings().iter().map(ToString::to_string).collect();
    let expected = servers[..2].iter().map(|server| {
        let port = server.port();
        format!(
            "127.0.0.1:{port}: may evict locks when memory is short; set its maxmemory-policy to \
             noeviction"
        )
    });
    assert_eq!(warnings, expected.collect::<Vec<_>>());

    let strict = redlock.with_options(patient(TTL).refuse_eviction(true));
    let error = strict.try_acquire("dock-7").await.unwrap_err();
    assert!(error.is_unreachable(), "{error}");
    assert!(error.to_string().contains(&warnings[0]), "{error}");
}

/// The thread stands still from the question until the answer is as old as that. Meanwhile the policy of the nodes changes.
#[tokio::test]
async fn an_answer_that_is_read_late_is_asked_for_again() {
    let servers = Servers::start(3);
    let options = patient(TTL).node_timeout(Duration::from_millis(200));
    let redlock = connected(&servers, options.unwrap().refuse_eviction(true)).await;
    tokio::time::sleep(TTL / 2).await;
    let asked = |server: &Server| server.calls()["eval"];
    let before: Vec<_> = servers.iter().map(asked).collect();
    servers.iter().for_each(Server::pause);
    let error = redlock.try_acquire("dock-7").await.unwrap_err();
    assert!(error.is_unreachable(), "{error}");
    servers.iter().for_each(Server::resume);
    let resumed_at = Instant::now();
    while servers
        .iter()
        .map(asked)
        .ne(before.iter().map(|count| count + 1))
    {
        assert!(resumed_at.elapsed() < LIMIT, "the question is answered");
    }
    servers.iter().for_each(let_evict);
    std::thread::sleep(TTL / 2);

    // Now the answer is read.
    tokio::time::sleep(Duration::from_millis(50)).await;
    let error = redlock.try_acquire("dock-7").await.unwrap_err();
    let words = "may evict locks when memory is short";
    assert!(error.to_string().contains(words), "{error}");
}

#[tokio::test(flavor = "multi_thread")]
async fn a_lease_on_a_node_that_restarted_is_released_and_extended_all_the_same() {
    let mut servers = Servers::start(3);
    let redlock = connected(&servers, patient(TTL * 4)).await;
    let mut guard = redlock.acquire("dock-7").await.unwrap();
    servers.iter_mut().next().unwrap().restart();
    denied_by_one(&redlock, &servers[0]).await;
    guard.extend().await.unwrap();
    let released = guard.release().await;
    assert!(released.released() + released.gone() >= 2, "{released:?}");
    eventually("it was sent the release too", LIMIT, || {
        servers[0].calls()["evalsha"] >= 2
    })
    .await;
}

/// Servers that no operator vouches for.
fn young(count: usize) -> Servers {
    let servers = Servers::start(count);
    servers.iter().for_each(Server::disown);
    servers
}

/// Restarts two of three, and says when.
fn restart_majority(servers: &mut Servers) -> Instant {
    for server in servers.iter_mut().take(2) {
        server.kill();
    }
    let now = Instant::now();
    for server in servers.iter_mut().take(2) {
        server.restart();
    }
    now
}

/// The first error with this word: while connections are made it is another.
async fn denied(redlock: &Redlock, word: &str) -> AcquireError {
    let start = Instant::now();
    loop {
        let error = redlock.try_acquire("dock-7").await.unwrap_err();
        if error.to_string().matches(word).count() == 2 {
            return error;
        }
        assert!(start.elapsed() < LIMIT, "{error}");
        tokio::time::sleep(Duration::from_millis(1)).await;
    }
}

/// Waits until the client has met the process that `server` is now, and takes no vote of it.
async fn denied_by_one(redlock: &Redlock, server: &Server) {
    eventually("it is connected again", LIMIT, || {
        server.client_count() > 0 && server.calls()["eval"] > 0
    })
    .await;
    let options: &Options = redlock.options();
    let guard = redlock
        .with_options(*options)
        .try_acquire("another")
        .await
        .unwrap();
    guard.release().await;
    assert_eq!(server.calls()["set"], 0);
}
