//! The firmware waits in the same line as clients of `redlock-std`.

use std::collections::BTreeMap;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

use redlock_std::{Options, Redlock};
use redlock_tests::{Server, Servers};
use tokio::task::JoinSet;
use tokio::time::sleep;

use crate::contender::NODE_TIMEOUT;
use crate::figures;
use crate::firmware::Firmware;

/// How often the firmware holds the lock.
const TURNS: u32 = 150;

/// How long a client of the host holds it. In the turns of the others, the emulated device must get back into the line: it needs
/// five sockets, and milliseconds for what a device does in one.
const HELD: Duration = Duration::from_millis(10);

#[tokio::test(flavor = "multi_thread")]
async fn the_firmware_takes_turns_with_clients_of_redlock_std() {
    let (servers, control) = (Servers::start(5), Server::start());
    let options = Options::new(Duration::from_secs(10))
        .unwrap()
        .node_timeout(NODE_TIMEOUT)
        .unwrap()
        .wait(Duration::from_secs(60));
    servers
        .iter()
        .for_each(|server| server.vouch("10000:250:60000"));
    let is_over = Arc::new(AtomicBool::new(false));
    let mut clients = JoinSet::new();
    let urls = (servers.urls(), control.url());
    for name in ["host-1", "host-2"] {
        let redlock = Redlock::connect(&urls.0, options).unwrap();
        let mut control = redis::Client::open(urls.1.clone())
            .unwrap()
            .get_connection()
            .unwrap();
        let is_over = is_over.clone();
        clients.spawn(async move {
            while !is_over.load(Ordering::Relaxed) {
                let guard = redlock.acquire("dock-7").await.unwrap();
                let push = redis::cmd("RPUSH")
                    .arg("turns")
                    .arg(name)
                    .exec(&mut control);
                push.unwrap();
                sleep(HELD).await;
                guard.release().await;
            }
        });
    }
    let arguments = [
        ("ttl_ms", "10000".to_owned()),
        ("node_timeout_ms", NODE_TIMEOUT.as_millis().to_string()),
        ("wait_ms", "60000".to_owned()),
        ("acquisitions", TURNS.to_string()),
    ];
    let mut firmware = Firmware::start("wait", &servers, &control, &arguments);
    firmware.wait_for("waited");
    is_over.store(true, Ordering::Relaxed);
    while let Some(done) = clients.join_next().await {
        done.unwrap();
    }
    firmware.finish(&servers, &control).await;
    assert_eq!(firmware.number("outlived"), 0);

    let holders: Vec<String> = control.query(&["LRANGE", "turns", "0", "-1"]).unwrap();
    let turns = turns(&holders);
    figures::print(&format!("turns beside the firmware: {turns:?}"));
    assert_eq!(turns.len(), 3, "{turns:?}");
    let (least, most) = (turns.values().min().unwrap(), turns.values().max().unwrap());
    assert!(least * 10 >= most * 8, "{turns:?}");
    servers.expect_no_keys().await;
}

/// The number of turns of each client, from the first turn of the firmware to its last one.
fn turns(holders: &[String]) -> BTreeMap<&str, usize> {
    let is_firmware = |holder: &String| holder == "firmware";
    let first = holders.iter().position(is_firmware).unwrap();
    let last = holders.iter().rposition(is_firmware).unwrap();
    let mut turns = BTreeMap::new();
    for holder in &holders[first..=last] {
        *turns.entry(holder.as_str()).or_default() += 1;
    }
    turns
}
