//! TLS to a node, on a device, with embedded-tls.
//!
//! A task per node keeps the TLS session. The node exchanges bytes with its task over a [`Line`]. So a handshake continues
//! when a round stops waiting for it. If the connection is lost, the task reconnects when the node asks for it.
//!
//! ```ignore
//! #[embassy_executor::task(pool_size = 3)]
//! async fn keep(mut session: Session<'static, NetSocket<'static>, Provider>) -> ! {
//!     session.run().await
//! }
//!
//! // For each node. The line and the buffers come from a `StaticCell`.
//! let socket = NetSocket::new(stack, address, &mut buffers.rx, &mut buffers.tx);
//! let config = TlsConfig::new().with_server_name("redis-1.example");
//! let (reading, writing) = (&mut buffers.read_record, &mut buffers.write_record);
//! let (stream, session) = line.split(socket, config, provider, reading, writing);
//! spawner.spawn(unwrap!(keep(session)));
//! let node = TcpNode::new(stream, EmbassyClock).connect_timeout(Duration::from_secs(10));
//! ```
//!
//! # What it takes
//!
//! - A server with TLS 1.3: embedded-tls supports no older version.
//! - RAM for each node:
//!   - 16,640 bytes for the record that is read. Less is enough if you know that the records of the server are smaller; its
//!     certificates are in one record.
//!   - 1,024 bytes for the record that is written.
//!   - Twice the `N` of the line.
//!   - About 3 kB, and the provider, for the task.
//!   - Stack for the arithmetic of a handshake.
//! - Time: a handshake computes without a pause, and all other tasks of the executor wait. Measure it on your chip. Keep the
//!   connect timeout of the nodes and the TTL of the lock well above it.
//! - Unpredictable random numbers, from the [`CryptoProvider`].
//!
//! # Verifying the server
//!
//! The [`CryptoProvider`] verifies the server. A provider without a `verifier`, such as
//! [`embedded_tls::UnsecureProvider`], **protects nothing**: it accepts every server.
//!
//! embedded-tls has `pki::CertVerifier` (feature `rustpki`, without an allocator). It checks
//!
//! - the signatures up to a certificate that you trust, with ECDSA on P-256, and with further features on P-384, Ed25519
//!   and RSA;
//! - the DNS name given to [`TlsConfig::with_server_name`], never an IP address;
//! - the dates, if a `TlsClock` knows the time.
//!
//! It does not check what a certificate may be used for. So trust a certificate that signs only for your nodes.
//! (`webpki::CertVerifier` is for hosts.)
//!
//! A [`Session`] adds two checks that embedded-tls 0.19 leaves out:
//!
//! - If there is a verifier, the server must show a certificate, and prove that the certificate is its own.
//! - Unencrypted data after the handshake ends the connection.

mod checked;
mod records;

use core::cell::{Cell, RefCell};
use core::convert::Infallible;
use core::fmt;
use core::future::poll_fn;
use core::pin::pin;
use core::task::Poll;

use embassy_futures::select::{Either, select};
use embassy_sync::blocking_mutex::raw::NoopRawMutex;
use embassy_sync::pipe::Pipe;
use embassy_sync::waitqueue::MultiWakerRegistration;
use embedded_io_async::{BufRead, Error, ErrorKind, ErrorType, Read, Write};
use embedded_tls::{CryptoProvider, TlsConfig, TlsConnection, TlsContext, TlsError};
use redlock_embassy::{Connect, NodeName};

use checked::Checked;
use records::{Place, Records};

/// The shared state of a node and its session. Both run in one executor.
///
/// `N` is the size of the buffer in each direction. It should hold the longest command, so that a command is sent at once.
#[derive(Debug)]
pub struct Line<const N: usize = 256> {
    phase: Cell<Phase>,
    waiting: RefCell<MultiWakerRegistration<2>>,
    to_server: Pipe<NoopRawMutex, N>,
    to_node: Pipe<NoopRawMutex, N>,
}

