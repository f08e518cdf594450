//! The network: QEMU's, in which the host is 10.0.2.2, with a static address.

use embassy_executor::Spawner;
use embassy_net::{Config, Ipv4Address, Ipv4Cidr, Runner, Stack, StackResources, StaticConfigV4};
use embassy_time::Timer;
use static_cell::StaticCell;

use crate::lan9118::Lan9118;
use crate::{entropy, executor};

/// How many servers the lock is spread over.
pub(crate) const NODES: usize = 5;

/// Where the host is that the emulator runs on.
pub(crate) const HOST: Ipv4Address = Ipv4Address::new(10, 0, 2, 2);

/// Starts the network and waits until it is up.
pub(crate) async fn start(spawner: Spawner) -> Stack<'static> {
    // Room for all sockets, or the stack panics. A scenario has one more socket, for the control server.
    const SOCKETS: usize = NODES + if cfg!(feature = "scenarios") { 1 } else { 0 };
    const ADDRESS: Ipv4Cidr = Ipv4Cidr::new(Ipv4Address::new(10, 0, 2, 15), 24);
    static RESOURCES: StaticCell<StackResources<SOCKETS>> = StaticCell::new();

    let controller = Lan9118::start().expect("the board has this controller");
    let config = Config::ipv4_static(StaticConfigV4 {
        address: ADDRESS,
        gateway: Some(HOST),
        dns_servers: Default::default(),
    });
    // The first local port is random, so that a restart does not use the same ports again.
    let mut seed = [0; size_of::<u64>()];
    entropy::fill(&mut seed);
    let resources = RESOURCES.init_with(StackResources::new);
    let (stack, runner) = embassy_net::new(controller, config, resources, u64::from_ne_bytes(seed));
    executor::spawn(spawner, drive(runner));
    executor::spawn(spawner, heartbeat());
    stack.wait_config_up().await;
    stack
}

#[embassy_executor::task]
async fn drive(mut runner: Runner<'static, Lan9118>) {
    runner.run().await;
}

/// Wakes up every 5 ms and does nothing. The emulator needs this; a device does not.
///
/// QEMU watches the socket of a new connection only after the next turn of its main loop. A timer of the guest makes the loop
/// turn; otherwise connecting takes up to a second.
#[embassy_executor::task]
async fn heartbeat() {
    loop {
        Timer::after_millis(5).await;
    }
}
