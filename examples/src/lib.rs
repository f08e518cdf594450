//! Programs to start from: see the files beside this folder.

pub mod tls_session;
