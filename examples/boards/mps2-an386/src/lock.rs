//! The lock: five nodes, each with its own socket.

use embassy_net::Stack;
#[cfg(feature = "scenarios")]
use embassy_sync::blocking_mutex::raw::NoopRawMutex;
#[cfg(feature = "scenarios")]
use redlock_embassy::Shared;
#[cfg(feature = "queue")]
use redlock_embassy::transport::Mailbox;
use redlock_embassy::{EmbassyClock, NetSocket, Options, Redlock, TcpNode};
use static_cell::StaticCell;

use crate::network::{HOST, NODES};
use crate::{buffers, entropy};

pub(crate) type Lock = Redlock<&'static mut Node, EmbassyClock, fn(&mut [u8]), NODES>;

#[cfg(feature = "scenarios")]
pub(crate) type SharedLock =
    Shared<NoopRawMutex, &'static mut Node, EmbassyClock, fn(&mut [u8]), NODES>;

pub(crate) type Node = TcpNode<'static, NetSocket<'static>, EmbassyClock, TX>;

/// Room for an acquire and its release.
const TX: usize = if cfg!(any(feature = "fence", feature = "queue")) {
    512
} else {
    256
};

/// Creates the lock over the servers at these ports of the host. Call it once.
pub(crate) fn over(
    ports: [u16; NODES],
    stack: Stack<'static>,
    options: Options,
) -> &'static mut Lock {
    static LOCK: StaticCell<Lock> = StaticCell::new();

    LOCK.init(create(ports, stack, options))
}

/// The same for several tasks. Call either, and once.
#[cfg(feature = "scenarios")]
pub(crate) fn shared_over(
    ports: [u16; NODES],
    stack: Stack<'static>,
    options: Options,
) -> &'static SharedLock {
    static LOCK: StaticCell<SharedLock> = StaticCell::new();

    LOCK.init(Shared::new(create(ports, stack, options)))
}

/// The nodes are large. So each is in a static, and the lock has only references to them: a lock that owns five nodes takes
/// several times their size on the stack while it is created.
#[inline(never)]
fn create(ports: [u16; NODES], stack: Stack<'static>, options: Options) -> Lock {
    static PLACES: [StaticCell<Node>; NODES] = [const { StaticCell::new() }; NODES];

    #[cfg(feature = "queue")]
    let mailbox = {
        let mut bytes = [0; 8];
        entropy::fill(&mut bytes);
        Mailbox::new(bytes)
    };
    let buffers = buffers::take().iter_mut();
    let nodes = PLACES.iter().zip(buffers.zip(ports));
    let nodes = nodes.map(|(place, (buffers, port))| {
        place.init_with(|| {
            let socket = NetSocket::new(stack, (HOST, port), &mut buffers.rx, &mut buffers.tx);
            let node = TcpNode::new(socket, EmbassyClock);
            #[cfg(feature = "queue")]
            let node = node.with_mailbox(mailbox);
            node
        })
    });
    let lock = Redlock::new(nodes, EmbassyClock, entropy::fill as fn(&mut [u8]), options);
    lock.expect("five nodes fit, and a tick is shorter than every lease")
}

/// Closes all connections: otherwise the servers keep them for minutes.
pub(crate) async fn close(lock: &mut Lock) {
    for node in lock.nodes_mut() {
        node.close().await;
    }
}
