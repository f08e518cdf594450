//! Two tasks of the firmware hold two keys at once, over one set of sockets.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

use redlock_std::{Options, Redlock};
use redlock_tests::{Server, Servers, eventually};
use tokio::task::JoinSet;

use crate::contender::NODE_TIMEOUT;
use crate::figures;
use crate::firmware::{Firmware, order};

/// How often both tasks hold their keys at once.
const HELD: u32 = 40;

/// How often one task uses its key while the other one waits.
const USES: u64 = 20;

#[tokio::test(flavor = "multi_thread")]
async fn two_tasks_of_the_firmware_hold_two_keys_at_once_and_neither_waits_for_the_wait_of_the_other()
 {
    let (servers, control) = (Servers::start(5), Server::start());
    servers
        .iter()
        .for_each(|server| server.vouch("10000:250:60000"));
    let options = Options::new(Duration::from_secs(10))
        .unwrap()
        .node_timeout(NODE_TIMEOUT)
        .unwrap()
        .wait(Duration::from_secs(120));
    let redlock = Redlock::connect(servers.urls(), options).unwrap();
    let is_over = Arc::new(AtomicBool::new(false));
    let mut clients = JoinSet::new();
    for (key, visitors) in [("dock-a", "visitors-a"), ("dock-b", "visitors-b")] {
        let (redlock, is_over) = (redlock.clone(), is_over.clone());
        let mut control = redis::Client::open(control.url())
            .unwrap()
            .get_connection()
            .unwrap();
        clients.spawn(async move {
            let (mut uses, mut overlaps) = (0, 0);
            while !is_over.load(Ordering::Relaxed) {
                let guard = redlock.acquire(key).await.unwrap();
                let count = |name: &str| redis::cmd(name).arg(visitors).clone();
                let here: u64 = count("INCR").query(&mut control).unwrap();
                uses += 1;
                overlaps += u64::from(here != 1);
                count("DECR").exec(&mut control).unwrap();
                guard.release().await;
                // Longer than the device takes to try again.
                tokio::time::sleep(Duration::from_millis(20)).await;
            }
            (uses, overlaps)
        });
    }
    let arguments = [
        ("ttl_ms", "10000".to_owned()),
        ("node_timeout_ms", NODE_TIMEOUT.as_millis().to_string()),
        ("wait_ms", "120000".to_owned()),
        ("acquisitions", HELD.to_string()),
    ];
    let mut firmware = Firmware::start("share", &servers, &control, &arguments);
    firmware.wait_for("held_together");
    is_over.store(true, Ordering::Relaxed);
    while let Some(done) = clients.join_next().await {
        let (uses, overlaps) = done.unwrap();
        figures::print(&format!("{uses} uses of a key by the host"));
        assert!(uses > 0, "the host did not contend");
        assert_eq!(overlaps, 0);
    }
    assert_eq!(firmware.number("overlaps"), 0);

    let mut guard = redlock.acquire("dock-b").await.unwrap();
    let before = uses(&control);
    order(&control, "wait");
    let limit = Duration::from_secs(60);
    eventually(
        "one key is used while the other is waited for",
        limit,
        || uses(&control) >= before + USES,
    )
    .await;
    assert!(guard.extend().await.is_ok(), "it was held all the time");
    guard.release().await;
    drop(redlock);
    firmware.wait_for("waited");
    firmware.finish(&servers, &control).await;
    servers.expect_no_keys().await;
}

fn uses(control: &Server) -> u64 {
    let uses: Option<u64> = control.query(&["GET", "uses"]).unwrap();
    uses.unwrap_or(0)
}
