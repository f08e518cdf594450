//! Many want one lock.

use core::time::Duration;
use std::cell::Cell;

use embassy_futures::join::join_array;
use redlock_core::mock::{MemoryNode, MockClock, SeededEntropy};
use redlock_core::{Clock, Entropy};

use crate::world::*;

#[test]
fn clients_that_contend_exclude_each_other_and_all_make_progress() {
    const TURNS: u32 = 40;

    for seed in 0..25 {
        let clock = MockClock::new();
        let nodes: [Node<'_>; 5] = MemoryNode::fleet(&clock);
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
        let turns = clock.run(join_array([worker(1), worker(2), worker(3), worker(4)]));
        assert_eq!(turns, [TURNS; 4]);
    }
}
