//! The node of a microcontroller over TLS, with the session of the examples, against a real server whose
//! certificate is verified.

use std::cell::Cell;
use std::fs;
use std::io::Write as _;
use std::net::{Ipv4Addr, SocketAddr, TcpListener};
use std::time::{Duration, SystemTime};

use embedded_io_async::{ErrorKind, ErrorType, Read, Write};
use embedded_tls::pki::CertVerifier;
use embedded_tls::{
    Aes128GcmSha256, Certificate, CryptoProvider, CryptoRngCore, TlsConfig, TlsError, TlsVerifier,
};
use redlock_core::transport::{Command, Reply, VoteConditions};
use redlock_core::{Token, Transport};
use redlock_embassy::{Connect, Failure, NodeName, TcpNode, TransportError};
use redlock_examples::tls_session::{Line, TlsStream};
use redlock_std::SystemClock;
use redlock_tests::{Server, TokioStream, eventually, poll_times};
use tempfile::TempDir;

const LIMIT: Duration = Duration::from_secs(5);
const KEY: &[u8] = b"dock-7";
const TTL_MS: u32 = 60_000;

#[tokio::test]
async fn a_key_is_acquired_refused_extended_and_released() {
    let server = TlsServer::start();
    let wire = Wire::to(&server);
    with_node(&wire, &server.certificate, async |mut node| {
        let (mine, other) = (&token(1), &token(2));
        assert_eq!(
            node.execute(&acquire(mine)).await.unwrap(),
            Reply::Acquired(None)
        );
        assert_eq!(
            node.execute(&acquire(other)).await.unwrap(),
            Reply::Held(None)
        );
        assert_eq!(node.execute(&extend(other)).await.unwrap(), Reply::NotMine);
        assert_eq!(
            node.execute(&extend(mine)).await.unwrap(),
            Reply::Extended(None)
        );
        assert_eq!(server.key_count(), 1);
        assert_eq!(node.execute(&release(mine)).await.unwrap(), Reply::Released);
        assert_eq!((server.key_count(), server.client_count()), (0, 1));
        assert!(wire.is_open.get());
        node.close().await;
        assert!(!wire.is_open.get());
        eventually("the server notices", LIMIT, || server.client_count() == 0).await;
        assert_eq!(node.execute(&extend(mine)).await.unwrap(), Reply::NotMine);
    })
    .await;
}

#[tokio::test]
async fn a_reply_to_a_call_that_was_dropped_is_not_taken_for_another() {
    let server = TlsServer::start();
    let wire = Wire::to(&server);
    wire.is_slow.set(true);
    with_node(&wire, &server.certificate, async |mut node| {
        let (mine, other) = (&token(1), &token(2));
        assert_eq!(
            node.execute(&acquire(mine)).await.unwrap(),
            Reply::Acquired(None)
        );
        let cases = [
            (release(other), extend(mine), Reply::Extended(None)),
            (extend(mine), release(other), Reply::NotMine),
            (acquire(other), extend(mine), Reply::Extended(None)),
            (extend(mine), acquire(other), Reply::Held(None)),
        ];
        for (dropped, next, expected) in cases {
            let mut polls = 0;
            while !poll_times(polls, node.execute(&dropped)).await {
                let reply = node.execute(&next).await.unwrap();
                assert_eq!(reply, expected, "{next:?} after {polls} of {dropped:?}");
                polls += 1;
            }
            assert!(polls > 1, "it was dropped in the middle");
        }
        assert_eq!(wire.connects.get(), 1);
    })
    .await;
}

#[tokio::test]
async fn a_node_connects_again_when_its_server_is_back() {
    let mut server = TlsServer::start();
    let wire = Wire::to(&server);
    let certificate = server.certificate.clone();
    with_node(&wire, &certificate, async |mut node| {
        for _ in 0..3 {
            let mine = &token(1);
            assert_eq!(
                node.execute(&acquire(mine)).await.unwrap(),
                Reply::Acquired(None)
            );
            server.kill();
            let error = node.execute(&extend(mine)).await.unwrap_err();
            assert!(
                matches!(
                    error.failure(),
                    Failure::Transport(
                        TransportError::Disconnected | TransportError::Unreachable(_)
                    )
                ),
                "{error}"
            );
            server.restart();
            let back = tokio::time::timeout(LIMIT, async {
                loop {
                    match node.execute(&extend(mine)).await {
                        Ok(reply) => break reply,
                        Err(_) => tokio::task::yield_now().await,
                    }
                }
            });
            assert_eq!(back.await.unwrap(), Reply::NotMine, "the server is empty");
        }
    })
    .await;
}

