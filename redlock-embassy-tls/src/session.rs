//! The task that keeps the TLS session of a node.

use core::convert::Infallible;
use core::fmt;
use core::future::poll_fn;
use core::pin::pin;
use core::task::Poll;

use embassy_futures::select::{Either, select};
use embassy_futures::yield_now;
use embedded_io_async::{BufRead, Write};
use embedded_tls::{MaxFragmentLength, TLS_RECORD_OVERHEAD, TlsConfig, TlsConnection, TlsContext};
use redlock_embassy::{Connect, Entropy};

use crate::line::{TlsLine, TlsStream};
use crate::log::warning;
use crate::provider::Provider;
use crate::records::{Phase, Place, Records};
use crate::{TlsFailure, TlsOptions};

/// A good length for the read buffer of a session: 2,304 bytes, for records of 2,048 bytes.
pub const READ_BUFFER: usize = 2_048 + EXPANSION_MAX;

/// A good length for the write buffer of a session: 512 bytes, or 1,024 for a device with a certificate.
pub const WRITE_BUFFER: usize = if cfg!(feature = "client-certificate") {
    1_024
} else {
    512
};

/// By how much encryption may make a record longer.
const EXPANSION_MAX: usize = 256;

impl<const N: usize> TlsLine<N> {
    /// Returns the node's side of the line, and the side of the task that runs the session.
    ///
    /// The certificates that the server shows must fit into `read_buffer`, and the first message of the handshake into
    /// `write_buffer`, and the certificate of the device, if it has one: [`READ_BUFFER`] and [`WRITE_BUFFER`] are enough for most. The
    /// length of `read_buffer` limits the records of both sides, so a certificate of the device must fit into it too.
    pub fn split<'a, S: Connect, E: Entropy>(
        &'a mut self,
        socket: S,
        options: TlsOptions<'a>,
        entropy: E,
        read_buffer: &'a mut [u8],
        write_buffer: &'a mut [u8],
    ) -> (TlsStream<'a, N>, TlsSession<'a, S, E, N>) {
        let stream = self.start(socket.name());
        let session = TlsSession {
            line: stream.line,
            socket,
            options,
            entropy,
            read_buffer,
            write_buffer,
        };
        (stream, session)
    }
}

/// The task's side of a [`TlsLine`]. The task [runs](Self::run) the TLS session.
pub struct TlsSession<'a, S, E, const N: usize = 256> {
    line: &'a TlsLine<N>,
    socket: S,
    options: TlsOptions<'a>,
    entropy: E,
    read_buffer: &'a mut [u8],
    write_buffer: &'a mut [u8],
}

