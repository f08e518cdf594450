//! A majority of the nodes goes away and comes back.

use std::time::{Duration, Instant};

use redlock_tests::{Server, Servers};

use crate::figures;
use crate::firmware::{Firmware, order};

/// Short, so that a quarantine is.
const TTL: Duration = Duration::from_secs(3);
const WAIT: Duration = Duration::from_millis(1_000);
const NODE_TIMEOUT: Duration = Duration::from_millis(300);

#[tokio::test]
async fn a_stopped_majority_is_no_quorum_in_time_and_is_used_again_when_it_is_back() {
    let stop = |servers: &mut Servers| servers[..3].iter().for_each(Server::pause);
    let go_on = |servers: &mut Servers| servers[..3].iter().for_each(Server::resume);
    let message = outage(stop, go_on).await.message;
    // "timed out after", or "still connecting after" if the device had given its connection up before.
    let waited = message.split_once(" after ").unwrap().1;
    let (millis, _) = waited.split_once(" ms").unwrap();
    // As the device has measured it: the emulator may be late.
    let waited = Duration::from_millis(millis.parse().unwrap());
    assert!(waited >= NODE_TIMEOUT && waited < WAIT, "{message}");
}

#[tokio::test]
async fn a_dead_majority_is_no_quorum_in_time_and_is_used_again_when_it_is_back() {
    let kill = |servers: &mut Servers| servers[..3].iter_mut().for_each(Server::kill);
    let restart = |servers: &mut Servers| servers[..3].iter_mut().for_each(Server::restart);
    outage(kill, restart).await;
}

/// The Redlock specification, "Performance, crash recovery and fsync": delayed restarts, which no operator has
/// to think of.
#[tokio::test]
async fn a_majority_that_lost_its_data_has_no_vote_until_nothing_that_it_forgot_can_be_valid() {
    let restart = |servers: &mut Servers| servers[..3].iter_mut().for_each(Server::restart);
    let outage = outage(restart, |_| {}).await;
    let message = outage.message;
    assert_eq!(message.matches(": restarted ").count(), 3, "{message}");
    assert!(message.contains(", its vote counts again in "), "{message}");
    assert!(outage.lasted >= TTL, "{:?}", outage.lasted);
}

/// How an outage went.
struct Outage {
    /// What the firmware said while it lasted.
    message: String,
    /// From its beginning to the next acquire that succeeded.
    lasted: Duration,
}

async fn outage(begin: impl FnOnce(&mut Servers), end: impl FnOnce(&mut Servers)) -> Outage {
    let (mut servers, control) = (Servers::start(5), Server::start());
    // By the record of another fleet they would be without a vote for a minute.
    let rules = format!("{}:250:60000", TTL.as_millis());
    servers.iter().for_each(|server| server.vouch(&rules));
    let arguments = [
        ("ttl_ms", TTL.as_millis().to_string()),
        ("wait_ms", WAIT.as_millis().to_string()),
        ("node_timeout_ms", NODE_TIMEOUT.as_millis().to_string()),
    ];
    let mut firmware = Firmware::start("outage", &servers, &control, &arguments);
    firmware.wait_for("ready");

    let begun_at = Instant::now();
    begin(&mut servers);
    order(&control, "outage");
    let outcome = firmware.wait_for("outcome");
    let message = firmware.wait_for("message");
    firmware.wait_for("took_us");
    let took = Duration::from_micros(firmware.number("took_us"));
    assert_eq!(outcome, "unreachable", "{message}");
    assert!(message.starts_with("no quorum for dock-7: "), "{message}");
    for server in &servers[..3] {
        let node = format!("10.0.2.2:{}: ", server.port());
        assert!(message.contains(&node), "{message}");
    }
    // The last round begins within the wait; the nodes that answer are cleaned up at once.
    assert!(took >= WAIT, "gave up early: {took:?}");
    assert!(took < WAIT + NODE_TIMEOUT * 2, "{took:?}");
    assert_eq!(servers[3].key_count() + servers[4].key_count(), 0);

    end(&mut servers);
    order(&control, "recover");
    firmware.wait_for("recovered_us");
    let lasted = begun_at.elapsed();
    figures::print(&format!(
        "no quorum after {} ms, acquired again after {} ms",
        took.as_millis(),
        firmware.number("recovered_us") / 1_000,
    ));
    firmware.finish(&servers, &control).await;
    servers.expect_no_keys().await;
    Outage { message, lasted }
}
