//! The login: what is sent before the first command.

use embassy_futures::select::{Either, select};
use redlock_core::transport::Reply;
use redlock_core::{Clock, Transport};
use redlock_embassy::{Failure, NodeName, TransportError, connect_all};

use crate::fleet::{fleet, lock, one_round};
use crate::wire::{Entry, Who};
use crate::world::*;

fn refused(text: &str, result: Result<Reply, Failure<NodeName, TransportError>>) {
    match result {
        Err(error @ Failure::Transport(TransportError::Rejected(_))) => {
            assert_eq!(error.to_string(), text);
        }
        other => panic!("{other:?}"),
    }
}

#[test]
fn the_login_and_the_database_are_sent_before_anything_else() {
    type Login = for<'w> fn(Node<'w>) -> Node<'w>;
    let cases: [(Login, &[&str]); 6] = [
        (|node| node.password("wordword"), &["AUTH wordword"]),
        (
            |node| node.credentials("dock", "wordword"),
            &["AUTH dock wordword"],
        ),
        (
            |node| node.password("wordword").database(3),
            &["AUTH wordword", "SELECT 3"],
        ),
        (
            |node| node.credentials("dock", "wordword").database(15),
            &["AUTH dock wordword", "SELECT 15"],
        ),
        (|node| node.database(1), &["SELECT 1"]),
        (|node| node.database(0), &[]),
    ];
    for (login, expected) in cases {
        let (world, server) = start();
        if let Some(user) = expected
            .first()
            .and_then(|first| first.strip_prefix("AUTH "))
        {
            server.require(
                if user.contains(' ') {
                    "dock"
                } else {
                    "default"
                },
                "wordword",
            );
        }
        let mut node = login(server.node());
        for (number, token) in [A, B].into_iter().enumerate() {
            let reply = [ACQUIRED, HELD][number];
            assert_eq!(world.execute(&mut node, &acquire(token)), Ok(reply));
        }
        let heard = [expected, &["SET a", "SET b"]].concat();
        assert_eq!(server.heard(), heard);
        // And on every connection.
        server.cut();
        assert_eq!(world.execute(&mut node, &release(A)), Ok(Reply::Released));
        assert_eq!(
            server.heard(),
            [&heard[..], expected, &["RELEASE a"]].concat()
        );
    }
}

#[cfg(feature = "fence")]
#[test]
fn the_login_takes_one_round_trip_and_no_command_is_sent_before_its_end() {
    let (world, server) = start();
    server.require("default", "wordword");
    let mut node = server.node().password("wordword").database(3);
    server.hang(usize::MAX);
    for _ in 0..3 {
        assert_eq!(world.round(&mut node, &acquire(A)), None);
    }
    server.resume();
    let login = ["AUTH wordword", "SELECT 3", "NODE_INFO"];
    assert_eq!(server.heard_all(), login);
    assert_eq!(world.execute(&mut node, &acquire(A)), Ok(ACQUIRED));
    assert_eq!(server.heard_all()[3..], ["SET a"]);
}

#[test]
fn the_error_of_a_login_is_that_of_the_first_command_that_failed() {
    for chunk in [1, 7, 1_000] {
        let (world, server) = start();
        server.require("default", "wordword");
        server.stutter(chunk);
        let mut node = server.node().password("wrong").database(99);
        refused(
            "WRONGPASS invalid username-passw..",
            world.execute(&mut node, &acquire(A)),
        );
        // Also if the answers come together.
        let (world, server) = start();
        server.answer_with("-ERR no\r\n");
        server.hang(usize::MAX);
        let mut node = server.node().password("wordword").database(3);
        assert_eq!(world.round(&mut node, &acquire(A)), None);
        server.resume();
        refused("ERR no", world.execute(&mut node, &acquire(A)));
        let (world, server) = start();
        server.stutter(chunk);
        let mut node = server.node().database(99);
        refused(
            "ERR DB index is out of range",
            world.execute(&mut node, &acquire(A)),
        );
    }
}

