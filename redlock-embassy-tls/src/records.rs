//! The records of TLS, between the socket and embedded-tls.

use core::cell::Cell;
use core::ops::RangeInclusive;

use embassy_futures::yield_now;
use embedded_io_async::{ErrorType, Read, Write};
use redlock_embassy::Connect;

/// The position of a connection in the stream of records.
pub(crate) struct Place {
    /// Between two records: the future that reads can be dropped, and a new one starts with the next record.
    pub(crate) is_between: Cell<bool>,
    /// Which records may be in the clear.
    pub(crate) phase: Cell<Phase>,
    /// The server has sent a record that is no valid one. It was not passed on.
    pub(crate) is_broken: Cell<bool>,
    /// The length of the last encrypted record.
    pub(crate) last: Cell<u16>,
}

/// What a server may still send in the clear. Records in the clear are forged easily, and some of them make embedded-tls panic.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Phase {
    /// Its hello, or an alert.
    Hello,
    /// An empty record for old firewalls, or an alert.
    Handshake,
    /// Nothing.
    Open,
}

impl Place {
    pub(crate) const fn new() -> Self {
        Self {
            is_between: Cell::new(true),
            phase: Cell::new(Phase::Hello),
            is_broken: Cell::new(false),
            last: Cell::new(0),
        }
    }

    /// Whether a record of this kind and length may come now.
    fn admits(&self, kind: u8, len: u16) -> bool {
        match (kind, self.phase.get()) {
            (SEALED, _) => {
                self.last.set(len);
                SEALED_LENS.contains(&len)
            }
            (HANDSHAKE, Phase::Hello) => {
                self.phase.set(Phase::Handshake);
                true
            }
            (ALERT | CHANGE_CIPHER_SPEC, Phase::Hello | Phase::Handshake) => true,
            _ => false,
        }
    }
}

/// A socket that passes on TLS records. It keeps a partial header until the header is complete.
pub(crate) struct Records<'a, S> {
    socket: &'a mut S,
    place: &'a Place,
    header: [u8; HEADER_LEN],
    /// How many bytes of the header are buffered and not passed on yet.
    held: usize,
    /// How many bytes of the record are not passed on yet, including its header. Zero between two records.
    left: usize,
}

const HEADER_LEN: usize = 5;

/// The types of records. All that is encrypted has the last one.
const CHANGE_CIPHER_SPEC: u8 = 20;
const ALERT: u8 = 21;
const HANDSHAKE: u8 = 22;
const SEALED: u8 = 23;

/// How long an encrypted record may be. It has at least its inner type, without which embedded-tls panics, and 16 bytes that
/// authenticate it.
const SEALED_LENS: RangeInclusive<u16> = 17..=16_384 + 256;

