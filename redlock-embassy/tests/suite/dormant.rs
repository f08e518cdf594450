//! Devices that sleep in the middle of anything, while nodes fail over and back behind their connections. From a seed.

use core::time::Duration;

use redlock_core::Clock;
use redlock_embassy::{Options, connect_all};

use crate::dice::Dice;
use crate::fleet::{fleet, lock};
use crate::wire::{Server, Who};
use crate::world::{World, ms, poll_times};

const TTL: Duration = ms(300_000);

/// A client notices a failover at its next check, about a minute later.
const UNNOTICED: Duration = ms(61_000);

/// Returns how many leases there were, how many times a node failed back, and how many attempts were lost.
fn run(seed: u64) -> [usize; 3] {
    let mut dice = Dice::new(seed);
    let world = World::default();
    let mut who = Who::MASTER;
    let servers = fleet::<3>(&world, who);
    let options = Options::new(TTL).unwrap().wait(Duration::ZERO);
    let options = options.node_timeout(ms(50)).unwrap();
    let mut devices = [1, 2].map(|number| {
        let mut lock = lock(servers.each_ref(), 2 * seed + number, options);
        assert_eq!(world.run(connect_all(&mut lock)), 3);
        (lock, None)
    });
    let [mut leases, mut failbacks, mut lost] = [0; 3];
    for _ in 0..60 {
        match dice.roll(16) {
            0..2 => servers[dice.roll(3)].hang(10_000),
            2..5 => servers.iter().for_each(Server::resume),
            5 => {
                for _ in 0..dice.roll(3) {
                    failbacks += 1;
                    who.replication_id += 1;
                    servers[dice.roll(3)].fail_back(who);
                }
                world.clock.advance(UNNOTICED);
            }
            6..8 => world
                .clock
                .advance(ms(dice.pick(&[20, 1_000, 30_000, 61_000, 301_000]))),
            8 => {
                let (lock, lease) = &mut devices[dice.roll(2)];
                if let Some(lease) = lease.take() {
                    world.run(lock.release(lease));
                }
            }
            _ => {
                let number = dice.roll(2);
                let (lock, lease) = &mut devices[number];
                let attempt = lock.try_acquire("dock-7");
                let result = match dice.roll(3) {
                    0 => poll_times(dice.roll(8), attempt),
                    1 => world.run_for(ms(20), attempt),
                    _ => Some(world.run(attempt)),
                };
                lost += usize::from(matches!(result, Some(Err(_))));
                if let Some(Ok(won)) = result {
                    leases += 1;
                    *lease = Some(won);
                    let (_, other) = &devices[1 - number];
                    let left = other
                        .as_ref()
                        .map(|lease| lease.remaining(world.clock.now()));
                    let left = left.unwrap_or_default();
                    assert!(left.is_zero(), "seed {seed}: two holders for {left:?}");
                }
            }
        }
    }
    [leases, failbacks, lost]
}

#[test]
fn a_device_that_slept_in_the_middle_of_anything_takes_no_lock_that_another_holds() {
    let mut sums = [0; 3];
    for seed in 0..2_000 {
        let counts = run(seed);
        sums.iter_mut()
            .zip(counts)
            .for_each(|(sum, count)| *sum += count);
    }
    assert!(sums.iter().all(|sum| *sum > 3_000), "{sums:?}");
}
