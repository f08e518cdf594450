//! A process that takes the lock through `redlock-std`.

use std::io::Read;
use std::process::{Child, Command, Stdio};
use std::time::Duration;

use redlock_std::{Fencing, Options, Redlock};
use redlock_tests::{Server, Servers, eventually, expect_no_secret};

use crate::resource::{self, Usage};

/// A running contender; it ends with its handle.
#[derive(Debug)]
pub(crate) struct Contender(Child);

/// What it does.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Contest<'a> {
    pub(crate) key: &'a str,
    pub(crate) ttl: Duration,
    pub(crate) acquisitions: u32,
    pub(crate) is_fenced: bool,
}

impl Contender {
    /// Starts a process that takes the lock of `contest` and uses what it protects, again and again.
    pub(crate) fn start(servers: &Servers, control: &Server, contest: Contest<'_>) -> Self {
        let role = [
            contest.key.to_owned(),
            contest.ttl.as_millis().to_string(),
            contest.acquisitions.to_string(),
            contest.is_fenced.to_string(),
            control.url(),
        ];
        let role = [&role[..], &servers.urls()].concat().join(" ");
        // The same program, in one of its tests.
        let child = Command::new(std::env::current_exe().unwrap())
            .args([TEST, "--exact", "--nocapture"])
            .env(ROLE, role)
            .stdout(Stdio::null())
            .stderr(Stdio::piped())
            .spawn()
            .unwrap();
        Self(child)
    }

    /// Waits until it has acquired the lock as often as it should.
    pub(crate) async fn finish(&mut self) {
        const LIMIT: Duration = Duration::from_secs(120);

        eventually("the contender is done", LIMIT, || {
            self.0.try_wait().unwrap().is_some()
        })
        .await;
        let mut told = String::new();
        // `None` if this is not the first call.
        if let Some(mut stderr) = self.0.stderr.take() {
            stderr.read_to_string(&mut told).unwrap();
        }
        expect_no_secret(&told);
        assert!(self.0.wait().unwrap().success(), "{told}");
    }
}

impl Drop for Contender {
    fn drop(&mut self) {
        // It may have ended already.
        drop(self.0.kill());
        drop(self.0.wait());
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn two_contenders_of_this_make_exclude_each_other() {
    if let Ok(role) = std::env::var(ROLE) {
        // This is the other process.
        return contend(&role).await;
    }
    let (servers, control) = (Servers::start(5), Server::start());
    let contest = Contest {
        key: "dock-7",
        ttl: Duration::from_secs(10),
        acquisitions: 50,
        is_fenced: false,
    };
    let mut contenders = [(); 2].map(|()| Contender::start(&servers, &control, contest));
    for contender in &mut contenders {
        contender.finish().await;
    }
    let usage = Usage::of(&control);
    assert!(usage.is_exclusive() && usage.uses > 100, "{usage:?}");
    servers.expect_no_keys().await;
}

/// What the other process does.
async fn contend(role: &str) {
    /// Every so many acquisitions the lease is extended, and used again.
    const EXTEND_EVERY: u32 = 8;

    let words: Vec<_> = role.split(' ').collect();
    let [key, ttl, acquisitions, is_fenced, control, nodes @ ..] = &words[..] else {
        panic!("not a role: {role}");
    };
    let mut options = Options::new(Duration::from_millis(ttl.parse().unwrap()))
        .unwrap()
        .node_timeout(NODE_TIMEOUT)
        .unwrap()
        .wait(Duration::from_secs(60));
    if is_fenced.parse().unwrap() {
        options = options.fenced(Fencing::default()).unwrap();
    }
    let redlock = Redlock::connect(nodes, options).unwrap();
    let mut control = redis::Client::open(*control)
        .unwrap()
        .get_connection()
        .unwrap();
    let name = format!("host-{}", std::process::id());
    for number in 1..=acquisitions.parse::<u32>().unwrap() {
        let mut guard = redlock.acquire(key).await.unwrap();
        if let Some(fence) = guard.fence() {
            resource::show(&mut control, fence);
        }
        resource::use_alone(&mut control, &name);
        if number % EXTEND_EVERY == 0 {
            guard.extend().await.unwrap();
            resource::use_alone(&mut control, &name);
        }
        assert!(guard.is_valid(), "the lease was over before the work");
        guard.release().await;
        // So that the other side has its turn: without a pause the next acquire is right behind.
        let micros = u64::from(number.wrapping_mul(2_654_435_761) >> 18);
        tokio::time::sleep(Duration::from_micros(micros)).await;
    }
}

/// Longer than a busy machine pauses a process.
pub(crate) const NODE_TIMEOUT: Duration = Duration::from_millis(500);

/// In the environment of the other process: what it is to do.
const ROLE: &str = "REDLOCK_TESTS_CONTENDER";

/// Where the other process begins.
const TEST: &str = "contender::two_contenders_of_this_make_exclude_each_other";
