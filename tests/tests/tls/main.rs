//! `rediss://` against a real server with a certificate of its own.

#![expect(clippy::unwrap_used, reason = "what fails here fails a test")]

mod device;

use std::env;
use std::fs;
use std::path::Path;
use std::process::Command;
use std::time::Duration;

use redlock_std::{Options, Redlock};
use redlock_tests::Server;

const URL: &str = "REDLOCK_TEST_TLS_URL";

#[test]
fn a_lock_is_taken_and_released_over_tls() {
    let directory = tempfile::tempdir().unwrap();
    let certificate = certificate_in(directory.path());
    let server = Server::start();
    let url = with_tls(&server, directory.path());
    // A process of its own: where trusted certificates are is read from its environment.
    let client = Command::new(env::current_exe().unwrap())
        .args(["--exact", "tls_client", "--ignored"])
        .env(URL, url)
        .env("SSL_CERT_FILE", certificate)
        .output()
        .unwrap();
    assert!(
        client.status.success(),
        "{}",
        String::from_utf8_lossy(&client.stdout)
    );
    let calls = server.calls();
    assert_eq!(
        (calls["set"], calls["evalsha"], server.key_count()),
        (2, 2, 0)
    );
}

#[test]
#[ignore = "run by the other test, with its environment"]
fn tls_client() {
    rustls::crypto::ring::default_provider()
        .install_default()
        .unwrap();
    let url = env::var(URL).unwrap();
    let options = Options::new(Duration::from_secs(10)).unwrap();
    let options = options.node_timeout(Duration::from_secs(2)).unwrap();
    tokio::runtime::Runtime::new().unwrap().block_on(async {
        let redlock = Redlock::connect([url], options).unwrap();
        for _ in 0..2 {
            let guard = redlock.acquire("dock-7").await.unwrap();
            let released = guard.release().await;
            assert_eq!(released.released(), 1, "{released:?}");
        }
    });
}

/// Writes a certificate that signs itself, and its key.
fn certificate_in(directory: &Path) -> std::path::PathBuf {
    let names = vec!["127.0.0.1".to_owned()];
    let certified = rcgen::generate_simple_self_signed(names).unwrap();
    let path = directory.join("certificate.pem");
    fs::write(&path, certified.cert.pem()).unwrap();
    fs::write(
        directory.join("key.pem"),
        certified.signing_key.serialize_pem(),
    )
    .unwrap();
    path
}

/// Lets `server` speak TLS on another port.
fn with_tls(server: &Server, directory: &Path) -> String {
    let path = |name| directory.join(name).display().to_string();
    let (certificate, key) = (path("certificate.pem"), path("key.pem"));
    // One that was free a moment ago, and that no other server of this process gets.
    let port = Server::start().port().to_string();
    let mut words = vec!["CONFIG", "SET"];
    words.extend(["tls-cert-file", &certificate, "tls-key-file", &key]);
    words.extend(["tls-ca-cert-file", &certificate, "tls-auth-clients", "no"]);
    words.extend(["tls-port", &port]);
    assert_eq!(server.query::<String>(&words).unwrap(), "OK");
    format!("rediss://127.0.0.1:{port}")
}
