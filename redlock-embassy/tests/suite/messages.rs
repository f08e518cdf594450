//! Error messages.

use core::net::{IpAddr, Ipv4Addr, Ipv6Addr, SocketAddr};

use embedded_io_async::ErrorKind;
use redlock_embassy::{Denial, NodeErrorKind, NodeName};

use crate::world::ms;

#[test]
fn an_error_says_what_happened_in_one_line() {
    let unreachable = NodeErrorKind::Unreachable;
    for (error, text) in [
        (NodeErrorKind::TimedOut(ms(50)), "timed out after 50 ms"),
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
        (unreachable(ErrorKind::Other), "cannot connect"),
        (
            NodeErrorKind::NoConnection(ms(3_000)),
            "no connection within 3000 ms",
        ),
        (NodeErrorKind::Disconnected, "the connection broke"),
        (
            NodeErrorKind::Silent,
            "no answer for too long, reconnecting",
        ),
        (
            NodeErrorKind::Unexpected,
            "unexpected reply; is this a Redis server?",
        ),
        (
            NodeErrorKind::TooLong,
            "the command does not fit the send buffer; use a shorter key or a larger TX",
        ),
        (
            NodeErrorKind::Denied(Denial::Restarted {
                ago_ms: 3_000,
                left_ms: 7_000,
            }),
            "restarted at least 3 s ago, its vote counts again in 7 s",
        ),
        (
            NodeErrorKind::DuplicateOf("10.0.0.1:6379".into()),
            "the same server as 10.0.0.1:6379; name each server once",
        ),
        (
            NodeErrorKind::NoScript,
            "has lost its scripts: stop SCRIPT FLUSH of others, or grant +script|load",
        ),
    ] {
        assert_eq!(error.to_string(), text);
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