impl<S: Connect, E: Entropy, const N: usize> TlsSession<'_, S, E, N> {
    /// Connects when the node wants a connection, and forwards bytes until the connection ends.
    ///
    /// It has no timeouts: the node has them, and closes the connection. If no task runs this, the node never connects. Dropping the
    /// future ends the connection, of which the node learns by its timeouts; to connect again, run it again.
    pub async fn run(&mut self) -> ! {
        let line = self.line;
        // If an earlier call was dropped while it closed the socket, the node would wait for it.
        line.closed();
        loop {
            line.wanted().await;
            let served = select(line.canceled(), self.serve()).await;
            if line.take_login() {
                self.socket.logged_in();
            }
            match served {
                Either::First(()) => {
                    select(self.socket.close(), line.abandoned()).await;
                    line.ended(TlsFailure::Ended);
                }
                Either::Second(Err(failure)) => {
                    warning!("{}: {}", self.socket.name(), failure.text());
                    // Before the close, which takes as long as the host is gone: its address may be unknown by now.
                    line.closing(failure);
                    select(self.socket.close(), line.abandoned()).await;
                    line.closed();
                }
            }
        }
    }

    /// Runs one connection from its start to its end.
    async fn serve(&mut self) -> Result<Infallible, TlsFailure> {
        let connected = self.socket.connect().await;
        self.line.rename(self.socket.name());
        connected.map_err(TlsFailure::Connection)?;
        let place = Place::new();
        let served = self.serve_tls(&place).await;
        match place.is_broken.get() {
            true => Err(TlsFailure::NotTls),
            false => served,
        }
    }

    async fn serve_tls(&mut self, place: &Place) -> Result<Infallible, TlsFailure> {
        let mut config = TlsConfig::new();
        if let Some(name) = self.options.told {
            config = config.with_server_name(name);
        }
        let (length, content_max) = record_length(self.read_buffer.len());
        if let Some(length) = length {
            config = config.with_max_fragment_length(length);
        }
        // embedded-tls panics if there is no room for a byte.
        if self.write_buffer.len() <= TLS_RECORD_OVERHEAD {
            return Err(TlsFailure::TooLong);
        }
        // The length that was agreed on holds for our records too.
        let writing_max = usize::from(RECORD_HEADER + content_max + SEAL);
        let writing = writing_max.min(self.write_buffer.len());
        let write_buffer = self.write_buffer.get_mut(..writing).unwrap_or_default();
        let records = Records::new(&mut self.socket, place);
        let mut tls = TlsConnection::new(records, self.read_buffer, write_buffer);
        let mut provider = Provider::new(&self.options, &mut self.entropy);
        let opened = tls.open(TlsContext::new(&config, &mut provider)).await;
        let told = |failure| match failure {
            // The server has divided a message among two records, and embedded-tls reads no message in parts: its certificates, or a
            // ticket, which holds the certificate of the device.
            TlsFailure::NotTls if place.last.get() >= content_max + SEAL => TlsFailure::TooLong,
            failure => failure,
        };
        provider.conclude(opened).map_err(told)?;
        place.phase.set(Phase::Open);
        self.line.connected();
        let TlsLine {
            to_server, to_node, ..
        } = self.line;
        let mut command = [0; 64];
        loop {
            let reply = async {
                let bytes = tls.fill_buf().await;
                let bytes = bytes.map_err(|error| told(TlsFailure::of(error)))?;
                Ok(to_node.write(bytes).await)
            };
            // In the middle of a record, the future that reads must not be dropped.
            let sending = poll_fn(|cx| match place.is_between.get() {
                true => pin!(to_server.read(&mut command)).poll(cx),
                false => Poll::Pending,
            });
            match select(reply, sending).await {
                Either::First(count) => {
                    tls.consume(count?);
                    // Replies without end must not keep the other tasks waiting.
                    yield_now().await;
                }
                Either::Second(mut count) => {
                    // All that waits is sent in one record, if it fits.
                    while count > 0 {
                        // `get`, so that there is no code for a panic.
                        let piece = command.get(..count).unwrap_or_default();
                        let sent = tls.write_all(piece).await;
                        sent.map_err(TlsFailure::of)?;
                        count = to_server.try_read(&mut command).unwrap_or(0);
                    }
                    tls.flush().await.map_err(TlsFailure::of)?;
                }
            }
        }
    }
}

/// The longest record that the server may send, so that each fits into a buffer of `len` bytes, and the longest content of one. `None`
/// if any does.
const fn record_length(len: usize) -> (Option<MaxFragmentLength>, u16) {
    const WHOLE: usize = 16_384 + EXPANSION_MAX;
    const BITS_12: usize = 4_096 + EXPANSION_MAX;
    const BITS_11: usize = 2_048 + EXPANSION_MAX;
    const BITS_10: usize = 1_024 + EXPANSION_MAX;

    match len {
        WHOLE.. => (None, 16_384),
        BITS_12.. => (Some(MaxFragmentLength::Bits12), 4_096),
        BITS_11.. => (Some(MaxFragmentLength::Bits11), 2_048),
        BITS_10.. => (Some(MaxFragmentLength::Bits10), 1_024),
        _ => (Some(MaxFragmentLength::Bits9), 512),
    }
}

/// What comes before the content of a record.
const RECORD_HEADER: u16 = 5;

/// By how many bytes an encrypted record is longer than its content: its type, and what authenticates it.
const SEAL: u16 = 1 + 16;

impl<S: Connect, E, const N: usize> fmt::Debug for TlsSession<'_, S, E, N> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("TlsSession")
            .field("name", &self.socket.name())
            .field("line", &self.line)
            .finish_non_exhaustive()
    }
}

#[cfg(test)]
mod tests {
    use core::cell::Cell;
    use core::future::pending;
    use core::pin::Pin;
    use core::task::{Context, Waker};

    use embedded_io_async::{ErrorKind, ErrorType, Read, Write};
    use redlock_embassy::NodeName;

    use super::*;

