//! How many acquires of this process ask the nodes at once: as many as the nodes answer in time.
//!
//! If all of a burst asked at once, their commands would wait in our own queues for longer than a round may take, and
//! none would be granted. So they are admitted one after the other, first come, first served. The clock of a round
//! begins when it is admitted.

mod limit;

use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use redlock_core::{Clock, Instant};
use tokio::sync::{Semaphore, SemaphorePermit};

use crate::clock::SystemClock;
use limit::Limit;

/// The rounds of a lock and its clones. A round is an attempt here: up to three rounds of a fenced lock, and one that
/// cleans up.
#[derive(Debug, Clone)]
pub(crate) struct Rounds {
    shared: Arc<Shared>,
}

#[derive(Debug)]
struct Shared {
    /// First come, first served.
    places: Semaphore,
    limit: Mutex<Limit>,
}

/// An admitted round. Dropping it makes room for the next one, and says nothing about the nodes.
#[derive(Debug)]
pub(crate) struct Round<'a> {
    shared: &'a Shared,
    place: Option<SemaphorePermit<'a>>,
    started_at: Instant,
}

impl Rounds {
    pub(crate) fn new() -> Self {
        let limit = Limit::new();
        let shared = Shared {
            places: Semaphore::new(limit.places()),
            limit: Mutex::new(limit),
        };
        Self {
            shared: Arc::new(shared),
        }
    }

    /// Waits until another round may begin; `None` if it may not by `give_up_at`. Dropping the future leaves the queue.
    pub(crate) async fn admit(&self, give_up_at: Instant) -> Option<Round<'_>> {
        let shared = &*self.shared;
        let place = match shared.places.try_acquire() {
            Ok(place) => place,
            Err(_) => tokio::select! {
                biased;
                place = shared.places.acquire() => place.ok()?,
                () = SystemClock.sleep_until(give_up_at) => return None,
            },
        };
        Some(Round {
            shared,
            place: Some(place),
            started_at: SystemClock.now(),
        })
    }
}

impl Round<'_> {
    /// The round is over: whether a quorum of nodes `has_answered`, each of which it waited for up to `node_timeout`.
    pub(crate) fn end(self, has_answered: bool, node_timeout: Duration) {
        let is_full = self.shared.places.available_permits() == 0;
        let now = SystemClock.now();
        let mut limit = self.shared.limit();
        if has_answered {
            let more = limit.answered(self.started_at, now, node_timeout, is_full);
            self.shared.places.add_permits(more);
        } else {
            limit.unanswered(self.started_at, now, node_timeout);
        }
    }
}

impl Drop for Round<'_> {
    fn drop(&mut self) {
        // If the limit was lowered, this place is the first to go.
        if let Some(place) = self.place.take()
            && self.shared.limit().takes_back()
        {
            place.forget();
        }
    }
}

impl Shared {
    fn limit(&self) -> MutexGuard<'_, Limit> {
        self.limit.lock().unwrap_or_else(PoisonError::into_inner)
    }
}
