//! Fenced locks: their scripts, and what of them is to be kept.

use core::cell::Cell;
use core::fmt;
use std::collections::HashSet;

use redlock_core::mock::{MockClock, SeededEntropy};
use redlock_core::transport::{Argument, Command, Proposal, Reply, ScriptCall, VoteConditions};
use redlock_core::{Denial, Fence, Fencing, Redlock, Token, Transport};
use redlock_embassy::{
    AcquireError, Failure, FenceGate, NodeErrorOf, Options, TransportError, resp,
};

use crate::fleet::*;
use crate::scripts::Scripts;
use crate::wire::{Entry, Server, Who};
use crate::world::*;

/// A proposal of the usual fleet, at the time of the nodes and so many microseconds.
pub(crate) fn proposal(world: &World, micros: u64) -> Proposal {
    /// Only a lock can make one.
    struct Spy<'p>(&'p Cell<Option<Proposal>>);

    impl Transport for Spy<'_> {
        type Name = &'static str;
        type Error = fmt::Error;

        fn name(&self) -> &'static str {
            "a node"
        }

        async fn execute(&mut self, command: &Command<'_>) -> Result<Reply, NodeErrorOf<Self>> {
            if command.is_acquire() {
                self.0.set(command.proposal);
            }
            Err(redlock_core::NodeError::new(
                "a node",
                Failure::Transport(fmt::Error),
            ))
        }
    }

    let seen = Cell::new(None);
    let clock = MockClock::new();
    let entropy = SeededEntropy::new(1);
    let mut redlock = Redlock::<_, _, _, 1>::new([Spy(&seen)], &clock, entropy, fenced()).unwrap();
    assert!(clock.run(redlock.try_acquire("dock-7")).is_err());
    let mut proposal = seen.get().unwrap();
    let now = u64::try_from(world.time().as_micros()).unwrap() + Scripts::AHEAD;
    proposal.fence = Fence::from_u64(now + micros);
    proposal.time = now;
    proposal
}

/// The longest time that a rule of a fleet with this window can have.
pub(crate) const LONGEST_RULE_MS: u32 = u32::MAX - 4 * 3_600_000 - 1_000;

/// The longest proposal under these rules, of a client that restores a guard record.
pub(crate) fn longest_proposal(window_ms: u32, rule_ms: u32) -> Proposal {
    let [window, rule] = [window_ms, rule_ms].map(|millis| ms(millis.into()));
    let fencing = Fencing::new(window).unwrap();
    let fencing = fencing.with_max_ttl(rule).unwrap();
    let fencing = fencing.with_step_back(rule).unwrap();
    let latest = (1 << 53) - 1;
    Proposal::new(Fence::from_u64(latest), fencing, latest, true)
}

fn fenced() -> Options {
    one_round().fenced(Fencing::default()).unwrap()
}

pub(crate) const fn acquire_at(proposal: Proposal, token: &Token) -> Command<'_> {
    Command::acquire(KEY, token, TTL_MS, VoteConditions::NONE).with_proposal(Some(proposal))
}

const fn extend_at(proposal: Proposal, token: &Token) -> Command<'_> {
    Command::extend(KEY, token, TTL_MS).with_proposal(Some(proposal))
}

const fn release_at(proposal: Proposal, token: &Token) -> Command<'_> {
    Command::release(KEY, token).with_proposal(Some(proposal))
}

fn assert_acquired(world: &World, node: &mut Node<'_>, proposal: Proposal, token: &Token) {
    let result = world.execute(node, &acquire_at(proposal, token));
    assert!(matches!(result, Ok(Reply::Acquired(Some(_)))), "{result:?}");
}

