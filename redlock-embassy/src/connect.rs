//! What a node needs of a network stack.

#[cfg(feature = "embassy-net")]
pub(crate) mod embassy_net;
pub(crate) mod nal;

use embedded_io_async::{ErrorKind, Read, Write};

use crate::NodeName;

/// A stream of bytes to one node that can be opened, closed and opened again.
///
/// [`NetSocket`](crate::NetSocket) is one on embassy-net, [`NalSocket`](crate::NalSocket) on any stack with
/// [`embedded_nal_async::TcpConnect`]. Write your own for TLS, or for a modem that speaks something else.
///
/// # For implementers
///
/// 1. `read` and `write` lose nothing when their future is dropped: the lock stops waiting for slow nodes
///    by dropping. What was not read can be read later, what was not written was not taken.
/// 2. `write` takes what it has room for in its first poll, and waits only where it has none. So commands
///    are on their way to all nodes before the first one answers.
/// 3. Bytes leave without being asked to, or with [`flush`](Write::flush), which is called after every
///    write, and called again when its future was dropped.
/// 4. A stream that is not connected reads `Ok(0)` or an error, and so does one whose peer is gone.
#[expect(
    async_fn_in_trait,
    reason = "nodes name their stream, so the compiler sees whether the future is Send"
)]
pub trait Connect: Read + Write {
    /// Where it leads, for messages.
    fn name(&self) -> NodeName;

    /// Connects. What was open before is given up.
    ///
    /// There is no need for a time-out. When the future is dropped, the attempt may go on: the next call
    /// then waits for the same one, so that a connection comes about also where it takes longer than a
    /// round lasts.
    ///
    /// # Errors
    ///
    /// When no connection comes about.
    async fn connect(&mut self) -> Result<(), ErrorKind>;

    /// Ends the connection, or the attempt, so that the node notices: by FIN, by RST, or as the protocol
    /// has it. A node that does not notice keeps a client, and some memory, for minutes.
    ///
    /// When the future is dropped, another call goes on with it.
    async fn close(&mut self);
}
