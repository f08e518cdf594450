//! What servers show as certificates, and what it costs to refuse them.

use std::io::{BufReader, Read, Write};
use std::sync::Arc;
use std::time::{Duration, Instant};

use redlock_std::{BoundedVerifier, Redlock};
use redlock_tests::{Authority, Servers, TlsServer, read_command};
use rustls::RootCertStore;
use rustls::client::WebPkiServerVerifier;
use rustls::client::danger::ServerCertVerifier;
use rustls::pki_types::pem::PemObject;
use rustls::pki_types::{CertificateDer, ServerName, UnixTime};
use tokio::sync::mpsc;

use super::{client_that_trusts, patient, refused, serve, told};

/// Far fewer than a handshake has room for.
const INTERMEDIATES: usize = 8;
const OTHERS: usize = 100;

#[tokio::test]
async fn a_server_that_shows_its_intermediates_is_trusted() {
    let authority = Authority::create();
    for intermediates in 1..=BoundedVerifier::MAX_INTERMEDIATES {
        let own = authority.sign_through(intermediates, "127.0.0.1");
        let server = TlsServer::start_as(&own, &authority, true);
        let tls = authority.config(Some(&authority.sign("client")));
        let redlock = Redlock::connect_with_tls([server.tls_url()], patient(), &tls).unwrap();
        let guard = redlock.acquire("dock-7").await.unwrap();
        assert_eq!(guard.release().await.released(), 1);
    }
}

#[tokio::test]
async fn a_server_that_shows_more_certificates_than_a_chain_has_is_refused_and_the_error_says_so() {
    let authority = Authority::create();
    let own = authority.sign_through(BoundedVerifier::MAX_INTERMEDIATES + 1, "127.0.0.1");
    let server = TlsServer::start_as(&own, &authority, false);
    let error = refused(&server, &authority.config(None)).await;
    assert!(
        error.contains("sent 5 intermediate certificates"),
        "{error}"
    );
    assert!(
        error.contains(server.tls_url().trim_start_matches("rediss://")),
        "{error}"
    );

    let server = crowded(&authority);
    let error = refused(&server, &authority.config(None)).await;
    expect_refused(&error);
}

#[test]
fn a_server_that_shows_hundreds_of_certificates_is_refused_also_without_a_configuration() {
    let authority = Authority::create();
    let client = client_that_trusts(&authority.certificate(), &crowded(&authority));
    assert!(!client.status.success());
    expect_refused(&told(&client));
}

/// The client does the handshake on the thread of its runtime: the time counts in which nothing else runs there.
#[tokio::test]
async fn hundreds_of_certificates_cost_a_client_about_as_much_as_one() {
    const MOST: u32 = 20;

    let authority = Authority::create();
    let tls = Authority::create().config(None);
    let (one, crowded) = (TlsServer::start(&authority, false), crowded(&authority));
    let [mut of_one, mut of_all] = [Duration::MAX; 2];
    for _ in 0..3 {
        for (server, least) in [(&one, &mut of_one), (&crowded, &mut of_all)] {
            let start = Instant::now();
            refused(server, &tls).await;
            *least = start.elapsed().min(*least);
        }
    }
    println!("refused after {of_one:?}, and with {OTHERS} certificates more after {of_all:?}");
    assert!(of_all < of_one * MOST, "{of_all:?}, with one {of_one:?}");
}

/// Each of them takes time of the thread. If calls caused a reconnect, as they do for a node that is back, there would be 30 a second.
#[tokio::test]
async fn forged_certificates_are_verified_no_more_often_under_load() {
    // They take at least 10, 20, 40, 80, 160, 320 and 500 ms.
    const DELAYS: usize = 7;
    const LEAST: Duration = Duration::from_secs(1);

    let authority = Authority::create();
    let (report, mut shown) = mpsc::unbounded_channel();
    let forger = serve(&authority.forge("127.0.0.1", 1, 0), move |mut stream| {
        report.send(Instant::now()).unwrap();
        let _refusal = stream.read(&mut [0; 1]);
    });
    let servers = Servers::start(2);
    let urls = servers.urls().into_iter().chain([forger]);
    let redlock = Redlock::connect_with_tls(urls, patient(), &authority.config(None)).unwrap();
    let taken = time_of(DELAYS, &mut shown, &redlock).await;
    assert!(taken >= LEAST, "{taken:?}");
}