#[test]
fn the_scripts_are_loaded_on_a_node_that_lacks_them_and_called_by_their_names() {
    let (world, server, mut node) = unconnected();
    let first = proposal(world, 1);
    assert_acquired(world, &mut node, first, A);
    let result = world.execute(&mut node, &extend_at(first, A));
    assert!(matches!(result, Ok(Reply::Extended(Some(_)))), "{result:?}");
    let result = world.execute(&mut node, &release_at(first, A));
    assert_eq!(result, Ok(Reply::Released));
    let refused = ["NODE_INFO", "ACQUIRE a"];
    let loads = ["NODE_INFO", "LOAD 2", "LOAD 1", "LOAD 0"];
    let calls = ["ACQUIRE a", "RENEW a", "GIVE BACK a"];
    assert_eq!(server.heard_all(), [&refused[..], &loads, &calls].concat());
    // A new connection finds them there.
    server.cut();
    assert_acquired(world, &mut node, proposal(world, 2), B);
    assert_eq!(server.heard_all()[9..], ["NODE_INFO", "ACQUIRE b"]);
}

#[test]
fn a_node_that_refuses_a_fence_gives_a_denial() {
    let (world, server, mut node) = unconnected();
    let now = proposal(world, 0);
    assert_acquired(world, &mut node, now, A);
    let result = world.execute(&mut node, &acquire_at(proposal(world, 1), B));
    assert!(matches!(result, Ok(Reply::Held(Some(_)))), "{result:?}");
    assert_eq!(
        world.execute(&mut node, &release_at(now, A)),
        Ok(Reply::Released)
    );

    let denial = |node: &mut Node<'_>, proposal| match world.execute(node, &acquire_at(proposal, B))
    {
        Err(Failure::Denied(denial)) => denial,
        other => panic!("{other:?}"),
    };
    assert!(matches!(denial(&mut node, now), Denial::Stale(_)));
    let ahead = proposal(world, 250_001);
    assert!(matches!(denial(&mut node, ahead), Denial::TooNew(_)));
    world.clock.advance(ms(300));
    let mut behind = now;
    behind.fence = Fence::from_u64(now.fence.as_u64() + 1);
    assert!(matches!(denial(&mut node, behind), Denial::TooOld(_)));
    let error = world.run(node.execute(&acquire_at(behind, B))).unwrap_err();
    assert!(matches!(error.denial(), Some(Denial::TooOld(_))));
    server.answer_with("*4\r\n:5\r\n:1\r\n:1\r\n:2500\r\n");
    let quarantined = denial(&mut node, now);
    assert!(
        matches!(quarantined, Denial::Quarantined { left_ms: 2_500, .. }),
        "{quarantined:?}"
    );
    server.answer_with("*4\r\n:6\r\n:1\r\n:1\r\n:0\r\n");
    assert!(matches!(denial(&mut node, now), Denial::FencingMismatch(_)));
    server.answer_with("*4\r\n:7\r\n:1\r\n:1\r\n:1\r\n");
    let unguarded = denial(&mut node, now);
    assert!(
        matches!(
            unguarded,
            Denial::Unguarded {
                has_record: true,
                ..
            }
        ),
        "{unguarded:?}"
    );
    // A denial of the node's own costs nothing.
    assert_eq!(server.connections(), 1);
}

#[test]
fn an_answer_that_no_script_gives_costs_the_connection() {
    let world = World::default();
    for answer in [
        "*4\r\n:8\r\n:1\r\n:1\r\n:0\r\n",
        "*3\r\n:0\r\n:1\r\n:1\r\n",
        "+OK\r\n",
        ":1\r\n",
    ] {
        let server = Server::new(&world);
        let mut node = server.node();
        server.answer_with(answer);
        let result = world.execute(&mut node, &acquire_at(proposal(&world, 1), A));
        assert_eq!(
            result,
            Err(Failure::Transport(TransportError::Unexpected)),
            "{answer}"
        );
        assert_eq!(server.clients(), 0);
    }
}

