//! Releases that find no connection, and acquires that never left.

use redlock_core::transport::{Command, Reply};
use redlock_core::{Token, Transport};
use redlock_embassy::{Failure, TcpNode, TransportError};

use crate::wire::{Entry, Server};
use crate::world::*;

/// A node that has the key under A and is not reachable any more.
fn lost() -> Setup {
    let (world, server, node) = holding();
    server.cut();
    server.enter(Entry::REFUSED);
    (world, server, node)
}

/// Accepts connections again, when the longest pause is over.
fn found(server: &Server<'_>) {
    server.enter(Entry::OPEN);
    server.world.clock.advance(ms(1_600));
}

/// A node that is reachable again, after the release of A has found no connection.
fn found_with_unsent_release() -> Setup {
    let (world, server, mut node) = lost();
    assert!(world.execute(&mut node, &release(A)).is_err());
    found(server);
    (world, server, node)
}

/// The node executes the release of A, and then the acquire of `token`.
fn assert_released_before_acquire(node: &mut Node<'_>, server: &Server<'_>, token: &Token) {
    let result = server.world.execute(node, &acquire(token));
    assert_eq!(result, Ok(ACQUIRED));
    let acquired = format!("SET {}", char::from(token.as_bytes()[0]));
    assert_eq!(server.heard(), ["SET a", "RELEASE a", &acquired]);
}

#[test]
fn a_release_that_finds_no_connection_goes_first_on_the_next_one() {
    for command in [acquire(B), extend(B)] {
        let (world, server, mut node) = found_with_unsent_release();
        // With its own reply, not that of the release.
        let reply = if command.is_acquire() {
            ACQUIRED
        } else {
            Reply::NotMine
        };
        assert_eq!(world.execute(&mut node, &command), Ok(reply));
        let heard = server.heard();
        assert_eq!(heard[..2], ["SET a", "RELEASE a"]);
        assert_eq!(heard.len(), 3);
        assert_eq!(
            server.token(KEY),
            matches!(reply, ACQUIRED).then(|| B.as_bytes().to_vec())
        );
    }
}

#[test]
fn a_release_that_finds_no_connection_goes_out_after_the_login() {
    let (world, server) = start();
    let mut node = server.node().database(3);
    assert_eq!(world.execute(&mut node, &acquire(A)), Ok(ACQUIRED));
    server.cut();
    server.enter(Entry::REFUSED);
    assert!(world.execute(&mut node, &release(A)).is_err());
    found(server);
    assert_eq!(world.execute(&mut node, &acquire(B)), Ok(ACQUIRED));
    assert_eq!(server.heard()[2..], ["SELECT 3", "RELEASE a", "SET b"]);
}

#[test]
fn a_release_that_finds_no_connection_goes_first_also_after_an_explicit_connect() {
    let (world, server, mut node) = found_with_unsent_release();
    assert_eq!(world.run(node.connect()), Ok(()));
    assert_released_before_acquire(&mut node, server, B);
}

#[test]
fn a_release_that_is_dropped_while_connecting_goes_first_on_that_connection() {
    let (world, server, mut node) = lost();
    server.enter(Entry::After(ms(120)));
    assert_eq!(world.round(&mut node, &release(A)), None);
    world.clock.advance(ms(120));
    assert_released_before_acquire(&mut node, server, B);
}

#[test]
fn a_release_is_sent_once_when_the_caller_repeats_it_himself() {
    for attempts in 1..4 {
        let (world, server, mut node) = lost();
        for _ in 0..attempts {
            assert!(world.execute(&mut node, &release(A)).is_err());
        }
        found(server);
        assert_eq!(world.execute(&mut node, &release(A)), Ok(Reply::Released));
        assert_eq!(server.heard(), ["SET a", "RELEASE a"]);
        // Nor with any connection after that.
        server.cut();
        assert_eq!(world.execute(&mut node, &acquire(B)), Ok(ACQUIRED));
        assert_eq!(server.heard(), ["SET a", "RELEASE a", "SET b"]);
    }
}

