//! A network that hands over one byte at a time, after a pause.

use embedded_io_async::{ErrorKind, ErrorType, Read, Write};
use redlock_embassy::{Connect, NodeName};

#[derive(Debug)]
pub(crate) struct Dribble<S> {
    stream: S,
    has_paused: bool,
}

impl<S> Dribble<S> {
    pub(crate) const fn new(stream: S) -> Self {
        Self {
            stream,
            has_paused: false,
        }
    }

    /// A pause before every byte, for every caller.
    async fn pause(&mut self) {
        if !std::mem::replace(&mut self.has_paused, true) {
            tokio::task::yield_now().await;
        }
        self.has_paused = false;
    }
}

impl<S: Connect> Connect for Dribble<S> {
    fn name(&self) -> NodeName {
        self.stream.name()
    }

    async fn connect(&mut self) -> Result<(), ErrorKind> {
        self.stream.connect().await
    }

    fn logged_in(&mut self) {
        self.stream.logged_in();
    }

    async fn close(&mut self) {
        self.stream.close().await;
    }
}

impl<S: Connect> ErrorType for Dribble<S> {
    type Error = S::Error;
}

impl<S: Connect> Read for Dribble<S> {
    async fn read(&mut self, buffer: &mut [u8]) -> Result<usize, S::Error> {
        self.pause().await;
        self.stream.read(&mut buffer[..1]).await
    }
}

impl<S: Connect> Write for Dribble<S> {
    async fn write(&mut self, bytes: &[u8]) -> Result<usize, S::Error> {
        self.pause().await;
        self.stream.write(&bytes[..1]).await
    }

    async fn flush(&mut self) -> Result<(), S::Error> {
        self.pause().await;
        self.stream.flush().await
    }
}