#[test]
fn a_login_that_is_dropped_anywhere_goes_on_with_the_next_call() {
    // In small pieces it takes thousands of polls: not after each of them.
    for (chunk, stride) in [(1, 97), (4, 7), (1_000, 1)] {
        let mut polls = 0;
        loop {
            let (world, server) = start();
            server.require("dock", "wordword");
            server.stutter(chunk);
            let mut node = server.node().credentials("dock", "wordword").database(3);
            let is_done = poll_times(polls, node.execute(&acquire(A))).is_some();
            let reply = if is_done { HELD } else { ACQUIRED };
            let result = world.execute(&mut node, &acquire(B));
            let login = ["AUTH dock wordword", "SELECT 3"];
            let heard = server.heard();
            assert_eq!(heard[..2], login, "once each, after {polls} polls");
            let heard_all = server.heard_all();
            assert_eq!(heard_all[2], "NODE_INFO");
            let prefaces = heard_all.len() - heard.len();
            assert_eq!(prefaces, 1, "once, after {polls} polls");
            assert_eq!(server.connections(), 1);
            match &heard[2..] {
                [only] => assert_eq!((only.as_str(), result), ("SET b", Ok(ACQUIRED))),
                // The first one has left by then.
                [first, second] => {
                    assert_eq!((first.as_str(), second.as_str()), ("SET a", "SET b"));
                    assert_eq!(result, Ok(HELD));
                }
                other => panic!("{other:?}"),
            }
            if is_done {
                assert_eq!(result, Ok(reply));
                break;
            }
            polls += stride;
            assert!(polls < 50_000, "it never ends");
        }
        assert!(polls > 8);
    }
}

#[test]
fn a_login_that_is_dropped_over_and_over_gets_through() {
    for chunk in [1, 4, 1_000] {
        let (_, server) = start();
        server.require("default", "wordword");
        server.stutter(chunk);
        let mut node = server.node().password("wordword").database(3);
        assert!((0..50_000).any(|_| poll_times(1, node.connect()).is_some()));
        assert_eq!(server.heard(), ["AUTH wordword", "SELECT 3"]);
        assert_eq!(server.connections(), 1);
    }
}

#[test]
fn a_wrong_password_is_an_error_with_the_words_of_the_node() {
    let (world, server) = start();
    server.require("default", "wordword");
    let mut node = server.node().password("wrong");
    let text = "WRONGPASS invalid username-passw..";
    refused(text, world.execute(&mut node, &acquire(A)));
    let error = world.run(node.connect()).unwrap_err();
    assert_eq!(error.to_string(), format!("wire: {text}"));
    assert!(
        server.heard().iter().all(|heard| heard == "AUTH wrong"),
        "no command"
    );
    assert_eq!(server.clients(), 0, "no connection is left behind");
}

#[test]
fn a_stream_learns_once_for_each_connection_that_the_login_is_accepted() {
    for accepted in 0..3 {
        let (world, server) = start();
        for _ in 0..accepted {
            server.answer_with("+OK\r\n");
        }
        if accepted < 2 {
            server.answer_with("-BUSY no\r\n");
        } else {
            server.introduce_with(b"-BUSY no\r\n");
        }
        let mut node = server.node().password("wordword").database(3);
        let error = world.run(node.connect()).unwrap_err();
        assert_eq!(error.to_string(), "wire: BUSY no");
        assert_eq!(server.logins(), 0);
    }
    let (world, server) = start();
    let mut node = server.node().database(3);
    for connection in 1..=3 {
        // The identity is asked for again once a minute.
        for _ in 0..3 {
            let _reply = world.execute(&mut node, &acquire(A)).unwrap();
            assert_eq!(server.logins(), connection);
            world.clock.advance(ms(61_000));
        }
        server.cut();
    }
    assert_eq!(server.connections(), 3);
    let heard = server.heard_all();
    let questions = heard.iter().filter(|command| *command == "NODE_INFO");
    assert!(questions.count() > 3);
}

