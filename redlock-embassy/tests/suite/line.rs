//! A client that waits in the line of a lock: the calls of the node, wherever they are cut and whatever is dropped.

use embassy_futures::join::join;
use redlock_core::mock::SeededEntropy;
use redlock_core::transport::{Call, Command, Mailbox, Place, Reply};
use redlock_core::{Clock, Transport};
use redlock_embassy::{Options, Redlock, TcpNode};

use crate::fleet::{fleet, lock};
use crate::wire::{Entry, Server, Who, message};
use crate::world::*;

const MAILBOX: [u8; 8] = [0xab; 8];

fn mailbox() -> Mailbox {
    Mailbox::new(MAILBOX)
}

const SUBSCRIPTION: [&str; 3] = [
    "HELLO 3",
    "SUBSCRIBE redlock:mail:abababababababab",
    "PUBLISH redlock:mail:abababababababab ",
];

/// An acquire of a client that stands in the line.
fn join_line(token: &redlock_core::Token) -> Command<'_> {
    acquire(token).with_place(Some(Place::waiting(mailbox(), Place::NOW, 225)))
}

fn leave(token: &redlock_core::Token) -> Command<'_> {
    release(token).with_place(Some(Place::left(mailbox(), 225)))
}

/// The release of a client that has not stood in the line.
fn go(token: &redlock_core::Token) -> Command<'_> {
    release(token).with_place(Some(Place::outside(225)))
}

/// A client that waits for the lock, which another one has.
fn waiting() -> Setup {
    let (world, server) = start();
    waiting_at(world, server)
}

fn waiting_at(world: &'static World, server: &'static Server<'static>) -> Setup {
    let mut holder = server.connected();
    assert_eq!(world.execute(&mut holder, &acquire(C)), Ok(ACQUIRED));
    let mut node = server.node().with_mailbox(mailbox());
    let reply = world.execute(&mut node, &join_line(A));
    assert!(matches!(reply, Ok(Reply::Waiting(..))), "{reply:?}");
    assert_eq!(node.mailbox(), Some(mailbox()));
    (world, server, node)
}

/// The next call, if it comes within a second.
fn call(world: &World, node: &mut Node<'_>) -> Option<Call> {
    world.run_for(ms(1_000), node.called(KEY))
}

#[test]
fn a_client_subscribes_before_its_first_try_in_the_line_and_not_before() {
    let (world, server) = start();
    let mut node = server.node().with_mailbox(mailbox());
    assert_eq!(world.execute(&mut node, &acquire(A)), Ok(ACQUIRED));
    assert_eq!(node.mailbox(), Some(mailbox().uncallable()));
    assert_eq!(server.heard(), ["SET a"]);
    for _ in 0..2 {
        let reply = world.execute(&mut node, &join_line(B));
        assert!(matches!(reply, Ok(Reply::Waiting(..))), "{reply:?}");
    }
    let heard = server.heard();
    assert_eq!(heard[1..4], SUBSCRIPTION);
    // The node lacked the script at first.
    assert_eq!(heard[4..], ["JOIN b", "JOIN b", "JOIN b"]);
    assert_eq!(server.connections(), 1);
}

#[test]
fn a_subscription_that_is_dropped_anywhere_goes_on_with_the_next_call() {
    for (chunk, stride) in [(1, 97), (7, 11), (1_000, 1)] {
        let mut polls = 0;
        loop {
            let (world, server) = start();
            let mut holder = server.connected();
            assert_eq!(world.execute(&mut holder, &acquire(C)), Ok(ACQUIRED));
            server.stutter(chunk);
            let mut node = server.node().with_mailbox(mailbox());
            let is_done = poll_times(polls, node.execute(&join_line(A))).is_some();
            let reply = world.execute(&mut node, &join_line(B));
            assert!(
                matches!(reply, Ok(Reply::Waiting(..))),
                "{reply:?} after {polls} polls"
            );
            let heard = server.heard_on(1);
            assert_eq!(heard[..3], SUBSCRIPTION, "once, after {polls} polls");
            assert!(heard[3..].iter().all(|name| name.starts_with("JOIN ")));
            assert_eq!(node.mailbox(), Some(mailbox()));
            server.say(message(b"1dock-7"));
            assert_eq!(call(world, &mut node), Some(Call::Turn));
            if is_done {
                break;
            }
            polls += stride;
            assert!(polls < 100_000, "it never ends");
        }
        assert!(polls > 8);
    }
}

