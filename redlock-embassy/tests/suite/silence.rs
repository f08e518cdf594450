//! Nodes that are connected and do not answer.

use core::time::Duration;

use redlock_core::transport::Reply;
use redlock_core::{Clock, Transport};
use redlock_embassy::{Failure, TransportError};

use crate::world::*;

#[test]
fn a_silent_connection_is_replaced_when_patience_is_over_and_not_before() {
    for (patience, expected) in [
        (None, vec![0, 5_000, 9_000]),
        (Some(ms(5_000)), vec![0, 5_000, 9_000]),
        (Some(ms(4_001)), vec![0, 5_000, 9_000]),
        (Some(ms(4_000)), vec![0, 4_000, 8_000]),
        (Some(ms(5_001)), vec![0, 6_000, 10_000]),
        (Some(ms(2_000)), vec![0, 2_000, 6_000, 10_000]),
    ] {
        let (world, server, mut node) = connected();
        if let Some(patience) = patience {
            node = node.patience(patience);
        }
        server.hang(usize::MAX);
        // A command every second. A node that hangs accepts no connection: after the connect timeout, and a pause,
        // there is another attempt.
        for second in 0..12 {
            world
                .clock
                .advance(Duration::from_secs(second) - world.time());
            let result = world.round(&mut node, &extend(A));
            assert!(matches!(
                result,
                None | Some(Err(Failure::Transport(TransportError::Silent)
                    | Failure::Transport(TransportError::NoConnection(_))))
            ));
        }
        assert_eq!(server.attempts(), expected, "{patience:?}");
        assert!(server.clients() <= 1, "the old ones were closed");
    }
}

#[test]
fn a_connection_that_owes_nothing_is_kept_however_long_it_is_idle() {
    let (world, server, mut node) = connected();
    for _ in 0..3 {
        world.clock.advance(Duration::from_secs(3_600));
        assert_eq!(world.execute(&mut node, &release(A)), Ok(Reply::NotMine));
    }
    assert_eq!(server.connections(), 1);
}

/// The reply arrives, and the stream still does not say that the command has left.
#[test]
fn a_connection_whose_flush_does_not_end_is_replaced_when_patience_is_over() {
    let (world, server, mut node) = connected();
    server.flush_without_end();
    assert_eq!(world.round(&mut node, &acquire(A)), None);
    assert_eq!(server.token(KEY), Some(A.as_bytes().to_vec()));
    for _ in 0..3 {
        // The identity is out of date.
        world.clock.advance(ms(61_000));
        let _result = world.round(&mut node, &acquire(B));
    }
    assert!(server.connections() > 1, "it is the same connection");
}

#[test]
fn patience_begins_with_the_command_and_not_with_the_last_reply() {
    let (world, server, mut node) = connected();
    assert_eq!(world.execute(&mut node, &release(A)), Ok(Reply::NotMine));
    world.clock.advance(ms(20_000));
    server.hang(usize::MAX);
    assert_eq!(world.round(&mut node, &acquire(A)), None);
    assert_eq!(world.round(&mut node, &acquire(B)), None);
    assert_eq!(server.connections(), 1);
    world.clock.advance(ms(4_900));
    assert_eq!(world.round(&mut node, &acquire(C)), None);
    assert_eq!(server.connections(), 2);
}

#[test]
fn a_reply_that_has_come_meanwhile_is_read_before_patience_is_judged() {
    let (world, server, mut node) = connected();
    server.hang(usize::MAX);
    assert_eq!(world.round(&mut node, &acquire(A)), None);
    server.resume();
    world.clock.advance(Duration::from_secs(3_600));
    assert_eq!(world.execute(&mut node, &acquire(B)), Ok(ACQUIRED));
    assert_eq!(server.connections(), 1);
}

#[test]
fn a_node_that_answers_slowly_but_answers_is_kept() {
    let (world, server, mut node) = connected();
    server.hang(usize::MAX);
    for _ in 0..3 {
        assert_eq!(world.round(&mut node, &extend(A)), None);
    }
    // The answers to the first ones come every four seconds, and never the last one.
    for _ in 0..3 {
        world.clock.advance(ms(4_000));
        server.say(":0\r\n");
        assert_eq!(world.round(&mut node, &extend(A)), None);
    }
    assert_eq!(server.connections(), 1);
    world.clock.advance(ms(5_000));
    assert_eq!(world.round(&mut node, &extend(A)), None);
    assert_eq!(server.connections(), 2);
}

#[test]
fn a_reply_that_trickles_in_does_not_keep_the_connection() {
    let (world, server, mut node) = connected();
    server.hang(usize::MAX);
    assert_eq!(world.round(&mut node, &extend(A)), None);
    server.say("+");
    for second in 1..5 {
        world.clock.advance(ms(1_000 * second) - world.time());
        server.say("x");
        assert_eq!(world.round(&mut node, &extend(A)), None);
        assert_eq!(server.connections(), 1);
    }
    world.clock.advance(ms(5_000) - world.time());
    server.say("x");
    assert_eq!(world.round(&mut node, &extend(A)), None);
    assert_eq!(server.connections(), 2);
}

