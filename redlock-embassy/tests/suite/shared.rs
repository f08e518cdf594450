//! Several tasks that share one lock through a mutex.

use embassy_futures::join::join3;
use embassy_sync::blocking_mutex::raw::NoopRawMutex;
use embassy_sync::mutex::Mutex;
use redlock_core::{AcquireError, Clock, Entropy, Lease, NodeErrorOf, Redlock, Transport};

use crate::fleet::*;
use crate::wire::Who;
use crate::world::*;

/// The function of the README.
async fn acquire<T: Transport, C: Clock, E: Entropy, const N: usize>(
    shared: &Mutex<NoopRawMutex, Redlock<T, C, E, N>>,
    clock: &C,
    key: &'static str,
) -> Result<Lease<&'static str>, AcquireError<NodeErrorOf<T>, N>> {
    let mut acquisition = shared.lock().await.begin();
    loop {
        let mut redlock = shared.lock().await;
        let error = match redlock.attempt(&mut acquisition, key).await {
            Ok(lease) => return Ok(lease),
            Err(error) => error,
        };
        let Some(again_at) = redlock.again_at(&mut acquisition, &error) else {
            return Err(error);
        };
        drop(redlock);
        clock.sleep_until(again_at).await;
    }
}

#[test]
fn tasks_that_share_a_lock_wait_for_a_holder_among_them_and_hold_other_keys_meanwhile() {
    let world = &World::default();
    let servers = fleet::<3>(world, Who::default());
    let options = one_round().wait(ms(2_000));
    let shared = &Mutex::new(lock(servers.each_ref(), 1, options));
    let clock = &&world.clock;
    let holder = async {
        let lease = acquire(shared, clock, "dock-7").await.unwrap();
        clock.sleep_until(world.after(ms(1_000))).await;
        shared.lock().await.release(lease).await;
    };
    let waiting = async {
        clock.sleep_until(world.after(ms(1))).await;
        drop(acquire(shared, clock, "dock-7").await.unwrap());
        world.now_ms()
    };
    let elsewhere = async {
        clock.sleep_until(world.after(ms(500))).await;
        drop(acquire(shared, clock, "dock-8").await.unwrap());
        world.now_ms()
    };
    let ((), waited, was_elsewhere) = world.run(join3(holder, waiting, elsewhere));
    assert!((1_000..1_300).contains(&waited), "{waited}");
    assert_eq!(was_elsewhere, 500);
}
