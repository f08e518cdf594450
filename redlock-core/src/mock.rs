//! A test kit: a virtual clock, nodes in memory, and random bytes from a seed.
//!
//! With it, a test checks what your code does if the lock is lost half-way, if two of five nodes hang, or
//! if another client is faster. The test runs in virtual time, without Redis and without sleeping. The code of the
//! lock is the real one. Only the nodes, the clock and the randomness are mocks.
//!
//! ```
//! use core::time::Duration;
//! use redlock_core::mock::{MockNode, MockClock, SeededEntropy};
//! use redlock_core::{Clock, Entropy, HoldError, NodeErrorOf, Options, Redlock, Transport};
//!
//! /// The function under test: opens the dock, works for a minute, closes it.
//! async fn dock<T: Transport, C: Clock, E: Entropy, const MAX: usize>(
//!     redlock: &mut Redlock<T, C, E, MAX>,
//!     work: impl AsyncFnOnce(),
//! ) -> Result<(), HoldError<NodeErrorOf<T>, MAX>> {
//!     redlock.hold("dock-7", async |_lease| work().await).await
//! }
//!
//! let clock = MockClock::new();
//! let nodes: [_; 5] = MockNode::array(&clock);
//! let options = Options::new(Duration::from_secs(10)).unwrap();
//! let mut redlock =
//!     Redlock::<_, _, _, 5>::new(&nodes, &clock, SeededEntropy::new(1), options).unwrap();
//! let minute = clock.now().saturating_add(Duration::from_secs(60));
//!
//! // Two nodes hang without effect: the lease is extended for a minute.
//! nodes[0].hang();
//! nodes[1].hang();
//! clock.run(dock(&mut redlock, async || clock.sleep_until(minute).await)).unwrap();
//! assert_eq!(clock.now(), minute);
//!
//! // A third node restarts without its data half-way: the lock is lost and the work is stopped.
//! let hour = clock.now().saturating_add(Duration::from_secs(3_600));
//! let lost = clock.run(dock(&mut redlock, async || {
//!     nodes[2].restart_empty();
//!     clock.sleep_until(hour).await;
//! }));
//! assert!(matches!(lost, Err(HoldError::Lost(_))));
//! assert!(clock.now() < hour);
//! ```

// Ordered from the top down.
mod node;

mod host;
mod server;

mod data;
mod error;
mod flaw;
mod line;
mod shared;
mod wakers;

mod slots;

mod clock;
mod entropy;

pub use clock::MockClock;
pub use entropy::SeededEntropy;
pub use error::{MockError, MockFailure, MockName};
pub use node::{MockClient, MockNode};

/// Not part of the API: a server alone, and the rules of a client in the line, for the programs and suites of this repository.
#[doc(hidden)]
pub use {
    crate::line_looks::{Calls, Looks, Pace},
    data::{Data, Entry},
    flaw::ServerFlaw,
    server::Server,
};