#[test]
fn what_was_sent_to_a_node_that_hung_is_not_sent_again_on_the_new_connection() {
    let (world, server, mut node) = connected();
    server.hang(usize::MAX);
    assert_eq!(world.round(&mut node, &acquire(A)), None);
    world.clock.advance(ms(5_000));
    // It has not accepted a connection again.
    assert_eq!(world.round(&mut node, &acquire(B)), None);
    server.resume();
    assert_eq!(world.execute(&mut node, &acquire(C)), Ok(HELD));
    assert_eq!(server.heard(), ["SET a", "SET c"]);
}

#[test]
fn a_node_that_takes_no_more_bytes_gets_what_fits_and_no_more_until_it_reads_again() {
    for room in [0, 1, 73, 75, 200] {
        let (world, server, mut node) = connected();
        server.hang(room);
        for number in 0..20_u8 {
            let token = token(b'A' + number);
            assert_eq!(poll_times(2, node.execute(&acquire(&token))), None);
        }
        server.resume();
        assert_eq!(world.execute(&mut node, &extend(B)), Ok(Reply::NotMine));
        assert_eq!(server.connections(), 1);
        // 512 bytes here and what the network took; 76 for each.
        let taken = (512 + room) / 76;
        let expected = ('A'..).take(taken).map(|letter| format!("SET {letter}"));
        let heard = server.heard();
        assert!(heard[..taken].iter().cloned().eq(expected), "{heard:?}");
        assert_eq!(heard[taken..], ["EXTEND b"]);
    }
}

#[test]
fn a_node_that_takes_no_more_bytes_is_replaced_when_patience_is_over() {
    let (world, server, mut node) = connected();
    server.hang(0);
    for second in 0..5 {
        world
            .clock
            .advance(Duration::from_secs(second) - world.time());
        for _ in 0..5 {
            assert_eq!(world.round(&mut node, &acquire(A)), None);
        }
        assert_eq!(server.connections(), 1);
    }
    world.clock.advance(ms(5_000));
    server.resume();
    assert_eq!(world.execute(&mut node, &extend(B)), Ok(Reply::NotMine));
    assert_eq!((server.connections(), server.clients()), (2, 1));
}

/// A node that hangs and takes no other command: two fill the send buffer if the network takes no byte, and 64
/// replies may be owed.
fn full(owed: usize) -> Setup {
    let (world, server, mut node) = connected();
    server.hang(if owed == 2 { 0 } else { usize::MAX });
    for _ in 0..owed {
        assert_eq!(poll_times(2, node.execute(&extend(A))), None);
    }
    (world, server, node)
}

#[test]
fn a_node_that_owes_as_many_replies_as_it_may_gets_no_more_commands_until_it_answers() {
    let (world, server, mut node) = full(64);
    for _ in 0..3 {
        assert_eq!(poll_times(2, node.execute(&acquire(B))), None);
    }
    assert!(is_nothing_to_release(poll_times(
        1,
        node.execute(&release(B))
    )));
    server.resume();
    assert_eq!(world.execute(&mut node, &acquire(C)), Ok(ACQUIRED));
    let heard = server.heard();
    assert_eq!((heard.len(), heard[64].as_str()), (65, "SET c"));
    assert_eq!(server.connections(), 1);
}

#[test]
fn a_call_that_waits_for_room_goes_on_as_soon_as_there_is_some() {
    for owed in [2, 64] {
        let (world, server, mut node) = full(owed);
        let resume = async {
            world.clock.sleep_until(world.after(ms(30))).await;
            server.resume();
        };
        let result = world.execute_during(resume, &mut node, &extend(B));
        assert_eq!((result, world.now_ms()), (Ok(Reply::NotMine), 30));
        assert_eq!(server.heard().len(), owed + 1);
    }
}

#[test]
fn a_connection_that_ends_while_a_call_waits_for_room_is_an_error() {
    for owed in [2, 64] {
        let (world, server, mut node) = full(owed);
        let cut = async {
            world.clock.sleep_until(world.after(ms(30))).await;
            server.cut();
        };
        let result = world.execute_during(cut, &mut node, &extend(B));
        let disconnected = Failure::Transport(TransportError::Disconnected);
        assert_eq!(result, Err(disconnected));
        assert_eq!(server.clients(), 0);
    }
}

#[test]
fn a_command_of_exactly_the_send_buffer_is_sent_and_a_longer_one_is_an_error_that_costs_nothing() {
    let (world, server, mut node) = connected();
    // "*6", "$3" "SET", "$nnn" key, "$20" token, "$2" "NX", "$2" "PX", "$5" "10000".
    let around = 4 + 9 + 6 + 2 + 5 + 22 + 8 + 8 + 11;
    let longest = 512 - around;
    for (len, fits) in [(longest, true), (longest + 1, false), (1_000, false)] {
        let key = vec![b'k'; len];
        // A node remembers of which token something has left.
        let token = &token(if fits { b'a' } else { b'b' });
        let command = acquire_of(&key, token);
        let heard = server.heard().len();
        let expected = if fits {
            Ok(ACQUIRED)
        } else {
            Err(Failure::Transport(TransportError::TooLong))
        };
        assert_eq!(world.execute(&mut node, &command), expected);
        let release = release_of(b"k", token);
        let released = match fits {
            true => Ok(Reply::NotMine),
            false => Err(Failure::NothingToRelease),
        };
        assert_eq!(world.execute(&mut node, &release), released);
        assert_eq!(server.heard().len() - heard, if fits { 2 } else { 0 });
        assert_eq!(world.execute(&mut node, &extend(B)), Ok(Reply::NotMine));
    }
    assert_eq!(server.connections(), 1);
}
