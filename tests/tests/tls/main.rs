//! `rediss://` against real servers with certificates of their own.

#![expect(
    clippy::unwrap_used,
    clippy::print_stdout,
    reason = "what fails here fails a test, and figures are printed"
)]

mod certificates;
mod device;

use std::env;
use std::ffi::OsStr;
use std::fs;
use std::io::{Read, Write};
use std::net::{TcpListener, TcpStream};
use std::path::Path;
use std::process::{Command, Output};
use std::sync::Arc;
use std::time::Duration;

use redlock_std::{Options, Redlock};
use redlock_tests::{Authority, Certified, TlsServer, connect_storm, wait_to_be_called};
use rustls::pki_types::pem::PemObject;
use rustls::pki_types::{CertificateDer, PrivateKeyDer};
use rustls::{ServerConfig, ServerConnection, StreamOwned};

const URL: &str = "REDLOCK_TEST_TLS_URL";

#[test]
fn a_lock_is_taken_and_released_over_tls() {
    let authority = Authority::create();
    let server = TlsServer::start(&authority, false);
    let client = client_that_trusts(&authority.certificate(), &server);
    assert!(client.status.success(), "{}", told(&client));
    let calls = server.calls();
    assert_eq!(
        (calls["set"], calls["evalsha"], server.key_count()),
        (2, 2, 0)
    );
}

#[test]
fn one_bad_certificate_does_not_keep_the_others_of_the_system_from_being_trusted() {
    const NONE: &str = "-----BEGIN CERTIFICATE-----\nbm90IG9uZQ==\n-----END CERTIFICATE-----\n";
    const BROKEN: &str = "-----BEGIN CERTIFICATE-----\n%%%\n-----END CERTIFICATE-----\n";

    let authority = Authority::create();
    let server = TlsServer::start(&authority, false);
    let good = fs::read_to_string(authority.certificate()).unwrap();
    let directory = tempfile::tempdir().unwrap();
    let store = directory.path().join("store.pem");
    for pem in [format!("{NONE}{good}"), format!("{good}{BROKEN}")] {
        fs::write(&store, &pem).unwrap();
        let client = client_that_trusts(&store, &server);
        assert!(client.status.success(), "{pem}: {}", told(&client));
    }
    for (pem, why) in [
        (NONE, "this system trusts no certificate"),
        ("", "store.pem is empty: name a PEM file"),
    ] {
        fs::write(&store, pem).unwrap();
        let client = client_that_trusts(&store, &server);
        assert!(told(&client).contains(why), "{}", told(&client));
        assert!(told(&client).contains("TLS cannot be set up"));
    }
}

#[test]
fn the_directories_of_certificates_may_hold_other_files_and_no_more_than_64_mib() {
    let authority = Authority::create();
    let server = TlsServer::start(&authority, false);
    let [certificates, others] = [(); 2].map(|()| tempfile::tempdir().unwrap());
    let names = [certificates.path(), others.path()];
    let both = env::join_paths(names).unwrap();
    fs::copy(authority.certificate(), certificates.path().join("ca.pem")).unwrap();
    std::os::unix::fs::symlink("ca.pem", certificates.path().join("5a3f0f31.0")).unwrap();
    std::os::unix::fs::symlink("none.pem", certificates.path().join("5a3f0f31.1")).unwrap();
    fs::write(others.path().join("notes"), "no certificate").unwrap();
    // Its length is 0, and it has no end.
    std::os::unix::fs::symlink("/proc/self/pagemap", others.path().join("endless")).unwrap();
    let client = client_with("SSL_CERT_DIR", &both, &server);
    assert!(client.status.success(), "{}", told(&client));
    assert!(!told(&client).contains("TLS"), "{}", told(&client));

    for number in 0..2 {
        let part = fs::File::create(others.path().join(format!("part-{number}"))).unwrap();
        part.set_len(33 << 20).unwrap();
    }
    let client = client_with("SSL_CERT_DIR", &both, &server);
    let words = "SSL_CERT_DIR holds more than 64 MiB: name directories of PEM files";
    assert!(told(&client).contains(words), "{}", told(&client));

    let missing = certificates.path().join("missing");
    let client = client_with("SSL_CERT_DIR", missing.as_os_str(), &server);
    let words = "trusts no certificate (opening directory: ";
    assert!(told(&client).contains(words), "{}", told(&client));
}

