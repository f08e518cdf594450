//! What a node and the task of its TLS session share, and the side of the node.

use core::cell::{Cell, RefCell};
use core::future::poll_fn;
use core::task::Poll;

use embassy_futures::select::{Either, select};
use embassy_sync::blocking_mutex::raw::NoopRawMutex;
use embassy_sync::pipe::Pipe;
use embassy_sync::waitqueue::MultiWakerRegistration;
use embedded_io_async::{ErrorKind, ErrorType, Read, Write};
use redlock_embassy::{Connect, NodeName};

use crate::TlsFailure;

/// The shared state of a node and its session. Both run in one executor.
///
/// `N` is the size of the buffer in each direction. It should hold the longest command, so that a command is sent at once.
#[derive(Debug)]
pub struct TlsLine<const N: usize = 256> {
    phase: Cell<Phase>,
    /// Why the last attempt or connection ended, if the session has ended it.
    failure: Cell<Option<TlsFailure>>,
    /// The name of the socket, which changes if its address is found later.
    name: Cell<Option<NodeName>>,
    /// The node has accepted the login on the present connection, and the socket does not know it yet.
    is_logged_in: Cell<bool>,
    /// The session closes the socket of a connection or an attempt that it has ended itself.
    is_closing: Cell<bool>,
    waiting: RefCell<MultiWakerRegistration<2>>,
    pub(crate) to_server: Pipe<NoopRawMutex, N>,
    pub(crate) to_node: Pipe<NoopRawMutex, N>,
}

/// The phase of a connection. In each phase except `Connected` and `Open`, only one side moves on; the other one can at
/// most cancel. So neither side takes one connection for another.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Phase {
    /// There is no connection. The node leaves this phase.
    Closed,
    /// The node wants a connection. The session leaves this phase; the node may only cancel.
    Wanted,
    /// The attempt failed, and the node does not know it yet. It is told this error.
    Failed(ErrorKind),
    /// The session has connected, and the node does not know it yet.
    Connected,
    /// Both sides exchange bytes.
    Open,
    /// The session has ended the connection. Received bytes may be left to read. The node leaves this phase.
    Ended,
    /// The node closes the connection, or cancels the attempt. The session leaves this phase; the node may only stop waiting.
    Closing,
    /// The node has stopped waiting for the close, and wants a connection. The session leaves this phase.
    Abandoned,
}

impl<const N: usize> TlsLine<N> {
    /// A line for a new node and session.
    #[must_use]
    pub const fn new() -> Self {
        Self {
            phase: Cell::new(Phase::Closed),
            failure: Cell::new(None),
            name: Cell::new(None),
            is_logged_in: Cell::new(false),
            is_closing: Cell::new(false),
            waiting: RefCell::new(MultiWakerRegistration::new()),
            to_server: Pipe::new(),
            to_node: Pipe::new(),
        }
    }

    /// Makes the line as new, and returns the side of the node with this name.
    pub(crate) fn start(&mut self, name: NodeName) -> TlsStream<'_, N> {
        *self = Self::new();
        TlsStream { line: self, name }
    }

    /// Records the present name of the socket.
    pub(crate) fn rename(&self, name: NodeName) {
        self.name.set(Some(name));
    }

    /// Waits until the node wants a connection, or is closing one.
    pub(crate) async fn wanted(&self) {
        self.until(|phase| matches!(phase, Phase::Wanted | Phase::Closing | Phase::Abandoned))
            .await;
    }

    /// Waits until the node closes the connection, or cancels the attempt.
    pub(crate) async fn canceled(&self) {
        self.until(|phase| matches!(phase, Phase::Closing | Phase::Abandoned))
            .await;
    }

    /// Waits until the node wants a connection although the last one is still being closed.
    pub(crate) async fn abandoned(&self) {
        self.until(|phase| phase == Phase::Abandoned).await;
    }

    fn go_to(&self, phase: Phase) {
        self.phase.set(phase);
        self.wake();
    }

    fn wake(&self) {
        // It is never borrowed for longer than a call, and this way there is no code for a panic.
        if let Ok(mut waiting) = self.waiting.try_borrow_mut() {
            waiting.wake();
        }
    }

    async fn until(&self, is_there: impl Fn(Phase) -> bool) {
        poll_fn(|cx| {
            if is_there(self.phase.get()) {
                return Poll::Ready(());
            }
            if let Ok(mut waiting) = self.waiting.try_borrow_mut() {
                waiting.register(cx.waker());
            }
            Poll::Pending
        })
        .await;
    }

    /// Records that the handshake is done. The bytes in the pipes are of an earlier connection: the node writes none before
    /// it knows of this one.
    pub(crate) fn connected(&self) {
        self.to_server.clear();
        self.to_node.clear();
        self.failure.set(None);
        self.go_to(Phase::Connected);
    }

    /// Whether the node has accepted the login on the connection that has ended. Forgets it.
    pub(crate) fn take_login(&self) -> bool {
        self.is_logged_in.take()
    }

    /// Records that the session has ended a connection or an attempt, and begins to close the socket.
    pub(crate) fn closing(&self, why: TlsFailure) {
        self.is_closing.set(true);
        self.ended(why);
    }

    /// Records that the socket is closed.
    pub(crate) fn closed(&self) {
        self.is_closing.set(false);
        self.wake();
    }

    /// Records that a connection or an attempt has ended.
    pub(crate) fn ended(&self, why: TlsFailure) {
        let is_canceled = matches!(self.phase.get(), Phase::Closing | Phase::Abandoned);
        self.failure.set((!is_canceled).then_some(why));
        self.go_to(match self.phase.get() {
            Phase::Wanted => Phase::Failed(why.kind()),
            Phase::Connected => Phase::Failed(match why.kind() {
                // The handshake was done, so TLS is at the port: a server that wants a certificate says so now.
                ErrorKind::InvalidData => ErrorKind::ConnectionAborted,
                kind => kind,
            }),
            Phase::Open => Phase::Ended,
            Phase::Closing | Phase::Abandoned | Phase::Closed | Phase::Failed(_) | Phase::Ended => {
                Phase::Closed
            }
        });
    }
}

