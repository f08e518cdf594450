//! The trait that a network stack implements for a node.

#[cfg(any(feature = "embassy-net", feature = "embassy-net-ip"))]
pub(crate) mod embassy_net;
#[cfg(all(
    feature = "dns",
    any(feature = "embassy-net", feature = "embassy-net-ip")
))]
pub(crate) mod host_name;
pub(crate) mod nal;

use embedded_io_async::{ErrorKind, Read, Write};

use crate::NodeName;

/// A stream of bytes to one node that can be opened, closed and opened again.
///
/// [`NetSocket`](crate::NetSocket) implements it for embassy-net, and [`NalSocket`](crate::NalSocket) for any stack with
/// [`embedded_nal_async::TcpConnect`]. The crate `redlock-embassy-tls` adds TLS to any of them. Implement it yourself for a modem with
/// another interface.
///
/// # For implementers
///
/// 1. `read` and `write` lose nothing if their future is dropped. The lock drops futures to stop waiting for slow nodes.
///    After a dropped `read`, a later `read` returns the bytes. A dropped `write` has taken no bytes. A client that waits in a
///    line reads for as long as it waits, and drops a read whenever it has another reason to act.
/// 2. The first poll of `write` takes as many bytes as there is room for. `write` waits only if there is no room. So the
///    commands are on their way to all nodes before the first node answers.
/// 3. The stream sends written bytes by itself, or in [`flush`](Write::flush). The caller calls `flush` after every write,
///    and again if the future of `flush` was dropped.
/// 4. If the stream is not connected, or the peer is gone, `read` returns `Ok(0)` or an error.
/// 5. If the future of `connect` is dropped, the attempt continues, and the next call waits for its end or reports it, even if
///    the attempt ended between the two calls. A round drops the attempts that are slower than itself. So if a stream begins
///    each attempt anew, a node that connects more slowly than a round lasts is never connected by itself. A stream whose
///    stack cannot continue (a DNS query, a TLS handshake, most modems) can run the attempt in a task of its own, and wait for
///    its result in `connect`. Otherwise the application calls [`connect_all`](crate::connect_all) when commands fail.
#[expect(
    async_fn_in_trait,
    reason = "nodes name their stream, so the compiler sees whether the future is Send"
)]
pub trait Connect: Read + Write {
    /// The name of the node, for messages.
    fn name(&self) -> NodeName;

    /// Connects. Drops the connection that was open before. An implementation needs no timeout.
    ///
    /// If the future is dropped, the attempt continues with the next call (rule 5).
    ///
    /// # Errors
    ///
    /// Fails if the connection cannot be made. The messages of the lock distinguish `ConnectionRefused`, `ConnectionReset`,
    /// `ConnectionAborted`, `NotConnected` (no route), `TimedOut`, and `NotFound` (a name that has no address); and for TLS
    /// `PermissionDenied` (a refused certificate), `InvalidData` (no TLS) and `OutOfMemory` (a buffer that is too short).
    async fn connect(&mut self) -> Result<(), ErrorKind>;

    /// Learns that the node has accepted the login on the present connection. It is called once for each connection whose login is
    /// accepted, when the last step of it is answered.
    ///
    /// A stream with several addresses keeps the present one: something else may have answered at the others. A stream around
    /// another stream passes the call on, at the latest before it closes that one. By default, does nothing.
    fn logged_in(&mut self) {}

    /// Closes the connection, or cancels the attempt to connect.
    ///
    /// The node must notice: send FIN or RST, or close with the means of the protocol. A node that does not notice keeps
    /// the connection, and memory for it, for minutes.
    ///
    /// If the future is dropped, the next call continues to close.
    async fn close(&mut self);
}
