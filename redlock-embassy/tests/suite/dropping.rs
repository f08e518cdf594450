//! Calls that are dropped in the middle.

use core::pin::pin;

use redlock_core::transport::{Command, Reply};
use redlock_core::{Token, Transport};
use redlock_embassy::Failure;

use crate::world::*;

/// A command and what the node answers to it, all of them on one key that is not there at first.
#[derive(Debug, Clone, Copy)]
enum Call {
    Acquire,
    Extend,
    Release,
}

impl Call {
    const ALL: [Self; 3] = [Self::Acquire, Self::Extend, Self::Release];

    const fn command(self, token: &Token) -> Command<'_> {
        match self {
            Self::Acquire => acquire(token),
            Self::Extend => extend(token),
            Self::Release => release(token),
        }
    }

    /// What the node answers while `holder` has the key, and which client has it afterwards.
    fn carried_out<'t>(self, token: &'t Token, holder: &mut Option<&'t Token>) -> Reply {
        let is_mine = *holder == Some(token);
        match self {
            Self::Acquire if holder.is_some() => HELD,
            Self::Acquire => {
                *holder = Some(token);
                ACQUIRED
            }
            Self::Extend if is_mine => Reply::Extended(None),
            Self::Release if is_mine => {
                *holder = None;
                Reply::Released
            }
            Self::Extend | Self::Release => Reply::NotMine,
        }
    }

    fn heard(self, token: &Token) -> String {
        let verb = match self {
            Self::Acquire => "SET",
            Self::Extend => "EXTEND",
            Self::Release => "RELEASE",
        };
        format!("{verb} {}", char::from(token.as_bytes()[0]))
    }
}

/// Drops `first` after each number of polls and lets `second` run: its reply is its own, each command
/// arrives whole, once and in order. Returns at how many points `first` was dropped.
fn drop_everywhere(
    chunk: usize,
    needs_flush: bool,
    is_connected: bool,
    holder: Option<&Token>,
    first: (Call, &Token),
    second: (Call, &Token),
) -> usize {
    for polls in 0..1_000 {
        let (world, server) = start();
        server.stutter(chunk);
        if !needs_flush {
            server.send_at_once();
        }
        let mut node = if is_connected {
            server.connected()
        } else {
            server.node()
        };
        if let Some(holder) = holder {
            let mut other = server.node();
            assert_eq!(world.execute(&mut other, &acquire(holder)), Ok(ACQUIRED));
        }
        let before = server.heard().len();

        let dropped = poll_times(polls, node.execute(&first.0.command(first.1)));
        // A release that has found no connection is kept, an acquire that has not left is not.
        let result = world.execute(&mut node, &second.0.command(second.1));

        let heard = &server.heard()[before..];
        let [of_first, of_second] = [first, second].map(|(call, token)| call.heard(token));
        let was_heard = *heard == [of_first, of_second.clone()];
        let is_known_unsent = heard.is_empty()
            && matches!((first.0, second.0), (Call::Acquire, Call::Release))
            && first.1 == second.1;
        assert!(
            was_heard || is_known_unsent || *heard == [of_second],
            "{heard:?} after {polls} polls",
        );
        // The first poll hands over what a connection can take.
        assert!(was_heard || !is_connected || polls == 0);
        let mut holder = holder;
        if was_heard {
            let reply = first.0.carried_out(first.1, &mut holder);
            assert!(dropped.as_ref().is_none_or(|result| *result == Ok(reply)));
        } else {
            assert!(dropped.is_none(), "done without being heard");
        }
        let expected = if is_known_unsent {
            Err(Failure::NothingToRelease)
        } else {
            Ok(second.0.carried_out(second.1, &mut holder))
        };
        assert_eq!(
            result, expected,
            "{first:?}, {second:?} after {polls} polls"
        );
        let others = usize::from(before > 0);
        assert!(server.connections() == 1 + others || is_known_unsent);
        if dropped.is_some() {
            return polls;
        }
    }
    panic!("it never ends")
}

#[test]
fn the_next_call_gets_its_own_reply_wherever_the_one_before_was_dropped() {
    let mut places = 0;
    for (chunk, needs_flush) in [(13, true), (64, false), (1_000, true)] {
        for is_connected in [false, true] {
            // The login takes long in small pieces; other tests drop it.
            let chunk = if is_connected { chunk } else { chunk * 10 };
            for holder in [None, Some(A), Some(C)] {
                for first in Call::ALL {
                    for second in Call::ALL {
                        for second_token in [A, B] {
                            let (first, second) = ((first, A), (second, second_token));
                            places += drop_everywhere(
                                chunk,
                                needs_flush,
                                is_connected,
                                holder,
                                first,
                                second,
                            );
                        }
                    }
                }
            }
        }
    }
    assert!(places > 2_500, "{places}");
}

