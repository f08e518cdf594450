//! The firmware over TLS: a lock that it takes, and servers that it refuses.

use std::time::Duration;

use redlock_tests::{Authority, Server, Servers};

use crate::figures;
use crate::firmware::{Firmware, order};

/// The name that the firmware expects in the certificates.
const NAME: &str = "redis.example";

#[tokio::test]
async fn the_firmware_takes_a_lock_over_tls_and_releases_it() {
    let authority = Authority::create();
    let (servers, control) = (Servers::start(5), Server::start());
    let mut firmware = boot(&servers, &control, &authority, NAME, &authority);
    firmware.wait_for("acquired");
    let connected = Duration::from_micros(firmware.number("connected_us"));
    figures::print(&format!(
        "five TLS connections of the emulated device after {} ms",
        connected.as_millis()
    ));
    assert_eq!(servers.key_count(), 5);
    order(&control, "release");
    firmware.wait_for("released");
    // It returns at the quorum.
    assert!(firmware.number("released") >= 3);
    firmware.finish(&servers, &control).await;
    servers.expect_no_keys().await;
}

#[tokio::test]
async fn the_firmware_refuses_servers_with_certificates_of_another_ca_or_for_another_name() {
    let (known, other) = (Authority::create(), Authority::create());
    for (authority, name, why) in [
        (&other, NAME, "the certificate is not signed by the CA"),
        (
            &known,
            "redis-2.example",
            "the certificate is for another name",
        ),
    ] {
        let (servers, control) = (Servers::start(5), Server::start());
        let mut firmware = boot(&servers, &control, authority, name, &known);
        for _ in servers.iter() {
            assert_eq!(firmware.wait_for("refused"), why);
        }
        let message = firmware.wait_for("message");
        let refused = ": its certificate was refused: check its CA, name and dates";
        // The last round may find some of the nodes in the pause before the next attempt, or in it.
        // It counts the nodes that failed if another one has not answered.
        let counts = [": 0 of 5 nodes voted (", " of 5 nodes failed ("];
        let has_count = counts.iter().any(|count| message.contains(count));
        assert!(has_count, "{message}");
        assert!(message.contains(refused), "{message}");
        for server in servers.iter() {
            assert_eq!(server.calls()["eval"], 0, "it was not asked anything");
        }
        firmware.finish(&servers, &control).await;
    }
}

/// Boots the firmware, which trusts `trusted`, over servers whose certificates `authority` has signed for `name`.
fn boot(
    servers: &Servers,
    control: &Server,
    authority: &Authority,
    name: &str,
    trusted: &Authority,
) -> Firmware {
    servers
        .iter()
        .for_each(|server| server.vouch("10000:250:60000"));
    let ports: Vec<_> = servers
        .iter()
        .map(|server| {
            server
                .listen_with_tls(&authority.sign(name), authority, false)
                .to_string()
        })
        .collect();
    for piece in trusted.der().chunks(15) {
        let hex: String = piece.iter().map(|byte| format!("{byte:02x}")).collect();
        let _: u64 = control.query(&["RPUSH", "ca", &hex]).unwrap();
    }
    let arguments = [
        ("nodes", ports.join(":")),
        ("ttl_ms", "10000".to_owned()),
        ("node_timeout_ms", "1000".to_owned()),
        ("wait_ms", "3000".to_owned()),
    ];
    Firmware::start("tls", servers, control, &arguments)
}
