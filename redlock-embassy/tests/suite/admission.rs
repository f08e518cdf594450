//! The identity of a node, and whether its vote counts.

use core::time::Duration;

use redlock_core::transport::{Command, Reply, VoteConditions};
use redlock_core::{Denial, Transport};
use redlock_embassy::{Failure, NodeName, Options, TcpNode, TransportError};

use crate::fleet::*;
use crate::wire::{Entry, Server, Who};
use crate::world::*;

const QUARANTINE: Duration = ms(10_102);

/// Those of a TTL of 10 s and the usual drift.
const GUARDED: VoteConditions = {
    let mut conditions = VoteConditions::NONE;
    conditions.max_ttl_ms = 10_000;
    conditions.drift_ppm = 10_000;
    conditions.restart_guard = true;
    conditions
};

const YOUNG: Who = Who {
    run_id: 2,
    replication_id: 7,
    uptime_s: 0,
    is_master: true,
    may_evict: false,
    vouched_ms: 0,
};

fn guarded(token: &redlock_core::Token) -> Command<'_> {
    acquire_by(GUARDED, token)
}

fn denied(denial: Denial) -> Result<Reply, Failure<NodeName, TransportError>> {
    Err(Failure::Denied(denial))
}

#[test]
fn a_node_is_asked_for_its_identity_once_on_every_connection_before_any_command() {
    let (world, server, mut node) = unconnected();
    for _ in 0..3 {
        assert_eq!(world.execute(&mut node, &extend(A)), Ok(Reply::NotMine));
        assert_eq!(world.execute(&mut node, &extend(B)), Ok(Reply::NotMine));
        server.cut();
    }
    let mut heard = server.heard_all();
    heard.retain(|name| !name.starts_with("LOAD"));
    let connection = ["NODE_INFO", "EXTEND a", "EXTEND b"];
    assert_eq!(heard, [connection; 3].concat());
}

#[test]
fn the_question_arrives_whole_wherever_it_is_cut() {
    for chunk in 1..1_000 {
        let (world, server) = start();
        server.move_by(chunk);
        let mut node = server.node();
        assert_eq!(world.execute(&mut node, &guarded(A)), Ok(ACQUIRED));
        assert_eq!(server.heard(), ["SET a"]);
    }
}

#[test]
fn the_question_leaves_through_a_send_buffer_of_any_size() {
    fn ask<const TX: usize>() {
        let (world, server) = start();
        let mut node = TcpNode::<_, _, TX, 1>::new(server.wire(), &world.clock);
        world.run(node.connect()).unwrap();
        assert_eq!(server.heard_all()[0], "NODE_INFO");
        assert!(node.run_id().is_some());
    }
    ask::<1>();
    ask::<2>();
    ask::<63>();
    ask::<839>();
    ask::<4_096>();
}

#[test]
fn a_login_that_arrives_byte_by_byte_long_after_the_last_reply_is_not_silence() {
    let (world, server) = start();
    // Identities as long as those of real servers.
    server.introduce(Who {
        run_id: (1 << 52) - 1,
        replication_id: (1 << 52) - 2,
        ..Who::MASTER
    });
    server.stutter(1);
    world.clock.advance(ms(60_000));
    let mut node = server.node();
    assert_eq!(world.execute(&mut node, &guarded(A)), Ok(ACQUIRED));
    assert_eq!(server.connections(), 1);
}