/// Each handshake takes time of the thread, also that of a node which is trusted.
#[tokio::test]
async fn a_node_that_answers_and_closes_its_connections_soon_has_few_handshakes_also_under_load() {
    // The first one without, the next ones of at least 10, 20, 40, 80, 160, 320, 500, 500 and 500 ms.
    const DELAYS: usize = 10;
    const LEAST: Duration = Duration::from_secs(2);
    /// So long that the client takes it for a server that closes idle connections.
    const LIFE: Duration = Duration::from_millis(40);

    let authority = Authority::create();
    let (report, mut connected) = mpsc::unbounded_channel();
    let closing = serve(&authority.sign("127.0.0.1"), move |stream| {
        report.send(Instant::now()).unwrap();
        stream.sock.set_nodelay(true).unwrap();
        std::thread::spawn(move || answer_one(stream, LIFE));
    });
    let servers = Servers::start(2);
    let urls = servers.urls().into_iter().chain([closing]);
    let redlock = Redlock::connect_with_tls(urls, patient(), &authority.config(None)).unwrap();
    let taken = time_of(DELAYS, &mut connected, &redlock).await;
    assert!(taken >= LEAST, "{taken:?}");
}

/// Answers like a node up to the first command of a lock, and closes the connection after `life`.
fn answer_one(stream: impl Read + Write, life: Duration) {
    let mut stream = BufReader::new(stream);
    while let Some(command) = read_command(&mut stream) {
        let (answer, is_last): (&[u8], _) = match command.as_str() {
            "EVAL" => (b"*4\r\n:1\r\n:2\r\n:400000003\r\n:60000\r\n", false),
            "EVALSHA" => (b":1\r\n", true),
            command => (b"+OK\r\n", command == "SET"),
        };
        if stream.get_mut().write_all(answer).is_err() {
            return;
        }
        if is_last {
            std::thread::sleep(life);
            return;
        }
    }
}

/// How long it takes until so many connections have followed the first one, while locks are taken without a pause.
async fn time_of(
    delays: usize,
    connections: &mut mpsc::UnboundedReceiver<Instant>,
    redlock: &Redlock,
) -> Duration {
    let start = connections.recv().await.unwrap();
    let mut last = start;
    for _ in 0..delays {
        last = loop {
            redlock.acquire("dock-7").await.unwrap().release().await;
            if let Ok(at) = connections.try_recv() {
                break at;
            }
        };
    }
    last - start
}

/// Only printed: a figure for those who change the limits.
#[test]
fn the_search_for_a_path_through_as_many_certificates_as_are_permitted_is_short() {
    let authority = Authority::create();
    for intermediates in 1..=BoundedVerifier::MAX_INTERMEDIATES {
        let forged = authority.forge("127.0.0.1", intermediates, 0);
        let chain = CertificateDer::pem_file_iter(&forged.certificate).unwrap();
        let chain: Vec<_> = chain.map(Result::unwrap).collect();
        let start = Instant::now();
        let error = verify(&authority, &chain);
        println!("{intermediates} intermediates: {:?}", start.elapsed());
        assert!(error.contains("UnknownIssuer"), "{error}");
    }
}

#[test]
fn the_bytes_of_few_certificates_are_limited_too() {
    let authority = Authority::create();
    let own = CertificateDer::from_pem_file(authority.sign("127.0.0.1").certificate).unwrap();
    let long = CertificateDer::from(vec![0; BoundedVerifier::MAX_INTERMEDIATE_BYTES / 2 + 1]);
    let words = "sent 2 intermediate certificates (16386 bytes), more than 4 (16384 bytes)";
    let error = verify(&authority, &[own.clone(), long.clone(), long]);
    assert!(error.contains(words), "{error}");
    let long = CertificateDer::from(vec![0; BoundedVerifier::MAX_INTERMEDIATE_BYTES]);
    assert_eq!(verify(&authority, &[own, long]), "");
}

/// The error of the verification, or nothing.
fn verify(authority: &Authority, shown: &[CertificateDer<'_>]) -> String {
    let mut roots = RootCertStore::empty();
    roots
        .add(CertificateDer::from_slice(authority.der()))
        .unwrap();
    let provider = Arc::new(rustls::crypto::ring::default_provider());
    let verifier = WebPkiServerVerifier::builder_with_provider(Arc::new(roots), provider);
    let verifier = BoundedVerifier::new(verifier.build().unwrap());
    let name = ServerName::try_from("127.0.0.1").unwrap();
    let now = UnixTime::now();
    let verified = verifier.verify_server_cert(&shown[0], &shown[1..], &name, &[], now);
    verified
        .err()
        .map_or_else(String::new, |error| error.to_string())
}

fn expect_refused(told: &str) {
    for words in [
        "the server sent 108 intermediate certificates (",
        " bytes), more than 4 (16384 bytes); have it send only those between its own and the authority",
    ] {
        assert!(told.contains(words), "{told}");
    }
}

/// A server with the certificates that take the search for a path longest.
fn crowded(authority: &Authority) -> TlsServer {
    let forged = authority.forge("127.0.0.1", INTERMEDIATES, OTHERS);
    TlsServer::start_as(&forged, authority, false)
}