#[test]
fn a_release_that_was_sent_late_is_not_sent_again() {
    let (world, server, mut node) = found_with_unsent_release();
    for _ in 0..3 {
        assert_eq!(world.execute(&mut node, &extend(B)), Ok(Reply::NotMine));
        server.cut();
    }
    assert_eq!(
        server.heard(),
        ["SET a", "RELEASE a", "EXTEND b", "EXTEND b", "EXTEND b"]
    );
}

#[test]
fn a_late_release_is_sent_once_wherever_the_call_that_sends_it_is_dropped() {
    for chunk in [1, 13, 1_000] {
        let mut polls = 0;
        loop {
            let (world, server, mut node) = found_with_unsent_release();
            // The login takes long in single bytes; other tests drop it.
            world.run(node.connect()).unwrap();
            server.stutter(chunk);
            let done = poll_times(polls, node.execute(&acquire(B)));
            assert_eq!(world.execute(&mut node, &acquire(C)), {
                let is_heard = server.heard().contains(&"SET b".to_owned());
                Ok(if is_heard { HELD } else { ACQUIRED })
            });
            let heard = server.heard();
            let heard: Vec<_> = heard.iter().map(String::as_str).collect();
            let (with_b, without) = (
                ["SET a", "RELEASE a", "SET b", "SET c"],
                ["SET a", "RELEASE a", "SET c"],
            );
            assert!(
                heard == with_b || heard == without,
                "{heard:?} after {polls} polls"
            );
            if done.is_some() {
                break;
            }
            polls += 1;
            assert!(polls < 1_000, "it never ends");
        }
        assert!(polls > 2, "{polls}");
    }
}

#[test]
fn a_late_release_is_kept_when_the_next_connection_breaks_before_it_has_left() {
    let (world, server, mut node) = found_with_unsent_release();
    server.hang(0);
    assert!(poll_times(1, node.execute(&acquire(B))).is_none());
    server.cut();
    server.resume();
    assert!(world.execute(&mut node, &extend(B)).is_err());
    world.clock.advance(ms(1_600));
    assert_released_before_acquire(&mut node, server, C);
}

#[test]
fn a_release_whose_key_is_too_long_to_be_kept_leaves_the_one_that_is() {
    let (world, server, mut node) = lost();
    let long = release_of(&[b'k'; 65], B);
    for command in [release(A), long] {
        assert!(world.execute(&mut node, &command).is_err());
    }
    found(server);
    assert_released_before_acquire(&mut node, server, C);
}

#[test]
fn of_three_releases_that_find_no_connection_the_last_two_are_kept() {
    let (world, server, mut node) = lost();
    for token in [C, B, A] {
        assert!(world.execute(&mut node, &release(token)).is_err());
    }
    found(server);
    assert_eq!(world.execute(&mut node, &acquire(C)), Ok(ACQUIRED));
    let heard = server.heard();
    assert_eq!(heard, ["SET a", "RELEASE b", "RELEASE a", "SET c"]);
}

#[test]
fn a_release_that_a_node_refused_for_the_moment_is_sent_again_although_another_release_follows() {
    for error in PASSING {
        for is_known in [false, true] {
            let (world, server, mut node) = holding();
            server.hang(usize::MAX);
            server.answer_with(format!("-{error}\r\n"));
            assert!(poll_times(2, node.execute(&release(A))).is_none());
            if is_known {
                server.resume();
                server.hang(usize::MAX);
            }
            // Its call ends at the quorum too.
            assert!(poll_times(2, node.execute(&release(B))).is_none());
            server.resume();
            for _ in 0..2 {
                assert_eq!(world.execute(&mut node, &extend(C)), Ok(Reply::NotMine));
            }
            assert_eq!(server.token(KEY), None, "{error}");
        }
    }
}

/// The answers of a node that cannot execute a command at the moment.
const PASSING: [&str; 7] = [
    "BUSY Redis is busy running a script. You can only call SCRIPT KILL or SHUTDOWN NOSAVE.",
    "MISCONF Redis is configured to save RDB snapshots, but it's currently unable to persist to disk.",
    "READONLY You can't write against a read only replica.",
    "LOADING Redis is loading the dataset in memory",
    "NOREPLICAS Not enough good replicas to write.",
    "MASTERDOWN Link with MASTER is down and replica-serve-stale-data is set to 'no'.",
    "CLUSTERDOWN The cluster is down",
];