impl<'a, S> Records<'a, S> {
    pub(crate) const fn new(socket: &'a mut S, place: &'a Place) -> Self {
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
            // Between two computations, each of which takes long. And a server may send empty records without end, which embedded-tls
            // passes over.
            yield_now().await;
            while self.held < HEADER_LEN {
                let count = self.socket.read(&mut self.header[self.held..]).await?;
                if count == 0 {
                    return Ok(0);
                }
                self.held += count;
            }
            let [kind, _, _, len @ ..] = self.header;
            let len = u16::from_be_bytes(len);
            if !self.place.admits(kind, len) {
                self.place.is_broken.set(true);
                return Ok(0);
            }
            self.left = HEADER_LEN + usize::from(len);
        }
        let count = if self.held > 0 {
            // `get`, so that there is no code for a panic.
            let start = HEADER_LEN.saturating_sub(self.held);
            let header = self.header.get(start..).unwrap_or_default();
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

#[cfg(test)]
mod tests {
    extern crate std;

    use core::pin::pin;
    use core::task::{Context, Waker};
    use std::vec::Vec;

    use embassy_futures::block_on;
    use embedded_io_async::ErrorKind;
    use redlock_embassy::NodeName;

    use super::*;

    const HELLO: (u8, u16) = (HANDSHAKE, 90);
    const FILLER: (u8, u16) = (CHANGE_CIPHER_SPEC, 1);

    #[test]
    fn only_the_first_message_of_a_handshake_may_be_in_the_clear() {
        let cases: [(&[_], _); 11] = [
            (&[HELLO, FILLER, (SEALED, 17), (SEALED, 16_640)], 4),
            (&[(ALERT, 2)], 1),
            (&[HELLO, HELLO], 1),
            (&[HELLO, (ALERT, 2)], 2),
            (&[HELLO, (SEALED, 16)], 1),
            (&[HELLO, (SEALED, 0)], 1),
            (&[HELLO, (SEALED, 16_641)], 1),
            (&[HELLO, (SEALED, u16::MAX)], 1),
            (&[(b'-', 0x5252)], 0),
            (&[(24, 1)], 0),
            (&[(0, 0)], 0),
        ];
        for (records, passed) in cases {
            assert_eq!(pass(records, &Place::new()), passed, "{records:?}");
        }
    }

    #[test]
    fn after_the_handshake_nothing_may_be_in_the_clear() {
        for record in [HELLO, FILLER, (ALERT, 2), (24, 1)] {
            let place = Place::new();
            place.phase.set(Phase::Open);
            assert_eq!(pass(&[(SEALED, 40), record], &place), 1, "{record:?}");
            assert!(place.is_broken.get());
        }
    }

    #[test]
    fn a_record_that_is_cut_off_anywhere_is_the_end() {
        let whole = bytes(&[HELLO, (SEALED, 17)]);
        for len in 0..whole.len() {
            let place = Place::new();
            let mut socket = Socket(&whole[..len]);
            let mut records = Records::new(&mut socket, &place);
            let mut passed = Vec::new();
            let mut byte = [0];
            while block_on(records.read(&mut byte)).unwrap() > 0 {
                passed.extend(byte);
            }
            assert_eq!(passed, whole[..passed.len()]);
            assert!(len - passed.len() < HEADER_LEN, "of {len}");
            assert!(!place.is_broken.get());
        }
    }

    #[test]
    fn the_other_tasks_have_a_turn_before_each_record() {
        for phase in [Phase::Hello, Phase::Open] {
            let place = Place::new();
            place.phase.set(phase);
            let bytes = bytes(&[(SEALED, 17); 5]);
            let mut socket = Socket(&bytes);
            let mut records = Records::new(&mut socket, &place);
            let mut reading =
                pin!(async { while records.read(&mut [0; 100]).await.unwrap() > 0 {} });
            let mut polls = 1;
            let mut context = Context::from_waker(Waker::noop());
            while reading.as_mut().poll(&mut context).is_pending() {
                polls += 1;
            }
            assert!(polls > 5, "{polls}, {phase:?}");
        }
    }

    /// How many of the records are passed on whole.
    fn pass(all: &[(u8, u16)], place: &Place) -> usize {
        let bytes = bytes(all);
        let mut socket = Socket(&bytes);
        let mut records = Records::new(&mut socket, place);
        let mut passed = 0;
        while block_on(records.read(&mut [0; 100])).unwrap() > 0 {
            passed += usize::from(place.is_between.get());
        }
        passed
    }

    fn bytes(records: &[(u8, u16)]) -> Vec<u8> {
        let mut bytes = Vec::new();
        for (kind, len) in records {
            bytes.extend([*kind, 3, 3]);
            bytes.extend(len.to_be_bytes());
            bytes.resize(bytes.len() + usize::from(*len), 0);
        }
        bytes
    }

    struct Socket<'a>(&'a [u8]);

    impl ErrorType for Socket<'_> {
        type Error = ErrorKind;
    }

    impl Read for Socket<'_> {
        async fn read(&mut self, buffer: &mut [u8]) -> Result<usize, ErrorKind> {
            Ok(self.0.read(buffer).await.unwrap())
        }
    }

    impl Write for Socket<'_> {
        async fn write(&mut self, bytes: &[u8]) -> Result<usize, ErrorKind> {
            Ok(bytes.len())
        }

        async fn flush(&mut self) -> Result<(), ErrorKind> {
            Ok(())
        }
    }

    impl Connect for Socket<'_> {
        fn name(&self) -> NodeName {
            "server".into()
        }

        async fn connect(&mut self) -> Result<(), ErrorKind> {
            Ok(())
        }

        async fn close(&mut self) {}
    }
}
