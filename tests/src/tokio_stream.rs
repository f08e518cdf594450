//! A TCP connection of this host, as a microcontroller's node takes it.

use std::net::SocketAddr;

use embedded_io_adapters::tokio_1::FromTokio;
use embedded_io_async::{ErrorKind, ErrorType, Read, Write};
use redlock_embassy::{Connect, NodeName};
use tokio::net::TcpStream;

/// Connects with tokio.
pub struct TokioStream {
    remote: SocketAddr,
    stream: Option<FromTokio<TcpStream>>,
}

impl TokioStream {
    /// A stream to `remote`, not connected yet.
    #[must_use]
    pub const fn new(remote: SocketAddr) -> Self {
        Self {
            remote,
            stream: None,
        }
    }
}

impl Connect for TokioStream {
    fn name(&self) -> NodeName {
        self.remote.into()
    }

    async fn connect(&mut self) -> Result<(), ErrorKind> {
        self.stream = None;
        let stream = TcpStream::connect(self.remote).await;
        let stream = stream.map_err(|error| error.kind())?;
        stream.set_nodelay(true).map_err(|error| error.kind())?;
        self.stream = Some(FromTokio::new(stream));
        Ok(())
    }

    async fn close(&mut self) {
        // The operating system tells the peer.
        self.stream = None;
    }
}

impl ErrorType for TokioStream {
    type Error = std::io::Error;
}

impl Read for TokioStream {
    async fn read(&mut self, buffer: &mut [u8]) -> std::io::Result<usize> {
        match &mut self.stream {
            Some(stream) => stream.read(buffer).await,
            None => Ok(0),
        }
    }
}

impl Write for TokioStream {
    async fn write(&mut self, bytes: &[u8]) -> std::io::Result<usize> {
        match &mut self.stream {
            Some(stream) => stream.write(bytes).await,
            None => Ok(0),
        }
    }

    async fn flush(&mut self) -> std::io::Result<()> {
        match &mut self.stream {
            Some(stream) => stream.flush().await,
            None => Ok(()),
        }
    }
}

impl std::fmt::Debug for TokioStream {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("TokioStream")
            .field("remote", &self.remote)
            .field("is_open", &self.stream.is_some())
            .finish()
    }
}