#[test]
fn a_release_that_a_node_cannot_carry_out_for_the_moment_goes_ahead_of_the_next_command() {
    for error in PASSING {
        for command in [acquire(B), extend(B), release(B)] {
            let (world, server, mut node) = holding();
            server.answer_with(format!("-{error}\r\n"));
            let result = world.execute(&mut node, &release(A));
            assert!(
                matches!(result, Err(Failure::Transport(TransportError::Rejected(_)))),
                "{result:?}"
            );
            assert!(server.token(KEY).is_some());
            assert!(world.execute(&mut node, &command).is_ok());
            assert_eq!(server.heard()[..3], ["SET a", "RELEASE a", "RELEASE a"]);
            // And not again.
            assert!(world.execute(&mut node, &extend(C)).is_ok());
            assert_eq!((server.heard().len(), server.connections()), (5, 1));
        }
    }
}

#[test]
fn a_release_is_sent_again_as_long_as_the_node_cannot_carry_it_out_and_holds_up_no_other_command() {
    let (world, server, mut node) = holding();
    let misconf = format!("-{}\r\n", PASSING[1]);
    server.answer_with(&misconf);
    assert!(world.execute(&mut node, &release(A)).is_err());
    let extension = Command::extend(b"other", B, TTL_MS);
    for _ in 0..10 {
        // Of the release, and then of the extension.
        server.answer_with(&misconf);
        server.answer_with(":1\r\n");
        let result = world.execute(&mut node, &extension);
        assert_eq!(result, Ok(Reply::Extended(None)));
        // In less than a minute in all: then the node would be asked for its identity.
        world.clock.advance(ms(5_000));
    }
    assert_eq!(world.execute(&mut node, &acquire(B)), Ok(ACQUIRED));
    assert_eq!(world.execute(&mut node, &acquire(C)), Ok(HELD));
    let heard = server.heard();
    let releases = heard.iter().filter(|name| *name == "RELEASE a").count();
    assert_eq!((releases, server.connections()), (12, 1));
    assert_eq!(world.now_ms(), 50_000, "nothing is waited for");
}

#[test]
fn a_release_is_sent_again_if_its_error_came_after_the_call_was_dropped() {
    for (number, command) in [acquire(B), extend(B)].into_iter().enumerate() {
        let (world, server, mut node) = holding();
        server.hang(usize::MAX);
        server.answer_with(format!("-{}\r\n", PASSING[number]));
        assert!(poll_times(2, node.execute(&release(A))).is_none());
        server.resume();
        assert!(world.execute(&mut node, &command).is_ok());
        let again = server.heard()[1..3] == ["RELEASE a", "RELEASE a"];
        assert!(again, "{:?}", server.heard());
    }
}

#[test]
fn a_release_that_was_sent_and_not_answered_is_sent_again_on_the_next_connection() {
    let (_world, server, mut node) = holding();
    server.hang(usize::MAX);
    assert!(poll_times(2, node.execute(&release(A))).is_none());
    // What has arrived is lost with the connection.
    server.cut();
    server.resume();
    assert_released_before_acquire(&mut node, server, B);
}

#[test]
fn a_release_that_was_sent_and_not_answered_is_sent_again_also_after_an_explicit_connect() {
    let (world, server, mut node) = holding();
    server.hang(usize::MAX);
    assert_eq!(world.round(&mut node, &release(A)), None);
    server.cut();
    server.resume();
    assert_eq!(world.run(node.connect()), Ok(()));
    assert_eq!(world.execute(&mut node, &acquire(B)), Ok(ACQUIRED));
    assert_eq!(server.heard_on(1), ["RELEASE a", "SET b"]);
}

#[test]
fn a_release_that_was_not_answered_outlives_any_number_of_connections_that_end_at_once() {
    for ended in [1, 100, 254, 255, 256, 511] {
        let (world, server, mut node) = holding();
        server.hang(usize::MAX);
        assert_eq!(world.round(&mut node, &release(A)), None);
        server.cut();
        while server.connections() < 1 + ended {
            // It accepts, and disconnects before it identifies itself: the next call detects this.
            let _ended = world.round(&mut node, &extend(B));
            server.cut();
            world.clock.advance(ms(1_600));
        }
        assert!(world.execute(&mut node, &extend(B)).is_err());
        found(server);
        server.resume();
        assert_eq!(world.execute(&mut node, &acquire(B)), Ok(ACQUIRED));
        let last = server.heard_on(1 + ended);
        assert_eq!(last, ["RELEASE a", "SET b"], "{ended} connections ended");
    }
}

