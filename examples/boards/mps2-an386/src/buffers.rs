//! The buffers of the sockets to the nodes.

use static_cell::ConstStaticCell;

use crate::network::NODES;

/// The buffers of one socket: for a few short replies, and for the longest command.
pub(crate) struct Buffers {
    pub(crate) rx: [u8; RX],
    pub(crate) tx: [u8; TX],
}

const RX: usize = 128;
const TX: usize = 256;

/// The buffers of all nodes, once.
pub(crate) fn take() -> &'static mut [Buffers; NODES] {
    static BUFFERS: ConstStaticCell<[Buffers; NODES]> = ConstStaticCell::new(
        [const {
            Buffers {
                rx: [0; RX],
                tx: [0; TX],
            }
        }; NODES],
    );

    BUFFERS.take()
}
