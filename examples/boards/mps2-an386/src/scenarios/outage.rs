//! A majority of the nodes goes down and comes back in one run: first no quorum, then the lock again.

use core::time::Duration;

use embassy_time::Instant;
use redlock_embassy::AcquireError;
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
    let key = arguments.key.as_str();
    let lease = lock.acquire(key).await?;
    lock.release(lease).await;
    println!("ready=1");

    control.expect_order("outage").await?;
    let start = Instant::now();
    let outcome = lock.acquire(key).await;
    let took = start.elapsed();
    match outcome {
        Err(AcquireError::Unreachable(_)) => println!("outcome=unreachable"),
        Err(_) => println!("outcome=other"),
        Ok(_) => println!("outcome=acquired"),
    }
    if let Err(error) = outcome {
        println!("message={error}");
    }
    println!("took_us={}", took.as_micros());

    control.expect_order("recover").await?;
    lock.set_options(arguments.options.wait(RECOVERY));
    let start = Instant::now();
    let lease = lock.acquire(key).await?;
    println!("recovered_us={}", start.elapsed().as_micros());
    lock.release(lease).await;
    finish(lock, &mut control).await
}

/// Long enough for the next attempt to connect: the pauses between two attempts are shorter.
const RECOVERY: Duration = Duration::from_secs(20);