fn client_that_trusts(store: &Path, server: &TlsServer) -> Output {
    client_with("SSL_CERT_FILE", store.as_os_str(), server)
}

/// A process of its own: where trusted certificates are is read from its environment.
fn client_with(name: &str, value: &OsStr, server: &TlsServer) -> Output {
    Command::new("sh")
        // Far less than what has no end.
        .args(["-c", "ulimit -v 4000000; exec \"$@\"", "sh"])
        .arg(env::current_exe().unwrap())
        .args(["--exact", "tls_client", "--ignored", "--nocapture"])
        .env(URL, server.tls_url())
        .env_remove("SSL_CERT_FILE")
        .env_remove("SSL_CERT_DIR")
        .env(name, value)
        .output()
        .unwrap()
}

fn told(client: &Output) -> String {
    String::from_utf8_lossy(&client.stdout).into_owned() + &String::from_utf8_lossy(&client.stderr)
}

#[test]
#[ignore = "run by the other tests, with its environment"]
fn tls_client() {
    rustls::crypto::ring::default_provider()
        .install_default()
        .unwrap();
    let url = env::var(URL).unwrap();
    tokio::runtime::Runtime::new().unwrap().block_on(async {
        let redlock = match Redlock::connect([url], patient()) {
            Ok(redlock) => redlock,
            Err(error) => {
                println!("{error}");
                return;
            }
        };
        for _ in 0..2 {
            let guard = redlock.acquire("dock-7").await.unwrap();
            let released = guard.release().await;
            assert_eq!(released.released(), 1, "{released:?}");
        }
    });
}

#[tokio::test]
async fn a_client_with_a_certificate_is_let_in() {
    let authority = Authority::create();
    let server = TlsServer::start(&authority, true);
    let tls = authority.config(Some(&authority.sign("client")));
    let redlock = Redlock::connect_with_tls([server.tls_url()], patient(), &tls).unwrap();
    let guard = redlock.acquire("dock-7").await.unwrap();
    assert_eq!(server.key_count(), 1);
    assert_eq!(guard.release().await.released(), 1);
}

#[tokio::test]
async fn a_client_that_waits_is_called_over_tls() {
    let authority = Authority::create();
    let server = TlsServer::start(&authority, true);
    let tls = authority.config(Some(&authority.sign("client")));
    let connect = || Redlock::connect_with_tls([server.tls_url()], patient(), &tls).unwrap();
    let [first, second] = [connect(), connect()];
    for _ in 0..20 {
        let guard = first.acquire("dock-7").await.unwrap();
        let waiting = wait_to_be_called(&second, "dock-7", &[&server]).await;
        guard.release().await;
        waiting.await.unwrap().release().await;
    }
    assert_eq!((first.warnings(), second.warnings()), (vec![], vec![]));
    assert!(server.calls()["publish"] >= 20);
    assert_eq!(server.key_count(), 0);
}

#[tokio::test]
async fn a_server_that_asks_for_a_certificate_refuses_a_client_without_one_and_the_error_says_so() {
    let authority = Authority::create();
    let server = TlsServer::start(&authority, true);
    let tls = authority.config(None);
    let error = refused(&server, &tls).await;
    assert!(error.contains("CertificateRequired"), "{error}");
    let other = Authority::create();
    let stranger = authority.config(Some(&other.sign("client")));
    let error = refused(&server, &stranger).await;
    assert!(error.contains("alert"), "{error}");
}

#[tokio::test]
async fn a_server_that_another_authority_has_signed_for_is_refused_and_the_error_says_so() {
    let server = TlsServer::start(&Authority::create(), false);
    let tls = Authority::create().config(None);
    let error = refused(&server, &tls).await;
    assert!(error.contains("invalid peer certificate"), "{error}");
    assert_eq!(server.calls()["set"], 0);
}

