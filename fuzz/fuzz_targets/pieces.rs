//! What arrives, cut anywhere.

/// `bytes` in pieces of 1 to 16 bytes, as `sizes` say, over and over.
pub(crate) fn pieces<'a>(mut bytes: &'a [u8], sizes: &'a [u8]) -> impl Iterator<Item = &'a [u8]> {
    let mut sizes = sizes.iter().cycle();
    std::iter::from_fn(move || {
        let size = 1 + usize::from(sizes.next()? % 16);
        let (piece, rest) = bytes.split_at(size.min(bytes.len()));
        bytes = rest;
        (!piece.is_empty()).then_some(piece)
    })
}
