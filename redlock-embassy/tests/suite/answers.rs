//! The answers of a node, and their effect.

use redlock_core::Transport;
use redlock_core::transport::{Command, Reply};
use redlock_embassy::{Failure, NodeName, TransportError};

use crate::world::*;

/// Replaces the answer to `command` by `answer`. Returns the error, and how many connections the next
/// command needed.
fn answered(
    command: &Command<'_>,
    answer: impl AsRef<[u8]>,
    chunk: usize,
) -> (Failure<NodeName, TransportError>, usize) {
    let (world, server) = start();
    server.stutter(chunk);
    let mut node = server.connected();
    server.answer_with(answer);
    let error = world.execute(&mut node, command).unwrap_err();
    assert_eq!(
        world.execute(&mut node, &acquire(B)),
        Ok(ACQUIRED),
        "it goes on"
    );
    assert_eq!(
        world.execute(&mut node, &extend(B)),
        Ok(Reply::Extended(None))
    );
    assert_eq!(world.execute(&mut node, &release(B)), Ok(Reply::Released));
    assert_eq!(world.now_ms(), 0, "without a pause");
    let mut heard = server.heard();
    let is_release = command.is_release();
    assert!(
        heard.len() == 4 || is_release,
        "only a release is sent again"
    );
    heard.dedup();
    assert_eq!(heard.len(), 4, "once, and at once");
    assert_eq!(server.clients(), 1, "what was given up was closed");
    (error, server.connections())
}

const CHUNKS: [usize; 3] = [1, 5, 1_000];

#[test]
fn an_error_of_the_node_is_passed_on_and_keeps_the_connection() {
    for (text, kept) in [
        (
            "LOADING Redis is loading the dataset in memory",
            "LOADING Redis is loading the dat..",
        ),
        (
            "NOAUTH Authentication required.",
            "NOAUTH Authentication required.",
        ),
        (
            "READONLY You can't write against a read only replica.",
            "READONLY You can't write against..",
        ),
        (
            "WRONGTYPE Operation against a key",
            "WRONGTYPE Operation against a ke..",
        ),
        ("OOM command not allowed", "OOM command not allowed"),
        ("ERR", "ERR"),
    ] {
        for command in [acquire(A), extend(A), release(A)] {
            for chunk in CHUNKS {
                let (error, connections) = answered(&command, format!("-{text}\r\n"), chunk);
                let Failure::Transport(TransportError::Rejected(rejection)) = error else {
                    panic!("{error:?}");
                };
                assert_eq!((rejection.to_string().as_str(), connections), (kept, 1));
                let code = text.split(' ').next().unwrap();
                assert_eq!(rejection.code(), code.as_bytes());
            }
        }
    }
}

#[test]
fn an_answer_to_another_command_is_an_error_and_costs_the_connection() {
    let answers = ["+OK\r\n", "$-1\r\n", "_\r\n", ":0\r\n", ":1\r\n"];
    let others = [
        ":2\r\n",
        ":-1\r\n",
        "+QUEUED\r\n",
        "$2\r\nOK\r\n",
        "*0\r\n",
        "*1\r\n:1\r\n",
    ];
    for (command, own) in [
        (acquire(A), &answers[..3]),
        (extend(A), &answers[3..]),
        (release(A), &answers[3..]),
    ] {
        for answer in answers
            .iter()
            .chain(&others)
            .filter(|answer| !own.contains(answer))
        {
            for chunk in CHUNKS {
                let expected = (Failure::Transport(TransportError::Unexpected), 2);
                assert_eq!(answered(&command, answer, chunk), expected, "{answer}");
            }
        }
    }
}

#[test]
fn an_invalid_reply_costs_the_connection() {
    for garbage in [
        b"HTTP/1.1 400 Bad Request\r\n\r\n".as_slice(),
        b"\n",
        b"\r\n+OK\r\n",
        b"+OK\n",
        b":\r\n",
        b"$1025\r\n",
        b":99999999999999999999\r\n",
        b"%1\r\n+a\r\n+b\r\n",
        b"\x15\x03\x01\x00\x02\x02\x46",
        &[b'+'; 2_000],
        &[b'0'; 1],
    ] {
        for command in [acquire(A), extend(A), release(A)] {
            for chunk in CHUNKS {
                let (error, connections) = answered(&command, garbage, chunk);
                assert_eq!(
                    (error, connections),
                    (Failure::Transport(TransportError::Unexpected), 2)
                );
            }
        }
    }
}

