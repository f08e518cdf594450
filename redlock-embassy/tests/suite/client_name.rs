//! The name of the connections of a client.

use redlock_core::Transport;
use redlock_core::transport::VoteConditions;
use redlock_embassy::ClientName;

use crate::world::*;

const SETNAME: &str = "CLIENT SETNAME dock-7";

fn named(node: Node<'static>) -> Node<'static> {
    node.client_name(ClientName::new("dock-7").unwrap())
}

#[test]
fn the_name_is_sent_on_each_connection_with_the_question_for_the_identity() {
    let (world, server) = start();
    let mut node = named(server.node());
    for connection in 1..4 {
        server.hang(usize::MAX);
        for _ in 0..3 {
            assert_eq!(world.round(&mut node, &extend(A)), None);
        }
        server.resume();
        let heard = server.heard_all();
        let last = &heard[heard.len() - 2..];
        assert_eq!(last, [SETNAME, "NODE_INFO"], "in one round trip");
        assert!(world.execute(&mut node, &extend(B)).is_ok());
        assert_eq!(server.connections(), connection);
        server.cut();
    }
}

#[test]
fn the_name_comes_after_the_password_and_the_database() {
    let (world, server) = start();
    server.require("default", "wordword");
    let node = server.node().password("wordword").database(3);
    assert_eq!(world.execute(&mut named(node), &acquire(A)), Ok(ACQUIRED));
    let login = ["AUTH wordword", "SELECT 3", SETNAME, "NODE_INFO", "SET a"];
    assert_eq!(server.heard_all(), login);
}

#[test]
fn a_server_that_rejects_the_name_is_used_without_it_and_not_asked_again() {
    for answer in [
        "-NOPERM User locker has no permissions to run the 'client|setname' command\r\n",
        "-ERR unknown command 'CLIENT'\r\n",
        "$-1\r\n",
    ] {
        for chunk in [1, 7, 1_000] {
            let (world, server) = start();
            server.stutter(chunk);
            server.answer_with(answer);
            let mut node = named(server.node());
            let conditions = VoteConditions::NONE;
            for (token, reply) in [(A, ACQUIRED), (B, HELD)] {
                let command = acquire_by(conditions, token);
                assert_eq!(world.execute(&mut node, &command), Ok(reply), "{answer}");
            }
            let heard = server.heard_all();
            assert_eq!(heard, [SETNAME, "NODE_INFO", "SET a", "SET b"]);
            assert_eq!(server.connections(), 1);
        }
    }
}

#[test]
fn a_stored_release_is_sent_once_although_the_name_is_rejected() {
    let (world, server) = start();
    let mut node = named(server.node());
    assert_eq!(world.execute(&mut node, &acquire(A)), Ok(ACQUIRED));
    server.hang(usize::MAX);
    assert_eq!(world.round(&mut node, &release(A)), None);
    server.cut();
    server.resume();
    server.answer_with("-NOPERM no\r\n");
    for _ in 0..3 {
        assert!(world.execute(&mut node, &extend(B)).is_ok());
    }
    let heard = server.heard_on(1);
    let expected = [SETNAME, "RELEASE a", "EXTEND b", "EXTEND b", "EXTEND b"];
    assert_eq!(heard, expected);
}

#[test]
fn a_login_with_a_name_that_is_dropped_anywhere_goes_on_with_the_next_call() {
    for (chunk, stride) in [(1, 97), (4, 7), (1_000, 1)] {
        let mut polls = 0;
        loop {
            let (world, server) = start();
            server.require("dock", "wordword");
            server.stutter(chunk);
            let mut node = named(server.node().credentials("dock", "wordword"));
            let is_done = poll_times(polls, node.execute(&acquire(A))).is_some();
            assert!(world.execute(&mut node, &acquire(B)).is_ok());
            let heard = server.heard_all();
            assert_eq!(
                heard[..3],
                ["AUTH dock wordword", SETNAME, "NODE_INFO"],
                "once each, after {polls} polls"
            );
            assert!(heard[3..].iter().all(|name| name.starts_with("SET ")));
            assert_eq!(server.connections(), 1);
            if is_done {
                break;
            }
            polls += stride;
            assert!(polls < 50_000, "it never ends");
        }
        assert!(polls > 8);
    }
}

#[test]
fn the_longest_name_is_sent_through_a_small_send_buffer() {
    let (world, server) = start();
    server.move_by(5);
    let name = "n".repeat(ClientName::MAX_LEN).leak();
    let mut node = redlock_embassy::TcpNode::<_, _, 16, 3>::new(server.wire(), &world.clock)
        .client_name(ClientName::new(name).unwrap());
    assert!(world.run(node.connect()).is_ok());
    assert_eq!(server.heard_all(), ["CLIENT SETNAME n", "NODE_INFO"]);
}

/// It answers the first command, and closes the connection.
#[cfg(feature = "queue")]
#[test]
fn the_error_of_a_full_server_is_told_also_to_a_client_with_a_name() {
    let (world, server) = start();
    let mut node = named(server.node());
    server.answer_with("-ERR max number of clients reached\r\n");
    server.close_on("EVAL");
    let error = world.run(node.connect()).unwrap_err().to_string();
    assert!(error.contains("ERR max number of clients"), "{error}");
}