/// The phase of a connection. In each phase except `Connected` and `Open`, only one side moves on; the other one can at
/// most cancel. So neither side takes one connection for another.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Phase {
    /// There is no connection. The node leaves this phase.
    Closed,
    /// The node wants a connection. The session leaves this phase; the node may only cancel.
    Wanted,
    /// The attempt failed, and the node does not know it yet.
    Failed(ErrorKind),
    /// The session has connected, and the node does not know it yet.
    Connected,
    /// Both sides exchange bytes.
    Open,
    /// The session has ended the connection. Received bytes may be left to read. The node leaves this phase.
    Ended,
    /// The node closes the connection, or cancels the attempt. The session leaves this phase.
    Closing,
}

impl<const N: usize> Line<N> {
    /// A line for a new node and session.
    #[must_use]
    pub const fn new() -> Self {
        Self {
            phase: Cell::new(Phase::Closed),
            waiting: RefCell::new(MultiWakerRegistration::new()),
            to_server: Pipe::new(),
            to_node: Pipe::new(),
        }
    }

    /// Returns the node's side of the line, and the side of the task that runs the session.
    ///
    /// `read_record` must hold the longest record of the server, and `write_record` the first message of the handshake.
    pub fn split<'a, S: Connect, P: CryptoProvider>(
        &'a mut self,
        socket: S,
        config: TlsConfig<'a>,
        provider: P,
        read_record: &'a mut [u8],
        write_record: &'a mut [u8],
    ) -> (TlsStream<'a, N>, Session<'a, S, P, N>) {
        *self = Self::new();
        let stream = TlsStream {
            line: self,
            name: socket.name(),
        };
        let session = Session {
            line: self,
            socket,
            config,
            provider,
            read_record,
            write_record,
        };
        (stream, session)
    }

    fn go_to(&self, phase: Phase) {
        self.phase.set(phase);
        self.waiting.borrow_mut().wake();
    }

    async fn until(&self, is_there: impl Fn(Phase) -> bool) {
        poll_fn(|cx| {
            if is_there(self.phase.get()) {
                return Poll::Ready(());
            }
            self.waiting.borrow_mut().register(cx.waker());
            Poll::Pending
        })
        .await;
    }

    /// Records that the handshake is done. The bytes in the pipes are of an earlier connection: the node writes none before
    /// it knows of this one.
    fn connected(&self) {
        self.to_server.clear();
        self.to_node.clear();
        self.go_to(Phase::Connected);
    }

    /// Records that the session has ended a connection or an attempt.
    fn ended(&self, why: ErrorKind) {
        self.go_to(match self.phase.get() {
            Phase::Wanted | Phase::Connected => Phase::Failed(why),
            Phase::Open => Phase::Ended,
            Phase::Closing | Phase::Closed | Phase::Failed(_) | Phase::Ended => Phase::Closed,
        });
    }
}

impl<const N: usize> Default for Line<N> {
    fn default() -> Self {
        Self::new()
    }
}

/// The node's side of a [`Line`].
#[derive(Debug)]
pub struct TlsStream<'a, const N: usize = 256> {
    line: &'a Line<N>,
    name: NodeName,
}

impl<const N: usize> Connect for TlsStream<'_, N> {
    fn name(&self) -> NodeName {
        self.name
    }

    async fn connect(&mut self) -> Result<(), ErrorKind> {
        loop {
            match self.line.phase.get() {
                Phase::Closed | Phase::Ended => self.line.go_to(Phase::Wanted),
                // The attempt of a dropped call may have succeeded meanwhile.
                Phase::Connected => {
                    self.line.go_to(Phase::Open);
                    return Ok(());
                }
                Phase::Failed(why) => {
                    self.line.go_to(Phase::Closed);
                    return Err(why);
                }
                // Drops the connection that was open before.
                Phase::Open => self.line.go_to(Phase::Closing),
                here @ (Phase::Wanted | Phase::Closing) => {
                    self.line.until(|phase| phase != here).await;
                }
            }
        }
    }

    async fn close(&mut self) {
        if matches!(
            self.line.phase.get(),
            Phase::Wanted | Phase::Connected | Phase::Open
        ) {
            self.line.go_to(Phase::Closing);
        }
        self.line.until(|phase| phase != Phase::Closing).await;
        self.line.go_to(Phase::Closed);
    }
}