#[test]
fn a_release_that_is_rejected_for_good_is_not_sent_again() {
    for error in ["WRONGTYPE Operation against a key", "NOPERM no", "ERR", ""] {
        let (world, server, mut node) = connected();
        server.answer_with(format!("-{error}\r\n"));
        assert!(world.execute(&mut node, &release(A)).is_err());
        assert_eq!(world.execute(&mut node, &acquire(B)), Ok(ACQUIRED));
        assert_eq!(server.heard(), ["RELEASE a", "SET b"]);
    }
}

#[test]
fn a_late_release_is_kept_for_keys_of_up_to_64_bytes() {
    for (len, is_kept) in [(0, true), (1, true), (63, true), (64, true), (65, false)] {
        let (world, server, mut node) = connected();
        server.cut();
        server.enter(Entry::REFUSED);
        let key = vec![b'k'; len];
        let command = release_of(&key, A);
        assert!(world.execute(&mut node, &command).is_err());
        found(server);
        assert_eq!(world.execute(&mut node, &extend(B)), Ok(Reply::NotMine));
        assert_eq!(server.heard().len(), 1 + usize::from(is_kept), "{len}");
    }
}

#[test]
fn only_releases_are_kept_for_the_next_connection() {
    let (world, server, mut node) = lost();
    for command in [extend(A), acquire(B), extend(B)] {
        assert!(world.execute(&mut node, &command).is_err());
    }
    found(server);
    assert_eq!(world.execute(&mut node, &extend(C)), Ok(Reply::NotMine));
    assert_eq!(server.heard(), ["SET a", "EXTEND c"]);
}

#[test]
fn releasing_an_acquire_that_found_no_connection_is_answered_at_once_and_sends_nothing() {
    let (world, server, mut node) = unconnected();
    server.enter(Entry::REFUSED);
    assert!(world.execute(&mut node, &acquire(A)).is_err());
    for _ in 0..3 {
        assert!(is_nothing_to_release(poll_times(
            1,
            node.execute(&release(A))
        )));
    }
    found(server);
    assert_eq!(world.execute(&mut node, &acquire(B)), Ok(ACQUIRED));
    assert_eq!(server.heard(), ["SET b"]);
}

#[test]
fn an_acquire_that_never_left_is_remembered_over_other_commands() {
    for command in [extend(B), release(B)] {
        let (world, server, mut node) = unconnected();
        server.enter(Entry::REFUSED);
        assert!(world.execute(&mut node, &acquire(A)).is_err());
        found(server);
        assert_eq!(world.execute(&mut node, &command), Ok(Reply::NotMine));
        let nothing = world.execute(&mut node, &release(A));
        assert_eq!(nothing, Err(Failure::NothingToRelease));
        assert_eq!(server.heard().len(), 1);
    }
}

#[test]
fn a_connection_that_breaks_while_a_late_release_leaves_is_an_error_and_is_closed() {
    let (world, server, mut node) = found_with_unsent_release();
    world.run(node.connect()).unwrap();
    server.hang(10);
    let cut = async {
        embassy_futures::yield_now().await;
        server.cut();
    };
    let result = world.execute_during(cut, &mut node, &acquire(B));
    let disconnected = Failure::Transport(TransportError::Disconnected);
    assert_eq!(result, Err(disconnected));
    assert_eq!(server.clients(), 0);
}

#[test]
fn releasing_an_acquire_that_was_dropped_while_connecting_is_answered_at_once_and_sends_nothing() {
    for has_login in [false, true] {
        let (world, server) = start();
        let mut node = server.node().database(if has_login { 3 } else { 0 });
        if has_login {
            server.hang(usize::MAX);
        } else {
            server.enter(Entry::After(ms(120)));
        }
        assert_eq!(world.round(&mut node, &acquire(A)), None);
        assert!(is_nothing_to_release(poll_times(
            1,
            node.execute(&release(A))
        )));
        server.resume();
        world.clock.advance(ms(120));
        assert_eq!(world.execute(&mut node, &acquire(B)), Ok(ACQUIRED));
        let login: &[&str] = if has_login { &["SELECT 3"] } else { &[] };
        assert_eq!(server.heard(), [login, &["SET b"]].concat());
    }
}

