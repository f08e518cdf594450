//! A socket of embassy-net.

use core::future::poll_fn;
use core::net::SocketAddr;
use core::pin::pin;
use core::task::{Context, Poll, ready};
use core::time::Duration;

#[cfg(feature = "dns")]
use embassy_futures::poll_once;
use embassy_net::tcp::{self, ConnectError, State, TcpSocket};
use embassy_net::{IpEndpoint, Stack};
use embedded_io_async::{ErrorKind, ErrorType, Read, Write};

#[cfg(feature = "dns")]
use crate::connect::host_name::{Host, HostName};
use crate::{Connect, NodeName};

/// A connection over embassy-net. It has its own socket, which every reconnect reuses.
///
/// Keep-alive probes distinguish a node that is gone from a node that is slow: see [`keep_alive`](Self::keep_alive),
/// [`idle_max`](Self::idle_max), and [`close_when_idle`](Self::close_when_idle) for a radio that should sleep.
///
/// Close the nodes before you drop a `NetSocket`. Dropping an open socket sends nothing, so the server keeps the
/// connection.
#[derive(Debug)]
pub struct NetSocket<'a> {
    socket: Socket<'a>,
    /// The address of the last attempt to connect, or of the next one.
    remote: IpEndpoint,
    #[cfg(feature = "dns")]
    host: Option<Host<'a>>,
    /// The result of an attempt to connect is unknown to the caller: its call was dropped.
    is_connecting: bool,
    /// The last connection was reset. It may be that no host is left that the stack can send the reset to.
    is_closed: bool,
}

impl<'a> NetSocket<'a> {
    /// How often an idle connection is probed by default: every 5 s.
    pub const KEEP_ALIVE: Duration = Duration::from_secs(5);

    /// How long a connection may be without a packet by default, before it is reset: 15 s.
    pub const IDLE_MAX: Duration = Duration::from_secs(15);

