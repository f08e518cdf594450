//! A connection over any stack with `embedded_nal_async`.

use core::fmt;
use core::net::SocketAddr;

use embassy_futures::yield_now;
use embedded_io_async::{Error, ErrorKind, ErrorType, Read, Write};
use embedded_nal_async::TcpConnect;

use crate::{Connect, NodeName};

/// A connection over any stack that implements [`TcpConnect`]: modems with AT commands, edge-net, embassy-net's
/// `TcpClient`, the sockets of a host.
///
/// # What the stack decides
///
/// Whether two rules of [`Connect`] hold depends on the stack:
///
/// - *Reads and writes* that are dropped must lose no bytes (rule 1). The traits of `embedded-io-async` do not promise it, and
///   some drivers of modems lose what an interrupted command has read. Read the source of the driver, or ask its authors. If
///   bytes are lost, replies are invalid or missing, and the node reconnects after
///   [`patience`](crate::TcpNode::patience), with the loss of its votes until then. No lock is granted wrongly.
/// - *An attempt to connect* that is dropped begins anew (against rule 5). So a node is connected by itself only if connecting
///   takes less than a round. Otherwise call [`connect_all`](crate::connect_all) before the first acquire, and again after a
///   command has failed. If a majority of connections breaks during a lease, and connecting takes longer than a round, the
///   lease cannot be extended, and [`hold`](redlock_core::Redlock::hold) stops the work.
///
/// `close` sends `QUIT`, because some stacks do not tell the peer that a connection was dropped.
pub struct NalSocket<'a, S: TcpConnect> {
    stack: &'a S,
    remote: SocketAddr,
    connection: Option<S::Connection<'a>>,
    unsent_quit: &'static [u8],
}

const QUIT: &[u8] = b"*1\r\n$4\r\nQUIT\r\n";

impl<'a, S: TcpConnect> NalSocket<'a, S> {
    /// Creates a socket for the node at `remote`.
    pub const fn new(stack: &'a S, remote: SocketAddr) -> Self {
        Self {
            stack,
            remote,
            connection: None,
            unsent_quit: QUIT,
        }
    }

    /// Sends `QUIT` and waits until the node closes the connection.
    async fn quit(&mut self) -> Result<(), S::Error> {
        let Some(connection) = &mut self.connection else {
            return Ok(());
        };
        while !self.unsent_quit.is_empty() {
            let taken = connection.write(self.unsent_quit).await?;
            if taken == 0 {
                return Ok(());
            }
            self.unsent_quit = self.unsent_quit.get(taken..).unwrap_or_default();
        }
        connection.flush().await?;
        let mut rest = [0; 16];
        while connection.read(&mut rest).await? > 0 {
            // A node may go on sending: the caller has a limit for this, and other tasks have their turns.
            yield_now().await;
        }
        Ok(())
    }
}

impl<S: TcpConnect> Connect for NalSocket<'_, S> {
    fn name(&self) -> NodeName {
        self.remote.into()
    }

    async fn connect(&mut self) -> Result<(), ErrorKind> {
        self.connection = None;
        self.unsent_quit = QUIT;
        let connection = self.stack.connect(self.remote).await;
        self.connection = Some(connection.map_err(|error| error.kind())?);
        Ok(())
    }

    async fn close(&mut self) {
        // A broken connection needs no `QUIT`.
        drop(self.quit().await);
        self.connection = None;
    }
}

impl<S: TcpConnect> ErrorType for NalSocket<'_, S> {
    type Error = S::Error;
}

impl<S: TcpConnect> Read for NalSocket<'_, S> {
    async fn read(&mut self, buffer: &mut [u8]) -> Result<usize, S::Error> {
        match &mut self.connection {
            Some(connection) => connection.read(buffer).await,
            None => Ok(0),
        }
    }
}

impl<S: TcpConnect> Write for NalSocket<'_, S> {
    async fn write(&mut self, bytes: &[u8]) -> Result<usize, S::Error> {
        match &mut self.connection {
            Some(connection) => connection.write(bytes).await,
            None => Ok(0),
        }
    }

    async fn flush(&mut self) -> Result<(), S::Error> {
        match &mut self.connection {
            Some(connection) => connection.flush().await,
            None => Ok(()),
        }
    }
}

impl<S: TcpConnect> fmt::Debug for NalSocket<'_, S> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("NalSocket")
            .field("remote", &self.remote)
            .field("is_open", &self.connection.is_some())
            .finish_non_exhaustive()
    }
}
