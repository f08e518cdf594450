//! Error messages.

use core::net::{IpAddr, Ipv4Addr, Ipv6Addr, SocketAddr};
use core::time::Duration;

use embedded_io_async::ErrorKind;
use redlock_core::KeyName;
use redlock_embassy::{Denial, Failure, NodeError, NodeName, TransportError};

use crate::world::ms;

#[test]
fn an_error_says_what_happened_in_one_line() {
    let unreachable = TransportError::Unreachable;
    for (error, text) in [
        (
            unreachable(ErrorKind::ConnectionRefused),
            "connection refused",
        ),
        (
            unreachable(ErrorKind::ConnectionReset),
            "connection refused or reset",
        ),
        (
            unreachable(ErrorKind::ConnectionAborted),
            "connection aborted",
        ),
        (
            unreachable(ErrorKind::NotConnected),
            "no route to it: is the network up?",
        ),
        (
            unreachable(ErrorKind::TimedOut),
            "no answer at this address",
        ),
        (
            unreachable(ErrorKind::NotFound),
            "the name has no address: is it right, and is DNS up?",
        ),
        (unreachable(ErrorKind::Other), "cannot connect"),
        (
            TransportError::NoConnection(ms(3_000)),
            "no connection within 3000 ms",
        ),
        (
            TransportError::NotConnected(ms(50)),
            "still connecting after 50 ms; call connect_quorum first if this is usual",
        ),
        (
            TransportError::NoAnswer(ms(50)),
            "timed out after 50 ms; raise node_timeout if the network is slow",
        ),
        (TransportError::Disconnected, "the connection broke"),
        (
            TransportError::Silent,
            "no answer for too long, reconnecting",
        ),
        (
            TransportError::Unexpected,
            "unexpected reply; is this a Redis server?",
        ),
        (
            TransportError::TooLong,
            "the command does not fit the send buffer; use a shorter key or a larger TX",
        ),
        (
            TransportError::NoScript,
            "has lost its scripts: stop SCRIPT FLUSH by others, or grant +script|load",
        ),
    ] {
        assert_eq!(error.to_string(), text);
    }
}

#[test]
fn the_error_of_a_round_names_the_node() {
    let restarted = Denial::Restarted {
        ago_ms: 3_000,
        left_ms: 7_000,
        has_record: false,
    };
    for (failure, text) in [
        (
            Failure::TimedOut(ms(50)),
            "10.0.0.3:6379: timed out after 50 ms",
        ),
        (
            Failure::Denied(restarted),
            "10.0.0.3:6379: restarted at least 3 s ago, its vote counts again in 7 s",
        ),
        (
            Failure::DuplicateOf("10.0.0.1:6379".into()),
            "10.0.0.3:6379: the same server as 10.0.0.1:6379; name each server once",
        ),
        (
            Failure::Transport(TransportError::Disconnected),
            "10.0.0.3:6379: the connection broke",
        ),
    ] {
        let error = NodeError::new("10.0.0.3:6379".into(), failure);
        assert_eq!(error.to_string(), text);
    }
}

/// The limits that the README names.
#[test]
fn an_error_is_no_longer_than_it_may_be() {
    let v4 = NodeName::from(SocketAddr::new(Ipv4Addr::BROADCAST.into(), u16::MAX));
    let v6 = NodeName::from(SocketAddr::new(
        Ipv6Addr::from_bits(u128::MAX).into(),
        u16::MAX,
    ));
    let longest = Duration::from_millis(u64::from(u32::MAX));
    let transport = [
        TransportError::Unreachable(ErrorKind::NotFound),
        TransportError::NoConnection(longest),
        TransportError::NotConnected(longest),
        TransportError::NoAnswer(longest),
        TransportError::Silent,
        TransportError::Unexpected,
        TransportError::TooLong,
        TransportError::NoScript,
    ];
    let (ago_ms, left_ms) = (u32::MAX, u32::MAX);
    let denials = [
        Denial::Restarted {
            ago_ms,
            left_ms,
            has_record: false,
        },
        Denial::Replica,
        Denial::MayEvict,
        Denial::Evicted { left_ms },
        Denial::InfoForbidden,
        Denial::TtlTooLong {
            max_ttl_ms: u32::MAX,
        },
    ];
    // As a socket for a host name has it: the text of a node may be static, and a name without an address has had no answer.
    let host: &str = format!("{}:{}", "h".repeat(60), u16::MAX).leak();
    let unknown: &str = format!("{host} (no address yet)").leak();
    for failure in [
        TransportError::Unreachable(ErrorKind::NotFound),
        TransportError::NoConnection(longest),
        TransportError::NotConnected(longest),
    ] {
        let text = NodeError::new(unknown.into(), Failure::Transport(failure)).to_string();
        assert!(text.len() + 2 <= 180, "{} bytes: {text}", text.len());
    }
    for (name, max, line) in [(v4, 144, 700), (v6, 180, 800), (host.into(), 180, 800)] {
        assert!(160 + 64 + 3 * max <= line, "three nodes and a key");
        let failures = transport.map(Failure::Transport).into_iter();
        let failures = failures
            .chain(denials.map(Failure::Denied))
            .chain([Failure::DuplicateOf(name)]);
        for failure in failures {
            let text = NodeError::new(name, failure).to_string();
            // With the separator of two nodes.
            assert!(
                text.len() + 2 <= max,
                "{} of {max} bytes: {text}",
                text.len()
            );
        }
    }
}

#[test]
fn a_byte_of_a_key_takes_no_more_characters_than_the_readme_says() {
    let longest = (0..=u8::MAX).map(|byte| KeyName::new(&[byte; 64]).to_string().len());
    assert_eq!(longest.max(), Some(64 * 6));
    for character in (0..=u32::from(char::MAX)).filter_map(char::from_u32) {
        let key = character.to_string();
        let shown = KeyName::new(key.as_bytes()).to_string();
        assert!(shown.len() <= 6 * key.len(), "{shown}");
    }
    for mark in [b'"', b'\'', b'\\'] {
        assert_eq!(KeyName::new(&[mark; 64]).to_string().len(), 64 * 2);
    }
}

#[test]
fn a_node_is_called_by_its_address_or_by_its_name() {
    let v4 = SocketAddr::new(IpAddr::V4(Ipv4Addr::new(10, 0, 0, 1)), 6379);
    let v6 = SocketAddr::new(IpAddr::V6(Ipv6Addr::LOCALHOST), 6379);
    for (name, text) in [
        (NodeName::from(v4), "10.0.0.1:6379"),
        (NodeName::from(v6), "[::1]:6379"),
        (NodeName::from("cellar"), "cellar"),
    ] {
        assert_eq!(
            (name.to_string(), format!("{name:?}")),
            (text.to_owned(), text.to_owned())
        );
    }
}
