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

/// A connection over embassy-net. It has its own socket, which every reconnect reuses.
///
/// Keep-alive probes distinguish a node that is gone from a node that is slow. If no packet arrives for
/// [`IDLE_MAX`](Self::IDLE_MAX), the connection is dropped.
///
/// Close the nodes before you drop a `NetSocket`. Dropping an open socket sends nothing, so the server keeps the
/// connection.
#[derive(Debug)]
pub struct NetSocket<'a> {
    socket: Socket<'a>,
    remote: IpEndpoint,
    /// The result of an attempt to connect is unknown to the caller: its call was dropped.
    is_connecting: bool,
}

impl<'a> NetSocket<'a> {
    /// How often an idle connection is probed: every 5 s.
    pub const KEEP_ALIVE: Duration = Duration::from_secs(5);

    /// How long a connection may be without a packet before it is dropped: 15 s.
    pub const IDLE_MAX: Duration = Duration::from_secs(15);

    /// Creates a socket for the node at `remote`: a `SocketAddrV4`, or an address and a port.
    ///
    /// The socket takes one slot of the stack's `StackResources`. If no slot is free, embassy-net panics.
    ///
    /// `rx_buffer` must hold a few short replies: 128 bytes are enough. `tx_buffer` should hold the longest command, like
    /// the `TX` of the node, so that a command is sent at once.
    pub fn new(
        stack: Stack<'a>,
        remote: impl Into<IpEndpoint>,
        rx_buffer: &'a mut [u8],
        tx_buffer: &'a mut [u8],
    ) -> Self {
        let mut socket = TcpSocket::new(stack, rx_buffer, tx_buffer);
        // A command must not wait for the acknowledgement of the previous command.
        socket.set_nagle_enabled(false);
        socket.set_keep_alive(Some(Self::KEEP_ALIVE));
        socket.set_timeout(Some(Self::IDLE_MAX));
        Self {
            socket: Socket(socket),
            remote: remote.into(),
            is_connecting: false,
        }
    }
}

impl Connect for NetSocket<'_> {
    fn name(&self) -> NodeName {
        SocketAddr::from(self.remote).into()
    }

    async fn connect(&mut self) -> Result<(), ErrorKind> {
        let socket = &mut self.socket.0;
        if !self.is_connecting {
            socket.abort();
            // The reset must be sent before the socket reconnects.
            let flushed = socket.flush().await;
            debug_assert!(flushed.is_ok(), "flushing an aborted socket cannot fail");
            // The stack continues the attempt if this call is dropped. The attempt may end before the next call, in any state.
            self.is_connecting = true;
            let connected = socket.connect(self.remote).await;
            self.is_connecting = false;
            return connected.map_err(|error| match error {
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
                State::SynSent | State::SynReceived => Poll::Pending,
                state => Poll::Ready(state),
            }
        });
        let state = changed.await;
        self.is_connecting = false;
        match state {
            State::Closed | State::TimeWait => Err(ErrorKind::ConnectionReset),
            _ => Ok(()),
        }
    }

    async fn close(&mut self) {
        self.is_connecting = false;
        let socket = &mut self.socket.0;
        socket.abort();
        let flushed = socket.flush().await;
        debug_assert!(flushed.is_ok(), "flushing an aborted socket cannot fail");
    }
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
