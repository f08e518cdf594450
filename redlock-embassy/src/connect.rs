//! What a node needs from a network stack.

#[cfg(feature = "embassy-net")]
pub(crate) mod embassy_net;
pub(crate) mod nal;

use embedded_io_async::{ErrorKind, Read, Write};

use crate::NodeName;

/// A stream of bytes to one node that can be opened, closed and opened again.
///
/// [`NetSocket`](crate::NetSocket) is one on embassy-net, [`NalSocket`](crate::NalSocket) on any stack with
/// [`embedded_nal_async::TcpConnect`]. Implement it for TLS, or for a modem with another interface.
///
/// # For implementers
///
/// 1. `read` and `write` lose nothing if their future is dropped: the lock stops waiting for slow nodes
///    by dropping futures. Bytes that a dropped `read` did not return can be read later. A dropped `write`
///    has taken no bytes.
/// 2. `write` takes as many bytes as it has room for in its first poll, and waits only if it has no room. So
///    commands are on their way to all nodes before the first one answers.
/// 3. Bytes are sent without further calls, or by [`flush`](Write::flush). `flush` is called after every
///    write, and again if its future was dropped.
/// 4. If the stream is not connected, or its peer is gone, `read` returns `Ok(0)` or an error.
#[expect(
    async_fn_in_trait,
    reason = "nodes name their stream, so the compiler sees whether the future is Send"
)]
pub trait Connect: Read + Write {
    /// The name of the node, for messages.
    fn name(&self) -> NodeName;

    /// Connects. Drops the connection that was open before.
    ///
    /// It needs no timeout. If the future is dropped, the attempt may continue, and the next call waits for the
    /// same attempt. So a connection can complete even if it takes longer than one round.
    ///
    /// # Errors
    ///
    /// Fails if no connection is made.
    async fn connect(&mut self) -> Result<(), ErrorKind>;

    /// Closes the connection, or cancels the attempt, so that the node notices: by FIN, by RST, or by the means of
    /// the protocol. A node that does not notice keeps a client, and some memory, for minutes.
    ///
    /// If the future is dropped, the next call continues.
    async fn close(&mut self);
}
