//! Redlock on a microcontroller: an emulated Cortex-M4 board (QEMU's mps2-an386) that takes locks over
//! five real Redis servers on the host, in competition with programs there.
//!
//! With the feature `scenarios`, which is the default, the host chooses a scenario by arguments, and reads the
//! results as lines of `name=value`; see README.md. Without this feature there are two small variants, which `sizes.sh`
//! measures: `lock` takes one lock, `ping` sends one PING over the same sockets.
#![no_std]
#![no_main]

// What the firmware does: one of three variants.
#[cfg(all(feature = "lock", not(feature = "scenarios")))]
mod one_lock;
#[cfg(not(feature = "lock"))]
mod one_ping;
#[cfg(feature = "scenarios")]
mod scenarios;

#[cfg(any(feature = "scenarios", not(feature = "tls")))]
mod buffers;
#[cfg(all(feature = "lock", any(feature = "scenarios", not(feature = "tls"))))]
mod lock;
mod network;
#[cfg(feature = "tls")]
mod tls;

mod entropy;
mod executor;

mod board;
mod lan9118;
mod time_driver;

mod registers;
#[cfg(feature = "stack")]
mod stack;

use cortex_m_rt::entry;
use embassy_executor::Spawner;

use crate::board::exit;
#[cfg(all(feature = "lock", not(feature = "scenarios")))]
use crate::one_lock as shape;
#[cfg(not(feature = "lock"))]
use crate::one_ping as shape;
#[cfg(feature = "scenarios")]
use crate::scenarios as shape;

#[cfg(not(any(feature = "lock", feature = "ping")))]
compile_error!("choose a variant: the features are in Cargo.toml");
#[cfg(all(feature = "lock", feature = "ping"))]
compile_error!("`ping` is for comparison with the lock: use --no-default-features");

#[entry]
fn main() -> ! {
    #[cfg(feature = "stack")]
    stack::paint();
    time_driver::start();
    executor::run(|spawner| executor::spawn(spawner, app(spawner)))
}

#[embassy_executor::task]
async fn app(spawner: Spawner) {
    let network = network::start(spawner).await;
    let how = shape::run(spawner, network).await;
    #[cfg(feature = "stack")]
    semihosting::println!("stack={}", stack::deepest());
    exit(how)
}
