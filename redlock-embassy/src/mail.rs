//! The mailbox of this client on one node: what the node knows of it, and the calls that have come.

#[cfg(not(feature = "queue"))]
#[path = "mail/disabled.rs"]
mod imp;
#[cfg(feature = "queue")]
#[path = "mail/enabled.rs"]
mod imp;

pub use imp::Mail;
#[cfg(feature = "queue")]
pub use imp::Message;
#[cfg(feature = "queue")]
pub(crate) use imp::Status;