#[test]
fn a_reply_too_many_costs_the_connection_before_the_next_command_can_take_it() {
    for chunk in [1, 3, 5, 7, 1_000] {
        let (world, server) = start();
        server.move_by(chunk);
        let mut node = server.connected();
        server.answer_with("+OK\r\n+OK\r\n");
        let result = world.execute(&mut node, &acquire(A));
        // Where both come at once, there is no telling which of them is the reply.
        assert!(matches!(
            result,
            Ok(ACQUIRED) | Err(Failure::Transport(TransportError::Unexpected))
        ));
        assert_eq!(world.execute(&mut node, &extend(A)), Ok(Reply::NotMine));
        assert_eq!((server.connections(), server.clients()), (2, 1));
    }
}

#[test]
fn an_answer_that_ends_in_the_middle_is_no_answer_and_the_next_call_reconnects() {
    for end in 0..7 {
        for chunk in CHUNKS {
            let (world, server) = start();
            server.move_by(chunk);
            let mut node = server.connected();
            server.answer_with(&"-ERR x\r\n"[..end]);
            assert_eq!(world.round(&mut node, &acquire(A)), None);
            server.cut();
            assert_eq!(world.execute(&mut node, &acquire(B)), Ok(ACQUIRED));
            assert_eq!((server.connections(), server.heard().len()), (2, 2));
        }
    }
}

#[test]
fn a_connection_that_ends_while_an_answer_is_waited_for_is_an_error() {
    for said in ["", "+", "+OK\r", "$5\r\nab"] {
        let (world, server, mut node) = connected();
        server.answer_with(said);
        let cut = async {
            embassy_futures::yield_now().await;
            server.cut();
        };
        let result = world.execute_during(cut, &mut node, &acquire(A));
        let disconnected = Failure::Transport(TransportError::Disconnected);
        assert_eq!(result, Err(disconnected));
        assert_eq!(world.execute(&mut node, &release(A)), Ok(Reply::NotMine));
        assert_eq!(server.heard(), ["SET a", "RELEASE a"]);
    }
}

#[test]
fn pushes_are_passed_over_wherever_they_come() {
    for chunk in CHUNKS {
        let (world, server) = start();
        server.stutter(chunk);
        let mut node = server.connected();
        let push = ">2\r\n$10\r\ninvalidate\r\n*1\r\n$6\r\ndock-7\r\n";
        for answer in [
            format!("{push}+OK\r\n"),
            format!("+OK\r\n{push}"),
            format!("{push}{push}+OK\r\n"),
        ] {
            server.say(push);
            server.answer_with(answer);
            assert_eq!(world.execute(&mut node, &acquire(A)), Ok(ACQUIRED));
        }
        server.say(push);
        assert_eq!(world.execute(&mut node, &acquire(B)), Ok(ACQUIRED));
        assert_eq!(server.connections(), 1);
    }
}

#[test]
fn an_unrequested_reply_costs_the_connection_before_a_command_can_take_it() {
    for said in [
        "+OK\r\n",
        ":1\r\n",
        "-ERR max number of clients reached\r\n",
        "garbage",
    ] {
        for chunk in CHUNKS {
            for (command, reply) in [
                (acquire(A), ACQUIRED),
                (extend(A), Reply::NotMine),
                (release(A), Reply::NotMine),
            ] {
                let (world, server) = start();
                server.move_by(chunk);
                let mut node = server.connected();
                server.say(said);
                assert_eq!(world.execute(&mut node, &command), Ok(reply));
                assert_eq!(server.connections(), 2);
            }
        }
    }
}

#[test]
fn endless_pushes_end_the_connection() {
    let (world, server, mut node) = connected();
    server.say(">1\r\n_\r\n".repeat(1_000));
    assert_eq!(world.execute(&mut node, &acquire(A)), Ok(ACQUIRED));
    assert_eq!(server.connections(), 2);
}

#[test]
fn an_error_names_the_node() {
    let (world, server, mut node) = connected();
    server.answer_with("-OOM command not allowed\r\n");
    let error = world.run(node.execute(&acquire(A))).unwrap_err();
    assert_eq!(error.to_string(), "wire: OOM command not allowed");
    assert_eq!(format!("{:?}", error.node()), "wire");
    assert_eq!(node.name().to_string(), "wire");
}