#[tokio::test]
async fn an_attempt_goes_on_when_a_call_is_dropped() {
    let server = TlsServer::start();
    let wire = Wire::to(&server);
    with_stream(&wire, &server.certificate, async |mut stream| {
        let mut calls = 0;
        while !poll_times(1, stream.connect()).await {
            calls += 1;
            tokio::task::yield_now().await;
        }
        assert!(calls > 1, "a handshake takes more than one poll");
        assert_eq!(wire.connects.get(), 1);
    })
    .await;
}

#[tokio::test]
async fn nothing_of_an_earlier_connection_is_read_in_a_later_one() {
    let server = TlsServer::start();
    let wire = Wire::to(&server);
    with_stream(&wire, &server.certificate, async |mut stream| {
        stream.connect().await.unwrap();
        let mut reply = [0; 9];
        for polls in 0..6 {
            for is_lost in [false, true] {
                let echoed = server.calls()["echo"];
                stream.write_all(&echo("old")).await.unwrap();
                eventually("it is read", LIMIT, || server.calls()["echo"] > echoed).await;
                wire.is_lost.set(is_lost);
                // A close that was dropped, and one that meets the end of the session.
                poll_times(polls, stream.close()).await;
                stream.connect().await.unwrap();
                stream.write_all(&echo("new")).await.unwrap();
                stream.read_exact(&mut reply).await.unwrap();
                assert_eq!(reply, *b"$3\r\nnew\r\n");
            }
        }
        stream.write_all(&echo("old")).await.unwrap();
        stream.read_exact(&mut reply[..1]).await.unwrap();
        stream.close().await;
        assert_eq!(stream.read(&mut [0]).await, Ok(0));
        assert_eq!(stream.write(b"*").await, Err(ErrorKind::NotConnected));
    })
    .await;
}

#[tokio::test]
async fn what_came_before_the_end_can_be_read() {
    let server = TlsServer::start();
    let wire = Wire::to(&server);
    with_stream(&wire, &server.certificate, async |mut stream| {
        stream.connect().await.unwrap();
        stream.write_all(b"QUIT\r\n").await.unwrap();
        eventually("the session ends", LIMIT, || !wire.is_open.get()).await;
        let mut reply = [0; 5];
        stream.read_exact(&mut reply).await.unwrap();
        assert_eq!(reply, *b"+OK\r\n");
        assert_eq!(stream.read(&mut reply).await, Ok(0));
        assert_eq!(stream.write(b"*").await, Err(ErrorKind::NotConnected));
    })
    .await;
}

#[tokio::test]
async fn a_server_with_another_certificate_is_refused() {
    let server = TlsServer::start();
    let other = certified().cert.der().to_vec();
    let wire = Wire::to(&server);
    with_node(&wire, &other, async |mut node| {
        let error = node.execute(&acquire(&token(1))).await.unwrap_err();
        let expected = Failure::Transport(TransportError::Unreachable(ErrorKind::Other));
        assert_eq!(*error.failure(), expected, "{error}");
        eventually("the server notices", LIMIT, || server.client_count() == 0).await;
        assert_eq!(server.calls()["set"], 0);
    })
    .await;
}

#[tokio::test]
async fn a_server_without_tls_is_an_error() {
    // What a plain server answers to a handshake, and one that waits for more.
    for answer in ["-ERR unknown command\r\n", ""] {
        let listener = TcpListener::bind((Ipv4Addr::LOCALHOST, 0)).unwrap();
        let wire = Wire::new(listener.local_addr().unwrap());
        std::thread::spawn(move || {
            let mut peers = Vec::new();
            for peer in listener.incoming() {
                let mut peer = peer.unwrap();
                peer.write_all(answer.as_bytes()).unwrap();
                peers.push(peer);
            }
        });
        with_node(&wire, certified().cert.der(), async |node| {
            let mut node = node.connect_timeout(Duration::from_millis(300));
            for attempt in 1..=2 {
                let error = node.connect().await.unwrap_err();
                let kind = error.failure();
                assert_eq!(
                    matches!(kind, Failure::Transport(TransportError::NoConnection(_))),
                    answer.is_empty(),
                    "{error}"
                );
                assert_eq!(wire.connects.get(), attempt);
            }
        })
        .await;
    }
}

