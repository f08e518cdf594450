//! Servers that have as many clients as their `maxclients`, or want another password.

use std::time::{Duration, Instant};

use redlock_std::{NodeStatus, Redlock};
use redlock_tests::{Server, Servers, eventually};

use crate::setup::patient;

const TTL: Duration = Duration::from_secs(10);

const LIMIT: Duration = Duration::from_secs(20);

const WORDS: &str = "ERR max number of clients reached; raise maxclients on this server";

#[tokio::test(flavor = "multi_thread")]
async fn a_server_that_has_too_many_clients_says_so_and_an_acquire_waits_until_it_has_fewer() {
    for password in [None, Some("hunter2")] {
        let servers = Servers::start(3);
        let crowds: Vec<_> = servers
            .iter()
            .map(|server| Crowd::at(server, password))
            .collect();
        let redlock = Redlock::connect(urls(&servers, password), patient(TTL)).unwrap();
        eventually("each node says so", LIMIT, || {
            let status = redlock.status();
            status.iter().all(|node| words(node).contains(WORDS))
        })
        .await;

        let wait = Duration::from_millis(500);
        let start = Instant::now();
        let hurried = redlock.with_options(patient(TTL).wait(wait));
        let error = hurried.acquire("dock-7").await.unwrap_err();
        assert!(start.elapsed() >= wait, "{error}");
        assert!(error.is_unreachable(), "{error}");
        assert!(!error.is_misconfigured(), "{error}");
        assert!(error.to_string().contains(WORDS), "{error}");
        assert!(!error.to_string().contains("passwords"), "{error}");

        let waiting = redlock.with_options(patient(TTL).wait(LIMIT));
        let waiting = tokio::spawn(async move { waiting.acquire("dock-7").await });
        tokio::time::sleep(Duration::from_millis(100)).await;
        assert!(!waiting.is_finished());
        drop(crowds);
        waiting.await.unwrap().unwrap().release().await;
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn a_wrong_password_ends_an_acquire_at_once_with_the_words_of_the_server() {
    let servers = Servers::start(3);
    for server in servers.iter() {
        let set = ["CONFIG", "SET", "requirepass", "hunter2"];
        assert_eq!(server.query::<String>(&set).unwrap(), "OK");
    }
    let patient = patient(TTL).wait(LIMIT);
    let redlock = Redlock::connect(urls(&servers, Some("hunter3")), patient).unwrap();
    let start = Instant::now();
    let error = redlock.acquire("dock-7").await.unwrap_err();
    assert!(start.elapsed() < LIMIT / 2, "{error}");
    assert!(error.is_misconfigured(), "{error}");
    let told = error.to_string();
    let words = "WRONGPASS invalid username-password pair or user is disabled";
    assert!(told.contains(words), "{told}");
    assert!(told.contains("check the users and the passwords"), "{told}");
    assert!(!told.contains("hunter"), "{told}");
}

/// All connections that a server has room for.
struct Crowd(#[expect(dead_code, reason = "they are held")] Vec<redis::Connection>);

impl Crowd {
    /// As many as a lock makes.
    const COUNT: usize = 3;

    fn at(server: &Server, password: Option<&str>) -> Self {
        let connect = |url: &str| redis::Client::open(url)?.get_connection();
        let mut first = connect(&server.url()).unwrap();
        let mut set = |setting: &str, value: &str| {
            let mut set = redis::cmd("CONFIG");
            set.arg(&["SET", setting, value]);
            set.exec(&mut first).unwrap();
        };
        set("maxclients", &Self::COUNT.to_string());
        if let Some(password) = password {
            set("requirepass", password);
        }
        let mut all = vec![first];
        let start = Instant::now();
        let url = url(server, password);
        // A connection of before may not have ended yet.
        while all.len() < Self::COUNT {
            assert!(start.elapsed() < LIMIT);
            all.extend(connect(&url).ok());
        }
        Self(all)
    }
}

fn words(node: &NodeStatus) -> String {
    node.error
        .as_ref()
        .map(ToString::to_string)
        .unwrap_or_default()
}

fn urls(servers: &Servers, password: Option<&str>) -> Vec<String> {
    servers.iter().map(|server| url(server, password)).collect()
}

fn url(server: &Server, password: Option<&str>) -> String {
    match password {
        Some(password) => format!("redis://:{password}@127.0.0.1:{}", server.port()),
        None => server.url(),
    }
}
