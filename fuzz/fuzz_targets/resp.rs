//! The decoder, given whatever a node may send, cut wherever the network may cut it.
//!
//! The first four bytes of an input say how long the pieces are, the rest is what the node sends.

#![no_main]

mod pieces;

use libfuzzer_sys::fuzz_target;
use redlock_embassy::resp::{Decoder, Malformed, REPLY_MAX, Rejection, Value};

use pieces::pieces;

fuzz_target!(|data: &[u8]| {
    let (sizes, bytes) = data.split_at(data.len().min(4));
    let whole = decode([bytes]);
    assert_eq!(decode(bytes.chunks(1)), whole, "byte by byte");
    assert_eq!(decode(pieces(bytes, sizes)), whole, "in pieces");
    for value in &whole.0 {
        if let Value::Error(rejection) = value {
            assert_printable(rejection);
        }
    }
});

/// What the decoder makes of `pieces`: the values and how it ends.
fn decode<'a>(pieces: impl IntoIterator<Item = &'a [u8]>) -> (Vec<Value>, Result<(), Malformed>) {
    let mut decoder = Decoder::new();
    let mut values = Vec::new();
    let mut since_value = 0;
    for mut piece in pieces {
        while !piece.is_empty() {
            let before = piece.len();
            let decoded = decoder.decode(&mut piece);
            let taken = before - piece.len();
            assert!(taken > 0, "it goes on");
            since_value += taken;
            match decoded {
                Ok(Some(value)) => {
                    assert!(since_value <= usize::from(REPLY_MAX));
                    values.push(value);
                    since_value = 0;
                }
                Ok(None) => {
                    assert!(since_value <= usize::from(REPLY_MAX));
                    assert!(piece.is_empty(), "all is taken");
                }
                Err(malformed) => return (values, Err(malformed)),
            }
        }
    }
    (values, Ok(()))
}

fn assert_printable(rejection: &Rejection) {
    let shown = rejection.to_string();
    assert!(shown.bytes().all(|byte| (b' '..=b'~').contains(&byte)));
    assert!(shown.len() <= Rejection::LEN + 2);
    assert!(rejection.as_bytes().starts_with(rejection.code()));
}
