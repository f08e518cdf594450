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

/// A connection over embassy-net, with a socket of its own that is used again and again.
///
/// Keep-alive probes tell a node that is gone from one that is slow: after [`IDLE_MAX`](Self::IDLE_MAX) without
/// a sign of life the connection is given up. Dropping it while it is open leaves a client on the node
/// (embassy-net then sends nothing): close the nodes first.
#[derive(Debug)]
pub struct NetSocket<'a> {
    socket: Socket<'a>,
    remote: IpEndpoint,
}

impl<'a> NetSocket<'a> {
    /// How often an idle connection is probed.
    pub const KEEP_ALIVE: Duration = Duration::from_secs(5);

    /// After how long without a sign of life a connection is given up.
    pub const IDLE_MAX: Duration = Duration::from_secs(15);

    /// A socket for the node at `remote`, a `SocketAddrV4` or an address and a port. It takes one place of the stack's `StackResources`: where there is
    /// none, embassy-net panics.
    ///
    /// `rx_buffer` needs room for a few short replies, 128 bytes do. `tx_buffer` should hold the longest
    /// command, as the `TX` of the node does, so that a command leaves at once.
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
        // What a dropped call began goes on in the stack.
        if !is_connecting(socket.state()) {
            socket.abort();
            // The reset must be out before the socket connects anew.
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
            // Any change of state wakes whoever waits for room.
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

    /// Does nothing: the stack sends what it was given, and waiting for the acknowledgement would be a
    /// wait before the reply.
    async fn flush(&mut self) -> Result<(), tcp::Error> {
        Ok(())
    }
}

/// Shows its state.
struct Socket<'a>(TcpSocket<'a>);

impl core::fmt::Debug for Socket<'_> {
    fn fmt(&self, f: &mut core::fmt::Formatter<'_>) -> core::fmt::Result {
        write!(f, "{}", self.0.state())
    }
}