#[test]
fn a_command_whose_script_is_forgotten_is_sent_again_on_the_same_connection() {
    for chunk in [1, 7, 1_000] {
        let (world, server) = start();
        server.stutter(chunk);
        let mut node = server.node();
        let first = proposal(world, 1);
        assert!(world.execute(&mut node, &acquire_at(first, A)).is_ok());
        assert!(world.execute(&mut node, &release_at(first, A)).is_ok());
        let second = proposal(world, 2);
        server.scripts().flush();
        assert_acquired(world, &mut node, second, B);
        server.scripts().flush();
        let result = world.execute(&mut node, &extend_at(second, B));
        assert!(matches!(result, Ok(Reply::Extended(Some(_)))), "{result:?}");
        server.scripts().flush();
        let result = world.execute(&mut node, &release_at(second, B));
        assert_eq!(result, Ok(Reply::Released));
        let commands = ["ACQUIRE b", "RENEW b", "GIVE BACK b"];
        let twice = commands.iter().flat_map(|command| [*command; 2]);
        // The first acquire was sent twice too.
        assert_eq!(server.heard()[3..], twice.collect::<Vec<_>>());
        assert_eq!((server.connections(), world.now_ms()), (1, 0));
    }
}

#[test]
fn the_script_of_a_command_is_loaded_just_before_the_command_is_sent_again() {
    let (world, server, mut node) = unconnected();
    assert!(world.run(node.connect()).is_ok());
    let first = proposal(world, 1);
    let last_two = |command: &Command<'_>, node: &mut Node<'_>| {
        server.scripts().flush();
        assert!(world.execute(node, command).is_ok());
        server.heard_all().split_off(server.heard_all().len() - 2)
    };
    let acquire = last_two(&acquire_at(first, A), &mut node);
    assert_eq!(acquire, ["LOAD 0", "ACQUIRE a"]);
    let extend = last_two(&extend_at(first, A), &mut node);
    assert_eq!(extend, ["LOAD 1", "RENEW a"]);
    let release = last_two(&release_at(first, A), &mut node);
    assert_eq!(release, ["LOAD 2", "GIVE BACK a"]);
}

#[test]
fn a_command_whose_scripts_are_forgotten_again_and_again_is_sent_four_times_and_costs_no_connection()
 {
    let (world, server) = start();
    server.scripts().is_flushed_at_once = true;
    let mut node = server.node();
    for _ in 0..3 {
        let heard = server.heard().len();
        let result = world.execute(&mut node, &acquire_at(proposal(world, 1), A));
        assert_eq!(result, Err(Failure::Transport(TransportError::NoScript)));
        assert_eq!(server.heard()[heard..], ["ACQUIRE a"; 4]);
    }
    server.scripts().is_flushed_at_once = false;
    assert_acquired(world, &mut node, proposal(world, 2), B);
    assert_eq!((server.connections(), world.now_ms()), (1, 0));
}

#[test]
fn an_acquire_that_is_dropped_while_the_scripts_are_loaded_again_never_comes_after_its_release() {
    for polls in 0.. {
        let (world, server) = start();
        server.stutter(1_000);
        let mut node = server.node();
        assert!(world.run(node.connect()).is_ok());
        server.scripts().flush();
        let first = proposal(world, 1);
        let acquired = poll_times(polls, node.execute(&acquire_at(first, A)));
        let released = world.execute(&mut node, &release_at(first, A));
        assert!(released.is_ok(), "after {polls} polls: {released:?}");
        assert_acquired(world, &mut node, proposal(world, 2), B);
        let heard = server.heard();
        let last_acquire = heard.iter().rposition(|name| name == "ACQUIRE a");
        let last_release = heard.iter().rposition(|name| name == "GIVE BACK a");
        assert!(last_acquire <= last_release, "{heard:?}");
        assert_eq!(server.connections(), 1);
        if acquired.is_some() {
            assert!(polls > 20);
            break;
        }
    }
}

#[test]
fn a_release_whose_script_is_forgotten_goes_ahead_of_the_next_command_wherever_it_is_dropped() {
    for polls in 0.. {
        let (world, server) = start();
        server.stutter(1_000);
        let mut node = server.node();
        let first = proposal(world, 1);
        assert!(world.execute(&mut node, &acquire_at(first, A)).is_ok());
        server.scripts().flush();
        let released = poll_times(polls, node.execute(&release_at(first, A)));
        // The answer that tells may be to a call that was dropped, and so come with the first of these.
        assert!(world.execute(&mut node, &extend(B)).is_ok());
        assert!(world.execute(&mut node, &extend(B)).is_ok());
        let is_heard = server.heard().contains(&"GIVE BACK a".to_owned());
        assert!(
            !is_heard || server.token(KEY).is_none(),
            "after {polls} polls"
        );
        assert_eq!(server.connections(), 1);
        if released.is_some() {
            assert!(is_heard && polls > 10);
            break;
        }
    }
}

