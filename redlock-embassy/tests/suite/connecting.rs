//! Nodes that cannot be reached, for a while.

use core::time::Duration;

use embedded_io_async::ErrorKind;
use redlock_core::Transport;
use redlock_core::transport::Reply;
use redlock_embassy::{Failure, NodeName, TransportError};

use crate::wire::{Entry, Server};
use crate::world::*;

const REFUSED: Failure<NodeName, TransportError> =
    Failure::Transport(TransportError::Unreachable(ErrorKind::ConnectionRefused));

#[test]
fn nothing_is_sent_and_no_connection_is_made_before_the_first_command() {
    let (world, server, mut node) = unconnected();
    assert_eq!(server.attempts(), [0_u64; 0]);
    assert_eq!(world.execute(&mut node, &acquire(A)), Ok(ACQUIRED));
    assert_eq!(server.heard(), ["SET a"]);
}

#[test]
fn a_node_that_refuses_is_an_error_at_once_also_between_attempts() {
    let (world, server, mut node) = unconnected();
    server.enter(Entry::REFUSED);
    for _ in 0..100 {
        let result = poll_times(1, node.execute(&acquire(A)));
        assert_eq!(*result.unwrap().unwrap_err().failure(), REFUSED);
        world.clock.advance(ms(1));
    }
    assert!(server.attempts().len() < 5, "{:?}", server.attempts());
}

/// Tries every millisecond up to the end, and returns when attempts were made.
fn attempts_until(
    end: Duration,
    world: &World,
    server: &Server<'_>,
    node: &mut Node<'_>,
) -> Vec<u64> {
    let before = server.attempts().len();
    while world.time() < end {
        assert!(world.execute(node, &acquire(A)).is_err());
        world.clock.advance(ms(1));
    }
    server.attempts()[before..].to_vec()
}

#[test]
fn attempts_are_made_after_pauses_that_double_up_to_a_bound() {
    for kind in [
        ErrorKind::ConnectionRefused,
        ErrorKind::TimedOut,
        ErrorKind::NotConnected,
    ] {
        let (world, server) = start();
        server.enter(Entry::Refused(kind));
        let attempts = attempts_until(ms(10_000), world, server, &mut server.node());
        // The second attempt is the next one that is asked for.
        let pauses: Vec<u64> = attempts.windows(2).map(|pair| pair[1] - pair[0]).collect();
        assert_eq!(
            pauses,
            [1, 50, 100, 200, 400, 800, 1_600, 1_600, 1_600, 1_600, 1_600]
        );
    }
}

#[test]
fn a_node_that_accepts_and_disconnects_at_once_does_not_reset_the_back_off() {
    let (world, server, mut node) = unconnected();
    server.hang(usize::MAX);
    while world.time() < ms(5_000) {
        let result = world.round(&mut node, &acquire(A));
        assert!(matches!(
            result,
            None | Some(Err(Failure::Transport(TransportError::Disconnected)))
        ));
        server.cut();
        world.clock.advance(ms(1));
    }
    assert!(server.attempts().len() < 10, "{:?}", server.attempts());
}

#[test]
fn a_node_that_is_back_works_by_itself_within_the_longest_pause() {
    for down in [ms(1), ms(60), ms(700), ms(30_000)] {
        let (world, server, mut node) = unconnected();
        server.enter(Entry::REFUSED);
        attempts_until(down, world, server, &mut node);
        server.enter(Entry::OPEN);
        let back_at = world.now_ms();
        while world.execute(&mut node, &acquire(A)).is_err() {
            world.clock.advance(ms(1));
            assert!(world.now_ms() - back_at <= 1_600);
        }
        assert_eq!(server.heard(), ["SET a"]);
    }
}

#[test]
fn the_pauses_start_again_after_a_node_has_answered() {
    let (world, server, mut node) = unconnected();
    server.enter(Entry::REFUSED);
    attempts_until(ms(5_000), world, server, &mut node);
    server.enter(Entry::OPEN);
    world.clock.advance(ms(1_600));
    assert_eq!(world.execute(&mut node, &acquire(A)), Ok(ACQUIRED));
    server.cut();
    server.enter(Entry::REFUSED);
    let attempts = attempts_until(
        world.time().saturating_add(ms(400)),
        world,
        server,
        &mut node,
    );
    let pauses: Vec<u64> = attempts.windows(2).map(|pair| pair[1] - pair[0]).collect();
    assert_eq!(
        pauses,
        [50, 100, 200],
        "the end of the connection was the first failure"
    );
}

#[test]
fn a_connection_that_breaks_is_replaced_at_once() {
    let (world, server, mut node) = connected();
    for _ in 0..10 {
        assert_eq!(world.execute(&mut node, &acquire(A)), Ok(ACQUIRED));
        server.cut();
        assert_eq!(world.execute(&mut node, &release(A)), Ok(Reply::Released));
    }
    assert_eq!((world.now_ms(), server.connections()), (0, 11));
    assert_eq!(server.clients(), 1);
}

#[test]
fn an_explicit_connect_does_not_wait_for_the_pause() {
    let (world, server, mut node) = unconnected();
    server.enter(Entry::REFUSED);
    for attempts in 1..=20 {
        assert_eq!(*world.run(node.connect()).unwrap_err().failure(), REFUSED);
        assert_eq!(server.attempts().len(), attempts);
    }
    server.enter(Entry::OPEN);
    assert_eq!(world.run(node.connect()), Ok(()));
    assert_eq!(world.run(node.connect()), Ok(()), "once is enough");
    assert_eq!((server.connections(), world.now_ms()), (1, 0));
}