    /// The limits of [`keep_alive`](Self::keep_alive) and [`idle_max`](Self::idle_max): from one second to one day. A time
    /// beyond a limit counts as the limit, and a part of a second is dropped.
    pub const LIMITS: (Duration, Duration) = (Duration::from_secs(1), Duration::from_secs(86_400));

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
        socket.set_keep_alive(Some(const { ticks(Self::KEEP_ALIVE) }));
        socket.set_timeout(Some(const { ticks(Self::IDLE_MAX) }));
        Self {
            socket: Socket(socket),
            remote: remote.into(),
            #[cfg(feature = "dns")]
            host: None,
            is_connecting: false,
            is_closed: false,
        }
    }

    /// Creates a socket for the node at this port of the host `name`, like [`new`](Self::new). The stack also needs a slot for
    /// DNS. Run [`resolve`](crate::resolve) for the name: otherwise the socket finds no address.
    ///
    /// - The name is asked for when the socket connects, and again for each new connection. So a node whose address changes is
    ///   found again. What is known of the node stays known.
    /// - If a round drops an attempt, the question and the attempt continue. If the connect timeout is over before the question is
    ///   answered, a later attempt uses the answer. An address that was known for less time than the question took is tried again.
    /// - If an address refuses, or answers nothing within [`TcpNode::connect_timeout`](crate::TcpNode::connect_timeout), the
    ///   next address of the answer is tried, and after the last one, the name is asked for again. The same if what answers is
    ///   no node, refuses a step of the login, has a certificate that is refused, or is a proxy that has lost its server.
    /// - A new connection begins with the address that accepted the login last, if the new answer has it. Otherwise a device that calls
    ///   seldom would begin with an address that is dead, each time.
    /// - If what answers is a replica, or costs the lock because it is the same server as another node, the command that comes three
    ///   seconds or more after the connect closes the connection, and the name is asked for again.
    /// - If the name servers fail, the addresses of their last answer are used. If there was none, the error is
    ///   `redis-1.lan:6379 (no address yet): the name has no address: is it right, and is DNS up?`
    ///
    /// Each socket needs a `HostName` of its own. All addresses of a name must belong to the same node. DNS is not
    /// authenticated: who can forge its answers can send the device to other servers.
    #[cfg(feature = "dns")]
    pub fn named(
        stack: Stack<'a>,
        name: &'a HostName,
        port: u16,
        rx_buffer: &'a mut [u8],
        tx_buffer: &'a mut [u8],
    ) -> Self {
        let unknown = embassy_net::Ipv4Address::UNSPECIFIED;
        let mut socket = Self::new(stack, (unknown, port), rx_buffer, tx_buffer);
        socket.host = Some(Host::new(name, port));
        socket
    }

    /// Sets the address of the node, for an application that resolves names itself. It counts from the next connection on: to
    /// end the present one, call [`TcpNode::close`](crate::TcpNode::close). What is known of the node stays known. For a socket
    /// in a node, see [`TcpNode::stream_mut`](crate::TcpNode::stream_mut).
    ///
    /// A socket that was [`named`](Self::named) does not ask for the name any more.
    pub fn set_remote(&mut self, remote: impl Into<IpEndpoint>) {
        self.remote = remote.into();
        #[cfg(feature = "dns")]
        {
            self.host = None;
        }
        // An attempt at the old address is given up.
        self.is_connecting = false;
    }

    /// Sets how often an idle connection is probed, within the [`LIMITS`](Self::LIMITS). Default: every 5 s. `None`: never.
    ///
    /// A probe and its answer take about 110 bytes, so five nodes take about 9 MB a day by default. A radio cannot sleep
    /// between the probes, and a battery does not last long.
    ///
    /// Probes also keep the entry of the connection in a firewall or a NAT router. Without probes such an entry may expire,
    /// often after minutes. Then commands get no answer until [`TcpNode::patience`](crate::TcpNode::patience) is over. If you
    /// turn probes off, and there is a NAT router or a firewall in between, use [`close_when_idle`](Self::close_when_idle).
    #[must_use]
    pub fn keep_alive(mut self, interval: Option<Duration>) -> Self {
        self.socket.0.set_keep_alive(interval.map(ticks));
        self
    }

    /// Sets how long a connection may be without a packet from the node before the stack resets it, within the
    /// [`LIMITS`](Self::LIMITS). Default: 15 s. `None`: forever.
    ///
    /// If it is longer than the interval of [`keep_alive`](Self::keep_alive), only a node that does not answer loses its
    /// connection. If it is shorter, or there are no probes, every connection is reset when it has been idle for this time.
    /// With `None`, only [`TcpNode::patience`](crate::TcpNode::patience) finds a node that is gone, and only while a command
    /// waits for it.
    #[must_use]
    pub fn idle_max(mut self, time: Option<Duration>) -> Self {
        self.socket.0.set_timeout(time.map(ticks));
        self
    }

    /// Closes each connection after use: turns probes off, and lets the stack reset the connection when it has been idle for
    /// `time`, within the [`LIMITS`](Self::LIMITS). Nothing is sent after that, so a modem may sleep. The next command
    /// reconnects by itself, which takes a few round trips. If that is longer than a round, call
    /// [`connect_quorum`](crate::connect_quorum) before it: the stack also ends an attempt that is idle for `time`.
    ///
    /// The task of the stack does this, so it needs no call. `time` should be longer than a node takes to answer, and than the
    /// longest pause in the use of a lock, for instance between two extensions: `hold` extends when about a third of the
    /// validity has passed.
    #[must_use]
    pub fn close_when_idle(self, time: Duration) -> Self {
        self.keep_alive(None).idle_max(Some(time))
    }
}

/// Converts `time`, within the limits. The stack does arithmetic on it that is not checked.
const fn ticks(time: Duration) -> embassy_time::Duration {
    let (shortest, longest) = NetSocket::LIMITS;
    let secs = time.as_secs();
    embassy_time::Duration::from_secs(if secs < shortest.as_secs() {
        shortest.as_secs()
    } else if secs > longest.as_secs() {
        longest.as_secs()
    } else {
        secs
    })
}