#[test]
fn releasing_an_acquire_for_which_there_was_no_room_is_answered_at_once() {
    let (world, server, mut node) = connected();
    server.hang(0);
    for _ in 0..2 {
        assert!(poll_times(1, node.execute(&extend(B))).is_none());
    }
    let too_much = acquire_of(&[b'k'; 250], A);
    assert_eq!(world.round(&mut node, &too_much), None);
    let released = poll_times(1, node.execute(&release(A)));
    assert!(is_nothing_to_release(released));
    server.resume();
    assert_eq!(world.execute(&mut node, &extend(C)), Ok(Reply::NotMine));
    assert_eq!(server.heard(), ["EXTEND b", "EXTEND b", "EXTEND c"]);
}

#[test]
fn a_release_for_which_there_is_no_room_waits_and_goes_ahead_of_the_next_command() {
    let (world, server, mut node) = connected();
    server.hang(0);
    let long = Command::extend(&[b'k'; 40], B, TTL_MS);
    for _ in 0..2 {
        assert!(poll_times(1, node.execute(&long)).is_none());
    }
    for _ in 0..3 {
        assert_eq!(world.round(&mut node, &release(A)), None);
    }
    server.resume();
    assert_eq!(world.execute(&mut node, &acquire(C)), Ok(ACQUIRED));
    assert_eq!(
        server.heard(),
        ["EXTEND k b", "EXTEND k b", "RELEASE a", "SET c"]
    );
}

#[test]
fn a_release_that_waits_for_replies_goes_ahead_of_the_next_command() {
    let (world, server, mut node) = holding();
    server.hang(usize::MAX);
    for _ in 0..64 {
        assert_eq!(poll_times(2, node.execute(&extend(B))), None);
    }
    assert_eq!(world.round(&mut node, &release(A)), None);
    server.resume();
    assert_eq!(world.execute(&mut node, &acquire(C)), Ok(ACQUIRED));
    assert_eq!(server.heard()[65..], ["RELEASE a", "SET c"]);
}

#[test]
fn a_release_that_fits_no_send_buffer_does_not_stand_in_the_way() {
    let (world, server) = start();
    let mut node = TcpNode::<_, _, 128>::new(server.wire(), &world.clock);
    server.enter(Entry::REFUSED);
    for _ in 0..2 {
        assert!(world.run(node.execute(&release(A))).is_err());
    }
    found(server);
    let reply = world.run(node.execute(&acquire(B)));
    assert_eq!(reply, Ok(ACQUIRED));
}

#[test]
fn an_acquire_of_which_a_byte_may_have_left_is_released() {
    for room in [0, 1, 30, usize::MAX] {
        let (world, server, mut node) = connected();
        server.hang(room);
        assert_eq!(world.round(&mut node, &acquire(A)), None);
        server.resume();
        let heard = world.execute(&mut node, &release(A));
        assert_eq!(heard, Ok(Reply::Released));
        assert_eq!(server.heard(), ["SET a", "RELEASE a"]);
        assert_eq!(server.token(KEY), None);
    }
}

#[test]
fn an_acquire_whose_connection_broke_is_released_on_the_next_one() {
    let (world, server, mut node) = connected();
    server.hang(usize::MAX);
    assert_eq!(world.round(&mut node, &acquire(A)), None);
    server.resume();
    server.cut();
    assert_eq!(world.execute(&mut node, &release(A)), Ok(Reply::Released));
    assert_eq!((server.connections(), server.token(KEY)), (2, None));
}

#[test]
fn the_release_of_another_token_is_sent_although_an_acquire_never_left() {
    let (world, server, mut node) = lost();
    assert!(world.execute(&mut node, &acquire(B)).is_err());
    found(server);
    assert_eq!(world.execute(&mut node, &release(A)), Ok(Reply::Released));
    assert_eq!(server.heard(), ["SET a", "RELEASE a"]);
}
