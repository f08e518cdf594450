//! Several machines share a dock. This one waits for the lock "dock-7", unloads while it holds the lock, releases
//! the lock, and starts again. The lock is on three Redis servers, one of which may fail.
//!
//! `examples/boards/pico-w/src/main.rs` is the original. The test `examples/tests/boards.rs` keeps the other boards equal,
//! except for a few lines.
#![no_std]
#![no_main]

mod board;

use core::net::{Ipv4Addr, SocketAddrV4};
use core::time::Duration;

use defmt::{Display2Format, info, unwrap, warn};
use embassy_executor::Spawner;
use embassy_time::Timer;
use redlock_embassy::{
    AcquireError, EmbassyClock, HoldError, NetSocket, Options, Redlock, TcpNode,
};
use static_cell::ConstStaticCell;

use crate::board::{Board, Output};

#[esp_hal::main]
async fn main(spawner: Spawner) -> ! {
    let Board {
        stack,
        rng,
        mut dock,
    } = board::start(spawner).await;

    // Each node has its own socket. Nodes connect by themselves, and reconnect if a connection is lost.
    let nodes = BUFFERS
        .take()
        .iter_mut()
        .zip(NODES)
        .map(|(buffers, address)| {
            let socket = NetSocket::new(stack, address, &mut buffers.rx, &mut buffers.tx);
            Node::new(socket, EmbassyClock)
        });
    let entropy = |bytes: &mut [u8]| rng.read(bytes);
    let redlock =
        Redlock::<Node, _, _, { NODES.len() }>::new(nodes, EmbassyClock, entropy, OPTIONS);
    let mut redlock = unwrap!(redlock);

    loop {
        // Waits for the lock, extends the lease while the work runs, and releases the lock. If the lock is
        // lost, the work is dropped at once.
        match redlock.hold(KEY, async |_| unload(&mut dock).await).await {
            Ok(()) => info!("{=str}: unloaded", KEY),
            // Other clients held the lock all the time. This is not an error.
            Err(HoldError::NotAcquired(error @ AcquireError::Held(_))) => {
                info!("{}", Display2Format(&error));
            }
            // No quorum was reached, or the lock was lost during the work. The message says which node
            // failed and why. It is enough to continue: the next round reconnects to the nodes.
            Err(error) => warn!("{}", Display2Format(&error)),
        }
        // Gives the other clients time to acquire the lock.
        Timer::after_secs(1).await;
    }
}

type Node = TcpNode<'static, NetSocket<'static>>;

/// The name of the lock. Clients with the same name exclude each other.
const KEY: &str = "dock-7";

const OPTIONS: Options = {
    let Ok(options) = Options::new(Duration::from_secs(10)) else {
        panic!("a TTL of 10 s is long enough")
    };
    // Over Wi-Fi, the retry of a lost frame takes some time.
    let Ok(options) = options.node_timeout(Duration::from_millis(250)) else {
        panic!("a round of 250 ms is shorter than the TTL")
    };
    // Longer than another machine needs for its work, so that waiting for it is not an error.
    options.wait(Duration::from_secs(30))
};

// build.rs writes `NODES`: the servers in REDLOCK_NODES.
include!(concat!(env!("OUT_DIR"), "/nodes.rs"));

/// The work. It takes longer than the TTL; `hold` extends the lease meanwhile.
async fn unload(dock: &mut Output) {
    info!("{=str}: ours", KEY);
    let dock = Unloading(dock);
    for _ in 0..60 {
        dock.0.toggle();
        Timer::after_millis(250).await;
    }
}

/// Sets the pin low when the work ends, also if the work is dropped.
struct Unloading<'a>(&'a mut Output);

impl Drop for Unloading<'_> {
    fn drop(&mut self) {
        self.0.set_low();
    }
}

static BUFFERS: ConstStaticCell<[Buffers; NODES.len()]> =
    ConstStaticCell::new([const { Buffers::new() }; NODES.len()]);

/// The buffers of one socket: for a few short replies, and for the longest command.
struct Buffers {
    rx: [u8; 128],
    tx: [u8; 256],
}

impl Buffers {
    const fn new() -> Self {
        Self {
            rx: [0; 128],
            tx: [0; 256],
        }
    }
}
