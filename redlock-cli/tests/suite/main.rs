//! The command `redlock` as its users meet it: as a process, against real servers.

#![cfg(unix)]
#![expect(
    clippy::unwrap_used,
    clippy::panic,
    clippy::print_stdout,
    reason = "what fails here fails a test, and what was told is printed"
)]

mod conformance;
mod cron;
mod demo;
mod doctor;
mod foreign;
mod hostile;
mod init;
mod inspect;
mod lease;
mod loss;
mod operator;
mod order;
mod owner;
mod permissions;
mod process;
mod recipes;
mod run;
#[cfg(target_os = "linux")]
mod scanner;
mod screens;
mod selectors;
mod server;
mod signals;
#[cfg(target_os = "linux")]
mod slow_disk;
mod terminal;
#[cfg(feature = "tls")]
mod tls;
mod usage;
mod waiters;
