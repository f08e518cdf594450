//! The smallest firmware with the lock: acquires, extends and releases it once. `sizes.sh` measures it, with and without
//! the features `fence` and `queue`.

use core::time::Duration;

use embassy_executor::Spawner;
use embassy_net::Stack;
#[cfg(feature = "fence")]
use redlock_embassy::Fencing;
use redlock_embassy::{Options, OptionsError};

use crate::board::Exit;
use crate::lock;
use crate::network::NODES;

pub(crate) async fn run(_spawner: Spawner, stack: Stack<'static>) -> Exit {
    let lock = lock::over(PORTS, stack, OPTIONS);
    let Ok(mut lease) = lock.acquire("dock-7").await else {
        return Exit::Failed;
    };
    #[cfg(feature = "fence")]
    if !admit(&lease) {
        return Exit::Failed;
    }
    let is_extended = lock.extend(&mut lease).await.is_ok();
    let released = lock.release(lease).await.released();
    lock::close(lock).await;
    if is_extended && released > NODES / 2 {
        Exit::Passed
    } else {
        Exit::Failed
    }
}

/// Uses the fence like the resource that the lock protects.
#[cfg(feature = "fence")]
fn admit(lease: &redlock_embassy::Lease<&str>) -> bool {
    let mut gate = redlock_embassy::FenceGate::new();
    lease.fence().is_some_and(|fence| gate.admit(fence))
}

const OPTIONS: Options = match options() {
    Ok(options) => options,
    Err(_) => panic!("a TTL of 10 s is long enough"),
};

const fn options() -> Result<Options, OptionsError> {
    let options = Options::new(TTL);
    // A busy host may take long to answer. That must not fail the measurement.
    #[cfg(feature = "stack")]
    let options = match options {
        Ok(options) => options.node_timeout(Duration::from_secs(2)),
        Err(error) => Err(error),
    };
    #[cfg(feature = "fence")]
    if let Ok(options) = options {
        return match fencing() {
            Ok(fencing) => options.fenced(fencing),
            Err(error) => Err(error),
        };
    }
    options
}

const TTL: Duration = Duration::from_secs(if cfg!(feature = "stack") { 5 } else { 10 });

#[cfg(feature = "fence")]
const fn fencing() -> Result<Fencing, OptionsError> {
    let fencing = Fencing::new(Fencing::WINDOW);
    #[cfg(feature = "stack")]
    if let Ok(fencing) = fencing {
        return match fencing.with_max_ttl(TTL) {
            Ok(fencing) => fencing.with_step_back(Duration::ZERO),
            Err(error) => Err(error),
        };
    }
    fencing
}

/// The ports of README.md's example.
const PORTS: [u16; NODES] = [17101, 17102, 17103, 17104, 17105];
