//! The counters of the tasks.

use core::cell::Cell;

use semihosting::println;

#[derive(Default)]
pub(super) struct Tally {
    pub(super) acquired: Count,
    /// Attempts that found the lock held.
    pub(super) held: Count,
    /// Attempts that reached no quorum.
    pub(super) unreachable: Count,
    pub(super) extended: Count,
    pub(super) not_extended: Count,
    /// Leases that ended before their work.
    pub(super) outlived: Count,
}

impl Tally {
    pub(super) fn print(&self) {
        println!("acquired={}", self.acquired.0.get());
        println!("held={}", self.held.0.get());
        println!("unreachable={}", self.unreachable.0.get());
        println!("extended={}", self.extended.0.get());
        println!("not_extended={}", self.not_extended.0.get());
        println!("outlived={}", self.outlived.0.get());
    }
}

#[derive(Default)]
pub(super) struct Count(Cell<u32>);

impl Count {
    pub(super) fn add_one(&self) {
        self.0.set(self.0.get() + 1);
    }
}