#[test]
fn the_question_is_asked_once_wherever_the_call_is_dropped() {
    for chunk in [5, 1_000] {
        for polls in 0.. {
            let (world, server) = start();
            server.stutter(chunk);
            let mut node = server.node();
            let is_done = poll_times(polls, node.execute(&guarded(A))).is_some();
            let result = world.execute(&mut node, &guarded(B));
            let heard = server.heard_all();
            let asked = heard.iter().filter(|name| *name == "NODE_INFO").count();
            let place = heard.iter().position(|name| name == "NODE_INFO");
            let first_set = heard.iter().position(|name| name.starts_with("SET"));
            assert!(asked == 1 && place < first_set, "{heard:?}");
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
    let (world, server) = start();
    // By whole seconds, of which one may not have passed.
    server.introduce(Who {
        uptime_s: 4,
        ..YOUNG
    });
    let mut node = server.node();
    let restarted = |ago_ms, left_ms| {
        denied(Denial::Restarted {
            ago_ms,
            left_ms,
            has_record: false,
        })
    };
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
fn a_node_that_is_another_process_than_before_is_denied_for_any_uptime() {
    let (world, server, mut node) = unconnected();
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
    assert_eq!(
        result,
        denied(Denial::Restarted {
            ago_ms,
            left_ms,
            has_record: false
        })
    );
    // The commands of an existing lease are still sent.
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
        let (world, server) = start();
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
    let (world, server) = start();
    server.introduce(Who {
        is_master: false,
        ..Who::default()
    });
    for conditions in [VoteConditions::NONE, GUARDED] {
        let result = world.execute(&mut server.node(), &acquire_by(conditions, A));
        assert_eq!(result, denied(Denial::Replica));
    }
    server.introduce(Who {
        may_evict: true,
        ..Who::default()
    });
    let mut strict = VoteConditions::NONE;
    strict.refuse_eviction = true;
    let result = world.execute(&mut server.node(), &acquire_by(strict, A));
    assert_eq!(result, denied(Denial::MayEvict));
    assert_eq!(server.heard(), [""; 0]);
    let result = world.execute(&mut server.node(), &guarded(A));
    assert_eq!(result, Ok(ACQUIRED));
}

#[test]
fn a_node_that_does_not_identify_itself_has_a_vote_if_the_guard_is_off() {
    for error in [
        "NOPERM this user has no permissions to run the 'eval' command",
        "NOPERM No permissions to access a key",
        "ERR The user executing the script can't run this command or subcommand script: 12e4",
        "ERR ACL failure in script: this user has no permissions to run the 'info' command",
        "ERR unknown command 'EVAL', with args beginning with: 'local info'",
        "ERR Unknown Redis command called from script script: 12e4, on @user_script:1.",
        "ERR This Redis command is not allowed from script script: 12e4",
        "ERR Error running script (call to f_12e4): @user_script:1: attempt to index a nil value",
        "MOVED 3999 127.0.0.1:6381",
        "",
    ] {
        let (world, server) = start();
        server.introduce_with(format!("-{error}\r\n"));
        let mut node = server.node();
        let result = world.execute(&mut node, &guarded(A));
        assert_eq!(result, denied(Denial::InfoForbidden), "{error}");
        assert_eq!(world.execute(&mut node, &acquire(A)), Ok(ACQUIRED));
        assert_eq!((server.connections(), node.run_id()), (1, None));
    }
}

#[test]
fn a_node_that_is_not_ready_to_identify_itself_and_one_that_answers_nonsense_end_the_connection() {
    let unexpected = "unexpected reply; is this a Redis server?";
    for (answer, text) in [
        ("-LOADING Redis is loading\r\n", "LOADING Redis is loading"),
        ("-MASTERDOWN Link is down\r\n", "MASTERDOWN Link is down"),
        ("-CLUSTERDOWN Hash slot\r\n", "CLUSTERDOWN Hash slot"),
        ("-BUSY Redis is busy\r\n", "BUSY Redis is busy"),
        ("-READONLY You can't\r\n", "READONLY You can't"),
        ("-NOAUTH Authentication\r\n", "NOAUTH Authentication"),
        ("-DENIED protected mode\r\n", "DENIED protected mode"),
        (
            "-ERR max number of clients reached\r\n",
            "ERR max number of clients reache..",
        ),
        ("$-1\r\n", unexpected),
        ("+OK\r\n", unexpected),
        (":1\r\n", unexpected),
        ("*3\r\n:1\r\n:2\r\n:3\r\n", unexpected),
        ("*4\r\n:-1\r\n:2\r\n:3\r\n:4\r\n", unexpected),
    ] {
        let (world, server) = start();
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
    let (world, server) = start();
    server.introduce(YOUNG);
    let mut node = server.node();
    assert!(world.execute(&mut node, &guarded(A)).is_err());
    let released = poll_times(1, node.execute(&release(A)));
    assert!(is_nothing_to_release(released));
    world.run(node.close());
    assert_eq!(server.heard(), [""; 0]);
}

#[test]
fn a_client_that_only_extends_learns_within_a_minute_that_the_guard_record_allows_shorter_leases_alone()
 {
    let (world, server, mut node) = connected();
    let asked = times_asked(server);
    server.introduce(Who {
        vouched_ms: i64::from(TTL_MS) - 1,
        ..Who::default()
    });
    world.clock.advance(ms(59_000));
    assert!(world.execute(&mut node, &extend(A)).is_ok());
    assert_eq!((times_asked(server), server.heard().len()), (asked, 1));

    world.clock.advance(ms(2_000));
    let denial = denied(Denial::TtlTooLong {
        max_ttl_ms: TTL_MS - 1,
    });
    for pause in [0, 500, 2_000, 60_000] {
        world.clock.advance(ms(pause));
        assert_eq!(world.execute(&mut node, &extend(A)), denial, "{pause}");
    }
    // Not after half a second, and no extension was sent.
    assert_eq!((times_asked(server), server.heard().len()), (asked + 3, 1));
    // A release is sent in any case.
    assert!(world.execute(&mut node, &release(A)).is_ok());

    server.introduce(Who::default());
    world.clock.advance(ms(2_000));
    assert!(world.execute(&mut node, &extend(A)).is_ok());
}

#[test]
fn commands_before_a_denied_acquire_are_still_sent() {
    let (world, server, mut node) = connected();
    assert_eq!(world.execute(&mut node, &guarded(A)), Ok(ACQUIRED));
    server.enter(Entry::REFUSED);
    server.cut();
    assert!(world.execute(&mut node, &release(A)).is_err());
    server.introduce(YOUNG);
    server.enter(Entry::After(ms(0)));
    world.clock.advance(ms(1_000));
    assert!(world.execute(&mut node, &guarded(B)).is_err());
    assert_eq!(server.heard(), ["SET a", "RELEASE a"]);
}

/// How often the node was asked for its identity.
fn times_asked(server: &Server<'_>) -> usize {
    let heard = server.heard_all();
    heard.iter().filter(|name| *name == "NODE_INFO").count()
}

const REPLICA: Who = Who {
    run_id: 1,
    replication_id: 7,
    uptime_s: 1_000_000,
    is_master: false,
    may_evict: false,
    vouched_ms: 0,
};

const READONLY: &str = "-READONLY You can't write against a read only replica.\r\n";

#[test]
fn a_replica_that_is_promoted_while_it_is_connected_is_asked_again_and_has_restarted_just_now() {
    let (world, server) = start();
    server.introduce(REPLICA);
    let mut node = server.node();
    assert_eq!(
        world.execute(&mut node, &guarded(A)),
        denied(Denial::Replica)
    );
    server.introduce(Who::default());
    // A denial holds for a second: otherwise a node that has no vote would be asked with each acquire.
    world.clock.advance(ms(999));
    assert_eq!(
        world.execute(&mut node, &guarded(A)),
        denied(Denial::Replica)
    );
    assert_eq!(times_asked(server), 1);
    world.clock.advance(ms(1));
    let (ago_ms, left_ms) = (0, 10_102);
    assert_eq!(
        world.execute(&mut node, &guarded(A)),
        denied(Denial::Restarted {
            ago_ms,
            left_ms,
            has_record: false
        })
    );
    world.clock.advance(QUARANTINE);
    assert_eq!(world.execute(&mut node, &guarded(A)), Ok(ACQUIRED));
    assert_eq!((times_asked(server), server.connections()), (2, 1));
}

#[test]
fn a_node_that_answers_with_an_error_is_asked_again_before_its_next_vote() {
    for (command, is_dropped) in [
        (guarded(A), false),
        (extend(A), false),
        (release(A), false),
        (extend(A), true),
    ] {
        let (world, server, mut node) = connected();
        server.answer_with(READONLY);
        if is_dropped {
            server.hang(usize::MAX);
            assert!(poll_times(2, node.execute(&command)).is_none());
            server.resume();
        } else {
            let error = world.execute(&mut node, &command);
            assert!(matches!(
                error,
                Err(Failure::Transport(TransportError::Rejected(_)))
            ));
        }
        // Demoted, and promoted before it is asked: its data is another master's.
        server.introduce(Who {
            replication_id: 8,
            ..Who::default()
        });
        let (ago_ms, left_ms) = (0, 10_102);
        assert_eq!(
            world.execute(&mut node, &guarded(B)),
            denied(Denial::Restarted {
                ago_ms,
                left_ms,
                has_record: false
            })
        );
        assert_eq!((times_asked(server), server.connections()), (2, 1));
        // Only once: the release that is sent again is not answered with an error.
        assert!(world.execute(&mut node, &guarded(B)).is_err());
        assert_eq!(times_asked(server), 2);
    }
}

#[test]
fn a_failback_is_noticed_over_a_new_connection_although_the_process_is_the_same() {
    let (world, server, mut node) = unconnected();
    assert_eq!(world.execute(&mut node, &guarded(A)), Ok(ACQUIRED));
    server.cut();
    server.introduce(Who {
        replication_id: 8,
        ..Who::default()
    });
    assert!(world.execute(&mut node, &guarded(B)).is_err());
    world.clock.advance(QUARANTINE);
    assert_eq!(world.execute(&mut node, &guarded(B)), Ok(ACQUIRED));
}

#[test]
fn the_eviction_policy_is_asked_for_again_after_half_of_the_longest_ttl_and_not_before() {
    let mut strict = GUARDED;
    strict.refuse_eviction = true;
    strict.obeys_record = true;
    let (world, server, mut node) = unconnected();
    for _ in 0..50 {
        assert!(world.execute(&mut node, &acquire_by(strict, A)).is_ok());
        world.clock.advance(ms(99));
    }
    assert_eq!(times_asked(server), 1);
    server.introduce(Who {
        may_evict: true,
        ..Who::default()
    });
    world.clock.advance(ms(50));
    let denial = denied(Denial::MayEvict);
    assert_eq!(
        world.execute(&mut node, &acquire_by(strict, B)),
        denial.clone()
    );
    assert_eq!((times_asked(server), server.connections()), (2, 1));
    // A client that does not refuse eviction is not delayed.
    assert!(world.execute(&mut node, &guarded(B)).is_ok());
    server.introduce(Who::default());
    assert_eq!(world.execute(&mut node, &acquire_by(strict, B)), denial);
    // It may have evicted what it granted before.
    world.clock.advance(ms(1_000));
    let error = world
        .execute(&mut node, &acquire_by(strict, B))
        .unwrap_err();
    let words = "may have evicted locks, its vote counts again in ";
    assert!(error.to_string().contains(words), "{error}");
    assert_eq!((times_asked(server), server.connections()), (3, 1));
    world.clock.advance(QUARANTINE);
    assert!(world.execute(&mut node, &acquire_by(strict, B)).is_ok());
}

#[test]
fn a_question_that_is_asked_again_is_answered_once_wherever_the_call_is_dropped() {
    for chunk in [5, 1_000] {
        let mut polls = 0;
        loop {
            let (world, server, mut node) = connected();
            // An error reply is outstanding: the question waits for it.
            server.hang(usize::MAX);
            server.answer_with(READONLY);
            assert!(poll_times(3, node.execute(&extend(A))).is_none());
            server.resume();
            world.run(node.connect()).unwrap();
            server.stutter(chunk);
            let is_done = poll_times(polls, node.execute(&guarded(A))).is_some();
            let result = world.execute(&mut node, &extend(A));
            let is_set = server.heard().contains(&"SET a".to_owned());
            let reply = if is_set {
                Reply::Extended(None)
            } else {
                Reply::NotMine
            };
            assert_eq!(result, Ok(reply), "after {polls} polls");
            let result = world.execute(&mut node, &guarded(B));
            assert_eq!(result, Ok(if is_set { HELD } else { ACQUIRED }));
            assert_eq!((times_asked(server), server.connections()), (2, 1));
            if is_done {
                break;
            }
            polls += 1;
        }
        assert!(polls > 5, "{polls}");
    }
}

#[test]
fn a_release_goes_ahead_of_the_next_command_while_a_question_is_not_answered() {
    let (world, server, mut node) = connected();
    assert_eq!(world.execute(&mut node, &guarded(A)), Ok(ACQUIRED));
    server.answer_with(READONLY);
    assert!(world.execute(&mut node, &extend(A)).is_err());
    server.hang(usize::MAX);
    assert_eq!(world.round(&mut node, &guarded(B)), None);
    assert_eq!(world.round(&mut node, &release(A)), None);
    server.resume();
    assert_eq!(world.execute(&mut node, &guarded(C)), Ok(ACQUIRED));
    let heard = server.heard();
    assert_eq!(heard, ["SET a", "EXTEND a", "RELEASE a", "SET c"]);
    assert_eq!((times_asked(server), server.connections()), (2, 1));
}

#[test]
fn a_node_that_is_not_ready_when_it_is_asked_again_is_reconnected() {
    let (world, server, mut node) = connected();
    server.answer_with(READONLY);
    assert!(world.execute(&mut node, &extend(A)).is_err());
    server.introduce_with("-LOADING Redis is loading\r\n");
    let error = world.execute(&mut node, &guarded(B)).unwrap_err();
    assert_eq!(error.to_string(), "LOADING Redis is loading");
    server.introduce(Who::default());
    assert_eq!(world.execute(&mut node, &guarded(B)), Ok(ACQUIRED));
    assert_eq!((server.connections(), server.clients()), (2, 1));
}

#[test]
fn a_node_that_fell_silent_about_itself_is_no_first_contact() {
    let (world, server, mut node) = unconnected();
    assert_eq!(world.execute(&mut node, &guarded(A)), Ok(ACQUIRED));
    server.cut();
    server.introduce_with("-NOPERM info\r\n");
    assert_eq!(
        world.execute(&mut node, &guarded(B)),
        denied(Denial::InfoForbidden)
    );
    // Another process, which has run for long as a replica.
    server.introduce(Who {
        run_id: 2,
        ..Who::default()
    });
    world.clock.advance(ms(1_000));
    let (ago_ms, left_ms) = (0, 10_102);
    assert_eq!(
        world.execute(&mut node, &guarded(B)),
        denied(Denial::Restarted {
            ago_ms,
            left_ms,
            has_record: false
        })
    );
}

fn default_options() -> Options {
    Options::new(ms(10_000)).unwrap()
}

#[test]
fn a_wait_outlasts_the_quarantine_of_a_majority_and_the_error_of_a_shorter_one_tells_its_end() {
    let world = World::default();
    let servers = fleet::<3>(&world, Who::default());
    let mut redlock = lock(servers.each_ref(), 1, default_options());
    let lease = world.run(redlock.try_acquire("dock-7")).unwrap();
    world.run(redlock.release(lease));

    servers[0].enter(Entry::Nothing);
    servers[0].cut();
    servers[1].cut();
    servers[1].introduce(YOUNG);
    let error = world.run(redlock.try_acquire("dock-7")).unwrap_err();
    let text = "no quorum for dock-7: 1 of 3 nodes voted (wire: still connecting after 100 ms; \
                call connect_quorum first if this is usual; wire: restarted just now, its vote counts again in 11 s)";
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
fn a_client_without_a_connection_during_a_rolling_restart_counts_from_its_next_one_and_outlasts_it_by_default()
 {
    let world = World::default();
    let servers = fleet::<3>(&world, Who::default());
    let mut redlock = lock(servers.each_ref(), 1, default_options());
    let lease = world.run(redlock.acquire("dock-7")).unwrap();
    world.run(redlock.release(lease));
    for (number, server) in servers.iter().enumerate() {
        server.cut();
        // A day ago, by its own uptime.
        server.introduce(Who {
            run_id: 20 + number as u64,
            ..Who::default()
        });
        server.enter(Entry::After(ms(80)));
    }
    world.clock.advance(Duration::from_secs(86_400));

    let error = world.run(redlock.try_acquire("dock-7")).unwrap_err();
    let text = "restarted just now, its vote counts again in 11 s";
    assert!(error.to_string().contains(text), "{error}");
    let begun_at = world.now_ms();
    assert!(world.run(redlock.acquire("dock-7")).is_ok());
    let waited = world.now_ms() - begun_at;
    assert!((9_900..10_302).contains(&waited), "{waited}");
}

#[test]
fn a_server_that_is_named_twice_has_one_vote_and_the_error_names_both() {
    let world = World::default();
    let [first, second, _] = &fleet::<3>(&world, Who::default());
    second.enter(Entry::REFUSED);
    let mut redlock = lock([first, first, second], 1, default_options());
    for _ in 0..3 {
        let error = world.run(redlock.try_acquire("dock-7")).unwrap_err();
        let text = "wire: the same server as wire; name each server once";
        assert!(error.to_string().contains(text), "{error}");
        assert_eq!(first.token(KEY), None);
    }
    // Two different servers are a quorum.
    second.enter(Entry::After(ms(0)));
    world.clock.advance(ms(2_000));
    let lease = world.run(redlock.try_acquire("dock-7")).unwrap();
    world.run(redlock.release(lease));
}

/// Nobody reads it while nobody uses the device.
#[test]
fn an_answer_that_waited_until_the_next_lock_says_nothing_about_the_node_of_today() {
    let old = Who {
        uptime_s: 100_000,
        ..YOUNG
    };
    let mut strict = GUARDED;
    strict.refuse_eviction = true;
    let another_history = Who {
        replication_id: 8,
        ..old
    };
    let evicting = Who {
        may_evict: true,
        ..old
    };
    for (today, denial) in [
        (
            another_history,
            Denial::Restarted {
                ago_ms: 0,
                left_ms: 10_102,
                has_record: false,
            },
        ),
        (evicting, Denial::MayEvict),
    ] {
        for is_connected in [true, false] {
            let (world, server) = start();
            server.introduce(old);
            let mut node = if is_connected {
                server.connected()
            } else {
                server.node()
            };
            world.clock.advance(ms(61_000));
            server.hang(10_000);
            assert!(world.round(&mut node, &acquire_by(strict, A)).is_none());
            server.resume();
            server.introduce(today);
            world.clock.advance(ms(600_000));
            let result = world.execute(&mut node, &acquire_by(strict, B));
            match (today.may_evict, is_connected) {
                // It was never another one for this client: it has been running for long.
                (false, false) => assert_eq!(result, Ok(ACQUIRED)),
                _ => assert_eq!(result, denied(denial)),
            }
        }
    }
}

/// Of a node that had just started then.
#[test]
fn an_uptime_that_waited_until_the_first_lock_costs_no_quarantine() {
    let (world, server) = start();
    server.introduce(YOUNG);
    let mut node = server.node();
    server.hang(10_000);
    assert!(world.run_for(ms(50), node.connect()).is_none());
    server.resume();
    server.introduce(Who {
        uptime_s: 660,
        ..YOUNG
    });
    world.clock.advance(ms(660_000));
    assert_eq!(world.execute(&mut node, &guarded(A)), Ok(ACQUIRED));
}
