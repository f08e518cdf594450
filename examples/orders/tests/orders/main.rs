//! The service under the faults of its nodes: the same tests in memory, where they take milliseconds, and on real servers; and a
//! writer that is late.

#![expect(
    clippy::unwrap_used,
    clippy::expect_used,
    reason = "what fails here fails a test"
)]

mod deployment;
mod faults;
mod late_writer;

mod world;

mod database;
