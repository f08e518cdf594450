//! The decoder of a connection with a mailbox, given whatever a node may send, cut wherever the network may cut it.
//!
//! The first four bytes of an input say how long the pieces are, the rest is what the node sends.

#![no_main]

mod pieces;

use libfuzzer_sys::fuzz_target;
use redlock_core::transport::Call;
use redlock_embassy::resp::Malformed;
use redlock_embassy::resp3::{Decoder, Event};

use pieces::pieces;

fuzz_target!(|data: &[u8]| {
    let (sizes, bytes) = data.split_at(data.len().min(4));
    let whole = decode([bytes]);
    assert_eq!(decode(bytes.chunks(1)), whole, "byte by byte");
    assert_eq!(decode(pieces(bytes, sizes)), whole, "in pieces");
    for (_, payload) in &whole.0 {
        assert!(payload.len() <= KEPT, "more is kept than a call may have");
        let _call = Call::read(payload);
    }
});

/// How many bytes of a message are kept.
const KEPT: usize = 65;

type Events = Vec<(Event, Vec<u8>)>;

/// What the decoder makes of `pieces`: the events with the payloads of messages, and how it ends.
fn decode<'a>(pieces: impl IntoIterator<Item = &'a [u8]>) -> (Events, Result<(), Malformed>) {
    let mut decoder = Decoder::new();
    let mut events = Vec::new();
    for mut piece in pieces {
        while !piece.is_empty() {
            let before = piece.len();
            let decoded = decoder.decode(&mut piece);
            assert!(piece.len() < before, "it goes on");
            match decoded {
                Ok(Some(event)) => {
                    let payload = match event {
                        Event::Message => decoder.message().as_bytes().to_vec(),
                        _ => Vec::new(),
                    };
                    events.push((event, payload));
                }
                Ok(None) => assert!(piece.is_empty(), "all is taken"),
                Err(malformed) => return (events, Err(malformed)),
            }
        }
    }
    (events, Ok(()))
}
