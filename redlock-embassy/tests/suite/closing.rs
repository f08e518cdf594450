//! The end of a connection.

use core::cell::Cell;
use core::net::SocketAddr;
use core::time::Duration;

use embassy_futures::join::join;
use embedded_io_async::{ErrorKind, ErrorType, Read, Write};
use embedded_nal_async::TcpConnect;
use redlock_core::transport::Reply;
use redlock_core::{Clock, Transport};
use redlock_embassy::{Connect, NalSocket};

use crate::wire::Entry;
use crate::world::*;

#[test]
fn closing_ends_the_connection_at_once_when_no_reply_is_owed_and_the_next_command_makes_another() {
    let (world, server, mut node) = connected();
    for connections in 1..5 {
        assert!(matches!(
            world.execute(&mut node, &acquire(A)),
            Ok(ACQUIRED | HELD)
        ));
        assert_eq!((server.connections(), server.clients()), (connections, 1));
        assert!(poll_times(1, node.close()).is_some());
        assert!(poll_times(1, node.close()).is_some(), "twice does no harm");
        assert_eq!(server.clients(), 0);
    }
    assert_eq!(world.now_ms(), 0);
}

#[test]
fn closing_a_connection_that_was_never_open_does_nothing() {
    let (_, server, mut node) = unconnected();
    assert!(poll_times(1, node.close()).is_some());
    assert!(server.attempts().is_empty());
}

#[test]
fn closing_waits_for_the_replies_that_are_owed() {
    let (world, server, mut node) = connected();
    server.hang(30);
    assert!(poll_times(2, node.execute(&acquire(A))).is_none());
    let answer = async {
        world.clock.sleep_until(world.after(ms(300))).await;
        assert_eq!(server.clients(), 1, "still open");
        server.resume();
    };
    world.run(join(node.close(), answer));
    assert_eq!(world.now_ms(), 300);
    assert_eq!(server.heard(), ["SET a"], "its rest was sent");
    assert_eq!(server.clients(), 0);
    assert_eq!(world.execute(&mut node, &acquire(B)), Ok(HELD));
}

#[test]
fn closing_does_not_wait_forever() {
    for room in [0, 30, usize::MAX] {
        for farewell in [ms(0), ms(600), ms(60_000)] {
            let (world, server, mut node) = connected();
            server.hang(room);
            server.take_time_to_close(farewell);
            assert!(poll_times(2, node.execute(&acquire(A))).is_none());
            world.run(node.close());
            assert_eq!(world.now_ms(), 1_000);
            assert_eq!(server.clients(), 0);
            server.resume();
            assert_eq!(world.execute(&mut node, &extend(B)), Ok(Reply::NotMine));
            assert_eq!(server.connections(), 2);
        }
    }
}

#[test]
fn closing_ends_an_attempt_to_connect() {
    let (world, server, mut node) = unconnected();
    server.enter(Entry::Nothing);
    assert_eq!(world.round(&mut node, &acquire(A)), None);
    assert!(poll_times(1, node.close()).is_some());
    server.enter(Entry::After(ms(10)));
    assert_eq!(world.execute(&mut node, &acquire(B)), Ok(ACQUIRED));
    assert_eq!(server.attempts(), [0, 50]);
}

#[test]
fn closing_ends_a_login() {
    let (world, server) = start();
    let mut node = server.node().database(3);
    server.hang(usize::MAX);
    assert_eq!(world.round(&mut node, &acquire(A)), None);
    assert!(poll_times(1, node.close()).is_some());
    assert_eq!(server.clients(), 0);
    server.resume();
    assert_eq!(world.execute(&mut node, &acquire(B)), Ok(ACQUIRED));
    assert_eq!(server.heard(), ["SELECT 3", "SELECT 3", "SET b"]);
}

