//! What a node says of itself, and whether its vote counts.

use core::time::Duration;

use redlock_core::mock::{MockClock, SeededEntropy};
use redlock_core::{Command, Denial, Redlock, Reply, Rules, Transport};
use redlock_embassy::{NodeErrorKind, Options, TcpNode};

use crate::wire::{Entry, Server, Who, Wire};
use crate::world::*;

const QUARANTINE: Duration = ms(10_102);

/// Those of a TTL of 10 s and the usual drift.
const GUARDED: Rules = Rules {
    max_ttl_ms: 10_000,
    drift_ppm: 10_000,
    restart_guard: true,
    ..Rules::NONE
};

const YOUNG: Who = Who {
    run_id: 2,
    uptime_s: 0,
    is_master: true,
    may_evict: false,
    vouched_ms: -1,
};

fn guarded(token: &redlock_core::Token) -> Command<'_> {
    acquire_by(GUARDED, token)
}

fn denied(denial: Denial) -> Result<Reply, NodeErrorKind> {
    Err(NodeErrorKind::Denied(denial))
}

#[test]
fn a_node_is_asked_who_it_is_once_on_every_connection_before_any_command() {
    let world = World::default();
    let server = Server::new(&world);
    let mut node = server.node();
    for _ in 0..3 {
        assert_eq!(world.execute(&mut node, &extend(A)), Ok(Reply::NotMine));
        assert_eq!(world.execute(&mut node, &extend(B)), Ok(Reply::NotMine));
        server.cut();
    }
    let mut heard = server.heard_all();
    heard.retain(|name| !name.starts_with("LOAD"));
    let connection = ["INTRODUCE", "EXTEND a", "EXTEND b"];
    assert_eq!(heard, [connection; 3].concat());
}

#[test]
fn the_question_arrives_whole_wherever_it_is_cut() {
    for chunk in 1..1_000 {
        let world = World::default();
        let server = Server::new(&world);
        server.move_by(chunk);
        let mut node = server.node();
        assert_eq!(world.execute(&mut node, &guarded(A)), Ok(ACQUIRED));
        assert_eq!(server.heard(), ["SET a"]);
    }
}

#[test]
fn the_question_leaves_through_a_send_buffer_of_any_size() {
    fn ask<const TX: usize>() {
        let world = World::default();
        let server = Server::new(&world);
        let mut node = TcpNode::<_, _, TX, 1>::new(server.wire(), &world.clock);
        world.run(node.connect()).unwrap();
        assert_eq!(server.heard_all()[0], "INTRODUCE");
        assert!(node.run_id().is_some());
    }
    ask::<1>();
    ask::<2>();
    ask::<63>();
    ask::<839>();
    ask::<4_096>();
}

#[test]
fn the_question_is_asked_once_wherever_the_call_is_dropped() {
    for chunk in [5, 1_000] {
        for polls in 0.. {
            let world = World::default();
            let server = Server::new(&world);
            server.stutter(chunk);
            let mut node = server.node();
            let is_done = poll_times(polls, node.execute(&guarded(A))).is_some();
            let result = world.execute(&mut node, &guarded(B));
            let heard = server.heard_all();
            let asked = heard.iter().filter(|name| *name == "INTRODUCE").count();
            assert_eq!((heard[0].as_str(), asked), ("INTRODUCE", 1));
            assert_eq!(server.connections(), 1);
            let is_held = server.heard() == ["SET a", "SET b"];
            assert!(is_held || server.heard() == ["SET b"]);
            assert_eq!(result, Ok(if is_held { HELD } else { ACQUIRED }));
            if is_done {
                break;
            }
        }
    }
}

#[test]
fn a_young_node_is_denied_by_its_own_word_until_it_is_old_enough() {
    let world = World::default();
    let server = Server::new(&world);
    // By whole seconds, of which one may not have passed.
    server.introduce(Who {
        uptime_s: 4,
        ..YOUNG
    });
    let mut node = server.node();
    let restarted = |ago_ms, left_ms| denied(Denial::Restarted { ago_ms, left_ms });
    let result = world.execute(&mut node, &guarded(A));
    assert_eq!(result, restarted(3_000, 7_102));
    world.clock.advance(ms(7_101));
    let result = world.execute(&mut node, &guarded(A));
    assert_eq!(result, restarted(10_101, 1));
    assert_eq!(server.heard(), [""; 0]);
    world.clock.advance(ms(1));
    assert_eq!(world.execute(&mut node, &guarded(A)), Ok(ACQUIRED));
    assert_eq!(server.connections(), 1);
}