#[test]
fn a_wrong_password_is_not_tried_again_with_every_command() {
    let (world, server) = start();
    server.require("default", "wordword");
    let mut node = server.node().password("wrong");
    for _ in 0..100 {
        assert!(world.execute(&mut node, &acquire(A)).is_err());
        world.clock.advance(ms(1));
    }
    assert!(server.attempts().len() < 5, "{:?}", server.attempts());
}

#[test]
fn no_password_where_one_is_needed_is_an_error_with_the_words_of_the_node() {
    let (world, server) = start();
    server.require("default", "wordword");
    let mut node = server.node();
    refused(
        "NOAUTH Authentication required.",
        world.execute(&mut node, &acquire(A)),
    );
    refused(
        "NOAUTH Authentication required.",
        world.execute(&mut server.node().database(3), &acquire(A)),
    );
}

#[test]
fn a_database_that_is_not_there_is_an_error_with_the_words_of_the_node() {
    let (world, server) = start();
    let mut node = server.node().database(16);
    refused(
        "ERR DB index is out of range",
        world.execute(&mut node, &acquire(A)),
    );
    assert!(
        server.heard().iter().all(|heard| heard == "SELECT 16"),
        "no command"
    );
}

#[test]
fn a_node_that_is_not_ready_for_a_login_is_tried_again() {
    let (world, server) = start();
    server.require("default", "wordword");
    let mut node = server.node().password("wordword");
    server.answer_with("-LOADING Redis is loading\r\n");
    refused(
        "LOADING Redis is loading",
        world.execute(&mut node, &acquire(A)),
    );
    assert_eq!(world.execute(&mut node, &acquire(A)), Ok(ACQUIRED));
    assert_eq!(server.connections(), 2);
}

#[test]
fn any_other_answer_to_a_login_is_an_error() {
    for answer in [
        "$-1\r\n",
        ":1\r\n",
        "+QUEUED\r\n",
        "*0\r\n",
        "garbage",
        "+OK\r\n+OK\r\n",
    ] {
        let (world, server) = start();
        let mut node = server.node().database(3);
        server.answer_with(answer);
        let result = world.execute(&mut node, &acquire(A));
        assert_eq!(
            result,
            Err(Failure::Transport(TransportError::Unexpected)),
            "{answer}"
        );
        assert_eq!(server.heard(), ["SELECT 3"]);
        assert_eq!(world.execute(&mut node, &acquire(A)), Ok(ACQUIRED));
        assert_eq!(server.connections(), 2);
    }
}

#[test]
fn a_node_that_does_not_answer_the_login_is_disconnected_after_the_connect_timeout() {
    let (world, server) = start();
    let mut node = server.node().password("wordword").connect_timeout(ms(700));
    server.hang(usize::MAX);
    let error = world.run(node.connect()).unwrap_err();
    assert_eq!(
        *error.failure(),
        Failure::Transport(TransportError::NoConnection(ms(700)))
    );
    assert_eq!(world.now_ms(), 700);
}

#[test]
fn a_node_that_takes_the_login_in_pieces_and_answers_nothing_is_given_up_after_the_connect_timeout()
{
    for piece in [1, 20, 300, 650] {
        for is_resumed in [false, true] {
            let (world, server) = start();
            let password = "p".repeat(300).leak();
            let mut node = server.node().password(password).database(3);
            server.hang(0);
            server.send_at_once();
            let limit = if is_resumed {
                assert_eq!(world.round(&mut node, &acquire(A)), None);
                // The first piece that a call sends begins the time anew, once.
                5_900
            } else {
                3_000
            };
            let begun_at = world.now_ms();
            let pieces = async {
                for _ in 0..2_000 {
                    world.clock.sleep_until(world.after(ms(2_900))).await;
                    server.hang(piece);
                    world.stir();
                }
            };
            let ended = world.run(select(node.connect(), pieces));
            let Either::First(Err(error)) = ended else {
                panic!("{piece} bytes at a time: {ended:?}");
            };
            assert_eq!(error.to_string(), "wire: no connection within 3000 ms");
            let took = world.now_ms() - begun_at;
            assert!(took <= limit, "{piece} bytes at a time: {took} ms");
        }
    }
}

