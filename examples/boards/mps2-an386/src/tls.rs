//! The lock over TLS: five nodes, each with its own socket, and a task that keeps its TLS session.

use core::time::Duration;

use embassy_executor::Spawner;
use embassy_net::Stack;
use redlock_embassy::{EmbassyClock, NetSocket, Options, Redlock, TcpNode};
use redlock_embassy_tls::{READ_BUFFER, TlsLine, TlsOptions, TlsSession, TlsStream, WRITE_BUFFER};
use static_cell::{ConstStaticCell, StaticCell};

use crate::network::{HOST, NODES};
use crate::{entropy, executor};

pub(crate) type TlsLock = Redlock<&'static mut TlsNode, EmbassyClock, Fill, NODES>;

type Fill = fn(&mut [u8]);

pub(crate) type TlsNode = TcpNode<'static, TlsStream<'static, LINE>, EmbassyClock, TX>;

/// Room for an acquire and its release.
const TX: usize = 256;

/// Between a node and its session: the longest command.
const LINE: usize = 256;

/// A handshake of the emulated processor takes a part of a second, and five of them follow each other.
const CONNECT_TIMEOUT: Duration = Duration::from_secs(20);

/// What one connection needs.
struct Buffers {
    /// Those of the socket. The receive buffer holds what a server sends in a handshake, so that no round trips are lost.
    rx: [u8; 1_536],
    tx: [u8; 512],
    read: [u8; READ_BUFFER],
    write: [u8; WRITE_BUFFER],
}

/// Creates the lock over the servers at these ports of the host, and starts their sessions. Call it once.
#[inline(never)]
pub(crate) fn over(
    spawner: Spawner,
    ports: [u16; NODES],
    stack: Stack<'static>,
    options: Options,
    tls: &TlsOptions<'static>,
) -> &'static mut TlsLock {
    static BUFFERS: ConstStaticCell<[Buffers; NODES]> = ConstStaticCell::new(
        [const {
            Buffers {
                rx: [0; 1_536],
                tx: [0; 512],
                read: [0; READ_BUFFER],
                write: [0; WRITE_BUFFER],
            }
        }; NODES],
    );
    // Not beside the buffers: a static whose first value is not zero is in the flash too.
    static LINES: [StaticCell<TlsLine<LINE>>; NODES] = [const { StaticCell::new() }; NODES];
    static PLACES: [StaticCell<TlsNode>; NODES] = [const { StaticCell::new() }; NODES];
    static LOCK: StaticCell<TlsLock> = StaticCell::new();

    let nodes = PLACES.iter().zip(&LINES);
    let nodes = nodes.zip(BUFFERS.take().iter_mut().zip(ports));
    let nodes = nodes.map(|((place, line), (buffers, port))| {
        let socket = NetSocket::new(stack, (HOST, port), &mut buffers.rx, &mut buffers.tx);
        let (stream, session) = line.init_with(TlsLine::new).split(
            socket,
            tls.clone(),
            entropy::fill as Fill,
            &mut buffers.read,
            &mut buffers.write,
        );
        executor::spawn(spawner, keep(session));
        place.init_with(|| TcpNode::new(stream, EmbassyClock).connect_timeout(CONNECT_TIMEOUT))
    });
    let lock = Redlock::new(nodes, EmbassyClock, entropy::fill as Fill, options);
    LOCK.init(lock.expect("five nodes fit, and a tick is shorter than every lease"))
}

#[embassy_executor::task(pool_size = NODES)]
async fn keep(mut session: TlsSession<'static, NetSocket<'static>, Fill, LINE>) -> ! {
    session.run().await
}