#[test]
fn a_node_that_is_another_process_than_before_is_denied_whatever_it_says_of_its_age() {
    let world = World::default();
    let server = Server::new(&world);
    let mut node = server.node();
    assert_eq!(world.execute(&mut node, &guarded(A)), Ok(ACQUIRED));
    // The same process on another connection is as old as before.
    server.cut();
    assert_eq!(world.execute(&mut node, &guarded(B)), Ok(HELD));
    server.cut();
    server.introduce(Who {
        run_id: 3,
        ..Who::default()
    });
    let result = world.execute(&mut node, &guarded(B));
    let (ago_ms, left_ms) = (0, 10_102);
    assert_eq!(result, denied(Denial::Restarted { ago_ms, left_ms }));
    // What a lease that is out needs is sent all the same.
    assert_eq!(
        world.execute(&mut node, &extend(A)),
        Ok(Reply::Extended(None))
    );
    assert_eq!(world.execute(&mut node, &release(A)), Ok(Reply::Released));
    // It is remembered over connections.
    world.clock.advance(QUARANTINE - ms(1));
    server.cut();
    assert!(world.execute(&mut node, &guarded(B)).is_err());
    world.clock.advance(ms(1));
    assert_eq!(world.execute(&mut node, &guarded(B)), Ok(ACQUIRED));
}

#[test]
fn a_node_that_is_vouched_for_has_a_vote_however_young_it_is() {
    for (vouched_ms, is_enough) in [(-1, false), (9_999, false), (10_000, true), (60_000, true)] {
        let world = World::default();
        let server = Server::new(&world);
        server.introduce(Who {
            vouched_ms,
            ..YOUNG
        });
        let result = world.execute(&mut server.node(), &guarded(A));
        assert_eq!(result.is_ok(), is_enough, "{vouched_ms}: {result:?}");
    }
}

#[test]
fn a_replica_has_no_vote_and_a_node_that_may_evict_has_one_unless_told() {
    let world = World::default();
    let server = Server::new(&world);
    server.introduce(Who {
        is_master: false,
        ..Who::default()
    });
    for rules in [Rules::NONE, GUARDED] {
        let result = world.execute(&mut server.node(), &acquire_by(rules, A));
        assert_eq!(result, denied(Denial::Replica));
    }
    server.introduce(Who {
        may_evict: true,
        ..Who::default()
    });
    let strict = Rules {
        refuse_eviction: true,
        ..Rules::NONE
    };
    let result = world.execute(&mut server.node(), &acquire_by(strict, A));
    assert_eq!(result, denied(Denial::MayEvict));
    assert_eq!(server.heard(), [""; 0]);
    let result = world.execute(&mut server.node(), &guarded(A));
    assert_eq!(result, Ok(ACQUIRED));
}

#[test]
fn a_node_that_may_not_say_who_it_is_has_a_vote_where_the_guard_is_off() {
    for error in [
        "-NOPERM this user has no permissions to run the 'eval' command\r\n",
        "-ERR The user executing the script can't run this command or subcommand script: 12e4\r\n",
        "-ERR ACL failure in script: this user has no permissions to run the 'info' command\r\n",
    ] {
        let world = World::default();
        let server = Server::new(&world);
        server.introduce_with(error);
        let mut node = server.node();
        let result = world.execute(&mut node, &guarded(A));
        assert_eq!(result, denied(Denial::Silenced));
        assert_eq!(world.execute(&mut node, &acquire(A)), Ok(ACQUIRED));
        assert_eq!((server.connections(), node.run_id()), (1, None));
    }
}

#[test]
fn any_other_error_and_what_is_no_answer_end_the_connection() {
    for (answer, text) in [
        ("-LOADING Redis is loading\r\n", "LOADING Redis is loading"),
        (
            "-ERR unknown command 'EVAL'\r\n",
            "ERR unknown command 'EVAL'",
        ),
        ("-NOPERMIT\r\n", "NOPERMIT"),
        ("$-1\r\n", "answered what no Redis answers; is it one?"),
        ("+OK\r\n", "answered what no Redis answers; is it one?"),
        (":1\r\n", "answered what no Redis answers; is it one?"),
        (
            "*3\r\n:1\r\n:2\r\n:3\r\n",
            "answered what no Redis answers; is it one?",
        ),
        (
            "*4\r\n:-1\r\n:2\r\n:3\r\n:4\r\n",
            "answered what no Redis answers; is it one?",
        ),
    ] {
        let world = World::default();
        let server = Server::new(&world);
        server.introduce_with(answer);
        let mut node = server.node();
        let error = world.execute(&mut node, &acquire(A)).unwrap_err();
        assert_eq!(error.to_string(), text, "{answer}");
        assert_eq!((server.heard().len(), server.clients()), (0, 0));
        server.introduce(Who::default());
        assert_eq!(world.execute(&mut node, &acquire(A)), Ok(ACQUIRED));
    }
}

