//! A test kit: a clock that is set by hand, nodes that live in memory, randomness from a seed.
//!
//! What does my code do when the lock is lost half-way, when two of five nodes hang, when the other
//! client is faster? With these parts a test asks in virtual time, without a Redis and without a
//! sleep. The lock under test is the shipping one; only its surroundings are made up.
//!
//! ```
//! use core::time::Duration;
//! use redlock_core::mock::{MockNode, MockClock, SeededEntropy};
//! use redlock_core::{Clock, Entropy, HoldError, Options, Redlock, Transport};
//!
//! /// The function under test: opens the dock, works for a minute, closes it.
//! async fn dock<T: Transport, C: Clock, E: Entropy, const MAX: usize>(
//!     redlock: &mut Redlock<T, C, E, MAX>,
//!     work: impl AsyncFnOnce(),
//! ) -> Result<(), HoldError<T::Error, MAX>> {
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
//! // Two nodes hang and nobody notices: the lease is extended for a minute.
//! nodes[0].hang();
//! nodes[1].hang();
//! clock.run(dock(&mut redlock, async || clock.sleep_until(minute).await)).unwrap();
//! assert_eq!(clock.now(), minute);
//!
//! // A third one comes back without its data half-way: the lock is lost and the work stopped.
//! let hour = clock.now().saturating_add(Duration::from_secs(3_600));
//! let lost = clock.run(dock(&mut redlock, async || {
//!     nodes[2].restart_empty();
//!     clock.sleep_until(hour).await;
//! }));
//! assert!(matches!(lost, Err(HoldError::Lost(_))));
//! assert!(clock.now() < hour);
//! ```

mod clock;
mod entropy;
mod error;
mod node;
mod slots;
mod store;

pub use clock::MockClock;
pub use entropy::SeededEntropy;
pub use error::{MockError, MockErrorKind};
pub use node::MockNode;