#[test]
fn a_call_is_returned_once_wherever_it_is_cut_and_the_wait_is_dropped() {
    for chunk in [1, 3, 32, 1_000] {
        for (payload, expected) in [(b"1dock-7", Call::Turn), (b"2dock-7", Call::Deputy)] {
            let mut polls = 0;
            loop {
                let (world, server, mut node) = waiting();
                server.stutter(chunk);
                server.say(message(payload));
                let first = poll_times(polls, node.called(KEY));
                let second = call(world, &mut node);
                assert_eq!(first.or(second), Some(expected), "{polls} polls");
                assert!(first.is_none() || second.is_none(), "twice");
                assert_eq!(call(world, &mut node), None, "once");
                if first.is_some() {
                    break;
                }
                polls += 1;
                assert!(polls < 1_000, "it never ends");
            }
        }
    }
}

#[test]
fn messages_may_come_before_between_and_in_front_of_the_rest_of_replies() {
    for chunk in [1, 5, 1_000] {
        let (world, server, mut node) = waiting();
        server.stutter(chunk);
        for round in 0..3 {
            server.say(message(b"1dock-8"));
            server
                .answer_with([&message(b"2dock-7")[..], b":0\r\n", &message(b"1dock-7")].concat());
            let extension = world.execute(&mut node, &extend(B));
            assert_eq!(extension, Ok(Reply::NotMine), "{round}");
            let mut calls = Vec::new();
            while let Some(call) = call(world, &mut node) {
                calls.push(call);
            }
            // A turn is more than being the deputy.
            assert!(
                [&[Call::Turn][..], &[Call::Deputy, Call::Turn]].contains(&&calls[..]),
                "{calls:?}"
            );
        }
        assert_eq!(server.connections(), 2);
    }
}

#[test]
fn calls_count_only_behind_the_reply_to_the_latest_try() {
    let refused = b"*4\r\n:1\r\n:1700000000000000\r\n:0\r\n:1024000\r\n";
    let (world, server, mut node) = waiting();
    for (before, after, expected) in [
        (&b"1dock-7"[..], None, None),
        (b"2dock-7", Some(&b"1dock-7"[..]), Some(Call::Turn)),
        (b"1dock-7", Some(b"2dock-7"), Some(Call::Deputy)),
    ] {
        let after = after.map(message).unwrap_or_default();
        server.say(message(before));
        server.answer_with([&message(before), &refused[..], &after].concat());
        let reply = world.execute(&mut node, &join_line(A));
        assert!(matches!(reply, Ok(Reply::Waiting(..))), "{reply:?}");
        assert_eq!(call(world, &mut node), expected);
    }
    // Also if no call awaits the reply any more.
    server.hang(usize::MAX);
    assert!(poll_times(2, node.execute(&join_line(B))).is_none());
    server.say(message(b"1dock-7"));
    assert_eq!(call(world, &mut node), None);
    server.resume();
    assert_eq!(call(world, &mut node), None);
    server.say(message(b"1dock-7"));
    assert_eq!(call(world, &mut node), Some(Call::Turn));
}

#[test]
fn a_new_connection_is_told_once_when_it_has_subscribed() {
    for chunk in [1, 1_000] {
        let (world, server, mut node) = waiting();
        server.stutter(chunk);
        server.cut();
        assert_eq!(call(world, &mut node), Some(Call::Reconnected));
        assert_eq!(call(world, &mut node), None);
        assert_eq!(server.heard_on(2), SUBSCRIPTION);
        server.say(message(b"1dock-7"));
        assert_eq!(call(world, &mut node), Some(Call::Turn));
    }
}

