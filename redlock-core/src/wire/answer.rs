//! The answer of a node.

/// A parsed Redis answer. These few forms are all that occur.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
#[cfg_attr(feature = "defmt", derive(defmt::Format))]
#[non_exhaustive]
pub enum Answer {
    /// The status `OK`.
    Ok,
    /// A null.
    Nil,
    /// A number.
    Integer(i64),
    /// An array of four numbers.
    Integers([i64; 4]),
}
