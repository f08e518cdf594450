//! The service under the faults of its nodes: the same tests in memory, where they take milliseconds, and on real servers; a writer
//! that is late, and how the service ends.

#![expect(
    clippy::unwrap_used,
    clippy::expect_used,
    reason = "what fails here fails a test"
)]

mod deployment;
mod ending;
mod faults;
mod late_writer;

mod process;
mod world;

mod database;
