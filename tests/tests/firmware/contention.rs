//! The firmware and `redlock-std` want one lock.

use std::time::{Duration, Instant};

use redlock_tests::{Server, Servers, eventually};

use crate::contender::{Contender, Contest, NODE_TIMEOUT};
use crate::figures;
use crate::firmware::Firmware;
use crate::resource::Usage;

const ACQUISITIONS: u32 = 500;
const TTL: Duration = Duration::from_secs(10);

/// How long something takes that takes seconds.
const LIMIT: Duration = Duration::from_secs(120);

#[tokio::test]
async fn the_firmware_and_redlock_std_exclude_each_other() {
    let mut fight = Fight::begin(TTL);
    let usage = fight.end().await;
    assert!(usage.is_exclusive(), "{usage:?}");
    fight.servers.expect_no_keys().await;
}

#[tokio::test]
async fn the_firmware_and_redlock_std_exclude_each_other_while_a_node_is_stopped() {
    let mut fight = Fight::begin(TTL);
    fight.wait_for_uses(100).await;
    fight.servers[0].pause();
    fight.contender.finish().await;
    fight.firmware.wait_for("acquired");
    fight.servers[0].resume();
    let usage = fight.end().await;
    assert!(usage.is_exclusive(), "{usage:?}");
    // A connection that was replaced while the node was stopped may leave a key, which expires.
    eventually("no key is left", TTL * 2, || fight.servers.key_count() == 0).await;
}

#[tokio::test]
async fn the_firmware_and_redlock_std_exclude_each_other_when_a_node_is_killed_and_restarted() {
    const TTL: Duration = Duration::from_secs(2);

    let mut fight = Fight::begin(TTL);
    fight.wait_for_uses(100).await;
    // The Redlock specification, "Delayed restarts": both know that it has lost its keys, and take no vote
    // of it until all of them would have expired.
    let killed_at = Instant::now();
    fight.servers[0].restart();
    let uses = Usage::of(&fight.control).uses;
    fight.wait_for_uses(uses + 10).await;
    eventually("the node takes part again", LIMIT, || {
        fight.servers[0].calls()["set"] > 0
    })
    .await;
    let after = killed_at.elapsed();
    assert!(after > TTL, "the node takes part after {after:?}");
    let usage = fight.end().await;
    assert!(usage.is_exclusive(), "{usage:?}");
    fight.servers.expect_no_keys().await;
}

#[tokio::test]
async fn fences_grow_from_holder_to_holder_of_both() {
    let mut fight = Fight::begin_with(["dock-7"; 2], TTL, ACQUISITIONS, true);
    fight.wait_for_uses(100).await;
    for server in fight.servers.iter() {
        assert_eq!(server.query::<String>(&["SCRIPT", "FLUSH"]).unwrap(), "OK");
    }
    let usage = fight.end().await;
    assert!(usage.is_exclusive(), "{usage:?}");
    assert_eq!(usage.disorder, Some(0));
    // A release that was on its way when the scripts were flushed may leave a key, which expires.
    eventually("no key is left", TTL * 2, || fight.servers.key_count() == 0).await;
}

#[tokio::test]
async fn without_a_common_key_overlaps_are_seen() {
    let mut fight = Fight::begin_over(["dock-7", "dock-8"], TTL, 100);
    let usage = fight.end().await;
    assert!(usage.overlaps > 0 && !usage.is_exclusive(), "{usage:?}");
}

struct Fight {
    acquisitions: u32,
    servers: Servers,
    control: Server,
    firmware: Firmware,
    contender: Contender,
}

impl Fight {
    fn begin(ttl: Duration) -> Self {
        Self::begin_over(["dock-7"; 2], ttl, ACQUISITIONS)
    }

    fn begin_over(keys: [&str; 2], ttl: Duration, acquisitions: u32) -> Self {
        Self::begin_with(keys, ttl, acquisitions, false)
    }

    fn begin_with(keys: [&str; 2], ttl: Duration, acquisitions: u32, is_fenced: bool) -> Self {
        let (servers, control) = (Servers::start(5), Server::start());
        if !is_fenced {
            // Of a node that loses its data, no longer lease is to be waited for.
            let record = format!("{}:250:60000", ttl.as_millis());
            servers.iter().for_each(|server| server.vouch(&record));
        }
        let arguments = [
            ("key", keys[0].to_owned()),
            ("ttl_ms", ttl.as_millis().to_string()),
            ("node_timeout_ms", NODE_TIMEOUT.as_millis().to_string()),
            ("acquisitions", acquisitions.to_string()),
            ("fenced", is_fenced.to_string()),
        ];
        let firmware = Firmware::start("contend", &servers, &control, &arguments);
        let contest = Contest {
            key: keys[1],
            ttl,
            acquisitions,
            is_fenced,
        };
        let contender = Contender::start(&servers, &control, contest);
        Self {
            acquisitions,
            servers,
            control,
            firmware,
            contender,
        }
    }

    async fn wait_for_uses(&self, count: u64) {
        eventually("both go on", LIMIT, || {
            Usage::of(&self.control).uses >= count
        })
        .await;
    }

    /// Waits until both are done; what became of the resource.
    async fn end(&mut self) -> Usage {
        self.contender.finish().await;
        self.firmware.finish(&self.servers, &self.control).await;
        let usage = Usage::of(&self.control);
        let acquisitions = u64::from(self.acquisitions);
        assert_eq!(self.firmware.number("acquired"), acquisitions);
        assert!(usage.uses >= 2 * acquisitions, "{usage:?}");
        assert_eq!(self.firmware.number("not_extended"), 0);
        assert_eq!(self.firmware.number("outlived"), 0);
        assert!(usage.changes >= 10, "they did not contend: {usage:?}");
        figures::print(&format!(
            "{} uses, {} changes of side, {} overlaps; the device found the lock held {} times",
            usage.uses,
            usage.changes,
            usage.overlaps,
            self.firmware.number("held"),
        ));
        usage
    }
}