#[test]
fn of_an_acquire_that_is_denied_nothing_is_sent_and_there_is_nothing_to_release() {
    let world = World::default();
    let server = Server::new(&world);
    server.introduce(YOUNG);
    let mut node = server.node();
    assert!(world.execute(&mut node, &guarded(A)).is_err());
    let released = poll_times(1, node.execute(&release(A)));
    assert_eq!(released, Some(Ok(Reply::NotMine)));
    world.run(node.close());
    assert_eq!(server.heard(), [""; 0]);
}

#[test]
fn what_was_said_before_an_acquire_that_is_denied_leaves_with_it() {
    let world = World::default();
    let server = Server::new(&world);
    let mut node = connected(&world, &server);
    assert_eq!(world.execute(&mut node, &guarded(A)), Ok(ACQUIRED));
    server.enter(Entry::Refused(
        embedded_io_async::ErrorKind::ConnectionRefused,
    ));
    server.cut();
    assert!(world.execute(&mut node, &release(A)).is_err());
    server.introduce(YOUNG);
    server.enter(Entry::After(ms(0)));
    world.clock.advance(ms(1_000));
    assert!(world.execute(&mut node, &guarded(B)).is_err());
    assert_eq!(server.heard(), ["SET a", "RELEASE a"]);
}

type Lock<'w> = Redlock<TcpNode<'w, Wire<'w>, &'w MockClock>, &'w MockClock, SeededEntropy, 3>;

fn lock<'w>(world: &'w World, servers: [&'w Server<'w>; 3]) -> Lock<'w> {
    let options = Options::new(ms(10_000)).unwrap();
    let nodes = servers.map(|server| TcpNode::new(server.wire(), &world.clock));
    Redlock::new(nodes, &world.clock, SeededEntropy::new(1), options).unwrap()
}

fn fleet(world: &World) -> [Server<'_>; 3] {
    core::array::from_fn(|number| {
        let server = Server::new(world);
        server.introduce(Who {
            run_id: 10 + number as u64,
            ..Who::default()
        });
        server
    })
}

#[test]
fn a_wait_outlasts_the_quarantine_of_a_majority_and_the_error_of_a_shorter_one_tells_its_end() {
    let world = World::default();
    let servers = fleet(&world);
    let mut redlock = lock(&world, servers.each_ref());
    let lease = world.run(redlock.try_acquire("dock-7")).unwrap();
    world.run(redlock.release(lease));

    servers[0].enter(Entry::Nothing);
    servers[0].cut();
    servers[1].cut();
    servers[1].introduce(YOUNG);
    let error = world.run(redlock.try_acquire("dock-7")).unwrap_err();
    let text = "no quorum for dock-7: 1 of 3 nodes answered (wire: timed out after 50 ms; \
                wire: restarted 0 ms ago, its vote counts again in 11 s)";
    assert_eq!(error.to_string(), text);

    let begun_at = world.now_ms();
    redlock.set_options(redlock.options().wait(ms(60_000)));
    let lease = world.run(redlock.acquire("dock-7")).unwrap();
    let waited = world.now_ms() - begun_at;
    assert!((9_900..10_500).contains(&waited), "{waited}");
    world.run(redlock.release(lease));
    assert!(
        servers[1]
            .heard()
            .iter()
            .any(|heard| heard.starts_with("SET"))
    );
}

#[test]
fn a_server_that_is_named_twice_has_one_vote_and_the_error_names_both() {
    let world = World::default();
    let [first, second, _] = &fleet(&world);
    second.enter(Entry::Refused(
        embedded_io_async::ErrorKind::ConnectionRefused,
    ));
    let mut redlock = lock(&world, [first, first, second]);
    for _ in 0..3 {
        let error = world.run(redlock.try_acquire("dock-7")).unwrap_err();
        let text = "wire: the same server as wire; name each server once";
        assert!(error.to_string().contains(text), "{error}");
        assert_eq!(first.token(KEY), None);
    }
    // Two that are two are a quorum.
    second.enter(Entry::After(ms(0)));
    world.clock.advance(ms(2_000));
    let lease = world.run(redlock.try_acquire("dock-7")).unwrap();
    world.run(redlock.release(lease));
}