#[test]
fn after_closing_nothing_is_held_against_the_node() {
    let (world, server, mut node) = unconnected();
    server.enter(Entry::REFUSED);
    for _ in 0..8 {
        assert!(world.execute(&mut node, &acquire(A)).is_err());
        world.clock.advance(ms(2_000));
    }
    assert!(world.execute(&mut node, &acquire(A)).is_err());
    world.run(node.close());
    // The pauses start again too: the first failure costs none.
    let attempts = server.attempts().len();
    for _ in 0..2 {
        assert!(world.execute(&mut node, &acquire(A)).is_err());
    }
    assert_eq!(server.attempts().len(), attempts + 2);
    world.run(node.close());
    server.enter(Entry::OPEN);
    assert_eq!(world.execute(&mut node, &acquire(A)), Ok(ACQUIRED));
}

#[test]
fn a_closing_that_is_dropped_anywhere_leaves_a_node_that_works() {
    for chunk in [1, 16, 1_000] {
        for farewell in [Duration::ZERO, ms(5)] {
            let mut polls = 0;
            loop {
                let (world, server) = start();
                server.stutter(chunk);
                server.take_time_to_close(farewell);
                let mut node = server.connected();
                assert!(poll_times(3, node.execute(&acquire(A))).is_none());
                let is_done = poll_times(polls, node.close()).is_some();
                assert_eq!(
                    world.execute(&mut node, &extend(A)),
                    Ok(Reply::Extended(None))
                );
                assert_eq!(server.heard(), ["SET a", "EXTEND a"]);
                assert_eq!(server.clients(), 1);
                // With time standing still a slow farewell is never over.
                if is_done || (!farewell.is_zero() && polls > 200) {
                    break;
                }
                polls += 1;
                assert!(polls < 1_000, "it never ends");
            }
            assert!(polls > 0);
        }
    }
}

#[test]
fn the_end_of_a_broken_connection_is_waited_for_before_the_next_one_but_not_forever() {
    for (farewell, attempts) in [
        (ms(0), [0, 20]),
        (ms(400), [0, 400]),
        (ms(60_000), [0, 1_000]),
    ] {
        let (world, server, mut node) = connected();
        server.take_time_to_close(farewell);
        server.answer_with("garbage");
        assert!(
            poll_times(1, node.execute(&acquire(A))).unwrap().is_err(),
            "at once"
        );
        assert_eq!(server.clients(), 0, "it is told at once");
        world.clock.advance(ms(20));
        // Dropped meanwhile, in one round after the other.
        assert!((0..100).any(|_| world.round(&mut node, &acquire(B)).is_some()));
        assert_eq!(server.attempts(), attempts);
        assert_eq!(server.clients(), 1);
    }
}

/// A stack of which every read is ready, as sockets of an operating system are while a node goes on sending.
#[derive(Default)]
struct Flood {
    reads: Cell<usize>,
}

impl TcpConnect for Flood {
    type Error = ErrorKind;
    type Connection<'a> = &'a Self;

    async fn connect(&self, _remote: SocketAddr) -> Result<&Self, ErrorKind> {
        Ok(self)
    }
}

impl ErrorType for &Flood {
    type Error = ErrorKind;
}

impl Read for &Flood {
    async fn read(&mut self, buffer: &mut [u8]) -> Result<usize, ErrorKind> {
        self.reads.set(self.reads.get() + 1);
        assert!(self.reads.get() < 1_000, "the other tasks have no turn");
        Ok(buffer.len())
    }
}

impl Write for &Flood {
    async fn write(&mut self, bytes: &[u8]) -> Result<usize, ErrorKind> {
        Ok(bytes.len())
    }

    async fn flush(&mut self) -> Result<(), ErrorKind> {
        Ok(())
    }
}

#[test]
fn a_node_that_goes_on_sending_does_not_keep_the_other_tasks_waiting_while_its_connection_is_closed()
 {
    let stack = Flood::default();
    let mut socket = NalSocket::new(&stack, SocketAddr::from(([127, 0, 0, 1], 6_379)));
    poll_times(1, socket.connect()).unwrap().unwrap();
    assert!(poll_times(10, socket.close()).is_none());
}