#[test]
fn a_wait_connects_again_with_pauses_and_wherever_it_is_dropped() {
    let (world, server, mut node) = waiting();
    server.enter(Entry::REFUSED);
    server.cut();
    let begin = server.attempts().len();
    assert_eq!(world.run_for(ms(10_000), node.called(KEY)), None);
    let attempts = server.attempts().len() - begin;
    assert!((5..20).contains(&attempts), "{attempts}");
    server.enter(Entry::OPEN);
    for _ in 0..10_000 {
        if let Some(call) = world.run_for(ms(1), node.called(KEY)) {
            assert_eq!(call, Call::Reconnected);
            return;
        }
    }
    panic!("it never connects");
}

#[test]
fn a_node_that_cannot_call_has_the_client_marked() {
    for answers in [
        &[&b"-ERR unknown command 'HELLO'\r\n"[..]][..],
        &[b"%0\r\n", b"-NOPERM no subscribe\r\n"],
        &[b"%0\r\n", b">3\r\n+subscribe\r\n+c\r\n:1\r\n-NOPERM\r\n"],
        &[
            b"%0\r\n",
            b">3\r\n$9\r\nsubscribe\r\n+c\r\n:1\r\n",
            b":0\r\n",
        ],
        &[
            b"%0\r\n",
            b">3\r\n$9\r\nsubscribe\r\n+c\r\n:1\r\n",
            b"-NOPERM\r\n",
        ],
    ] {
        let (world, server) = start();
        let mut node = server.node().with_mailbox(mailbox());
        assert_eq!(world.execute(&mut node, &acquire(C)), Ok(ACQUIRED));
        answers.iter().for_each(|answer| server.answer_with(answer));
        let reply = world.execute(&mut node, &join_line(A));
        assert!(matches!(reply, Ok(Reply::Waiting(..))), "{reply:?}");
        assert_eq!(node.mailbox(), Some(mailbox().uncallable()));
        assert_eq!(call(world, &mut node), None);
        assert_eq!(server.connections(), 1);
    }
}

#[test]
fn a_node_that_refuses_the_line_gets_plain_commands_for_a_minute() {
    let (world, server, mut node) = waiting();
    server.answer_with("-NOPERM this user has no permissions\r\n");
    assert_eq!(world.execute(&mut node, &join_line(A)), Ok(HELD));
    assert_eq!(node.mailbox(), None);
    assert_eq!(world.execute(&mut node, &leave(A)), Ok(Reply::NotMine));
    assert_eq!(server.heard_on(1)[6..], ["SET a", "RELEASE a"]);
    world.clock.advance(ms(60_000));
    assert_eq!(world.execute(&mut node, &join_line(A)), Ok(ACQUIRED));
    assert_eq!(server.heard_on(1).last().unwrap(), "JOIN a");
    assert_eq!(server.connections(), 2);
}

