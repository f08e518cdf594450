//! What comes back.

/// The few forms in which a node answers.
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