#[test]
fn a_node_that_loads_no_scripts_serves_plain_locks_and_says_what_is_missing() {
    for refusal in [
        "NOPERM this user has no permissions",
        "ERR unknown command 'SCRIPT'",
    ] {
        let (world, server) = start();
        server.scripts().refusal = Some(refusal);
        let mut node = server.node();
        assert_eq!(world.execute(&mut node, &acquire(A)), Ok(ACQUIRED));
        let mut errors = HashSet::new();
        for _ in 0..100 {
            let result = world.execute(&mut node, &acquire_at(proposal(world, 1), B));
            errors.insert(result.unwrap_err().to_string());
            world.clock.advance(ms(10));
        }
        let text = TransportError::NoScript.to_string();
        assert!(text.contains("SCRIPT FLUSH") && text.contains("+script|load"));
        assert_eq!(errors, HashSet::from([text]));
        assert_eq!(server.connections(), 1);
        // Loading them is tried once for each command.
        let loads = server.heard_all();
        let loads = loads.iter().filter(|name| *name == "LOAD 0").count();
        assert_eq!(loads, 100);
    }

    let (world, server) = start();
    server.scripts().refusal = Some("BUSY Redis is busy");
    let mut node = server.node();
    assert_eq!(world.execute(&mut node, &acquire(A)), Ok(ACQUIRED));
    let fenced = acquire_at(proposal(world, 1), B);
    let error = world.execute(&mut node, &fenced).unwrap_err();
    assert_eq!(error.to_string(), "BUSY Redis is busy");
    // The next connection does not begin with the scripts.
    world.clock.advance(ms(1_600));
    assert!(world.execute(&mut node, &release(A)).is_ok());
}

#[test]
fn releases_whose_scripts_a_node_loses_or_does_not_load_keep_no_command_waiting() {
    for refusal in [
        None,
        Some("NOPERM this user has no permissions"),
        Some("ERR unknown command 'SCRIPT'"),
    ] {
        let (world, server) = start();
        let mut node = server.node();
        let [first, second] = [1, 2].map(|micros| proposal(world, micros));
        let leases = [(&b"one"[..], first, A), (&b"two"[..], second, B)];
        for (key, proposal, token) in leases {
            let acquire = acquire_of(key, token).with_proposal(Some(proposal));
            assert!(world.execute(&mut node, &acquire).is_ok());
        }
        server.scripts().flush();
        server.scripts().refusal = refusal;
        server.scripts().is_flushed_at_once = refusal.is_none();
        for (key, proposal, token) in leases {
            let release = release_of(key, token).with_proposal(Some(proposal));
            let result = world.execute(&mut node, &release);
            assert_eq!(result, Err(Failure::Transport(TransportError::NoScript)));
        }
        for _ in 0..3 {
            let heard = server.heard_all().len();
            assert_eq!(world.execute(&mut node, &acquire(A)), Ok(ACQUIRED));
            let heard = server.heard_all().split_off(heard);
            assert!(heard.len() <= 40, "{refusal:?}: {heard:?}");
            assert!(world.execute(&mut node, &release(A)).is_ok());
        }
        assert_eq!((server.connections(), world.now_ms()), (1, 0));
    }
}