/// A record in the clear: the end of a handshake.
const FINISHED: [u8; 41] = {
    let mut record = [0; 41];
    [record[0], record[1], record[2], record[4]] = [22, 3, 3, 36];
    [record[5], record[8]] = [20, 32];
    record
};

#[tokio::test]
async fn a_record_in_the_clear_ends_the_connection() {
    let server = TlsServer::start();
    let wire = Wire::to(&server);
    with_node(&wire, &server.certificate, async |mut node| {
        let mine = &token(1);
        assert_eq!(
            node.execute(&acquire(mine)).await.unwrap(),
            Reply::Acquired(None)
        );
        wire.injected.set(&FINISHED);
        let error = node.execute(&extend(mine)).await.unwrap_err();
        assert_eq!(
            *error.failure(),
            Failure::Transport(TransportError::Disconnected),
            "{error}"
        );
        assert_eq!(
            node.execute(&extend(mine)).await.unwrap(),
            Reply::Extended(None)
        );
        assert_eq!(wire.connects.get(), 2);
    })
    .await;
}

type Node<'a> = TcpNode<'a, TlsStream<'a>, SystemClock>;

async fn with_node(wire: &Wire, trusted: &[u8], test: impl AsyncFnOnce(Node<'_>)) {
    with_stream(wire, trusted, async |stream| {
        test(TcpNode::new(stream, SystemClock)).await;
    })
    .await;
}

/// Runs `test` beside the session.
async fn with_stream(wire: &Wire, trusted: &[u8], test: impl AsyncFnOnce(TlsStream<'_>)) {
    let mut line = Line::new();
    let (mut reading, mut writing) = (vec![0; 16_640], vec![0; 1_024]);
    let config = TlsConfig::new().with_server_name(NAME);
    let provider = Provider(CertVerifier::new(Certificate::X509(trusted)));
    let (stream, mut session) =
        line.split(wire.stream(), config, provider, &mut reading, &mut writing);
    tokio::select! {
        never = session.run() => never,
        done = tokio::time::timeout(LIMIT * 6, test(stream)) => done.unwrap(),
    }
}

/// The name in the certificate.
const NAME: &str = "redis-1.example";

/// Verifies, as an application would.
struct Provider<'a>(CertVerifier<'a, Aes128GcmSha256, SystemTime, 2_048>);

impl CryptoProvider for Provider<'_> {
    type CipherSuite = Aes128GcmSha256;
    type Signature = [u8; 0];

    fn rng(&mut self) -> impl CryptoRngCore {
        rand_core::OsRng
    }

    fn verifier(&mut self) -> Result<&mut impl TlsVerifier<Aes128GcmSha256>, TlsError> {
        Ok(&mut self.0)
    }
}

/// A server that speaks TLS on a port of its own.
struct TlsServer {
    server: Server,
    directory: TempDir,
    port: u16,
    /// In DER, as a device has it.
    certificate: Vec<u8>,
}

impl TlsServer {
    fn start() -> Self {
        let directory = TempDir::new().unwrap();
        let certified = certified();
        let write = |name, pem| fs::write(directory.path().join(name), pem).unwrap();
        write("certificate.pem", certified.cert.pem());
        write("key.pem", certified.signing_key.serialize_pem());
        let server = Self {
            server: Server::start(),
            directory,
            // One that was free a moment ago, and that no other server of this process gets.
            port: Server::start().port(),
            certificate: certified.cert.der().to_vec(),
        };
        server.listen();
        server
    }

    fn kill(&mut self) {
        self.server.kill();
    }

    fn restart(&mut self) {
        self.server.restart();
        self.listen();
    }

