//! A web service that pays orders. It runs on any number of servers; one of them works on an order at a time.
//!
//! The lock keeps the servers out of each other's way. What keeps the money safe if a server is paused while it holds the lock, and
//! wakes up too late, is the fence: each write to the database carries it, and the database refuses one that is too low.
//!
//! - [`service`] has the handlers, and the lock around the work.
//! - [`ledger`] is the database: a table of orders in Postgres.
//! - [`schema`] is a migration: of the servers that a deployment starts, the first one changes the tables, and the others wait.
//! - [`payments`] is the payment provider.

// Ordered from the top down.
pub mod service;

pub mod ledger;
pub mod payments;
pub mod schema;
