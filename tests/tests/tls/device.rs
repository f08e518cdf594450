//! The node of a microcontroller over TLS, against a real server whose certificate is verified.

use std::cell::Cell;
use std::fs;
use std::io::Write as _;
use std::net::{Ipv4Addr, SocketAddr, TcpListener};
use std::time::{Duration, Instant};

use embedded_io_async::{ErrorKind, ErrorType, Read, Write};
use rcgen::{
    BasicConstraints, CertificateParams, CertifiedIssuer, DnType, ExtendedKeyUsagePurpose, IsCa,
    KeyPair, date_time_ymd,
};
use redlock_core::transport::{Command, Reply, VoteConditions};
use redlock_core::{Token, Transport};
use redlock_embassy::{Connect, Failure, NodeName, TcpNode, TransportError};
use redlock_embassy_tls::{
    InvalidTlsOptions, READ_BUFFER, TlsFailure, TlsLine, TlsOptions, TlsStream, WRITE_BUFFER,
};
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
    with_node(&wire, &server.ca(), async |mut node| {
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
    with_node(&wire, &server.ca(), async |mut node| {
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
    let ca = server.ca();
    with_node(&wire, &ca, async |mut node| {
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
    with_stream(&wire, &server.ca(), async |mut stream| {
        let mut calls = 0;
        while !poll_times(1, stream.connect()).await {
            calls += 1;
            tokio::task::yield_now().await;
        }
        assert!(calls > 1, "a handshake takes more than one poll");
        assert_eq!(wire.connects.get(), 1);
        assert_eq!(stream.name(), wire.remote.into(), "the present name");
    })
    .await;
}

#[tokio::test]
async fn nothing_of_an_earlier_connection_is_read_in_a_later_one() {
    let server = TlsServer::start();
    let wire = Wire::to(&server);
    with_stream(&wire, &server.ca(), async |mut stream| {
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
    with_stream(&wire, &server.ca(), async |mut stream| {
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
async fn a_server_is_refused_unless_its_certificate_is_from_the_ca_and_for_its_name_and_its_time() {
    let ca = Authority::new("ca");
    let own = |change: fn(&mut CertificateParams)| ca.sign(change);
    let accepted = |_: &mut CertificateParams| {};
    let below = |change: fn(&mut CertificateParams)| {
        let middle = ca.below(change);
        let (certificate, key) = middle.sign(accepted);
        (certificate + &middle.pem(), key)
    };
    let failure = |why| Some(why);
    for (what, (certificate, key), refused) in [
        ("the right one", own(accepted), None),
        (
            "another CA",
            Authority::new("other").sign(accepted),
            failure(TlsFailure::UnknownIssuer),
        ),
        (
            "another CA with the same name",
            Authority::new("ca").sign(accepted),
            failure(TlsFailure::UnknownIssuer),
        ),
        (
            "another name",
            own(|params| params.subject_alt_names.truncate(0)),
            failure(TlsFailure::WrongName),
        ),
        (
            "expired",
            own(|params| params.not_after = date_time_ymd(2026, 1, 1)),
            failure(TlsFailure::WrongTime),
        ),
        (
            "not valid yet",
            own(|params| params.not_before = date_time_ymd(2027, 1, 1)),
            failure(TlsFailure::WrongTime),
        ),
        (
            "for clients",
            own(|params| params.extended_key_usages = vec![ExtendedKeyUsagePurpose::ClientAuth]),
            failure(TlsFailure::InvalidCertificate),
        ),
        (
            "for servers",
            own(|params| params.extended_key_usages = vec![ExtendedKeyUsagePurpose::ServerAuth]),
            None,
        ),
        (
            "a CA",
            own(|params| params.is_ca = IsCa::Ca(BasicConstraints::Unconstrained)),
            failure(TlsFailure::InvalidCertificate),
        ),
        (
            "a CA below the CA",
            below(|params| params.is_ca = IsCa::Ca(BasicConstraints::Unconstrained)),
            None,
        ),
        (
            "below a certificate that may not sign",
            below(|_| ()),
            failure(TlsFailure::InvalidCertificate),
        ),
        (
            "another kind of key",
            ca.sign_key(
                KeyPair::generate_for(&rcgen::PKCS_ECDSA_P384_SHA384).unwrap(),
                accepted,
            ),
            failure(TlsFailure::WrongKey),
        ),
    ] {
        let server = TlsServer::with(&certificate, &key, &[]);
        let wire = Wire::to(&server);
        let options = TlsOptions::new(ca.der(), NAME).unwrap().clock(|| Some(NOW));
        with_session(&wire, options, Buffers::default(), async |stream| {
            let mut node = TcpNode::<_, _>::new(stream, SystemClock);
            let connected = node.connect().await;
            assert_eq!(node.stream_mut().failure(), refused, "{what}");
            let Some(refused) = refused else {
                return connected.unwrap_or_else(|error| panic!("{what}: {error}"));
            };
            assert!(refused.is_refusal(), "{what}");
            assert!(
                connected
                    .unwrap_err()
                    .to_string()
                    .ends_with(": its certificate was refused: check its CA, name and dates"),
                "{what}"
            );
            eventually("the server notices", LIMIT, || server.client_count() == 0).await;
            assert_eq!(server.calls()["eval"], 0, "it is not asked who it is");
        })
        .await;
    }
}

#[tokio::test]
async fn without_the_time_dates_are_not_checked_and_all_else_is() {
    let ca = Authority::new("ca");
    for (change, accepted) in [
        (
            (|params| params.not_after = date_time_ymd(2000, 1, 1)) as fn(&mut CertificateParams),
            true,
        ),
        (|params| params.not_before = date_time_ymd(2999, 1, 1), true),
        (|params| params.subject_alt_names.truncate(0), false),
    ] {
        let (certificate, key) = ca.sign(change);
        let server = TlsServer::with(&certificate, &key, &[]);
        let wire = Wire::to(&server);
        with_stream(&wire, ca.der(), async |mut stream| {
            assert_eq!(stream.connect().await.is_ok(), accepted);
        })
        .await;
    }
}

#[tokio::test]
async fn a_chain_is_valid_in_any_order_if_the_dates_of_a_path_to_the_ca_overlap() {
    let ca = Authority::new("ca");
    // It was renewed with its key.
    let key = KeyPair::generate().unwrap();
    let renewed = |from, to| {
        let mut params = CertificateParams::default();
        params
            .distinguished_name
            .push(DnType::CommonName, "renewed");
        params.is_ca = IsCa::Ca(BasicConstraints::Unconstrained);
        params.not_before = date_time_ymd(from, 1, 1);
        params.not_after = date_time_ymd(to, 1, 1);
        let key = KeyPair::from_pem(&key.serialize_pem()).unwrap();
        let issuer = CertifiedIssuer::signed_by(params, key, &ca.0);
        Authority(issuer.unwrap(), TempDir::new().unwrap())
    };
    let (old, new) = (renewed(2015, 2020), renewed(2024, 2034));
    let (certificate, key) = new.sign(|params| params.not_before = date_time_ymd(2023, 1, 1));
    let (old, new) = (old.pem(), new.pem());
    // The longest chain, with the CA itself.
    let upper = ca.below(|params| params.is_ca = IsCa::Ca(BasicConstraints::Unconstrained));
    let mut params = CertificateParams::default();
    params.distinguished_name.push(DnType::CommonName, "lower");
    params.is_ca = IsCa::Ca(BasicConstraints::Unconstrained);
    params.not_before = date_time_ymd(2022, 1, 1);
    let lower = CertifiedIssuer::signed_by(params, KeyPair::generate().unwrap(), &upper.0);
    let lower = Authority(lower.unwrap(), TempDir::new().unwrap());
    let (long, long_key) = lower.sign(|params| params.not_before = date_time_ymd(2024, 1, 1));
    let (upper, lower, root) = (upper.pem(), lower.pem(), ca.pem());
    for (what, chain, key, refused) in [
        ("new", format!("{certificate}{new}"), &key, None),
        ("new, old", format!("{certificate}{new}{old}"), &key, None),
        ("old, new", format!("{certificate}{old}{new}"), &key, None),
        (
            "old",
            format!("{certificate}{old}"),
            &key,
            Some(TlsFailure::WrongTime),
        ),
        (
            "long",
            format!("{long}{lower}{upper}{root}"),
            &long_key,
            None,
        ),
        (
            "long, the other way round",
            format!("{long}{root}{upper}{lower}"),
            &long_key,
            None,
        ),
    ] {
        let server = TlsServer::with(&chain, key, &[]);
        let wire = Wire::to(&server);
        let timeless = TlsOptions::new(ca.der(), NAME).unwrap();
        for options in [timeless.clone(), timeless.clock(|| Some(NOW))] {
            with_session(&wire, options, Buffers::default(), async |mut stream| {
                assert_eq!(stream.connect().await.is_ok(), refused.is_none(), "{what}");
                assert_eq!(stream.failure(), refused, "{what}");
            })
            .await;
        }
    }
}

#[tokio::test]
async fn a_server_that_shows_many_ways_to_another_ca_of_the_same_name_is_refused() {
    let ca = Authority::new("ca");
    let other = Authority::new("ca");
    let (certificate, key) = other.sign(|params| params.not_before = date_time_ymd(1970, 1, 1));
    let mut chain = certificate;
    for year in [1970, 1975, 1980] {
        let mut params = CertificateParams::default();
        params.distinguished_name.push(DnType::CommonName, "ca");
        params.is_ca = IsCa::Ca(BasicConstraints::Unconstrained);
        params.not_before = date_time_ymd(year, 1, 1);
        let issuer = CertifiedIssuer::self_signed(params, KeyPair::generate().unwrap());
        chain += &issuer.unwrap().pem();
    }
    let server = TlsServer::with(&chain, &key, &[]);
    let wire = Wire::to(&server);
    let timeless = TlsOptions::new(ca.der(), NAME).unwrap();
    for options in [timeless.clone(), timeless.clock(|| Some(NOW))] {
        with_session(&wire, options, Buffers::default(), async |mut stream| {
            assert!(stream.connect().await.is_err());
            assert_eq!(stream.failure(), Some(TlsFailure::UnknownIssuer));
        })
        .await;
    }
}

#[tokio::test]
async fn certificates_that_are_longer_than_the_read_buffer_are_told_from_a_server_without_tls() {
    let ca = Authority::new("ca");
    let (mut chain, key) = ca.sign(|params| {
        params
            .distinguished_name
            .push(DnType::OrganizationName, "x".repeat(1_000));
    });
    chain += &ca.pem().repeat(3);
    let server = TlsServer::with(&chain, &key, &[]);
    let wire = Wire::to(&server);
    for (reading, connected) in [(READ_BUFFER, Err(ErrorKind::OutOfMemory)), (4_352, Ok(()))] {
        let options = TlsOptions::new(ca.der(), NAME).unwrap();
        let buffers = Buffers {
            reading,
            ..Buffers::default()
        };
        with_session(&wire, options, buffers, async |mut stream| {
            assert_eq!(stream.connect().await, connected);
            let failure = connected.is_err().then_some(TlsFailure::TooLong);
            assert_eq!(stream.failure(), failure);
        })
        .await;
    }
}

#[tokio::test]
async fn a_server_may_be_known_by_its_address() {
    let ca = Authority::new("ca");
    let (certificate, key) = ca.sign(|params| {
        params
            .subject_alt_names
            .push(rcgen::SanType::IpAddress(Ipv4Addr::LOCALHOST.into()));
    });
    let server = TlsServer::with(&certificate, &key, &[]);
    let wire = Wire::to(&server);
    for (name, failure) in [
        ("127.0.0.1", None),
        ("127.0.0.2", Some(TlsFailure::WrongName)),
    ] {
        let options = TlsOptions::new(ca.der(), name).unwrap();
        with_session(&wire, options, Buffers::default(), async |mut stream| {
            assert_eq!(stream.connect().await.is_ok(), failure.is_none());
            assert_eq!(stream.failure(), failure);
        })
        .await;
    }
}

#[tokio::test]
async fn a_server_that_asks_for_a_certificate_gets_the_one_of_the_device() {
    let ca = Authority::new("ca");
    let server = TlsServer::that_asks(&ca);
    let wire = Wire::to(&server);
    let device = KeyPair::generate().unwrap();
    let shown = CertificateParams::new(["device-7".to_owned()]).unwrap();
    let shown = shown.signed_by(&device, &ca.0).unwrap();
    let device = scalar(&device);
    let plain = TlsOptions::new(ca.der(), NAME).unwrap();
    let certified = plain
        .clone()
        .client_certificate(shown.der(), &device)
        .unwrap();
    with_session(&wire, certified, Buffers::default(), async |mut stream| {
        stream.connect().await.unwrap();
        stream.write_all(&echo("new")).await.unwrap();
        stream.read_exact(&mut [0; 9]).await.unwrap();
    })
    .await;
    // It says so after the handshake, and the port does have TLS.
    for is_dropped in [false, true] {
        with_session(&wire, plain.clone(), Buffers::default(), async |stream| {
            let mut node = TcpNode::<_, _>::new(stream, SystemClock);
            if is_dropped {
                poll_times(1, node.connect()).await;
                let refused = || node.stream_mut().failure().is_some();
                eventually("the session has ended", LIMIT, refused).await;
            }
            let error = node.connect().await.unwrap_err().to_string();
            // Whether the call reads before or after the server has closed the connection.
            let words = [": connection aborted", ": the connection broke"];
            assert!(words.iter().any(|words| error.ends_with(words)), "{error}");
            // The server closes the connection while a command is unread, so TCP may reset it and lose the alert.
            let failure = node.stream_mut().failure();
            let reset = TlsFailure::Connection(ErrorKind::ConnectionReset);
            assert!(
                [TlsFailure::Rejected, reset].map(Some).contains(&failure),
                "{failure:?}"
            );
        })
        .await;
    }
}

/// The length of the read buffer limits the records of both sides.
#[tokio::test]
async fn a_certificate_of_the_device_that_is_longer_than_either_buffer_is_told() {
    let ca = Authority::new("ca");
    let server = TlsServer::that_asks(&ca);
    let wire = Wire::to(&server);
    let device = KeyPair::generate().unwrap();
    let number = scalar(&device);
    for (reading, writing, cert_max, ticket) in [
        (READ_BUFFER, 8_192, 2_048 - IN_ITS_RECORD, TICKET),
        (4_352, 1_024, 1_024 - IN_ITS_RECORD - AROUND_A_RECORD, 0),
        (4_352, 8_192, 4_096 - IN_ITS_RECORD, TICKET),
    ] {
        let mut has = [false, false];
        for len in (cert_max - 700..cert_max - 340).step_by(5) {
            let mut shown = CertificateParams::new(["device-7".to_owned()]).unwrap();
            let name = DnType::OrganizationName;
            shown.distinguished_name.push(name, "x".repeat(len));
            let shown = shown.signed_by(&device, &ca.0).unwrap();
            let fits = shown.der().len() <= cert_max;
            // The server sends its certificate back, in a ticket, and in one record too.
            let fits_with_ticket = shown.der().len() <= cert_max - ticket;
            has[usize::from(fits_with_ticket)] = true;
            let options = TlsOptions::new(ca.der(), NAME).unwrap();
            let options = options.client_certificate(shown.der(), &number).unwrap();
            let buffers = Buffers {
                reading,
                writing,
                ..Buffers::default()
            };
            with_session(&wire, options, buffers, async |mut stream| {
                let works = async {
                    stream.connect().await?;
                    stream.write_all(&echo("new")).await?;
                    let read = stream.read_exact(&mut [0; 9]).await;
                    read.map_err(|_| ErrorKind::ConnectionReset)
                };
                let worked = works.await;
                let what = format!("{reading}, {writing}, {}: {worked:?}", shown.der().len());
                match stream.failure() {
                    None => assert!(fits && worked.is_ok(), "{what}"),
                    Some(TlsFailure::TooLong) => {
                        assert!(worked.is_err() && !fits_with_ticket, "{what}");
                    }
                    failure => panic!("{what}, {failure:?}"),
                }
            })
            .await;
        }
        assert_eq!(has, [true, true], "{cert_max}");
    }
}

/// What is in the record of a certificate beside it: the header of the message, and the lengths of lists.
const IN_ITS_RECORD: usize = 4 + 1 + 3 + 3 + 2;

/// By how many bytes the ticket of OpenSSL may be longer than the certificate in it, with the name that the server is told.
const TICKET: usize = 250;

/// The header of a record, its type, and what authenticates it.
const AROUND_A_RECORD: usize = 5 + 1 + 16;

#[tokio::test]
async fn a_server_without_tls_1_3_is_an_error() {
    let ca = Authority::new("ca");
    let (certificate, key) = ca.sign(|_| ());
    let server = TlsServer::with(&certificate, &key, &["tls-protocols", "TLSv1.2"]);
    let wire = Wire::to(&server);
    with_stream(&wire, ca.der(), async |mut stream| {
        assert_eq!(stream.connect().await, Err(ErrorKind::InvalidData));
        assert_eq!(stream.failure(), Some(TlsFailure::Rejected));
    })
    .await;
}

#[tokio::test]
async fn a_server_without_tls_is_an_error_within_the_connect_timeout() {
    let plain = Server::start();
    // A plain server, what one answers, and one that accepts and is silent.
    let listeners = ["-ERR unknown command\r\n", ""].map(|answer| {
        let listener = TcpListener::bind((Ipv4Addr::LOCALHOST, 0)).unwrap();
        let port = listener.local_addr().unwrap().port();
        std::thread::spawn(move || {
            let mut peers = Vec::new();
            for peer in listener.incoming() {
                let mut peer = peer.unwrap();
                peer.write_all(answer.as_bytes()).unwrap();
                peers.push(peer);
            }
        });
        port
    });
    for port in [plain.port()].into_iter().chain(listeners) {
        let wire = Wire::new(SocketAddr::from((Ipv4Addr::LOCALHOST, port)));
        with_node(&wire, Authority::new("ca").der(), async |node| {
            let mut node = node.connect_timeout(CONNECT_TIMEOUT);
            for attempt in 1..=2 {
                let begun = Instant::now();
                let error = node.connect().await.unwrap_err();
                assert!(begun.elapsed() < CONNECT_TIMEOUT * 3);
                let text = error.to_string();
                match port == listeners[0] {
                    true => assert!(text.ends_with(": no TLS 1.3 at this port"), "{text}"),
                    false => assert!(text.contains(": no connection within 300 ms"), "{text}"),
                }
                assert_eq!(wire.connects.get(), attempt);
                eventually("it is closed", LIMIT, || !wire.is_open.get()).await;
            }
        })
        .await;
    }
}

#[tokio::test]
async fn a_handshake_that_stops_anywhere_is_an_error_within_the_connect_timeout() {
    let server = TlsServer::start();
    let wire = Wire::to(&server);
    let whole = handshake_len(&server).await;
    with_node(&wire, &server.ca(), async |node| {
        let mut node = node.connect_timeout(CONNECT_TIMEOUT);
        for at in (0..whole).step_by(whole / 8).chain([whole - 1]) {
            for stop in [Stop::End, Stop::Silence] {
                wire.stop.set(Some((at, stop)));
                let begun = Instant::now();
                let error = node.connect().await.unwrap_err();
                assert!(begun.elapsed() < CONNECT_TIMEOUT * 3);
                let expected = match stop {
                    Stop::End => "connection aborted",
                    Stop::Silence => "no connection within 300 ms",
                    Stop::Change => unreachable!(),
                };
                assert!(error.to_string().contains(expected), "at {at}: {error}");
                eventually("it is closed", LIMIT, || !wire.is_open.get()).await;
            }
        }
        wire.stop.set(None);
        // The machine may be busy.
        let mut node = node.connect_timeout(LIMIT);
        node.connect().await.unwrap();
    })
    .await;
}

#[tokio::test]
async fn a_handshake_in_which_any_byte_was_changed_is_an_error() {
    /// The hello in the clear, which an empty record follows for old firewalls.
    const HELLO: usize = 5 + 123;
    const FILLER: usize = 5 + 1;
    /// The versions in the two headers, and the content of the empty record.
    const IGNORED: [usize; 5] = [1, 2, HELLO + 1, HELLO + 2, HELLO + 5];

    let server = TlsServer::start();
    let wire = Wire::to(&server);
    let whole = handshake_len(&server).await;
    with_node(&wire, &server.ca(), async |node| {
        let mut node = node.connect_timeout(Duration::from_secs(1));
        for at in (0..HELLO + FILLER + 5).chain((HELLO..whole).step_by(whole / 12)) {
            wire.stop.set(Some((at, Stop::Change)));
            let connected = node.connect().await;
            assert_eq!(
                connected.is_ok(),
                IGNORED.contains(&at),
                "at {at} of {whole}: {connected:?}"
            );
            node.close().await;
        }
    })
    .await;
}

#[tokio::test]
async fn memory_is_bounded_by_the_buffers() {
    let server = TlsServer::start();
    let wire = Wire::to(&server);
    let options = || TlsOptions::new(&server.ca, NAME).unwrap();
    for (reading, writing) in [(300, WRITE_BUFFER), (READ_BUFFER, 100), (0, 0)] {
        let buffers = Buffers {
            reading,
            writing,
            ..Buffers::default()
        };
        with_session(&wire, options(), buffers, async |mut stream| {
            assert_eq!(
                stream.connect().await,
                Err(ErrorKind::OutOfMemory),
                "{reading}, {writing}"
            );
            assert_eq!(stream.failure(), Some(TlsFailure::TooLong));
        })
        .await;
    }
    // A reply that is longer than the read buffer comes in records that fit.
    with_session(&wire, options(), Buffers::default(), async |mut stream| {
        stream.connect().await.unwrap();
        let word = "x".repeat(20_000);
        let command = echo(&word);
        let mut reply = vec![0; command.len() - b"*2\r\n$4\r\nECHO\r\n".len()];
        stream.write_all(&command).await.unwrap();
        stream.read_exact(&mut reply).await.unwrap();
        assert!(reply.ends_with(b"xx\r\n"));
    })
    .await;
}

#[tokio::test]
async fn a_source_of_randomness_that_fails_ends_the_handshake() {
    let server = TlsServer::start();
    let wire = Wire::to(&server);
    let options = TlsOptions::new(&server.ca, NAME).unwrap();
    let buffers = Buffers {
        random: |_| (),
        ..Buffers::default()
    };
    with_session(&wire, options, buffers, async |mut stream| {
        assert!(stream.connect().await.is_err());
        assert_eq!(stream.failure(), Some(TlsFailure::Entropy));
    })
    .await;
}

#[tokio::test]
async fn an_attempt_that_is_canceled_anywhere_leaves_no_connection() {
    let server = TlsServer::start();
    let wire = Wire::to(&server);
    with_stream(&wire, &server.ca(), async |mut stream| {
        for polls in 0.. {
            let mut is_connected = false;
            for _ in 0..polls {
                is_connected = poll_times(1, stream.connect()).await;
                tokio::task::yield_now().await;
            }
            for closing in 0..4 {
                poll_times(closing, stream.close()).await;
            }
            stream.close().await;
            assert!(!wire.is_open.get());
            stream.connect().await.unwrap();
            stream.write_all(&echo("new")).await.unwrap();
            let mut reply = [0; 9];
            stream.read_exact(&mut reply).await.unwrap();
            assert_eq!(reply, *b"$3\r\nnew\r\n");
            stream.close().await;
            if is_connected || polls > 50 {
                assert!(polls > 2, "an attempt takes some polls");
                break;
            }
        }
    })
    .await;
    eventually("the server notices", LIMIT, || server.client_count() == 0).await;
}

#[test]
fn options_that_are_not_valid_are_refused() {
    let ca = Authority::new("ca");
    let refused = |ca, name| TlsOptions::new(ca, name).unwrap_err();
    assert_eq!(refused(b"-----BEGIN", NAME), InvalidTlsOptions::Ca);
    assert_eq!(refused(ca.der(), "no name"), InvalidTlsOptions::Name);
    let options = TlsOptions::new(ca.der(), NAME).unwrap();
    let refused = options.client_certificate(b"", &[0; 32]).unwrap_err();
    assert_eq!(refused, InvalidTlsOptions::Key);
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
    with_node(&wire, &server.ca(), async |mut node| {
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

async fn with_node(wire: &Wire, ca: &[u8], test: impl AsyncFnOnce(Node<'_>)) {
    with_stream(wire, ca, async |stream| {
        test(TcpNode::new(stream, SystemClock)).await;
    })
    .await;
}

async fn with_stream(wire: &Wire, ca: &[u8], test: impl AsyncFnOnce(TlsStream<'_>)) {
    let options = TlsOptions::new(ca, NAME).unwrap();
    with_session(wire, options, Buffers::default(), test).await;
}

/// Runs `test` beside the session.
async fn with_session(
    wire: &Wire,
    options: TlsOptions<'_>,
    buffers: Buffers,
    test: impl AsyncFnOnce(TlsStream<'_>),
) {
    let mut line = TlsLine::new();
    let (mut reading, mut writing) = (vec![0; buffers.reading], vec![0; buffers.writing]);
    let (stream, mut session) = line.split(
        wire.stream(),
        options,
        buffers.random,
        &mut reading,
        &mut writing,
    );
    tokio::select! {
        never = session.run() => never,
        done = tokio::time::timeout(LIMIT * 12, test(stream)) => done.unwrap(),
    }
}

struct Buffers {
    reading: usize,
    writing: usize,
    random: fn(&mut [u8]),
}

impl Default for Buffers {
    fn default() -> Self {
        Self {
            reading: READ_BUFFER,
            writing: WRITE_BUFFER,
            random: |bytes| getrandom::fill(bytes).unwrap(),
        }
    }
}

/// How many bytes the server sends in a handshake, or a few less: the lengths of signatures differ.
async fn handshake_len(server: &TlsServer) -> usize {
    let wire = Wire::to(server);
    with_stream(&wire, &server.ca, async |mut stream| {
        stream.connect().await.unwrap();
    })
    .await;
    wire.flight.get() - 8
}

/// The name in the certificate.
const NAME: &str = "redis-1.example";

const CONNECT_TIMEOUT: Duration = Duration::from_millis(300);

/// In the middle of 2026.
const NOW: Duration = Duration::from_secs(1_782_000_000);

/// Signs certificates.
struct Authority(CertifiedIssuer<'static, KeyPair>, TempDir);

impl Authority {
    fn new(name: &str) -> Self {
        let mut params = CertificateParams::default();
        params.distinguished_name.push(DnType::CommonName, name);
        params.is_ca = IsCa::Ca(BasicConstraints::Unconstrained);
        let issuer = CertifiedIssuer::self_signed(params, KeyPair::generate().unwrap());
        Self(issuer.unwrap(), TempDir::new().unwrap())
    }

    /// One below this one, if `change` makes it one.
    fn below(&self, change: fn(&mut CertificateParams)) -> Self {
        let mut params = CertificateParams::default();
        params.distinguished_name.push(DnType::CommonName, "below");
        change(&mut params);
        let issuer = CertifiedIssuer::signed_by(params, KeyPair::generate().unwrap(), &self.0);
        Self(issuer.unwrap(), TempDir::new().unwrap())
    }

    fn der(&self) -> &[u8] {
        self.0.der()
    }

    fn pem(&self) -> String {
        self.0.pem()
    }

    fn file(&self) -> String {
        let path = self.1.path().join("ca.pem");
        fs::write(&path, self.pem()).unwrap();
        path.display().to_string()
    }

    /// A certificate for [`NAME`] and its key, as PEM.
    fn sign(&self, change: fn(&mut CertificateParams)) -> (String, String) {
        self.sign_key(KeyPair::generate().unwrap(), change)
    }

    fn sign_key(&self, key: KeyPair, change: fn(&mut CertificateParams)) -> (String, String) {
        let mut params = CertificateParams::new([NAME.to_owned()]).unwrap();
        params.distinguished_name.push(DnType::CommonName, NAME);
        change(&mut params);
        let certificate = params.signed_by(&key, &self.0).unwrap();
        (certificate.pem(), key.serialize_pem())
    }
}

/// The number in a P-256 key, as a device keeps it: in PKCS #8, it follows these bytes.
fn scalar(key: &KeyPair) -> [u8; 32] {
    const BEFORE: [u8; 7] = [0x02, 0x01, 0x01, 0x04, 0x20, 0, 0];
    let der = key.serialize_der();
    let at = der
        .windows(5)
        .position(|bytes| bytes == &BEFORE[..5])
        .unwrap()
        + 5;
    der[at..][..32].try_into().unwrap()
}

/// A server that speaks TLS on a port of its own.
struct TlsServer {
    server: Server,
    directory: TempDir,
    port: u16,
    /// In DER, as a device has it.
    ca: Vec<u8>,
    settings: Vec<String>,
}

impl TlsServer {
    fn start() -> Self {
        let ca = Authority::new("ca");
        let (certificate, key) = ca.sign(|_| ());
        let mut server = Self::with(&certificate, &key, &[]);
        server.ca = ca.der().to_vec();
        server
    }

    /// One that asks its clients for certificates of `ca`.
    fn that_asks(ca: &Authority) -> Self {
        let (certificate, key) = ca.sign(|_| ());
        let settings = ["tls-auth-clients", "yes", "tls-ca-cert-file", &ca.file()];
        Self::with(&certificate, &key, &settings)
    }

    fn with(certificate: &str, key: &str, settings: &[&str]) -> Self {
        let directory = TempDir::new().unwrap();
        let write = |name, pem| fs::write(directory.path().join(name), pem).unwrap();
        write("certificate.pem", certificate);
        write("key.pem", key);
        let server = Self {
            server: Server::start(),
            directory,
            // One that was free a moment ago, and that no other server of this process gets.
            port: Server::start().port(),
            ca: Vec::new(),
            settings: settings.iter().copied().map(str::to_owned).collect(),
        };
        server.listen();
        server
    }

    fn ca(&self) -> Vec<u8> {
        self.ca.clone()
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
        let mut settings = vec!["tls-cert-file", &certificate, "tls-key-file", &key];
        for default in [
            ["tls-ca-cert-file", &certificate],
            ["tls-auth-clients", "no"],
            ["tls-protocols", "TLSv1.3"],
        ] {
            if self.settings.iter().all(|set| set != default[0]) {
                settings.extend(default);
            }
        }
        settings.extend(self.settings.iter().map(String::as_str));
        settings.extend(["tls-port", &port]);
        let mut words = vec!["CONFIG", "SET"];
        words.extend(settings);
        assert_eq!(self.server.query::<String>(&words).unwrap(), "OK");
    }
}

impl std::ops::Deref for TlsServer {
    type Target = Server;

    fn deref(&self) -> &Server {
        &self.server
    }
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
    /// What happens to the bytes of each connection after so many of them.
    stop: Cell<Option<(usize, Stop)>>,
    /// How many bytes had come before something was sent again.
    flight: Cell<usize>,
    /// How many bytes of the present connection have been read.
    received: Cell<usize>,
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
            stop: Cell::new(None),
            received: Cell::new(0),
            flight: Cell::new(0),
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

#[derive(Clone, Copy)]
enum Stop {
    /// The connection ends.
    End,
    /// Nothing more comes.
    Silence,
    /// The next byte is another one.
    Change,
}

struct WireStream<'a> {
    wire: &'a Wire,
    stream: TokioStream,
}

impl Connect for WireStream<'_> {
    fn name(&self) -> NodeName {
        match self.wire.connects.get() {
            0 => "a name without an address".into(),
            _ => self.stream.name(),
        }
    }

    async fn connect(&mut self) -> Result<(), ErrorKind> {
        self.wire.is_lost.set(false);
        self.wire.received.set(0);
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
        let received = self.wire.received.get();
        let mut room = buffer.len();
        if self.wire.is_slow.get() {
            tokio::task::yield_now().await;
            room = 1;
        }
        let mut is_changed = false;
        if let Some((at, stop)) = self.wire.stop.get()
            && at >= received
        {
            room = room.min(at - received);
            match stop {
                Stop::End if room == 0 => return Ok(0),
                Stop::Silence if room == 0 => std::future::pending().await,
                Stop::Change if room == 0 => (room, is_changed) = (1, true),
                _ => {}
            }
        }
        let count = self.stream.read(&mut buffer[..room]).await?;
        if is_changed && count == 1 {
            buffer[0] ^= 1;
        }
        self.wire.received.set(received + count);
        Ok(count)
    }
}

impl Write for WireStream<'_> {
    async fn write(&mut self, bytes: &[u8]) -> std::io::Result<usize> {
        if self.wire.flight.get() == 0 {
            self.wire.flight.set(self.wire.received.get());
        }
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