    fn listen(&self) {
        let path = |name| self.directory.path().join(name).display().to_string();
        let (certificate, key) = (path("certificate.pem"), path("key.pem"));
        let port = self.port.to_string();
        let mut words = vec!["CONFIG", "SET", "tls-protocols", "TLSv1.3"];
        words.extend(["tls-cert-file", &certificate, "tls-key-file", &key]);
        words.extend(["tls-ca-cert-file", &certificate, "tls-auth-clients", "no"]);
        words.extend(["tls-port", &port]);
        assert_eq!(self.server.query::<String>(&words).unwrap(), "OK");
    }
}

impl std::ops::Deref for TlsServer {
    type Target = Server;

    fn deref(&self) -> &Server {
        &self.server
    }
}

fn certified() -> rcgen::CertifiedKey<rcgen::KeyPair> {
    rcgen::generate_simple_self_signed([NAME.to_owned()]).unwrap()
}

/// What the socket below the session has seen, and what is to happen to it.
struct Wire {
    remote: SocketAddr,
    connects: Cell<usize>,
    is_open: Cell<bool>,
    /// It hands over one byte at a time, with an await before each.
    is_slow: Cell<bool>,
    /// The connection is lost with the next read.
    is_lost: Cell<bool>,
    /// What an attacker on the way puts before what is read next.
    injected: Cell<&'static [u8]>,
}

impl Wire {
    fn to(server: &TlsServer) -> Self {
        Self::new(SocketAddr::from((Ipv4Addr::LOCALHOST, server.port)))
    }

    const fn new(remote: SocketAddr) -> Self {
        Self {
            remote,
            connects: Cell::new(0),
            is_open: Cell::new(false),
            is_slow: Cell::new(false),
            is_lost: Cell::new(false),
            injected: Cell::new(&[]),
        }
    }

    const fn stream(&self) -> WireStream<'_> {
        WireStream {
            wire: self,
            stream: TokioStream::new(self.remote),
        }
    }
}

struct WireStream<'a> {
    wire: &'a Wire,
    stream: TokioStream,
}

impl Connect for WireStream<'_> {
    fn name(&self) -> NodeName {
        self.stream.name()
    }

    async fn connect(&mut self) -> Result<(), ErrorKind> {
        self.wire.is_lost.set(false);
        self.wire.injected.set(&[]);
        self.wire.connects.set(self.wire.connects.get() + 1);
        self.stream.connect().await?;
        self.wire.is_open.set(true);
        Ok(())
    }

    async fn close(&mut self) {
        self.stream.close().await;
        self.wire.is_open.set(false);
    }
}

impl ErrorType for WireStream<'_> {
    type Error = std::io::Error;
}

impl Read for WireStream<'_> {
    async fn read(&mut self, buffer: &mut [u8]) -> std::io::Result<usize> {
        if self.wire.is_lost.take() {
            return Ok(0);
        }
        let mut injected = self.wire.injected.get();
        if !injected.is_empty() {
            let count = Read::read(&mut injected, buffer).await;
            self.wire.injected.set(injected);
            return Ok(count.unwrap());
        }
        if self.wire.is_slow.get() {
            tokio::task::yield_now().await;
            return self.stream.read(&mut buffer[..1]).await;
        }
        self.stream.read(buffer).await
    }
}

impl Write for WireStream<'_> {
    async fn write(&mut self, bytes: &[u8]) -> std::io::Result<usize> {
        self.stream.write(bytes).await
    }

    async fn flush(&mut self) -> std::io::Result<()> {
        self.stream.flush().await
    }
}

fn echo(word: &str) -> Vec<u8> {
    format!("*2\r\n$4\r\nECHO\r\n${}\r\n{word}\r\n", word.len()).into_bytes()
}

const fn acquire(token: &Token) -> Command<'_> {
    Command::acquire(KEY, token, TTL_MS, VoteConditions::NONE)
}

const fn extend(token: &Token) -> Command<'_> {
    Command::extend(KEY, token, TTL_MS)
}

const fn release(token: &Token) -> Command<'_> {
    Command::release(KEY, token)
}

fn token(number: u8) -> Token {
    Token::from_bytes([number; Token::LEN])
}
