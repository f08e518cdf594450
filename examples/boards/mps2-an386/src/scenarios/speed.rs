//! Measures an acquire with the clock of the device. The host stops servers between the phases.

use embassy_time::Instant;
use heapless::Vec;
use semihosting::println;

use super::arguments::Arguments;
use super::control::Control;
use super::{Failure, finish};
use crate::lock::Lock;

pub(crate) async fn run(
    lock: &'static mut Lock,
    mut control: Control,
    arguments: &Arguments,
) -> Result<(), Failure> {
    println!("ready=1");
    loop {
        match control.order().await?.as_str() {
            "measure" => {
                let p50 = median_acquire(lock, arguments).await?;
                println!("acquire_p50_us={p50}");
            }
            "end" => return finish(lock, &mut control).await,
            _ => return Err(Failure::Control("gave an unknown order")),
        }
    }
}

/// The median in microseconds.
async fn median_acquire(lock: &mut Lock, arguments: &Arguments) -> Result<u32, Failure> {
    const MOST: usize = 1_000;
    /// The first acquires of a phase, in which the client notices the changes since the last phase.
    const NOT_COUNTED: u32 = 10;

    let mut times = Vec::<u32, MOST>::new();
    for number in 0..NOT_COUNTED + arguments.acquisitions {
        let start = Instant::now();
        let lease = lock.acquire(arguments.key.as_str()).await?;
        let micros = start.elapsed().as_micros();
        lock.release(lease).await;
        if number >= NOT_COUNTED {
            times
                .push(u32::try_from(micros).unwrap_or(u32::MAX))
                .map_err(|_| Failure::Argument("acquisitions"))?;
        }
    }
    times.sort_unstable();
    times
        .get(times.len() / 2)
        .copied()
        .ok_or(Failure::Argument("acquisitions"))
}
