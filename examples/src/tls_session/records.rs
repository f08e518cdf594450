//! The records of TLS, between the socket and embedded-tls.

use core::cell::Cell;

use embedded_io_async::{ErrorType, Read, Write};
use redlock_embassy::Connect;

/// The position of a connection in the stream of records.
pub(super) struct Place {
    /// Between two records: the future that reads can be dropped, and a new one starts with the next record.
    pub(super) is_between: Cell<bool>,
    /// The handshake is done: all further records must be encrypted.
    pub(super) is_sealed: Cell<bool>,
}

/// A socket that passes on TLS records. It keeps a partial header until the header is complete.
pub(super) struct Records<'a, S> {
    socket: &'a mut S,
    place: &'a Place,
    header: [u8; HEADER_LEN],
    /// How many bytes of the header are buffered and not passed on yet.
    held: usize,
    /// How many bytes of the record are not passed on yet, including its header. Zero between two records.
    left: usize,
}

const HEADER_LEN: usize = 5;

/// The type of a record that is encrypted.
const SEALED: u8 = 23;

impl<'a, S> Records<'a, S> {
    pub(super) const fn new(socket: &'a mut S, place: &'a Place) -> Self {
        Self {
            socket,
            place,
            header: [0; HEADER_LEN],
            held: 0,
            left: 0,
        }
    }
}

impl<S: Connect> ErrorType for Records<'_, S> {
    type Error = S::Error;
}

impl<S: Connect> Read for Records<'_, S> {
    async fn read(&mut self, buffer: &mut [u8]) -> Result<usize, S::Error> {
        if self.left == 0 {
            while self.held < HEADER_LEN {
                let count = self.socket.read(&mut self.header[self.held..]).await?;
                if count == 0 {
                    return Ok(0);
                }
                self.held += count;
            }
            let [kind, _, _, length @ ..] = self.header;
            // An unencrypted record is forged, and some of these make embedded-tls panic.
            if self.place.is_sealed.get() && kind != SEALED {
                return Ok(0);
            }
            self.left = HEADER_LEN + usize::from(u16::from_be_bytes(length));
        }
        let count = if self.held > 0 {
            let header = &self.header[HEADER_LEN - self.held..];
            let count = header.len().min(buffer.len());
            buffer[..count].copy_from_slice(&header[..count]);
            self.held -= count;
            count
        } else {
            let room = buffer.len().min(self.left);
            self.socket.read(&mut buffer[..room]).await?
        };
        self.left -= count;
        self.place.is_between.set(self.left == 0);
        Ok(count)
    }
}

impl<S: Connect> Write for Records<'_, S> {
    async fn write(&mut self, bytes: &[u8]) -> Result<usize, S::Error> {
        self.socket.write(bytes).await
    }

    async fn flush(&mut self) -> Result<(), S::Error> {
        self.socket.flush().await
    }
}
