//! The answer of a node.

/// A parsed Redis answer: the few forms that occur.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
#[cfg_attr(feature = "defmt", derive(defmt::Format))]
#[non_exhaustive]
pub enum Answer {
    /// The status `OK`.
    Ok,
    /// Nothing: a null.
    Nil,
    /// A number.
    Integer(i64),
    /// An array of four numbers.
    Integers([i64; 4]),
}
