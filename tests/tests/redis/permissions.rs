//! What a user must be allowed to do, and what is said of one who is not.

use std::time::Duration;

use redlock_std::{Fencing, NodeStatus, Options, Redlock};
use redlock_tests::{Servers, eventually, wait_to_be_called};

use crate::setup::patient;

const TTL: Duration = Duration::from_secs(10);

#[tokio::test(flavor = "multi_thread")]
async fn a_user_with_just_the_permissions_that_the_documentation_names_can_lock() {
    let servers = Servers::start(3);
    grant(&servers, KEYS, PLAIN);
    let redlock = connect(&servers, patient(TTL));
    let mut guard = redlock.acquire("lock:dock-7").await.unwrap();
    guard.extend().await.unwrap();
    guard.release().await;
    servers.expect_no_keys().await;

    let error = redlock.try_acquire("dock-7").await.unwrap_err().to_string();
    assert!(error.contains("NOPERM"), "{error}");
}

#[tokio::test(flavor = "multi_thread")]
async fn a_database_takes_the_permission_that_the_documentation_names() {
    let servers = Servers::start(3);
    grant(&servers, KEYS, PLAIN);
    let urls: Vec<_> = urls(&servers).map(|url| url + "/1").collect();
    // None vouches for a database of its own.
    let options = patient(TTL).restart_guard(false);
    let redlock = Redlock::connect(&urls, options).unwrap();
    let error = redlock.try_acquire("lock:dock-7").await.unwrap_err();
    assert!(error.to_string().contains("'select'"), "{error}");

    grant(&servers, KEYS, "+select");
    let redlock = Redlock::connect(&urls, options).unwrap();
    lock_and_release(&redlock, "lock:dock-7").await;
}

#[test]
fn another_user_with_the_permissions_that_the_documentation_names_cannot_take_a_lock_away() {
    let server = redlock_tests::Server::start();
    let documented = include_str!("../../../SECURITY.md").lines();
    let rules = documented.clone().find(|line| line.starts_with("+@all "));
    let user = [
        "ACL",
        "SETUSER",
        "other",
        "on",
        "nopass",
        "resetkeys",
        "~app:*",
    ];
    let words: Vec<_> = user.into_iter().chain(rules.unwrap().split(' ')).collect();
    assert_eq!(server.query::<String>(&words).unwrap(), "OK");
    assert_eq!(
        server
            .query::<String>(&["SET", "lock:dock-7", "held"])
            .unwrap(),
        "OK"
    );

    let url = format!("redis://other:any@127.0.0.1:{}", server.port());
    let mut other = redis::Client::open(url).unwrap().get_connection().unwrap();
    let mut run = |words: &str| {
        let words: Vec<_> = words.split(' ').collect();
        let answer = redis::cmd(words[0])
            .arg(&words[1..])
            .query::<redis::Value>(&mut other);
        answer.map_err(|error| error.to_string())
    };
    run("SET app:x 1").unwrap();
    for words in [
        "DEL lock:dock-7",
        "GEORADIUS app:none 0 0 1 m STORE app:x STORE lock:dock-7",
        "GEORADIUSBYMEMBER app:none member 1 m STORE app:x STORE lock:dock-7",
        "EVAL return(redis.call('GEORADIUS','app:none',0,0,1,'m','STORE','app:x','STORE','lock:dock-7')) 0",
        "SORT app:none STORE lock:dock-7",
        "FLUSHALL",
        "SCRIPT FLUSH",
        "SCRIPT KILL",
        "SCRIPT DEBUG YES",
        "FUNCTION FLUSH",
        "CONFIG SET maxmemory-policy allkeys-lru",
        "CLIENT TRACKING ON",
    ] {
        let error = run(words).expect_err(words);
        let is_refused = error.contains("NoPerm") || error.contains("can't run this command");
        assert!(is_refused, "{words}: {error}");
    }
    assert_eq!(
        server.query::<String>(&["GET", "lock:dock-7"]).unwrap(),
        "held"
    );
}