impl<const N: usize> ErrorType for TlsStream<'_, N> {
    type Error = ErrorKind;
}

impl<const N: usize> Read for TlsStream<'_, N> {
    async fn read(&mut self, buffer: &mut [u8]) -> Result<usize, ErrorKind> {
        if self.line.phase.get() == Phase::Open {
            let ended = self.line.until(|phase| phase != Phase::Open);
            if let Either::First(count) = select(self.line.to_node.read(buffer), ended).await {
                return Ok(count);
            }
        }
        match self.line.phase.get() {
            Phase::Ended => Ok(self.line.to_node.try_read(buffer).unwrap_or(0)),
            _ => Ok(0),
        }
    }
}

impl<const N: usize> Write for TlsStream<'_, N> {
    async fn write(&mut self, bytes: &[u8]) -> Result<usize, ErrorKind> {
        if self.line.phase.get() != Phase::Open {
            return Err(ErrorKind::NotConnected);
        }
        let ended = self.line.until(|phase| phase != Phase::Open);
        match select(self.line.to_server.write(bytes), ended).await {
            Either::First(count) => Ok(count),
            Either::Second(()) => Err(ErrorKind::ConnectionReset),
        }
    }

    /// Does nothing: the session sends the bytes by itself.
    async fn flush(&mut self) -> Result<(), ErrorKind> {
        Ok(())
    }
}

/// The task's side of a [`Line`]. The task [runs](Self::run) the TLS session.
pub struct Session<'a, S, P, const N: usize = 256> {
    line: &'a Line<N>,
    socket: S,
    config: TlsConfig<'a>,
    provider: P,
    read_record: &'a mut [u8],
    write_record: &'a mut [u8],
}

impl<S, P, const N: usize> Session<'_, S, P, N>
where
    S: Connect,
    P: CryptoProvider<CipherSuite: 'static>,
{
    /// Connects when the node wants a connection, and forwards bytes until the connection ends.
    ///
    /// It has no timeouts: the node has them, and closes the connection. If no task runs this, the node never connects.
    pub async fn run(&mut self) -> ! {
        let line = self.line;
        loop {
            line.until(|phase| matches!(phase, Phase::Wanted | Phase::Closing))
                .await;
            let canceled = line.until(|phase| phase == Phase::Closing);
            let why = match select(canceled, self.serve()).await {
                Either::First(()) => ErrorKind::Interrupted,
                Either::Second(Err(error)) => error.kind(),
            };
            self.socket.close().await;
            line.ended(why);
        }
    }

    /// Runs one connection from its start to its end.
    async fn serve(&mut self) -> Result<Infallible, TlsError> {
        self.socket.connect().await.map_err(TlsError::Io)?;
        let place = Place {
            is_between: Cell::new(true),
            is_sealed: Cell::new(false),
        };
        let records = Records::new(&mut self.socket, &place);
        let mut tls = TlsConnection::new(records, self.read_record, self.write_record);
        let mut provider = Checked::new(&mut self.provider);
        tls.open(TlsContext::new(&self.config, &mut provider))
            .await?;
        provider.conclude()?;
        place.is_sealed.set(true);
        self.line.connected();
        let Line {
            to_server, to_node, ..
        } = self.line;
        let mut command = [0; 64];
        loop {
            let reply = async { Ok::<_, TlsError>(to_node.write(tls.fill_buf().await?).await) };
            // In the middle of a record, the future that reads must not be dropped.
            let sending = poll_fn(|cx| match place.is_between.get() {
                true => pin!(to_server.read(&mut command)).poll(cx),
                false => Poll::Pending,
            });
            match select(reply, sending).await {
                Either::First(count) => tls.consume(count?),
                Either::Second(count) => {
                    tls.write_all(&command[..count]).await?;
                    tls.flush().await?;
                }
            }
        }
    }
}

impl<S: Connect, P, const N: usize> fmt::Debug for Session<'_, S, P, N> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Session")
            .field("name", &self.socket.name())
            .field("phase", &self.line.phase.get())
            .finish_non_exhaustive()
    }
}
