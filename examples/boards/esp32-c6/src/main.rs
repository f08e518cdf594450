//! A dock that several machines share: this one waits for the lock "dock-7", unloads while it holds it,
//! gives it back, and begins anew. The lock is on three Redis servers, one of which may fail.
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

    // A socket of its own for each node. They connect by themselves, and again when a connection is lost.
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
        // Waits for the lock, extends it for as long as the work takes, gives it back. The work is dropped
        // at once when the lock is lost.
        match redlock.hold(KEY, async |_| unload(&mut dock).await).await {
            Ok(()) => info!("{=str}: unloaded", KEY),
            // Others had it all the time. That is no fault.
            Err(HoldError::NotAcquired(error @ AcquireError::Held(_))) => {
                info!("{}", Display2Format(&error));
            }
            // No quorum was reached, or the lock was lost during the work: the message says which node
            // failed and why. Going on is enough, nodes that are back are found again.
            Err(error) => warn!("{}", Display2Format(&error)),
        }
        // Lets the others have a turn.
        Timer::after_secs(1).await;
    }
}

type Node = TcpNode<'static, NetSocket<'static>>;

/// What is locked: whoever names it the same means the same dock.
const KEY: &str = "dock-7";

const OPTIONS: Options = {
    let Ok(options) = Options::new(Duration::from_secs(10)) else {
        panic!("a TTL of 10 s is long enough")
    };
    // Over Wi-Fi a frame that is lost and sent again takes its time.
    let Ok(options) = options.node_timeout(Duration::from_millis(250)) else {
        panic!("a round of 250 ms is shorter than the TTL")
    };
    // Longer than another machine needs for its work, so that its turn is no error here.
    options.wait(Duration::from_secs(30))
};

// Written by build.rs: `NODES`, the servers that REDLOCK_NODES names.
include!(concat!(env!("OUT_DIR"), "/nodes.rs"));

/// The work, longer than the TTL: `hold` extends the lock meanwhile.
async fn unload(dock: &mut Output) {
    info!("{=str}: ours", KEY);
    let dock = Unloading(dock);
    for _ in 0..60 {
        dock.0.toggle();
        Timer::after_millis(250).await;
    }
}

/// Leaves the pin low however the work ends, also when it is dropped half-way.
struct Unloading<'a>(&'a mut Output);

impl Drop for Unloading<'_> {
    fn drop(&mut self) {
        self.0.set_low();
    }
}

static BUFFERS: ConstStaticCell<[Buffers; NODES.len()]> =
    ConstStaticCell::new([const { Buffers::new() }; NODES.len()]);

/// Of one socket: room for a few short replies, and for the longest command.
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