#[tokio::test(flavor = "multi_thread")]
async fn a_user_with_just_the_permissions_that_the_documentation_names_can_lock_fenced() {
    let servers = Servers::start(3);
    grant(&servers, KEYS, PLAIN);
    grant(&servers, "~redlock:fence:lock:*", "+pttl");
    let redlock = connect(&servers, patient(TTL).fenced(Fencing::default()).unwrap());
    let mut guard = redlock.acquire("lock:dock-7").await.unwrap();
    let other = connect(&servers, *redlock.options());
    let error = other.try_acquire("lock:dock-7").await.unwrap_err();
    assert!(error.is_held(), "it may ask for how long: {error}");
    // One node has lost the key, and sets it again.
    servers[0].query::<u64>(&["DEL", "lock:dock-7"]).unwrap();
    guard.extend().await.unwrap();
    guard.release().await;
    servers.expect_no_keys().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn a_user_with_just_the_permissions_that_the_documentation_names_is_called_in_the_line() {
    for fencing in [None, Some(Fencing::default())] {
        let servers = Servers::start(3);
        grant(&servers, KEYS, PLAIN);
        grant(&servers, LINE_KEYS, LINE);
        let mut options = patient(TTL);
        if let Some(fencing) = fencing {
            grant(&servers, "~redlock:fence:lock:*", "+pttl");
            options = options.fenced(fencing).unwrap();
        }
        let [first, second] = [(); 2].map(|()| connect(&servers, options));
        let guard = first.acquire("lock:dock-7").await.unwrap();
        let waiting =
            wait_to_be_called(&second, "lock:dock-7", &Vec::from_iter(servers.iter())).await;
        guard.release().await;
        waiting.await.unwrap().release().await;
        for client in [first, second] {
            assert_eq!(client.warnings(), []);
        }
        servers.expect_no_keys().await;
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn without_the_permission_to_ask_who_a_node_is_the_error_names_it() {
    for (keys, commands) in [
        (KEYS, PLAIN.replace("+info", "-info")),
        (KEYS, PLAIN.replace("+time", "-time")),
        ("~lock:*", PLAIN.to_owned()),
    ] {
        let servers = Servers::start(3);
        grant(&servers, keys, &commands);
        let redlock = connect(&servers, patient(TTL));
        let error = redlock.try_acquire("lock:dock-7").await.unwrap_err();
        assert!(error.is_unreachable(), "{error}");
        let words = "+info +time ~redlock:guard, or disable the restart guard";
        assert!(error.to_string().contains(words), "{error}");

        let unguarded = redlock.with_options(patient(TTL).restart_guard(false));
        let guard = unguarded.try_acquire("lock:dock-7").await.unwrap();
        guard.release().await;
        servers.expect_no_keys().await;
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn a_user_who_may_run_no_script_takes_no_lock_that_could_not_be_released() {
    let servers = Servers::start(3);
    grant(&servers, "~*", "+@read +@write +info +time");
    for options in [patient(TTL), patient(TTL).restart_guard(false)] {
        let redlock = connect(&servers, options);
        // The wait is ended at once.
        let error = redlock.acquire("lock:dock-7").await.unwrap_err();
        assert!(error.is_misconfigured(), "{error}");
        let words = "'eval' command; grant `+eval +evalsha +script|load`";
        assert!(error.to_string().contains(words), "{error}");
    }
    servers.expect_no_keys().await;

    // It is enough.
    grant(&servers, "~*", "+eval +evalsha +script|load");
    let redlock = connect(&servers, patient(TTL));
    let guard = redlock.acquire("lock:dock-7").await.unwrap();
    guard.release().await;
    servers.expect_no_keys().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn a_command_of_a_script_that_the_user_may_not_call_costs_the_vote_and_is_told_with_what_to_grant()
 {
    for missing in ["+get", "+set"] {
        // They say it in different words.
        for servers in [Servers::start(3), Servers::start_valkey(3)] {
            without_a_command_of_a_script(&servers, missing).await;
        }
    }
}

async fn without_a_command_of_a_script(servers: &Servers, missing: &str) {
    grant(servers, KEYS, PLAIN);
    grant(servers, "~redlock:fence:lock:*", "+pttl");
    let redlock = connect(servers, patient(TTL).fenced(Fencing::default()).unwrap());
    lock_and_release(&redlock, "lock:dock-7").await;

    grant(servers, "~lock:*", &missing.replace('+', "-"));
    let refused = tokio::time::timeout(TTL, async {
        while redlock.status().iter().any(NodeStatus::has_vote) {
            let error = redlock.try_acquire("lock:dock-7").await.unwrap_err();
            let advice = "grant `~KEY ~redlock:guard +set +get";
            assert!(error.to_string().contains(advice), "{error}");
        }
    });
    assert!(refused.await.is_ok(), "{:?}", redlock.status());

    grant(servers, "~lock:*", missing);
    let granted = tokio::time::timeout(TTL, async {
        while !redlock.status().iter().all(NodeStatus::has_vote) {
            lock_and_release(&redlock, "lock:dock-7").await;
        }
    });
    assert!(granted.await.is_ok(), "{:?}", redlock.status());
}

#[tokio::test(flavor = "multi_thread")]
async fn a_release_that_the_user_may_not_do_is_in_the_warnings_until_one_is_done() {
    for servers in [Servers::start(3), Servers::start_valkey(3)] {
        without_the_permission_to_release(&servers).await;
    }
}

async fn without_the_permission_to_release(servers: &Servers) {
    grant(servers, KEYS, PLAIN);
    let redlock = connect(servers, patient(TTL));
    let refusals = || {
        let warnings = redlock.warnings();
        let mut told = warnings.iter().map(ToString::to_string).collect::<Vec<_>>();
        told.retain(|told| told.contains("refuses releases"));
        told
    };
    lock_and_release(&redlock, "lock:dock-7").await;
    assert_eq!(refusals(), [""; 0]);

    grant(servers, "~lock:*", "-del");
    drop(redlock.acquire("lock:dock-7").await.unwrap());
    eventually("they are known", TTL, || refusals().len() >= 2).await;
    let told = refusals();
    assert!(told.iter().all(|told| told.contains("+del")), "{told:?}");

    // Known also on later connections.
    for server in servers.iter() {
        let _killed: u64 = server.query(&["CLIENT", "KILL", "USER", "locker"]).unwrap();
    }
    grant(servers, "~lock:*", "+del");
    let releasing = tokio::time::timeout(TTL, async {
        while !refusals().is_empty() {
            lock_and_release(&redlock, "lock:dock-8").await;
        }
    });
    assert!(releasing.await.is_ok(), "{:?}", refusals());
}

async fn lock_and_release(redlock: &Redlock, key: &str) {
    redlock.acquire(key).await.unwrap().release().await;
}

/// As in the documentation of `Redlock::connect`.
const KEYS: &str = "~lock:* ~redlock:guard";
const PLAIN: &str = "+set +get +del +pexpire +evalsha +eval +script|load +info +time";

const LINE_KEYS: &str = "~redlock:queue:lock:* &redlock:mail:*";
const LINE: &str =
    "+exists +pttl +zadd +zrem +zrange +zrank +zscore +zcard +publish +pubsub +subscribe";

fn grant(servers: &Servers, keys: &str, commands: &str) {
    for server in servers.iter() {
        let mut words = vec!["ACL", "SETUSER", "locker", "on", ">secret"];
        words.extend(keys.split(' '));
        words.extend(commands.split(' '));
        assert_eq!(server.query::<String>(&words).unwrap(), "OK");
    }
}

fn connect(servers: &Servers, options: Options) -> Redlock {
    Redlock::connect(urls(servers), options).unwrap()
}

fn urls(servers: &Servers) -> impl Iterator<Item = String> {
    let ports = servers.iter().map(redlock_tests::Server::port);
    ports.map(|port| format!("redis://locker:secret@127.0.0.1:{port}"))
}
