//! The telemetry of nodes without the features `metrics` and `tracing`: there is none.
//!
//! The items in `enabled.rs` must have the same signatures.

use crate::node::error::TransportError;

pub(crate) type NodeObserver = ();

#[derive(Debug)]
pub(crate) struct Presence;

impl Presence {
    pub(crate) const fn new(_name: &str) -> Self {
        Self
    }

    pub(crate) const fn up(&self, _name: &str) {}

    pub(crate) const fn not_connected(&self, _name: &str, _error: &TransportError) {}

    pub(crate) const fn closed(&self, _was_up: bool) {}

    pub(crate) const fn down(&self, _name: &str, _error: &TransportError) {}
}
