#![doc = include_str!("../README.md")]
#![no_std]
#![cfg_attr(docsrs, feature(doc_cfg))]

// Ordered from the top down: each module uses only modules below it.
mod session;

mod line;

mod provider;
mod records;

mod options;
mod random;

mod failure;
mod log;

pub use failure::TlsFailure;
pub use line::{TlsLine, TlsStream};
pub use options::{InvalidTlsOptions, TlsOptions};
pub use session::{READ_BUFFER, TlsSession, WRITE_BUFFER};