#[test]
fn the_second_round_of_an_attempt_does_not_forget_what_the_first_has_sent() {
    let (world, server, mut node) = unconnected();
    let first = proposal(world, 1);
    assert!(world.execute(&mut node, &acquire_at(first, A)).is_ok());
    server.cut();
    server.enter(Entry::REFUSED);
    let second = proposal(world, 2);
    assert!(world.execute(&mut node, &acquire_at(second, A)).is_err());
    assert!(world.execute(&mut node, &release_at(second, A)).is_err());
    assert_eq!(server.token(KEY), Some(A.as_bytes().to_vec()));
    server.enter(Entry::OPEN);
    world.clock.advance(ms(1_600));
    assert_eq!(world.execute(&mut node, &extend(B)), Ok(Reply::NotMine));
    assert_eq!(server.token(KEY), None);
}

#[test]
fn a_late_release_burns_its_fence() {
    let (world, server, mut node) = unconnected();
    assert!(
        world
            .execute(&mut node, &acquire_at(proposal(world, 1), A))
            .is_ok()
    );
    server.cut();
    server.enter(Entry::REFUSED);
    let last = proposal(world, 5);
    assert!(world.execute(&mut node, &release_at(last, A)).is_err());
    server.enter(Entry::OPEN);
    world.clock.advance(ms(100));
    assert_eq!(world.execute(&mut node, &extend(B)), Ok(Reply::NotMine));
    assert_eq!(server.heard()[2..], ["GIVE BACK a", "EXTEND b"]);
    let result = world.execute(&mut node, &acquire_at(last, C));
    assert!(
        matches!(result, Err(Failure::Denied(Denial::Stale(_)))),
        "{result:?}"
    );
}

/// The longest commands of the rules that the README names, and of any rules.
#[test]
fn the_send_buffer_takes_what_the_readme_says() {
    // Without the feature, no client sends the script that keeps a key.
    let keep = if cfg!(feature = "min-hold") { 254 } else { 171 };
    for len in [10, 17, 18, 30, 31, 85, 99, 9_000] {
        let key = vec![b'k'; len];
        let longest = |ttl_ms, proposal| {
            let mut conditions = VoteConditions::NONE;
            conditions.restart_guard = true;
            let commands = [
                Command::acquire(&key, A, ttl_ms, conditions),
                Command::extend(&key, A, ttl_ms),
                Command::adopt(&key, A, ttl_ms, conditions),
                Command::release(&key, A),
                Command::keep(&key, A, ttl_ms),
            ];
            let call = match proposal {
                Some(_) => ScriptCall::Hash,
                None => ScriptCall::Text,
            };
            commands.map(|command| {
                let command = command.with_proposal(proposal);
                resp::encoded_len(command.arguments(call))
            })
        };
        let fenced = longest(99_999, Some(longest_proposal(99_999, 99_999)));
        let plain = longest(99_999, None);
        let most_fenced = longest(u32::MAX, Some(longest_proposal(3_600_000, LONGEST_RULE_MS)));
        let most_plain = longest(u32::MAX, None);
        if len < 86 {
            assert_eq!(
                fenced,
                [221, 226, 233, 171, 233].map(|rest| rest + 2 * len),
                "{len}"
            );
            assert_eq!(
                plain,
                [74, 171, 171, 148, keep].map(|rest| rest + len),
                "{len}"
            );
        }
        let limits = [221 + 26, 233 + 18, 233 + 18, 171 + 14, 233 + 18].map(|rest| rest + 2 * len);
        for (bytes, limit) in most_fenced.into_iter().zip(limits) {
            assert!(bytes <= limit, "{len}: {bytes}");
        }
        let limits = [74, 171, 171, 148, keep].map(|rest| rest + 14 + len);
        for (bytes, limit) in most_plain.into_iter().zip(limits) {
            assert!(bytes <= limit, "{len}: {bytes}");
        }
        let [acquire, _, _, release, _] = fenced;
        assert_eq!(acquire + release <= 512, len <= 30, "{len}");
        let [acquire, _, _, release, _] = plain;
        assert_eq!(acquire + release <= 256, len <= 17, "{len}");
    }
    let key = [b'k'; 20];
    let word = Argument::FenceKey(&key);
    assert_eq!(resp::encoded_len([word].into_iter()), 4 + 5 + 14 + 20 + 2);
}

