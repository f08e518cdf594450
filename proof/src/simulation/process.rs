//! A client's process: the same clock and the same connections for all its tasks, and pauses at any point.

use super::clock::{Moment, Ticker};

#[derive(Debug)]
pub(crate) struct Process {
    pub(super) clock: Ticker,
    /// It is not run before this moment; within a poll, the moment at which it is.
    pub(super) free_at: Moment,
    /// Of being paused when one of its tasks is woken: one in so many.
    pub(super) pause_odds: u64,
    /// Of being paused where a poll touches a connection: one in so many.
    pub(super) stall_odds: u64,
}