/// With a fifth of the connect timeout for each round trip, and a send buffer of 256 bytes.
#[test]
fn a_login_may_take_longer_than_the_connect_timeout_if_it_is_long_and_the_network_slow() {
    let (world, server) = start();
    let password = "p".repeat(3_000).leak();
    let mut node = server.node().password(password).database(3);
    server.hang(0);
    server.send_at_once();
    let pieces = async {
        for _ in 0..11 {
            world.clock.sleep_until(world.after(ms(600))).await;
            server.hang(256);
            world.stir();
        }
        world.clock.sleep_until(world.after(ms(600))).await;
        server.require("default", password);
        server.resume();
        world.stir();
        core::future::pending::<()>().await;
    };
    let connected = world.run(select(node.connect(), pieces));
    assert!(
        matches!(connected, Either::First(Ok(()))),
        "{connected:?} after {} ms",
        world.now_ms()
    );
    assert_eq!(world.now_ms(), 12 * 600);
}

#[test]
fn all_nodes_are_waited_for_no_longer_if_one_takes_the_login_byte_by_byte() {
    let world = World::default();
    let servers = fleet::<3>(&world, Who::default());
    let mut lock = lock(servers.each_ref(), 1, one_round());
    servers[0].hang(0);
    servers[0].send_at_once();
    let bytes = async {
        for _ in 0..2_000 {
            world.clock.sleep_until(world.after(ms(2_900))).await;
            servers[0].hang(1);
            world.stir();
        }
    };
    let ended = world.run(select(connect_all(&mut lock), bytes));
    assert!(matches!(ended, Either::First(2)), "{ended:?}");
    assert_eq!(world.now_ms(), 3_000);
}

#[test]
fn connecting_and_each_answer_to_the_login_have_their_own_time() {
    let (world, server) = start();
    let mut node = server.node().password("wordword").connect_timeout(ms(700));
    server.enter(Entry::After(ms(500)));
    server.hang(usize::MAX);
    assert!(world.run(node.connect()).is_err());
    assert_eq!(world.now_ms(), 500 + 700);
}

#[test]
fn a_login_may_be_longer_than_the_send_buffer() {
    let (world, server) = start();
    let password = "p".repeat(600).leak();
    server.require("default", password);
    let mut node = server.node().password(password);
    assert_eq!(world.execute(&mut node, &acquire(A)), Ok(ACQUIRED));
    assert_eq!(server.heard(), ["AUTH p", "SET a"]);
}

#[test]
fn a_login_begins_also_where_the_connection_comes_about_between_two_rounds_that_are_far_apart() {
    let (world, server) = start();
    let mut node = server.node().database(3);
    server.stutter(1_000);
    server.enter(Entry::After(ms(80)));
    assert_eq!(world.round(&mut node, &acquire(A)), None);
    world.clock.advance(ms(60_000));
    assert_eq!(world.round(&mut node, &acquire(B)), Some(Ok(ACQUIRED)));
    assert_eq!(server.attempts(), [0]);
}

#[test]
fn debug_does_not_show_the_password() {
    let (_, server) = start();
    let node = server.node().credentials("dock", "wordword");
    let shown = format!("{node:?}");
    assert!(
        shown.contains("dock") && !shown.contains("wordword"),
        "{shown}"
    );
}

#[test]
fn debug_does_not_show_what_was_sent() {
    let (world, server) = start();
    server.require("default", "wordword");
    let mut node = server.node().password("wordword");
    world.run(node.connect()).unwrap();
    let as_numbers = format!("{:?}", b"wordword");
    let shown = format!("{node:?}");
    assert!(
        !shown.contains(as_numbers.trim_matches(['[', ']'])),
        "{shown}"
    );
}
