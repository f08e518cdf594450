//! TLS to a node, on a device, with embedded-tls.
//!
//! A task per node keeps the TLS session, and the node talks to its task, over a [`Line`]. So a handshake
//! goes on when a round stops waiting for it, and a connection that is lost is made again.
//!
//! ```ignore
//! #[embassy_executor::task(pool_size = 3)]
//! async fn keep(mut session: Session<'static, NetSocket<'static>, Provider>) -> ! {
//!     session.run().await
//! }
//!
//! // For each node; the line and the buffers come from a `StaticCell`.
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
//! - A server that speaks TLS 1.3: embedded-tls knows nothing older.
//! - RAM for each node: 16,640 bytes for the record that is read, unless the records of the server are
//!   known to be smaller (its certificates come in one); 1,024 for the one that is written; twice the `N`
//!   of the line; about 3 kB and the provider for the task; and stack for the arithmetic of a handshake.
//! - Time: a handshake computes without a pause, and every task of that executor waits. Measure it on your
//!   chip; keep the connect time-out of the nodes and the TTL of the lock well above it.
//! - Random numbers that nobody can guess, from the [`CryptoProvider`].
//!
//! # Who is at the other end
//!
//! That is for the [`CryptoProvider`] to find out. One without a `verifier`, as
//! [`embedded_tls::UnsecureProvider`], **protects nothing**: it talks to whoever answers.
//!
//! embedded-tls has `pki::CertVerifier` (feature `rustpki`, without an allocator). It checks the signatures
//! up to a certificate that you trust, with ECDSA on P-256, and by further features on P-384, Ed25519 and
//! RSA; the DNS name given to [`TlsConfig::with_server_name`], never an IP address; and the dates, where a
//! `TlsClock` knows the time. It does not check what a certificate may be used for: trust one that signs
//! for your nodes and nobody else. (`webpki::CertVerifier` is for hosts.)
//!
//! A [`Session`] adds what embedded-tls 0.19 leaves out: where there is a verifier, a server has to show a
//! certificate and to prove that it is its own; and what comes in the clear after the handshake ends the
//! connection.

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

/// What a node and its session have in common. Both run in one executor.
///
/// `N` is the room for bytes on their way, in each direction: as long as the longest command, so that a
/// command leaves at once.
#[derive(Debug)]
pub struct Line<const N: usize = 256> {
    phase: Cell<Phase>,
    waiting: RefCell<MultiWakerRegistration<2>>,
    to_server: Pipe<NoopRawMutex, N>,
    to_node: Pipe<NoopRawMutex, N>,
}

/// Where a connection is. In each phase but `Up` and `Open` only one side can go on, so that neither
/// mistakes one connection for the next.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Phase {
    /// There is none. Up to the node.
    Closed,
    /// The node wants one. Up to the session; the node may only change its mind.
    Wanted,
    /// None came about, which the node does not know yet.
    Failed(ErrorKind),
    /// There is one, which the node does not know yet.
    Up,
    /// Bytes pass.
    Open,
    /// The session has ended it; what came before may be left to read. Up to the node.
    Ended,
    /// The node gives it up, or the attempt. Up to the session.
    Closing,
}

impl<const N: usize> Line<N> {
    /// A line that nobody uses yet.
    #[must_use]
    pub const fn new() -> Self {
        Self {
            phase: Cell::new(Phase::Closed),
            waiting: RefCell::new(MultiWakerRegistration::new()),
            to_server: Pipe::new(),
            to_node: Pipe::new(),
        }
    }

    /// The end for a node, and the end for a task that runs the session.
    ///
    /// `read_record` has room for the longest record of the server, `write_record` for the first message of
    /// the handshake.
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

    /// The handshake is done. No earlier connection passes bytes any more, and the node writes none
    /// before it knows: what is in the pipes is old.
    fn up(&self) {
        self.to_server.clear();
        self.to_node.clear();
        self.go_to(Phase::Up);
    }

    /// The session is done with a connection, or with an attempt.
    fn over(&self, why: ErrorKind) {
        self.go_to(match self.phase.get() {
            Phase::Wanted | Phase::Up => Phase::Failed(why),
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

/// The end of a line that a node takes.
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
                // What a dropped call began has come to its end.
                Phase::Up => {
                    self.line.go_to(Phase::Open);
                    return Ok(());
                }
                Phase::Failed(why) => {
                    self.line.go_to(Phase::Closed);
                    return Err(why);
                }
                // What was open before is given up.
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
            Phase::Wanted | Phase::Up | Phase::Open
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

    /// Does nothing: the session sends what it was given.
    async fn flush(&mut self) -> Result<(), ErrorKind> {
        Ok(())
    }
}

/// The end of a line that a task [runs](Self::run), with all that TLS needs.
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
    /// Connects when the node wants it, and passes bytes for as long as the connection lasts.
    ///
    /// It has no time-outs: the node has them, and closes. Without a task that runs this, the node waits in
    /// vain.
    pub async fn run(&mut self) -> ! {
        let line = self.line;
        loop {
            line.until(|phase| matches!(phase, Phase::Wanted | Phase::Closing))
                .await;
            let given_up = line.until(|phase| phase == Phase::Closing);
            let why = match select(given_up, self.serve()).await {
                Either::First(()) => ErrorKind::Interrupted,
                Either::Second(Err(error)) => error.kind(),
            };
            self.socket.close().await;
            line.over(why);
        }
    }

    /// One connection, from its beginning to its end.
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
        self.line.up();
        let Line {
            to_server, to_node, ..
        } = self.line;
        let mut command = [0; 64];
        loop {
            let reply = async { Ok::<_, TlsError>(to_node.write(tls.fill_buf().await?).await) };
            // In the middle of a record, `tls` must not be dropped while it reads.
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
