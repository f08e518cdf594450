//! How long a trial takes.

/// How much of it.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Length {
    Short,
    Full,
    Long,
}
