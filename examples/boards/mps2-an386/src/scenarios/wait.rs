//! One task waits for the lock in its line, again and again, beside clients on the host.
//!
//! The control server has the list of those who have held the lock, in their order.

use redlock_embassy::Clock;
use semihosting::println;

use super::arguments::Arguments;
use super::control::Control;
use super::{Failure, finish};
use crate::lock::Lock;

pub(crate) async fn run(
    lock: &mut Lock,
    mut control: Control,
    arguments: &Arguments,
) -> Result<(), Failure> {
    let key = arguments.key.as_str();
    let mut outlived = 0;
    for _ in 0..arguments.acquisitions {
        let lease = lock.acquire(key).await?;
        control.ask(&["RPUSH", "turns", "firmware"]).await?;
        if !lease.is_valid(lock.clock().now()) {
            outlived += 1;
        }
        lock.release(lease).await;
    }
    println!("outlived={outlived}");
    println!("waited={}", arguments.acquisitions);
    finish(lock, &mut control).await
}