    /// A host that is gone: it cannot be connected, and a reset cannot be sent to it.
    struct Gone<'a>(&'a Cell<u32>);

    /// A host that accepts connections and says nothing. It counts the connections, and the logins that were accepted.
    struct Mute<'a>(&'a Cell<(u32, u32)>);

    impl ErrorType for Mute<'_> {
        type Error = ErrorKind;
    }

    impl Read for Mute<'_> {
        async fn read(&mut self, _buffer: &mut [u8]) -> Result<usize, ErrorKind> {
            pending().await
        }
    }

    impl Write for Mute<'_> {
        async fn write(&mut self, bytes: &[u8]) -> Result<usize, ErrorKind> {
            Ok(bytes.len())
        }

        async fn flush(&mut self) -> Result<(), ErrorKind> {
            Ok(())
        }
    }

    impl Connect for Mute<'_> {
        fn name(&self) -> NodeName {
            "mute".into()
        }

        async fn connect(&mut self) -> Result<(), ErrorKind> {
            let (connections, logins) = self.0.get();
            self.0.set((connections + 1, logins));
            Ok(())
        }

        fn logged_in(&mut self) {
            let (connections, logins) = self.0.get();
            self.0.set((connections, logins + 1));
        }

        async fn close(&mut self) {}
    }

    impl ErrorType for Gone<'_> {
        type Error = ErrorKind;
    }

    impl Read for Gone<'_> {
        async fn read(&mut self, _buffer: &mut [u8]) -> Result<usize, ErrorKind> {
            pending().await
        }
    }

    impl Write for Gone<'_> {
        async fn write(&mut self, _bytes: &[u8]) -> Result<usize, ErrorKind> {
            pending().await
        }

        async fn flush(&mut self) -> Result<(), ErrorKind> {
            pending().await
        }
    }

    impl Connect for Gone<'_> {
        fn name(&self) -> NodeName {
            "gone".into()
        }

        async fn connect(&mut self) -> Result<(), ErrorKind> {
            self.0.set(self.0.get() + 1);
            pending().await
        }

        async fn close(&mut self) {
            pending::<()>().await;
        }
    }

    /// A host that ends each connection in the handshake, and is gone then: a reset cannot be sent to it. It counts the connections.
    struct Leaving<'a>(&'a Cell<u32>);

    impl ErrorType for Leaving<'_> {
        type Error = ErrorKind;
    }

    impl Read for Leaving<'_> {
        async fn read(&mut self, _buffer: &mut [u8]) -> Result<usize, ErrorKind> {
            Err(ErrorKind::ConnectionReset)
        }
    }

    impl Write for Leaving<'_> {
        async fn write(&mut self, bytes: &[u8]) -> Result<usize, ErrorKind> {
            Ok(bytes.len())
        }

        async fn flush(&mut self) -> Result<(), ErrorKind> {
            Ok(())
        }
    }

    impl Connect for Leaving<'_> {
        fn name(&self) -> NodeName {
            "leaving".into()
        }

        async fn connect(&mut self) -> Result<(), ErrorKind> {
            self.0.set(self.0.get() + 1);
            Ok(())
        }

        async fn close(&mut self) {
            pending::<()>().await;
        }
    }

    fn poll<F: Future>(future: Pin<&mut F>) -> Poll<F::Output> {
        future.poll(&mut Context::from_waker(Waker::noop()))
    }

    /// Runs a test with both sides of a line. The random bytes are the same each time, and a key.
    fn with_session<S: Connect>(
        socket: S,
        test: impl FnOnce(TlsStream<'_, 16>, TlsSession<'_, S, fn(&mut [u8]), 16>),
    ) {
        let random: fn(&mut [u8]) =
            |bytes| bytes.iter_mut().zip(1..).for_each(|(to, byte)| *to = byte);
        let mut line = TlsLine::new();
        let options = TlsOptions::new(include_bytes!("ca.der"), "server").unwrap();
        let (mut read_buffer, mut write_buffer) = ([0; READ_BUFFER], [0; WRITE_BUFFER]);
        let (stream, session) =
            line.split(socket, options, random, &mut read_buffer, &mut write_buffer);
        test(stream, session);
    }

    #[test]
    fn a_connection_that_cannot_be_closed_keeps_the_node_from_no_other_one() {
        let attempts = Cell::new(0);
        with_session(Gone(&attempts), |mut stream, mut session| {
            let mut session = pin!(session.run());
            for attempt in 1..=3 {
                // As a node does whose timeouts pass: neither call ends.
                for _ in 0..3 {
                    assert!(poll(pin!(stream.connect())).is_pending());
                    assert!(poll(session.as_mut()).is_pending());
                }
                assert_eq!(attempts.get(), attempt);
                assert!(poll(pin!(stream.close())).is_pending());
                assert!(poll(session.as_mut()).is_pending());
            }
        });
    }

    #[test]
    fn a_node_learns_of_the_end_of_a_connection_although_its_close_takes_for_ever() {
        let connections = Cell::new(0);
        with_session(Leaving(&connections), |mut stream, mut session| {
            let mut session = pin!(session.run());
            let reset = ErrorKind::ConnectionReset;
            for connection in 1..=3 {
                assert!(poll(pin!(stream.connect())).is_pending());
                // It yields before each record.
                for _ in 0..3 {
                    assert!(poll(session.as_mut()).is_pending());
                }
                assert_eq!(poll(pin!(stream.connect())), Poll::Ready(Err(reset)));
                assert_eq!(stream.failure(), Some(TlsFailure::Connection(reset)));
                assert_eq!(connections.get(), connection);
                // As a node does whose timeouts pass.
                assert!(poll(pin!(stream.connect())).is_pending());
                assert!(poll(session.as_mut()).is_pending());
                assert!(poll(pin!(stream.close())).is_pending());
                assert!(poll(pin!(stream.connect())).is_pending());
                assert!(poll(session.as_mut()).is_pending());
            }
        });
    }

    #[test]
    fn a_node_has_not_closed_a_connection_before_the_socket_is_closed_that_the_session_ended() {
        let connections = Cell::new(0);
        with_session(Leaving(&connections), |mut stream, mut session| {
            let mut session = pin!(session.run());
            assert!(poll(pin!(stream.connect())).is_pending());
            for _ in 0..3 {
                assert!(poll(session.as_mut()).is_pending());
            }
            {
                // Not even if the node asks again.
                let mut close = pin!(stream.close());
                assert!(poll(close.as_mut()).is_pending());
                assert!(poll(session.as_mut()).is_pending());
                assert!(poll(close.as_mut()).is_pending());
            }
            assert!(poll(pin!(stream.close())).is_pending());
            // Its reset is sent.
            stream.line.closed();
            assert_eq!(poll(pin!(stream.close())), Poll::Ready(()));
        });
    }

    #[test]
    fn a_session_that_was_dropped_while_it_closed_its_socket_can_be_run_again() {
        let connections = Cell::new(0);
        with_session(Leaving(&connections), |mut stream, mut session| {
            assert!(poll(pin!(stream.connect())).is_pending());
            {
                let mut run = pin!(session.run());
                for _ in 0..3 {
                    assert!(poll(run.as_mut()).is_pending());
                }
            }
            let mut run = pin!(session.run());
            assert!(poll(run.as_mut()).is_pending());
            assert_eq!(poll(pin!(stream.close())), Poll::Ready(()));
        });
    }

    #[test]
    fn a_login_that_the_node_has_accepted_is_passed_on_to_the_socket_once_and_before_its_next_connection()
     {
        let counts = Cell::new((0, 0));
        with_session(Mute(&counts), |mut stream, mut session| {
            let mut session = pin!(session.run());
            let mut logins = 0;
            for (connection, is_accepted) in [(1, false), (2, true), (3, false), (4, true)] {
                assert!(poll(pin!(stream.connect())).is_pending());
                assert!(poll(session.as_mut()).is_pending());
                // As after a handshake.
                stream.line.connected();
                assert_eq!(poll(pin!(stream.connect())), Poll::Ready(Ok(())));
                assert_eq!(counts.get(), (connection, logins));
                if is_accepted {
                    stream.logged_in();
                    logins += 1;
                }
                assert!(poll(pin!(stream.close())).is_pending());
                // It is no login of the next connection.
                stream.logged_in();
                assert!(poll(session.as_mut()).is_pending());
                assert_eq!(counts.get(), (connection, logins));
                assert_eq!(poll(pin!(stream.close())), Poll::Ready(()));
            }
        });
    }
}
