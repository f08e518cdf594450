//! Many clients compete for one lock.
//!
//! Futures that are joined as an array are boxed; otherwise Miri rejects them: see `Sleep` of the mock
//! clock.

use core::pin::pin;
use core::time::Duration;
use std::cell::{Cell, RefCell};

use embassy_futures::join::{join, join_array};
use embassy_futures::select::select;
use redlock_core::mock::{MockClock, MockNode, SeededEntropy};
use redlock_core::{AcquireError, Clock, Entropy, Instant, Options, Redlock};

use crate::clocks::Skewed;
use crate::world::*;

#[test]
fn clients_that_contend_exclude_each_other_and_all_make_progress() {
    const CLIENTS: usize = unless_miri(4, 2);
    const TURNS: u32 = unless_miri(40, 1);

    for seed in 0..unless_miri(25, 1) {
        let clock = MockClock::new();
        let nodes: [Node<'_>; 5] = MockNode::array(&clock);
        let is_held = Cell::new(false);
        let worker = |number: u64| {
            let (clock, nodes, is_held) = (&clock, &nodes, &is_held);
            async move {
                let mut dice = SeededEntropy::new(seed * 100 + number);
                let options = one_round().wait(Duration::from_secs(600));
                let mut redlock =
                    client_with(nodes, clock, 1_000_000 + seed * 100 + number, options);
                for _ in 0..TURNS {
                    let mut random = [0; 3];
                    dice.fill(&mut random);
                    nodes[usize::from(random[0]) % 5].set_latency(ms(u64::from(random[1]) % 20));
                    let lease = redlock.acquire(KEY).await.unwrap();
                    assert!(!is_held.replace(true), "two at once, seed {seed}");
                    let work = ms(u64::from(random[2]) % 8);
                    clock.sleep_until(clock.now().saturating_add(work)).await;
                    assert!(lease.is_valid(clock.now()));
                    is_held.set(false);
                    redlock.release(lease).await;
                }
                TURNS
            }
        };
        let mut numbers = 1..;
        let workers = [(); CLIENTS].map(|()| Box::pin(worker(numbers.next().unwrap())));
        assert_eq!(clock.run(join_array(workers)), [TURNS; CLIENTS]);
    }
}

#[test]
fn two_clients_that_each_take_half_of_the_nodes_are_both_refused_and_both_clean_up() {
    for count in unless_miri(&[2, 4][..], &[2]).iter().copied() {
        let clock = MockClock::new();
        let fleet: [Node<'_>; 4] = MockNode::array(&clock);
        let nodes = &fleet[..count];
        // Each client is near one half of the nodes and far from the other, and neither learns of a refusal
        // before the other client's round is decided too.
        nodes.iter().for_each(|node| node.set_latency(ms(2)));
        let build = |near: bool| {
            let ways = nodes.iter().enumerate().map(|(number, node)| Detour {
                node,
                clock: &clock,
                delay: ms(if (number < count / 2) == near { 0 } else { 2 }),
            });
            Redlock::<_, _, _, 4>::new(ways, &clock, SeededEntropy::new(near.into()), one_round())
                .unwrap()
        };
        let (mut one, mut other) = (build(false), build(true));
        let (first, second) = clock.run(join(attempt(&mut one), attempt(&mut other)));
        for result in [first, second] {
            let Err(AcquireError::Held(report)) = result else {
                panic!("{count} nodes: {result:?}")
            };
            let tally = report.tally();
            assert_eq!((tally.granted, tally.refused), (count / 2, count / 2));
        }
        assert_eq!(key_count(nodes), 0, "{count} nodes");
    }
}

/// Each of three clients is near one node and far from the others: `0.5` ms against 5 ms and 20 ms. They try at the same time.
#[test]
fn of_three_clients_that_split_the_votes_one_wins() {
    const TRIALS: u64 = unless_miri(200, 1);

    for near_by in [1, 20] {
        let mut won = 0;
        for trial in 0..TRIALS {
            let clock = MockClock::new();
            let nodes: [Node<'_>; 3] = MockNode::array(&clock);
            let mut clients = [0, 1, 2].map(|number| {
                let ways = nodes.iter().enumerate().map(|(other, node)| Detour {
                    node,
                    clock: &clock,
                    delay: match (3 + other - number) % 3 {
                        0 => Duration::from_micros(500),
                        1 => ms(5),
                        _ => ms(20),
                    } / near_by,
                });
                let entropy = SeededEntropy::new(trial * 3 + number as u64);
                Redlock::<_, _, _, 3>::new(ways, &clock, entropy, one_round()).unwrap()
            });
            let tries = clients
                .each_mut()
                .map(|client| Box::pin(client.try_acquire(KEY)));
            let results = clock.run(join_array(tries));
            let winners = results.iter().filter(|result| result.is_ok()).count();
            assert!(winners <= 1, "trial {trial}: {winners} hold the lock");
            won += winners;
            // The winner returned at the quorum.
            let kept = if winners == 0 { 0..=0 } else { 2..=3 };
            assert!(kept.contains(&key_count(&nodes)), "trial {trial}");
        }
        let least = unless_miri(198, 0);
        assert!(won >= least, "{won} of {TRIALS} trials");
    }
}

/// A lock that is held is refused at once, but for the time of its round.
#[test]
fn a_lock_that_every_node_refuses_is_tried_once() {
    let clock = MockClock::new();
    let nodes: [Node<'_>; 3] = MockNode::array(&clock);
    nodes.iter().for_each(|node| {
        node.set(KEY, thief(), TTL);
        node.set_latency(ms(2));
    });
    let result = clock.run(client(&nodes, &clock, 1).try_acquire(KEY));
    assert!(result.is_err());
    assert_eq!(micros(&clock), 2_000);
}

/// What the checker of a stormy run has seen.
#[derive(Debug, Default)]
struct Log {
    acquisitions: u32,
    extensions: u32,
    failures: u32,
    overlaps: u32,
}

/// What may fail on the nodes of a stormy run, in addition to hanging, dying and being slow.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Storm {
    /// Nothing that the guarantee excludes.
    Fair,
    /// Nodes come back without their data.
    Guarded,
    /// Like `Guarded`, with the restart guard off.
    Forgetful,
    /// The clocks of the nodes are faster than the drift allows.
    Hasty,
}

#[test]
#[cfg_attr(miri, ignore = "a storm that is one takes an hour")]
fn no_lease_overlaps_another_while_nodes_hang_and_die_and_clocks_differ() {
    let mut total = Log::default();
    for seed in 0..8 {
        let log = storm(seed, Storm::Fair);
        assert_eq!(log.overlaps, 0, "seed {seed}");
        total.acquisitions += log.acquisitions;
        total.extensions += log.extensions;
        total.failures += log.failures;
    }
    // It was a storm, and there was work.
    assert!(
        total.acquisitions > 700 && total.extensions > 500 && total.failures > 200,
        "{total:?}"
    );
}

#[test]
#[cfg_attr(miri, ignore = "a storm that is one takes an hour")]
fn no_lease_overlaps_another_while_nodes_forget_and_the_restart_guard_is_on() {
    let mut acquisitions = 0;
    for seed in 0..8 {
        let log = storm(seed, Storm::Guarded);
        assert_eq!(log.overlaps, 0, "seed {seed}");
        acquisitions += log.acquisitions;
    }
    assert!(acquisitions > 150, "{acquisitions}");
}

#[test]
#[cfg_attr(miri, ignore = "a storm that is one takes an hour")]
fn the_checker_finds_the_overlaps_of_nodes_that_forget_and_of_clocks_that_differ_too_much() {
    for storm_of in [Storm::Forgetful, Storm::Hasty] {
        let overlaps: u32 = (0..4).map(|seed| storm(seed, storm_of).overlaps).sum();
        assert!(overlaps > 0, "{storm_of:?}");
    }
}

/// Three clients want one lock for a while, and nodes fail them in every way.
fn storm(seed: u64, kind: Storm) -> Log {
    const SHORT_TTL: Duration = ms(200);

    let clock = MockClock::new();
    let end = at(Duration::from_secs(12));
    // Within the drift of 1 %, or far from it.
    let ppm = match kind {
        Storm::Fair | Storm::Guarded | Storm::Forgetful => [10_000, 4_000, 0, -4_000, -10_000],
        Storm::Hasty => [400_000; 5],
    };
    let mut numbers = 1..;
    let nodes = ppm.map(|ppm| {
        let clock = &clock;
        MockNode::new(numbers.next().unwrap(), Skewed { clock, ppm })
    });
    let log = RefCell::new(Log::default());
    // Who holds the lock, and until when if it is not given back before.
    let holder = Cell::new((u64::MAX, at(Duration::ZERO)));
    let taken = |number: u64, valid_until: Instant| {
        let (other, until) = holder.replace((number, valid_until));
        if other != number && clock.now() < until {
            log.borrow_mut().overlaps += 1;
        }
    };
    let given_back = |number: u64| {
        if holder.get().0 == number {
            holder.set((u64::MAX, at(Duration::ZERO)));
        }
    };

    let client = |number: u64| {
        let (nodes, clock, log, taken, given_back) = (&nodes, &clock, &log, &taken, &given_back);
        async move {
            let mut dice = Dice(SeededEntropy::new(seed * 100 + number));
            let options = Options::new(SHORT_TTL).unwrap().wait(ms(500));
            let options = options.node_timeout(ms(20)).unwrap();
            let options = options.restart_guard(kind == Storm::Guarded);
            let tokens = SeededEntropy::new((seed * 100 + number) << 32);
            let mut redlock = Redlock::<_, _, _, 5>::new(nodes, clock, tokens, options).unwrap();
            while clock.now() < end {
                let Ok(mut lease) = redlock.acquire(KEY).await else {
                    log.borrow_mut().failures += 1;
                    continue;
                };
                log.borrow_mut().acquisitions += 1;
                taken(number, lease.valid_until());
                // Now and then the work takes longer than the lease is valid.
                for _ in 0..dice.below(3) {
                    let work = ms(dice.below(40) * dice.below(6));
                    clock.sleep_until(clock.now().saturating_add(work)).await;
                    if redlock.extend(&mut lease).await.is_ok() {
                        log.borrow_mut().extensions += 1;
                        taken(number, lease.valid_until());
                    }
                }
                clock
                    .sleep_until(clock.now().saturating_add(ms(dice.below(30))))
                    .await;
                given_back(number);
                // Sometimes it is dropped, and now and then the process forgets all about it.
                match dice.below(10) {
                    0 => drop(lease),
                    1 => drop(poll_once(pin!(redlock.release(lease)))),
                    _ => {
                        redlock.release(lease).await;
                    }
                }
            }
        }
    };
    let weather = async {
        let mut dice = Dice(SeededEntropy::new(seed + 1_000_000));
        loop {
            clock
                .sleep_until(clock.now().saturating_add(ms(dice.below(40))))
                .await;
            let node = &nodes[usize::try_from(dice.below(5)).unwrap()];
            match dice.below(8) {
                0 => node.hang(),
                1 => node.stop(),
                2 if matches!(kind, Storm::Forgetful | Storm::Guarded) => node.restart_empty(),
                // Every restart costs the vote for a while.
                3..5 if kind == Storm::Guarded => node.resume(),
                2..5 => node.restart(),
                _ => node.resume(),
            }
            node.set_latency(Duration::from_micros(dice.below(6_000)));
        }
    };
    let clients = [0, 1, 2].map(|number| Box::pin(client(number)));
    clock.run(select(join_array(clients), weather));
    log.into_inner()
}

struct Dice(SeededEntropy);

impl Dice {
    fn below(&mut self, end: u64) -> u64 {
        let mut random = [0; 8];
        self.0.fill(&mut random);
        u64::from_le_bytes(random) % end
    }
}