impl<const N: usize> Default for TlsLine<N> {
    fn default() -> Self {
        Self::new()
    }
}

/// The node's side of a [`TlsLine`], for a [`TcpNode`](redlock_embassy::TcpNode).
#[derive(Debug)]
pub struct TlsStream<'a, const N: usize = 256> {
    pub(crate) line: &'a TlsLine<N>,
    name: NodeName,
}

impl<const N: usize> TlsStream<'_, N> {
    /// Why the last attempt to connect or the last connection ended. `None` if it has not, or if the node itself closed it, for
    /// instance because its connect timeout passed.
    ///
    /// The errors of the lock are shorter. For a node of a lock, see
    /// [`TcpNode::stream_mut`](redlock_embassy::TcpNode::stream_mut).
    #[must_use]
    pub fn failure(&self) -> Option<TlsFailure> {
        self.line.failure.get()
    }
}

impl<const N: usize> Connect for TlsStream<'_, N> {
    fn name(&self) -> NodeName {
        self.line.name.get().unwrap_or(self.name)
    }

    async fn connect(&mut self) -> Result<(), ErrorKind> {
        // The node has waited for the close. It would wait for ever if a reset cannot be sent, because the host is gone.
        if self.line.phase.get() == Phase::Closing {
            self.line.go_to(Phase::Abandoned);
        }
        loop {
            match self.line.phase.get() {
                Phase::Closed | Phase::Ended => self.line.go_to(Phase::Wanted),
                // The attempt of a dropped call may have succeeded meanwhile.
                Phase::Connected => {
                    self.line.go_to(Phase::Open);
                    return Ok(());
                }
                Phase::Failed(kind) => {
                    self.line.go_to(Phase::Closed);
                    return Err(kind);
                }
                // Drops the connection that was open before.
                Phase::Open => self.line.go_to(Phase::Closing),
                here @ (Phase::Wanted | Phase::Closing | Phase::Abandoned) => {
                    self.line.until(|phase| phase != here).await;
                }
            }
        }
    }

    /// The session passes it on when the connection ends, because it has lent the socket to TLS until then.
    fn logged_in(&mut self) {
        // Once the session has ended the connection, it would take this for the login of the next one.
        if self.line.phase.get() == Phase::Open {
            self.line.is_logged_in.set(true);
        }
    }

    async fn close(&mut self) {
        match self.line.phase.get() {
            Phase::Wanted | Phase::Connected | Phase::Open => self.line.go_to(Phase::Closing),
            Phase::Failed(_) | Phase::Ended => self.line.go_to(Phase::Closed),
            Phase::Closed | Phase::Closing | Phase::Abandoned => {}
        }
        // If the radio is switched off now, the server does not learn that the connection has ended.
        let is_closed = |phase| phase != Phase::Closing && !self.line.is_closing.get();
        self.line.until(is_closed).await;
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

#[cfg(test)]
mod tests {
    use embassy_futures::block_on;

    use super::*;

    #[test]
    fn an_attempt_that_the_node_cancels_has_no_failure_of_an_earlier_one() {
        let mut line = TlsLine::<16>::new();
        let stream = line.start("server".into());
        stream.line.go_to(Phase::Wanted);
        stream.line.ended(TlsFailure::WrongTime);
        assert_eq!(stream.failure(), Some(TlsFailure::WrongTime));
        stream.line.go_to(Phase::Wanted);
        assert_eq!(stream.failure(), Some(TlsFailure::WrongTime));
        stream.line.go_to(Phase::Closing);
        stream.line.ended(TlsFailure::Ended);
        assert_eq!(stream.failure(), None);
    }

    #[test]
    fn a_connection_that_ends_before_the_node_looks_is_no_port_without_tls() {
        for (is_connected, kind) in [
            (false, ErrorKind::InvalidData),
            (true, ErrorKind::ConnectionAborted),
        ] {
            let mut line = TlsLine::<16>::new();
            let mut stream = line.start("server".into());
            stream.line.go_to(Phase::Wanted);
            if is_connected {
                stream.line.connected();
            }
            stream.line.ended(TlsFailure::Rejected);
            assert_eq!(block_on(stream.connect()), Err(kind));
            assert_eq!(stream.failure(), Some(TlsFailure::Rejected));
        }
    }
}