/// Young, which is for the scripts to judge.
const YOUNG: Who = Who {
    uptime_s: 0,
    ..Who::MASTER
};

#[test]
fn fences_grow_from_holder_to_holder_over_five_nodes() {
    for chunk in [16, 1_000] {
        let world = World::default();
        let servers = fleet::<5>(&world, YOUNG);
        servers.iter().for_each(|server| server.stutter(chunk));
        let mut clients = [1, 2, 3].map(|seed| lock(servers.each_ref(), seed, fenced()));
        let mut gate = FenceGate::new();
        for round in 0..12 {
            let [first, second, _] = &mut clients;
            let mut lease = world.run(first.try_acquire("dock-7")).unwrap();
            let fence = lease.fence().unwrap();
            assert!(
                fence > gate.highest() && gate.admit(fence),
                "{round}: {fence}"
            );
            let held = world.run(second.try_acquire("dock-7"));
            assert!(matches!(held, Err(AcquireError::Held(_))), "{held:?}");
            world.run(first.extend(&mut lease)).unwrap();
            let released = world.run(first.release(lease));
            assert!(released.released() >= 3);
            clients.rotate_left(1);
        }
    }
}

#[test]
fn scripts_that_are_flushed_everywhere_cost_no_round() {
    let world = World::default();
    let servers = fleet::<5>(&world, YOUNG);
    let mut redlock = lock(servers.each_ref(), 1, fenced());
    let mut before = None;
    for _ in 0..3 {
        // Else the fence of the next lease would be the last one's, and take a second round.
        world.clock.advance(ms(100));
        servers.iter().for_each(|server| server.scripts().flush());
        let mut lease = world.run(redlock.try_acquire("dock-7")).unwrap();
        assert!(lease.fence() > before);
        before = lease.fence();
        servers.iter().for_each(|server| server.scripts().flush());
        world.run(redlock.extend(&mut lease)).unwrap();
        servers.iter().for_each(|server| server.scripts().flush());
        world.run(redlock.release(lease));
    }
    assert!(servers.iter().all(|server| server.connections() == 1));
}

#[test]
fn plain_and_fenced_locks_exclude_each_other() {
    let world = World::default();
    let servers = fleet::<5>(&world, Who::default());
    let mut fenced = lock(servers.each_ref(), 1, fenced());
    let mut plain = lock(servers.each_ref(), 2, one_round());
    let lease = world.run(fenced.try_acquire("dock-7")).unwrap();
    assert!(world.run(plain.try_acquire("dock-7")).is_err());
    world.run(fenced.release(lease));
    let lease = world.run(plain.try_acquire("dock-7")).unwrap();
    assert_eq!(lease.fence(), None);
    assert!(world.run(fenced.try_acquire("dock-7")).is_err());
    world.run(plain.release(lease));
}

/// The release is polled once.
#[test]
fn the_release_that_a_dropped_acquire_owes_is_sent_however_little_is_read_at_once() {
    for chunk in [1, 2, 32, 1_000] {
        let world = &World::default();
        let servers = fleet::<3>(world, Who::default());
        servers.iter().for_each(|server| server.move_by(chunk));
        let options = one_round().fenced(Fencing::default()).unwrap();
        let mut lock = lock::<3>(servers.each_ref(), 1, options);
        for _ in 0..3 {
            if let Ok(lease) = world.run(lock.try_acquire("warm")) {
                world.run(lock.release(lease));
            }
        }
        servers.iter().for_each(|server| server.hang(100_000));
        let dropped = world.run_for(ms(20), lock.try_acquire("dock-7"));
        assert!(dropped.is_none(), "{dropped:?}");
        servers.iter().for_each(Server::resume);
        assert!(
            servers
                .iter()
                .all(|server| server.token(b"dock-7").is_some())
        );
        let lease = world.run(lock.try_acquire("dock-8")).unwrap();
        world.run(lock.release(lease));
        let is_left = |server: &&Server<'_>| server.token(b"dock-7").is_some();
        assert_eq!(servers.iter().filter(is_left).count(), 0, "{chunk}");
    }
}
