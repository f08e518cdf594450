//! The smallest firmware with the lock: acquires, extends and releases it once. `sizes.sh` measures it, with and without
//! the features `fence`, `queue` and `tls`.

use core::time::Duration;

use embassy_executor::Spawner;
use embassy_net::Stack;
#[cfg(feature = "fence")]
use redlock_embassy::Fencing;
use redlock_embassy::{Options, OptionsError};

#[cfg(feature = "tls")]
use redlock_embassy::{close_all, connect_quorum};
#[cfg(feature = "tls")]
use redlock_embassy_tls::TlsOptions;

use crate::board::Exit;
#[cfg(not(feature = "tls"))]
use crate::lock;
use crate::network::NODES;
#[cfg(feature = "tls")]
use crate::tls;

#[cfg_attr(
    not(feature = "tls"),
    expect(unused_variables, reason = "only TLS needs tasks")
)]
pub(crate) async fn run(spawner: Spawner, stack: Stack<'static>) -> Exit {
    #[cfg(not(feature = "tls"))]
    let lock = lock::over(PORTS, stack, OPTIONS);
    #[cfg(feature = "tls")]
    let lock = {
        let Ok(tls) = TlsOptions::new(include_bytes!(env!("REDLOCK_TLS_CA")), "redis.example")
        else {
            return Exit::Failed;
        };
        tls::over(spawner, PORTS, stack, OPTIONS, &tls)
    };
    // A handshake takes longer than a round.
    #[cfg(feature = "tls")]
    connect_quorum(lock).await;
    let Ok(mut lease) = lock.acquire("dock-7").await else {
        return Exit::Failed;
    };
    #[cfg(feature = "fence")]
    if !admit(&lease) {
        return Exit::Failed;
    }
    let is_extended = lock.extend(&mut lease).await.is_ok();
    let released = lock.release(lease).await.released();
    #[cfg(not(feature = "tls"))]
    lock::close(lock).await;
    #[cfg(feature = "tls")]
    close_all(lock).await;
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
#[cfg(not(feature = "tls"))]
const PORTS: [u16; NODES] = [17101, 17102, 17103, 17104, 17105];

/// Where `sizes.sh` has servers with TLS.
#[cfg(feature = "tls")]
const PORTS: [u16; NODES] = [17111, 17112, 17113, 17114, 17115];
