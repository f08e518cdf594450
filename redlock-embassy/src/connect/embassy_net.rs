//! A socket of embassy-net.

use core::future::poll_fn;
use core::net::SocketAddr;
use core::pin::pin;
use core::task::Poll;

use embassy_net::tcp::{self, ConnectError, State, TcpSocket};
use embassy_net::{IpEndpoint, Stack};
use embassy_time::Duration;
use embedded_io_async::{ErrorKind, ErrorType, Read, Write};

use crate::{Connect, NodeName};

/// A connection over embassy-net, with its own socket that every reconnect reuses.
///
/// Keep-alive probes distinguish a node that is gone from one that is slow: if no packet arrives for
/// [`IDLE_MAX`](Self::IDLE_MAX), the connection is dropped. Dropping an open `NetSocket` leaves a client on the node,
/// because embassy-net then sends nothing: close the nodes first.
#[derive(Debug)]
pub struct NetSocket<'a> {
    socket: Socket<'a>,
    remote: IpEndpoint,
}

impl<'a> NetSocket<'a> {
    /// How often an idle connection is probed: every 5 s.
    pub const KEEP_ALIVE: Duration = Duration::from_secs(5);

    /// How long a connection may be without a packet before it is dropped: 15 s.
    pub const IDLE_MAX: Duration = Duration::from_secs(15);

    /// Creates a socket for the node at `remote`: a `SocketAddrV4`, or an address and a port. It takes one slot of the
    /// stack's `StackResources`. If there is none, embassy-net panics.
    ///
    /// `rx_buffer` needs room for a few short replies; 128 bytes are enough. `tx_buffer` should hold the longest
    /// command, like the `TX` of the node, so that a command is sent at once.
    pub fn new(
        stack: Stack<'a>,
        remote: impl Into<IpEndpoint>,
        rx_buffer: &'a mut [u8],
        tx_buffer: &'a mut [u8],
    ) -> Self {
        let mut socket = TcpSocket::new(stack, rx_buffer, tx_buffer);
        // A command must not wait for the acknowledgement of the one before.
        socket.set_nagle_enabled(false);
        socket.set_keep_alive(Some(Self::KEEP_ALIVE));
        socket.set_timeout(Some(Self::IDLE_MAX));
        Self {
            socket: Socket(socket),
            remote: remote.into(),
        }
    }
}

impl Connect for NetSocket<'_> {
    fn name(&self) -> NodeName {
        SocketAddr::from(self.remote).into()
    }

    async fn connect(&mut self) -> Result<(), ErrorKind> {
        let socket = &mut self.socket.0;
        // An attempt of a dropped call continues in the stack.
        if !is_connecting(socket.state()) {
            socket.abort();
            // The reset must be sent before the socket reconnects.
            let flushed = socket.flush().await;
            debug_assert!(flushed.is_ok(), "flushing an aborted socket cannot fail");
            return socket
                .connect(self.remote)
                .await
                .map_err(|error| match error {
                    ConnectError::NoRoute => ErrorKind::NotConnected,
                    ConnectError::TimedOut => ErrorKind::TimedOut,
                    ConnectError::ConnectionReset => ErrorKind::ConnectionReset,
                    ConnectError::InvalidState => ErrorKind::Other,
                });
        }
        let changed = poll_fn(|cx| {
            // Any change of state wakes a task that waits for room.
            let _ready = pin!(socket.wait_write_ready()).poll(cx);
            match socket.state() {
                state if is_connecting(state) => Poll::Pending,
                state => Poll::Ready(state),
            }
        });
        match changed.await {
            State::Closed | State::TimeWait => Err(ErrorKind::ConnectionReset),
            _ => Ok(()),
        }
    }

    async fn close(&mut self) {
        let socket = &mut self.socket.0;
        socket.abort();
        let flushed = socket.flush().await;
        debug_assert!(flushed.is_ok(), "flushing an aborted socket cannot fail");
    }
}

const fn is_connecting(state: State) -> bool {
    matches!(state, State::SynSent | State::SynReceived)
}

impl ErrorType for NetSocket<'_> {
    type Error = tcp::Error;
}

impl Read for NetSocket<'_> {
    async fn read(&mut self, buffer: &mut [u8]) -> Result<usize, tcp::Error> {
        self.socket.0.read(buffer).await
    }
}

impl Write for NetSocket<'_> {
    async fn write(&mut self, bytes: &[u8]) -> Result<usize, tcp::Error> {
        self.socket.0.write(bytes).await
    }

    /// Does nothing: the stack sends the bytes by itself, and waiting for their acknowledgement would only delay
    /// the wait for the reply.
    async fn flush(&mut self) -> Result<(), tcp::Error> {
        Ok(())
    }
}

/// A socket whose `Debug` shows its state.
struct Socket<'a>(TcpSocket<'a>);

impl core::fmt::Debug for Socket<'_> {
    fn fmt(&self, f: &mut core::fmt::Formatter<'_>) -> core::fmt::Result {
        write!(f, "{}", self.0.state())
    }
}