#[tokio::test(flavor = "multi_thread")]
async fn what_a_handshake_may_take_is_not_left_for_replies() {
    // More than a reply may be long, and less than a handshake.
    const REPLY: usize = 60_000;

    let authority = Authority::create();
    let url = serve(&authority.sign("127.0.0.1"), |mut stream| {
        // To the first word of the login.
        let _length = stream.read(&mut [0; 1_000]);
        let reply = format!("${REPLY}\r\n{}\r\n", "x".repeat(REPLY));
        drop(stream.write_all(reply.as_bytes()));
        let _end = stream.read(&mut [0; 1]);
    });
    let tls = authority.config(None);
    let redlock = Redlock::connect_with_tls([url], patient(), &tls).unwrap();
    let error = redlock.try_acquire("dock-7").await.unwrap_err().to_string();
    assert!(error.contains("sent more than was asked for"), "{error}");
}

/// Starts a server that shows these certificates, and gives each connection to `each`. Returns its URL.
fn serve(
    own: &Certified,
    mut each: impl FnMut(StreamOwned<ServerConnection, TcpStream>) + Send + 'static,
) -> String {
    let chain = CertificateDer::pem_file_iter(&own.certificate).unwrap();
    let provider = Arc::new(rustls::crypto::ring::default_provider());
    let config = ServerConfig::builder_with_provider(provider)
        .with_safe_default_protocol_versions()
        .unwrap()
        .with_no_client_auth()
        .with_single_cert(
            chain.map(Result::unwrap).collect(),
            PrivateKeyDer::from_pem_file(&own.key).unwrap(),
        );
    let config = Arc::new(config.unwrap());
    let listener = TcpListener::bind("127.0.0.1:0").unwrap();
    let url = format!("rediss://{}", listener.local_addr().unwrap());
    std::thread::spawn(move || {
        for stream in listener.incoming().flatten() {
            let session = ServerConnection::new(Arc::clone(&config)).unwrap();
            each(StreamOwned::new(session, stream));
        }
    });
    url
}

async fn refused(server: &TlsServer, tls: &Arc<rustls::ClientConfig>) -> String {
    let redlock = Redlock::connect_with_tls([server.tls_url()], patient(), tls).unwrap();
    redlock.try_acquire("dock-7").await.unwrap_err().to_string()
}

#[tokio::test]
async fn a_url_that_asks_for_no_verification_is_refused() {
    let tls = Authority::create().config(None);
    let url = "rediss://127.0.0.1:1/#insecure";
    let error = Redlock::connect_with_tls([url], patient(), &tls).unwrap_err();
    assert!(
        error.to_string().contains("#insecure is refused"),
        "{error}"
    );
}

#[tokio::test(flavor = "multi_thread")]
async fn clients_that_connect_at_once_all_get_through() {
    storm(100, Duration::from_secs(60)).await;
}

#[tokio::test(flavor = "multi_thread")]
#[ignore = "keeps the machine busy; the time is that of a release build"]
async fn thousands_of_clients_that_connect_at_once_all_get_through_in_seconds() {
    storm(3_000, Duration::from_secs(15)).await;
}

async fn storm(count: usize, limit: Duration) {
    let authority = Authority::create();
    let server = TlsServer::start(&authority, true);
    let tls = authority.config(Some(&authority.sign("client")));
    // The defaults, as those have them who are in a storm.
    let options = Options::new(Duration::from_secs(60)).unwrap();
    let url = server.tls_url();
    let storm = connect_storm(&url, options, &tls, count);
    let (clients, took) = tokio::time::timeout(limit, storm).await.unwrap();
    println!("{count} clients over TLS in {} ms", took.as_millis());
    assert_eq!((clients.len(), server.client_count()), (count, count));
}

fn patient() -> Options {
    let options = Options::new(Duration::from_secs(10)).unwrap();
    options.node_timeout(Duration::from_secs(2)).unwrap()
}