impl NetSocket<'_> {
    /// Connects to the address in `remote`.
    async fn open(&mut self) -> Result<(), ErrorKind> {
        let socket = &mut self.socket.0;
        if !self.is_connecting {
            if !self.is_closed {
                // The reset must be sent before the socket reconnects.
                reset(socket).await;
            }
            self.is_closed = false;
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
}

impl Connect for NetSocket<'_> {
    fn name(&self) -> NodeName {
        #[cfg(feature = "dns")]
        if let Some(host) = &self.host {
            return host.node_name();
        }
        SocketAddr::from(self.remote).into()
    }

    #[cfg(not(feature = "dns"))]
    async fn connect(&mut self) -> Result<(), ErrorKind> {
        self.open().await
    }

    #[cfg(feature = "dns")]
    async fn connect(&mut self) -> Result<(), ErrorKind> {
        loop {
            if let Some(host) = &mut self.host
                && !self.is_connecting
            {
                if self.is_closed && !host.is_asking() {
                    forget_reset(&mut self.socket.0);
                }
                self.remote = host.next_address().await.ok_or(ErrorKind::NotFound)?;
            }
            let was_connecting = self.is_connecting;
            let opened = self.open().await;
            if opened.is_err() {
                // There is no connection to reset, and perhaps no host to which the stack can send the reset: it would delay the
                // next attempt, even a minute later.
                forget_reset(&mut self.socket.0);
                self.is_closed = true;
            }
            let has_more = self.host.as_ref().is_some_and(Host::has_untried_address);
            // An attempt that ended while no call waited for it: its time may be over, so the next call tries the next address.
            if was_connecting || opened.is_ok() || !has_more {
                return opened;
            }
        }
    }

    #[cfg(feature = "dns")]
    fn logged_in(&mut self) {
        if let Some(host) = &mut self.host {
            host.logged_in(self.remote.addr);
        }
    }

    async fn close(&mut self) {
        #[cfg(feature = "dns")]
        if let Some(host) = &mut self.host {
            host.cancel();
        }
        // An attempt has no connection to reset, and perhaps no host to which the stack can send the reset. Left out without host names,
        // for 300 bytes of flash: a fixed address is seldom that of no host.
        #[cfg(feature = "dns")]
        let is_attempt = match self.socket.0.state() {
            State::SynSent => true,
            State::Closed => self.is_connecting,
            _ => false,
        };
        #[cfg(feature = "dns")]
        if is_attempt {
            forget_reset(&mut self.socket.0);
        }
        self.is_connecting = false;
        self.is_closed = true;
        reset(&mut self.socket.0).await;
    }
}

/// Resets the connection, and waits until the reset is sent.
fn reset(socket: &mut TcpSocket<'_>) -> impl Future<Output = ()> {
    socket.abort();
    poll_fn(|cx| poll_flush(socket, cx))
}

// `inline(never)`: many callers, one copy in flash. The future has no state, so each poll can create it anew.
#[inline(never)]
fn poll_flush(socket: &mut TcpSocket<'_>, cx: &mut Context<'_>) -> Poll<()> {
    let flushed = ready!(pin!(socket.flush()).poll(cx));
    debug_assert!(flushed.is_ok(), "flushing an aborted socket cannot fail");
    Poll::Ready(())
}

/// Makes the stack forget a reset that it could not send, because the host is gone from its address. Otherwise it asks for that
/// address each second, and no name server can be reached: smoltcp asks for one address a second.
#[cfg(feature = "dns")]
fn forget_reset(socket: &mut TcpSocket<'_>) {
    socket.abort();
    // Listening is what resets a socket. No packet can arrive in between, because the stack does not run.
    let _pending = poll_once(socket.accept(ANY_PORT));
    socket.abort();
}

#[cfg(feature = "dns")]
const ANY_PORT: u16 = 1;

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