#[test]
fn an_explicit_connect_ends_the_pause_for_commands_too() {
    let (world, server, mut node) = unconnected();
    server.enter(Entry::REFUSED);
    attempts_until(ms(5_000), world, server, &mut node);
    let attempts = server.attempts().len();
    assert!(world.execute(&mut node, &acquire(A)).is_err());
    assert_eq!(server.attempts().len(), attempts, "a pause");
    assert!(world.run(node.connect()).is_err());
    assert_eq!(server.attempts().len(), attempts + 1);
    assert!(world.execute(&mut node, &acquire(A)).is_err());
    assert_eq!(server.attempts().len(), attempts + 2);
}

#[test]
fn an_explicit_connect_sees_that_the_connection_has_ended() {
    let (world, server, mut node) = connected();
    server.cut();
    assert_eq!(world.run(node.connect()), Ok(()));
    assert_eq!((server.connections(), server.clients()), (2, 1));
}

#[test]
fn an_explicit_connect_waits_as_long_as_a_connection_may_take_and_no_longer() {
    for limit in [ms(200), ms(3_000)] {
        let (world, server) = start();
        let mut node = server.node().connect_timeout(limit);
        server.enter(Entry::Nothing);
        let error = world.run(node.connect()).unwrap_err();
        assert_eq!(
            *error.failure(),
            Failure::Transport(TransportError::NoConnection(limit))
        );
        assert_eq!(world.time(), limit);
        let late = limit.saturating_sub(ms(1));
        server.enter(Entry::After(late));
        assert_eq!(world.run(node.connect()), Ok(()));
        assert_eq!(world.time(), limit + late);
    }
}

#[test]
fn rounds_that_are_shorter_than_connecting_do_without_the_node_and_a_later_one_finds_it_connected()
{
    let (world, server, mut node) = unconnected();
    server.enter(Entry::After(ms(120)));
    assert_eq!(world.round(&mut node, &acquire(A)), None);
    assert_eq!(world.round(&mut node, &acquire(B)), None);
    assert_eq!(world.round(&mut node, &acquire(C)), Some(Ok(ACQUIRED)));
    assert_eq!(world.now_ms(), 120);
    assert_eq!(server.attempts(), [0], "one attempt for all of them");
    assert_eq!(server.heard(), ["SET c"]);
}

#[test]
fn a_connection_that_comes_about_between_two_rounds_is_found_however_late() {
    for pause in [ms(100), ms(2_900), ms(3_000), ms(60_000)] {
        let (world, server, mut node) = unconnected();
        server.enter(Entry::After(ms(80)));
        assert_eq!(world.round(&mut node, &acquire(A)), None);
        world.clock.advance(pause);
        assert_eq!(world.round(&mut node, &acquire(B)), Some(Ok(ACQUIRED)));
        assert_eq!(server.attempts(), [0]);
    }
}

#[test]
fn an_attempt_that_hangs_ends_after_the_connect_timeout_for_every_caller() {
    let (world, server, mut node) = unconnected();
    server.enter(Entry::Nothing);
    let error = TransportError::NoConnection(ms(3_000));
    while world.time() < ms(9_000) {
        match world.round(&mut node, &acquire(A)) {
            None => assert_ne!(world.now_ms(), 3_000),
            Some(result) => assert_eq!(result, Err(Failure::Transport(error))),
        }
        world.clock.advance(ms(10));
    }
    // Seen by the first round that begins after 3 s; the second failure costs a pause.
    assert_eq!(server.attempts(), [0, 3_010, 6_060]);
}

#[test]
fn a_dropped_attempt_is_the_same_one_wherever_it_is_dropped() {
    let (world, server, mut node) = unconnected();
    server.enter(Entry::After(ms(20)));
    for _ in 0..20 {
        assert!(poll_times(2, node.connect()).is_none());
        world.clock.advance(ms(1));
    }
    assert_eq!(poll_times(1, node.connect()), Some(Ok(())));
    assert_eq!(server.attempts(), [0]);
}

#[test]
fn an_attempt_that_was_not_polled_for_long_is_used_if_it_has_succeeded_and_otherwise_replaced() {
    for (takes, is_connected) in [(9_000, true), (900_000, false)] {
        let (world, server, mut node) = unconnected();
        server.enter(Entry::After(ms(takes)));
        assert_eq!(world.round(&mut node, &acquire(A)), None);
        world.clock.advance(ms(60_000));
        let begun_at = world.now_ms();
        assert_eq!(world.run(node.connect()).is_ok(), is_connected);
        let taken = world.now_ms() - begun_at;
        if is_connected {
            assert_eq!((server.attempts(), taken), (vec![0], 0));
        } else {
            // Otherwise, a client that calls rarely would never learn whether the node can be reached now.
            assert_eq!((server.attempts(), taken), (vec![0, begun_at], 3_000));
        }
    }
}

#[test]
fn a_dropped_attempt_whose_connection_has_ended_since_is_replaced() {
    let (world, server, mut node) = unconnected();
    server.hang(usize::MAX);
    // It is connected, and in its login.
    assert_eq!(world.round(&mut node, &acquire(A)), None);
    server.cut();
    server.resume();
    assert_eq!(world.run(node.connect()), Ok(()));
    assert_eq!((server.connections(), server.clients()), (2, 1));
}

#[test]
fn a_node_that_has_no_room_for_clients_is_not_tried_with_every_command() {
    let (world, server, mut node) = unconnected();
    for _ in 0..100 {
        server.answer_with("-ERR max number of clients reached\r\n");
        assert!(world.execute(&mut node, &acquire(A)).is_err());
        server.cut();
        world.clock.advance(ms(1));
    }
    assert!(server.attempts().len() < 6, "{:?}", server.attempts());
}