/// As a proxy may do that knows only some commands.
#[test]
fn what_ends_the_connection_when_the_client_stands_in_a_line_costs_the_line_and_not_the_lock() {
    for command in ["SCRIPT", "HELLO", "SUBSCRIBE", "PUBLISH"] {
        let world: &'static World = Box::leak(Box::default());
        let servers: &[Server<'_>; 3] = &fleet(world, Who::default());
        let options = Options::new(ms(10_000)).unwrap().wait(ms(30_000));
        let mut holder = lock(servers.each_ref(), 1, options);
        let nodes = servers.each_ref().map(|server| {
            server.close_on(command);
            TcpNode::<_, _, 512>::new(server.wire(), &world.clock).with_mailbox(mailbox())
        });
        let mut device =
            Redlock::<_, _, _, 3>::new(nodes, &world.clock, SeededEntropy::new(2), options)
                .unwrap();
        let lease = world.run(holder.acquire("dock-7")).unwrap();
        let clock = &world.clock;
        let hold = async {
            clock
                .sleep_until(clock.now().saturating_add(ms(1_000)))
                .await;
            holder.release(lease).await;
        };
        let ((), waited) = world.run(join(hold, device.acquire("dock-7")));
        let lease = waited.unwrap_or_else(|error| panic!("{command}: {error}"));
        assert!(world.now_ms() < 5_000, "{command}: {} ms", world.now_ms());
        world.run(device.release(lease));
        // A day later, too.
        world.clock.advance(ms(86_400_000));
        let lease = world.run(device.acquire("dock-8")).unwrap();
        world.run(device.release(lease));
    }
}

#[test]
fn a_command_that_fits_only_without_its_place_is_sent_without_it() {
    let (world, server) = start();
    // The key has six bytes.
    const FITS: usize = 196 + 2 * 6;
    let mut fits = TcpNode::<_, _, FITS>::new(server.wire(), &world.clock).with_mailbox(mailbox());
    let reply = world.run(fits.execute(&join_line(A)));
    assert_eq!(reply, Ok(ACQUIRED));
    assert_eq!(server.heard().last().unwrap(), "JOIN a");

    let mut short = TcpNode::<_, _, 180>::new(server.wire(), &world.clock).with_mailbox(mailbox());
    assert_eq!(world.run(short.execute(&join_line(B))), Ok(HELD));
    assert_eq!(world.run(fits.execute(&leave(A))), Ok(Reply::Released));
    assert_eq!(world.run(short.execute(&join_line(B))), Ok(ACQUIRED));
    assert_eq!(world.run(short.execute(&leave(B))), Ok(Reply::Released));
}

#[test]
fn a_stored_release_that_fits_only_without_its_place_is_sent_without_it() {
    let (world, server) = start();
    let mut short = TcpNode::<_, _, 160>::new(server.wire(), &world.clock).with_mailbox(mailbox());
    assert_eq!(world.run(short.execute(&acquire(A))), Ok(ACQUIRED));
    server.cut();
    server.enter(Entry::REFUSED);
    assert!(world.run(short.execute(&leave(A))).is_err());
    server.enter(Entry::OPEN);
    world.clock.advance(ms(2_000));
    assert_eq!(world.run(short.execute(&acquire(B))), Ok(ACQUIRED));
    assert_eq!(server.heard()[1..], ["RELEASE a", "SET b"]);
}

/// A client with a mailbox that has the lock under [`A`].
fn holding_from_the_line() -> Setup {
    let (world, server) = start();
    let mut node = server.node().with_mailbox(mailbox());
    assert_eq!(world.execute(&mut node, &join_line(A)), Ok(ACQUIRED));
    (world, server, node)
}

#[test]
fn a_client_that_has_not_stood_in_the_line_waits_for_no_script_before_its_release() {
    for chunk in [1, 1_000] {
        let (world, server) = start();
        server.move_by(chunk);
        let mut node = server.node().with_mailbox(mailbox());
        for token in [A, B] {
            assert_eq!(world.execute(&mut node, &acquire(token)), Ok(ACQUIRED));
            assert_eq!(world.execute(&mut node, &go(token)), Ok(Reply::Released));
        }
        // The node is asked for its identity again, because it has answered with an error. The next acquire loads the script.
        let (login, again) = ("NODE_INFO", "NODE_INFO");
        let first = [login, "SET a", "LEAVE a", "GO a"];
        let second = ["LOAD 4", again, "SET b", "LEAVE b"];
        assert_eq!(server.heard_all(), [first, second].concat());
        assert_eq!(server.connections(), 1);
    }
}

#[test]
fn a_release_from_outside_the_line_that_a_node_without_its_script_answers_late_needs_none_either() {
    let (world, server) = start();
    let mut node = server.node().with_mailbox(mailbox());
    assert_eq!(world.execute(&mut node, &acquire(A)), Ok(ACQUIRED));
    server.hang(usize::MAX);
    assert!(poll_times(2, node.execute(&go(A))).is_none());
    server.resume();
    assert_eq!(world.execute(&mut node, &extend(C)), Ok(Reply::NotMine));
    assert_eq!(server.token(KEY), None, "{:?}", server.heard());
    let (login, again) = ("NODE_INFO", "NODE_INFO");
    let heard = [login, "SET a", "LEAVE a", again, "GO a", "EXTEND c"];
    assert_eq!(server.heard_all(), heard);
    assert_eq!(world.execute(&mut node, &acquire(B)), Ok(ACQUIRED));
    assert_eq!(world.execute(&mut node, &go(B)), Ok(Reply::Released));
    assert_eq!(server.heard().last().unwrap(), "LEAVE b");
}

/// Otherwise each acquire would try to load it.
#[test]
fn a_client_that_may_not_load_the_script_of_its_release_tries_it_once_on_a_connection() {
    let (world, server) = start();
    server.scripts().refusal = Some("NOPERM no permissions to run the 'script|load' command");
    let mut node = server.node().with_mailbox(mailbox());
    for token in [A, B, C] {
        assert_eq!(world.execute(&mut node, &acquire(token)), Ok(ACQUIRED));
        assert_eq!(world.execute(&mut node, &go(token)), Ok(Reply::Released));
    }
    let heard = server.heard_all();
    let loads = heard.iter().filter(|name| name.starts_with("LOAD"));
    assert_eq!(loads.count(), 1, "{heard:?}");
    assert_eq!(heard.last().unwrap(), "GO c");
}

#[test]
fn a_plain_release_that_a_node_without_its_script_answers_late_is_sent_again_also_if_it_loads_none()
{
    for release in [go(B), leave(B)] {
        let (world, server, mut node) = holding_from_the_line();
        assert_eq!(world.execute(&mut node, &leave(A)), Ok(Reply::Released));
        assert_eq!(world.execute(&mut node, &acquire(B)), Ok(ACQUIRED));
        server.scripts().flush();
        server.scripts().refusal = Some("NOPERM no permissions to run the 'script|load' command");
        server.hang(usize::MAX);
        assert!(poll_times(2, node.execute(&release)).is_none());
        server.resume();
        for _ in 0..3 {
            assert_eq!(world.execute(&mut node, &extend(C)), Ok(Reply::NotMine));
        }
        assert_eq!(server.token(KEY), None, "{:?}", server.heard());
    }
}

#[test]
fn a_release_from_outside_the_line_that_the_node_refuses_is_sent_without_its_place() {
    let (world, server) = start();
    let mut node = server.node().with_mailbox(mailbox());
    assert_eq!(world.execute(&mut node, &acquire(A)), Ok(ACQUIRED));
    assert_eq!(world.execute(&mut node, &go(A)), Ok(Reply::Released));
    assert_eq!(world.execute(&mut node, &acquire(B)), Ok(ACQUIRED));
    server.answer_with("-NOPERM this user has no permissions\r\n");
    assert_eq!(world.execute(&mut node, &go(B)), Ok(Reply::Released));
    assert_eq!(server.heard().last().unwrap(), "RELEASE b");
    assert_eq!(node.mailbox(), None);
}

#[test]
fn a_release_whose_script_was_flushed_is_sent_again_although_another_release_follows() {
    for is_known in [false, true] {
        let (world, server, mut node) = holding_from_the_line();
        server.scripts().flush();
        server.hang(usize::MAX);
        // The other nodes were a quorum.
        assert!(poll_times(2, node.execute(&leave(A))).is_none());
        if is_known {
            server.resume();
            server.hang(usize::MAX);
        }
        assert!(poll_times(2, node.execute(&leave(B))).is_none());
        server.resume();
        for _ in 0..3 {
            assert_eq!(world.execute(&mut node, &extend(C)), Ok(Reply::NotMine));
        }
        assert_eq!(server.token(KEY), None, "{:?}", server.heard());
        assert_eq!(server.connections(), 1);
    }
}

#[test]
fn a_release_that_the_line_refuses_behind_its_call_is_sent_again_without_its_place() {
    for (chunk, command) in [(1, extend(B)), (1_000, extend(B)), (1_000, release(B))] {
        let (world, server, mut node) = holding_from_the_line();
        server.move_by(chunk);
        server.answer_with("-NOPERM this user has no permissions\r\n");
        server.hang(usize::MAX);
        assert!(poll_times(2, node.execute(&leave(A))).is_none());
        server.resume();
        assert_eq!(world.execute(&mut node, &command), Ok(Reply::NotMine));
        assert_eq!(world.execute(&mut node, &extend(C)), Ok(Reply::NotMine));
        assert_eq!(server.token(KEY), None, "{:?}", server.heard());
        // The node gets plain commands for a while.
        assert_eq!(node.mailbox(), None);
        let heard = server.heard();
        let leaves = heard.iter().filter(|name| *name == "LEAVE a").count();
        assert_eq!(leaves, 1, "{heard:?}");
    }
}

#[test]
fn an_error_of_the_login_does_not_count_as_a_refusal_of_the_line() {
    let (world, server, mut node) = holding_from_the_line();
    server.hang(usize::MAX);
    assert!(poll_times(2, node.execute(&leave(A))).is_none());
    server.cut();
    server.resume();
    server.introduce_with("-ERR unknown command 'INFO'\r\n");
    for _ in 0..2 {
        assert_eq!(world.execute(&mut node, &extend(C)), Ok(Reply::NotMine));
    }
    assert_eq!(node.mailbox(), Some(mailbox().uncallable()));
    assert_eq!(server.token(KEY), None);
    let heard = server.heard();
    assert!(heard.iter().all(|name| name != "RELEASE a"), "{heard:?}");
}

#[test]
fn an_acquire_is_not_sent_again_behind_its_release_wherever_its_call_is_dropped() {
    for (error, chunk) in [
        ("NOSCRIPT No", 7),
        ("NOSCRIPT No", 1_000),
        ("NOPERM no", 7),
        ("NOPERM no", 1_000),
    ] {
        let mut polls = 0;
        loop {
            let (world, server, mut node) = holding_from_the_line();
            assert_eq!(world.execute(&mut node, &leave(A)), Ok(Reply::Released));
            server.stutter(chunk);
            server.answer_with(format!("-{error}\r\n"));
            let is_done = poll_times(polls, node.execute(&join_line(B))).is_some();
            let _reply = world.execute(&mut node, &leave(B));
            for _ in 0..3 {
                let _reply = world.execute(&mut node, &extend(C));
            }
            assert_eq!(server.token(KEY), None, "after {polls} polls");
            let heard = server.heard();
            let is_acquire = |name: &String| ["JOIN b", "SET b"].contains(&name.as_str());
            let is_release = |name: &String| ["LEAVE b", "RELEASE b"].contains(&name.as_str());
            let acquired = heard.iter().rposition(is_acquire);
            let released = heard.iter().position(is_release);
            assert!(released.is_none() || acquired < released, "{heard:?}");
            if is_done {
                break;
            }
            polls += 1;
            assert!(polls < 10_000, "it never ends");
        }
        assert!(polls > 2, "{polls}");
    }
}

#[test]
fn a_call_for_a_lock_for_which_the_client_does_not_wait_is_answered_by_leaving() {
    let (world, server, mut node) = waiting();
    server.say(message(b"1dock-8"));
    assert_eq!(call(world, &mut node), None);
    let heard = server.heard_on(1);
    assert_eq!(heard.last().unwrap(), "LEAVE \0");
    // With the next command at the latest.
    assert_eq!(world.execute(&mut node, &leave(A)), Ok(Reply::NotMine));
    server.say(message(b"1dock-7"));
    assert_eq!(world.execute(&mut node, &extend(A)), Ok(Reply::NotMine));
    assert_eq!(world.execute(&mut node, &extend(A)), Ok(Reply::NotMine));
    let heard = server.heard_on(1);
    let rest = &heard[heard.len() - 4..];
    assert_eq!(rest[0], "LEAVE a");
    assert!(rest.contains(&"LEAVE \0".to_owned()), "{rest:?}");
    assert_eq!(server.connections(), 2);
}

/// Of such leases no command tells that the client has left the line.
#[test]
fn a_client_that_has_left_many_leases_to_their_ttl_is_called_for_the_next_lock() {
    let (world, server) = start();
    let mut holder = server.connected();
    assert_eq!(world.execute(&mut holder, &acquire(C)), Ok(ACQUIRED));
    let mut node = server.node().with_mailbox(mailbox());
    for key in ["pump-1", "pump-2", "pump-3", "pump-4", "pump-5"] {
        let place = Place::waiting(mailbox(), Place::NOW, 225);
        let conditions = redlock_core::transport::VoteConditions::NONE;
        let acquire = Command::acquire(key.as_bytes(), A, 1_000, conditions);
        let reply = world.execute(&mut node, &acquire.with_place(Some(place)));
        assert_eq!(reply, Ok(ACQUIRED));
    }
    let reply = world.execute(&mut node, &join_line(A));
    assert!(matches!(reply, Ok(Reply::Waiting(..))), "{reply:?}");
    assert_eq!(node.mailbox(), Some(mailbox()));
    server.say(message(b"1dock-7"));
    assert_eq!(call(world, &mut node), Some(Call::Turn));
}

#[test]
fn a_long_message_is_passed_over_and_a_value_without_end_ends_with_patience() {
    let (world, server, mut node) = waiting();
    server.say(message(&vec![b'1'; 100_000]));
    assert_eq!(world.execute(&mut node, &extend(B)), Ok(Reply::NotMine));
    assert_eq!(server.connections(), 2);
    server.say(">3\r\n$7\r\nmessage\r\n$1\r\nc\r\n$4000000000\r\n1dock-7");
    assert_eq!(world.round(&mut node, &extend(B)), None);
    world.clock.advance(ms(5_000));
    assert_eq!(world.execute(&mut node, &extend(B)), Ok(Reply::NotMine));
    assert_eq!(server.connections(), 3);
}

/// Over a stream that always has something to read, as sockets of an operating system can.
#[test]
fn a_flood_of_messages_keeps_no_call_beyond_its_time() {
    for payload in [&b"1dock-8"[..], &[b'1'; 10_000]] {
        let (world, server, node) = waiting();
        let mut node = node.connect_timeout(ms(200));
        server.flood(message(payload));
        let connected = world.run_for(ms(300), node.connect());
        assert_eq!(connected, Some(Ok(())));
        for command in [extend(B), join_line(B), release(A)] {
            let begun_at = world.now_ms();
            let _reply = world.round(&mut node, &command);
            let took = world.now_ms() - begun_at;
            assert!(took < 60, "{took} ms, {command:?}");
        }
        let begun_at = world.now_ms();
        let _call = call(world, &mut node);
        assert!(world.now_ms() - begun_at < 1_100);
        assert!(world.run_for(ms(12_000), node.connect()).is_some());
    }
}

#[test]
fn a_release_that_a_node_goes_on_refusing_is_not_sent_all_the_time_while_the_client_waits() {
    let (world, server, mut node) = waiting();
    server.refuse_releases("-READONLY You can't write against a read only replica.\r\n");
    let result = world.execute(&mut node, &leave(B));
    assert!(result.is_err(), "{result:?}");
    for _looks in 0..3 {
        let reply = world.execute(&mut node, &join_line(A));
        assert!(matches!(reply, Ok(Reply::Waiting(..))), "{reply:?}");
        assert_eq!(call(world, &mut node), None);
    }
    let heard = server.heard();
    let releases = heard.iter().filter(|name| *name == "LEAVE b");
    assert!(releases.count() < 20, "{}", heard.len());
}

/// The work stops in time if two of three nodes do it, and goes on if one does.
#[test]
fn a_flood_of_messages_keeps_no_work_going_without_the_lock() {
    for floods in [1, 2] {
        let world = &World::default();
        let servers = fleet::<3>(world, Who::default());
        let nodes = servers.each_ref().map(|server| {
            let mut node = server.node().with_mailbox(mailbox());
            assert_eq!(world.execute(&mut node, &join_line(A)), Ok(ACQUIRED));
            assert_eq!(world.execute(&mut node, &leave(A)), Ok(Reply::Released));
            node
        });
        let options = Options::new(ms(2_000)).unwrap().node_timeout(ms(50));
        let entropy = SeededEntropy::new(1);
        let mut lock =
            Redlock::<_, _, _, 3>::new(nodes, &world.clock, entropy, options.unwrap()).unwrap();
        let mut valid_until = world.after(ms(0));
        let held = world.run(lock.hold("dock-7", async |lease| {
            valid_until = lease.valid_until();
            // Longer than what is read at once: no reply gets through.
            let servers = &servers[..floods];
            servers
                .iter()
                .for_each(|server| server.flood(message(&[b'1'; 10_000])));
            let clock = &&world.clock;
            clock.sleep_until(world.after(ms(6_000))).await;
        }));
        assert_eq!(held.is_ok(), floods == 1, "{held:?}");
        let late = world
            .now_ms()
            .saturating_sub(valid_until.as_micros() / 1_000);
        // The release waits for a round.
        assert!(floods == 1 || late < 60, "{late} ms");
    }
}

#[test]
fn whatever_a_node_says_between_replies_cannot_do_more_than_end_the_connection() {
    for garbage in [
        &b">"[..],
        b">3\r\n",
        b">3\r\n$7\r\nmessage\r\n>1\r\n",
        b">-2\r\n",
        b">99999999999\r\n",
        b">3\r\n$7\r\nmessage\r\n$1\r\nc\r\n$-1\r\n",
        b">3\r\n$7\r\nmessage\r\n$1\r\nc\r\n%1\r\n+a\r\n+b\r\n",
        b">3\r\n$9\r\nsubscribe\r\n+c\r\n:1\r\n",
        b"|1\r\n+ttl\r\n:7\r\n",
        b"+OK\r\n",
        b"%1\r\n+a\r\n+b\r\n",
        b"\xff",
    ] {
        for chunk in [1, 1_000] {
            let (world, server, mut node) = waiting();
            server.stutter(chunk);
            server.say(garbage);
            let _call = call(world, &mut node);
            for _ in 0..2 {
                let _reply = world.round(&mut node, &join_line(A));
                world.clock.advance(ms(5_000));
            }
            let reply = world.execute(&mut node, &extend(B));
            let shown = garbage.escape_ascii();
            assert_eq!(reply, Ok(Reply::NotMine), "after {shown}");
        }
    }
}

/// The longest commands of the rules that the README names, and of any rules.
#[test]
fn the_send_buffer_takes_what_the_readme_says() {
    use redlock_core::transport::{ScriptCall, VoteConditions};
    use redlock_embassy::resp::encoded_len;

    for len in [10, 33, 34, 36, 37, 85, 9_000] {
        let key = vec![b'k'; len];
        let waiting = Some(Place::waiting(mailbox().uncallable(), Place::NOW, 10_000));
        let left = Some(Place::left(mailbox().uncallable(), 10_000));
        let longest = |ttl_ms, proposal| {
            let acquire = Command::acquire(&key, A, ttl_ms, VoteConditions::NONE);
            let release = release_of(&key, A);
            let commands = [
                acquire.with_place(waiting),
                release.with_place(waiting),
                release.with_place(left),
            ];
            commands.map(|command| {
                let command = command.with_proposal(proposal);
                encoded_len(command.arguments(ScriptCall::Hash))
            })
        };
        let check = |usual: [usize; 3], most: [usize; 3], table: [usize; 3]| {
            if len < 86 {
                assert_eq!(usual, table, "{len}");
            }
            for ((bytes, rest), more) in most.into_iter().zip(table).zip([26, 14, 14]) {
                assert!(bytes <= rest + more, "{len}: {bytes}");
            }
        };
        let usual = longest(99_999, None);
        let table = [196, 184, 161].map(|rest| rest + 2 * len);
        check(usual, longest(u32::MAX, None), table);
        assert_eq!(usual[0] + usual[1] <= 512, len <= 33, "{len}");
        let outside = release_of(&key, A).with_place(Some(Place::outside(10_000)));
        let text = encoded_len(outside.arguments(ScriptCall::ShortText));
        let most = if len < 86 { 370 } else { 370 + 14 };
        assert!(
            (most + 2 * len - 10..=most + 2 * len).contains(&text),
            "{len}: {text}"
        );
        #[cfg(feature = "fence")]
        {
            use crate::fence::{LONGEST_RULE_MS, longest_proposal};

            let usual = longest(99_999, Some(longest_proposal(99_999, 99_999)));
            let most = longest(u32::MAX, Some(longest_proposal(3_600_000, LONGEST_RULE_MS)));
            let table = [300, 251, 228].map(|rest| rest + 3 * len);
            check(usual, most, table);
            assert_eq!(usual[0] + usual[1] <= 768, len <= 36, "{len}");
        }
    }
}