#[test]
fn the_next_call_gets_its_own_reply_even_if_the_network_takes_single_bytes() {
    let (extend, release) = ((Call::Extend, A), (Call::Release, B));
    let places = drop_everywhere(1, true, true, Some(A), extend, release);
    assert!(places > 150, "{places}");
    let (release, acquire) = ((Call::Release, A), (Call::Acquire, B));
    drop_everywhere(1, true, true, Some(A), release, acquire);
}

#[test]
fn replies_to_many_dropped_calls_are_passed_over() {
    for chunk in [1, 3, 8, 1_000] {
        let (world, server) = start();
        server.stutter(chunk);
        let mut node = server.connected();
        assert_eq!(world.execute(&mut node, &acquire(A)), Ok(ACQUIRED));
        let calls = [
            acquire(B),
            extend(A),
            release(B),
            acquire(C),
            extend(B),
            release(C),
        ];
        for (number, call) in calls.iter().cycle().take(60).enumerate() {
            let mut call = pin!(node.execute(call));
            for _ in 0..1_000 {
                if server.heard().len() == number + 2 {
                    break;
                }
                assert!(poll_once(call.as_mut()).is_pending());
            }
        }
        assert_eq!(world.execute(&mut node, &release(A)), Ok(Reply::Released));
        assert_eq!(world.execute(&mut node, &release(A)), Ok(Reply::NotMine));
        assert_eq!(server.connections(), 1, "in pieces of {chunk}");
        let heard = server.heard();
        let expected = [
            "SET b",
            "EXTEND a",
            "RELEASE b",
            "SET c",
            "EXTEND b",
            "RELEASE c",
        ];
        assert!(
            heard[1..61].iter().eq(expected.iter().cycle().take(60)),
            "{heard:?}"
        );
    }
}

#[test]
fn the_first_poll_hands_the_whole_command_over() {
    for command in [acquire(A), extend(A), release(A)] {
        for dropped_before in 0..3 {
            let (_, server, mut node) = connected();
            server.hang(usize::MAX);
            for _ in 0..dropped_before {
                assert!(poll_times(1, node.execute(&acquire(B))).is_none());
            }
            assert!(poll_times(1, node.execute(&command)).is_none());
            server.resume();
            assert_eq!(server.heard().len(), dropped_before + 1);
        }
    }
}

#[test]
fn the_answer_of_a_fast_node_comes_with_the_first_poll() {
    let (_, server, mut node) = connected();
    assert_eq!(poll_times(1, node.execute(&acquire(A))), Some(Ok(ACQUIRED)));
    assert_eq!(
        poll_times(1, node.execute(&release(A))),
        Some(Ok(Reply::Released))
    );
    // Connecting too, where nothing has to be waited for.
    let mut node = server.node();
    assert_eq!(poll_times(1, node.execute(&acquire(B))), Some(Ok(ACQUIRED)));
}

#[test]
fn the_rest_of_a_dropped_call_is_sent_first() {
    let (world, server, mut node) = connected();
    server.hang(10);
    assert!(poll_times(3, node.execute(&acquire(A))).is_none());
    server.resume();
    assert_eq!(server.heard(), [""; 0], "ten bytes of it have left");
    assert_eq!(
        world.execute(&mut node, &extend(A)),
        Ok(Reply::Extended(None))
    );
    assert_eq!(server.heard(), ["SET a", "EXTEND a"]);
}

#[test]
fn a_dropped_call_costs_the_next_one_no_connection_and_no_time() {
    let (world, server, mut node) = connected();
    server.hang(usize::MAX);
    {
        let call = acquire(A);
        let mut call = pin!(node.execute(&call));
        assert!(poll_once(call.as_mut()).is_pending());
    }
    server.resume();
    assert_eq!(
        poll_times(1, node.execute(&release(A))),
        Some(Ok(Reply::Released))
    );
    assert_eq!((server.connections(), world.now_ms()), (1, 0));
}

#[test]
fn the_rest_of_a_dropped_call_makes_room_as_soon_as_the_network_has_some() {
    let (world, server, mut node) = connected();
    server.hang(0);
    for _ in 0..2 {
        assert!(poll_times(1, node.execute(&extend(A))).is_none());
    }
    server.resume();
    assert_eq!(world.execute(&mut node, &extend(B)), Ok(Reply::NotMine));
    assert_eq!(server.heard(), ["EXTEND a", "EXTEND a", "EXTEND b"]);
}
