//! Keys, and where tokens go and stand.

/// The names of the keys, by their number.
pub(crate) const KEYS: [&str; 3] = ["dock-0", "dock-1", "dock-2"];

/// From a client to a node.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct Route {
    pub(crate) client: usize,
    pub(crate) node: usize,
}

/// A place for a token.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) struct Place {
    pub(crate) node: usize,
    pub(crate) key: usize,
}
