//! The whole lock over five nodes.

use redlock_core::{AcquireError, Clock};

use crate::fleet::*;
use crate::wire::{Entry, Server, Who};
use crate::world::*;

const DOCK: &str = "dock-7";

fn holders(servers: &[Server<'_>]) -> usize {
    servers
        .iter()
        .filter(|server| server.token(KEY).is_some())
        .count()
}

/// A permanent fault of a node.
#[derive(Debug, Clone, Copy)]
enum Fault {
    NobodyThere,
    Refuses,
    Hangs,
    TakesNothing,
    SpeaksHttp,
    LettersOnly,
}

impl Fault {
    const ALL: [Self; 6] = [
        Self::NobodyThere,
        Self::Refuses,
        Self::Hangs,
        Self::TakesNothing,
        Self::SpeaksHttp,
        Self::LettersOnly,
    ];

    fn befall(self, server: &Server<'_>) {
        match self {
            Self::NobodyThere => server.enter(Entry::Nothing),
            Self::Refuses => server.enter(Entry::REFUSED),
            Self::Hangs => server.hang(usize::MAX),
            Self::TakesNothing => server.hang(0),
            Self::SpeaksHttp => server.introduce_with("HTTP/1.1 400\r\n"),
            Self::LettersOnly => server.introduce_with([b'+'; 3_000]),
        }
    }
}

#[test]
fn five_nodes_grant_extend_and_release() {
    for chunk in [1, 16, 1_000] {
        let world = World::default();
        let servers = fleet::<5>(&world, Who::default());
        servers.iter().for_each(|server| server.stutter(chunk));
        let mut redlock = lock(servers.each_ref(), 1, one_round());
        for seed in 2..5 {
            let mut lease = world.run(redlock.try_acquire(DOCK)).unwrap();
            // Leaving at the quorum, the others are on their way.
            assert!(holders(&servers) >= 3);
            world.run(redlock.extend(&mut lease)).unwrap();
            let other = world.run(lock(servers.each_ref(), seed, one_round()).try_acquire(DOCK));
            assert!(matches!(other, Err(AcquireError::Held(_))));
            world.run(redlock.release(lease));
        }
        // Whatever was left behind goes out with the next round.
        let lease = world.run(redlock.try_acquire("dock-8")).unwrap();
        world.run(redlock.release(lease));
        for node in redlock.nodes_mut() {
            world.run(node.close());
        }
        assert_eq!(holders(&servers), 0);
        assert_eq!(world.now_ms(), 0);
        for server in &servers {
            let heard = server.heard();
            let sets = || heard.iter().filter(|heard| heard.starts_with("SET"));
            let mut distinct: Vec<_> = sets().collect();
            distinct.sort();
            distinct.dedup();
            assert_eq!(distinct.len(), sets().count(), "no acquire is sent twice");
        }
    }
}

#[test]
fn two_nodes_of_five_may_have_any_faults_and_cost_no_time() {
    for first in Fault::ALL {
        for second in Fault::ALL {
            let world = World::default();
            let servers = fleet::<5>(&world, Who::default());
            first.befall(&servers[0]);
            second.befall(&servers[4]);
            let mut redlock = lock(servers.each_ref(), 1, one_round());
            for _ in 0..20 {
                let mut lease = world.run(redlock.try_acquire(DOCK)).unwrap();
                world.run(redlock.extend(&mut lease)).unwrap();
                let released = world.run(redlock.release(lease));
                assert_eq!(released.released(), 3, "{first:?}, {second:?}");
                assert_eq!(holders(&servers), 0);
                world.clock.advance(ms(137));
            }
            assert_eq!(world.now_ms(), 20 * 137, "{first:?}, {second:?}");
        }
    }
}

#[test]
fn three_nodes_of_five_with_faults_are_no_quorum_and_each_is_named() {
    for fault in Fault::ALL {
        let world = World::default();
        let servers = fleet::<5>(&world, Who::default());
        servers[..3].iter().for_each(|server| fault.befall(server));
        let mut redlock = lock(servers.each_ref(), 1, one_round());
        let error = world.run(redlock.try_acquire(DOCK)).unwrap_err();
        assert!(
            matches!(error, AcquireError::Unreachable(_)),
            "{fault:?}: {error}"
        );
        assert!(error.to_string().contains("wire: "), "{error}");
        assert!(world.now_ms() <= 100, "a round and its clean-up");
        assert_eq!(holders(&servers), 0);
    }
}

#[test]
fn nodes_to_which_connecting_takes_longer_than_a_round_are_reached_by_waiting() {
    let world = World::default();
    let servers = fleet::<5>(&world, Who::default());
    servers
        .iter()
        .for_each(|server| server.enter(Entry::After(ms(170))));
    let mut redlock = lock(servers.each_ref(), 1, one_round());
    assert!(world.run(redlock.try_acquire(DOCK)).is_err());
    redlock.set_options(redlock.options().wait(ms(2_000)));
    let lease = world.run(redlock.acquire(DOCK)).unwrap();
    assert_eq!(lease.key(), &DOCK);
    assert!(world.now_ms() < 500, "{}", world.now_ms());
    for server in &servers {
        assert_eq!((server.attempts(), server.heard().len()), (vec![0], 1));
    }
}

#[test]
fn a_lease_is_kept_over_a_fleet_that_is_restarted_one_by_one() {
    let world = World::default();
    let servers = fleet::<5>(&world, Who::default());
    let mut redlock = lock(servers.each_ref(), 1, one_round());
    let end = world.after(ms(60_000));
    let restarts = async {
        for server in servers.iter().cycle().take(50) {
            server.enter(Entry::REFUSED);
            server.cut();
            world.clock.sleep_until(world.after(ms(1_000))).await;
            server.enter(Entry::After(ms(5)));
        }
        world.clock.sleep_until(end).await;
    };
    world
        .run(redlock.hold(DOCK, async |_lease| restarts.await))
        .unwrap();
    assert_eq!(world.clock.now(), end);
    assert_eq!(holders(&servers), 0);
}

#[test]
fn an_acquire_that_is_dropped_at_any_point_is_released() {
    for chunk in [16, 1_000] {
        let mut polls = 0;
        loop {
            let world = World::default();
            let servers = fleet::<5>(&world, Who::default());
            servers.iter().for_each(|server| server.stutter(chunk));
            let mut redlock = lock(servers.each_ref(), 1, one_round());
            let done = poll_times(polls, redlock.try_acquire(DOCK));
            if let Some(lease) = done {
                world.run(redlock.release(lease.unwrap()));
                break;
            }
            world.run(redlock.release_abandoned());
            for node in redlock.nodes_mut() {
                world.run(node.close());
            }
            assert_eq!(holders(&servers), 0, "{polls} polls in pieces of {chunk}");
            polls += 1;
            assert!(polls < 1_000, "it never ends");
        }
        assert!(polls > 3);
    }
}
