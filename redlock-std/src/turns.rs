//! The tasks of this process that want the same key, first come, first served.
//!
//! One contender per process and key: the others wait here, where it costs the nodes nothing, and
//! the next one's acquire goes out right behind the release.

use std::collections::HashMap;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use tokio::sync::OwnedMutexGuard;

/// The waiting lines of all keys.
#[derive(Debug, Clone, Default)]
pub(crate) struct Turns {
    lines: Arc<Mutex<Lines>>,
}

type Lines = HashMap<Arc<[u8]>, Arc<tokio::sync::Mutex<()>>>;

impl Turns {
    /// Waits for the turn of the caller. Dropping the future leaves the line.
    pub(crate) async fn take(&self, key: &Arc<[u8]>) -> Turn {
        let place = self.place(key);
        let line = Arc::clone(&place.line);
        Turn {
            guard: Some(line.lock_owned().await),
            _place: place,
        }
    }

    /// The turn, if nobody else has it.
    pub(crate) fn try_take(&self, key: &Arc<[u8]>) -> Option<Turn> {
        let place = self.place(key);
        let guard = Arc::clone(&place.line).try_lock_owned().ok()?;
        Some(Turn {
            guard: Some(guard),
            _place: place,
        })
    }

    fn place(&self, key: &Arc<[u8]>) -> Place {
        let mut lines = lock(&self.lines);
        let line = lines.entry(Arc::clone(key)).or_default();
        Place {
            line: Arc::clone(line),
            key: Arc::clone(key),
            lines: Arc::clone(&self.lines),
        }
    }
}

/// The right to contend for the key; dropping it passes it on.
#[derive(Debug)]
pub(crate) struct Turn {
    guard: Option<OwnedMutexGuard<()>>,
    _place: Place,
}

impl Drop for Turn {
    fn drop(&mut self) {
        // Before the place goes, so that the place sees who is left in the line.
        self.guard = None;
    }
}

/// A place in the line of a key. The last one to leave takes the line away.
#[derive(Debug)]
struct Place {
    line: Arc<tokio::sync::Mutex<()>>,
    key: Arc<[u8]>,
    lines: Arc<Mutex<Lines>>,
}

impl Drop for Place {
    fn drop(&mut self) {
        /// The one in the map, and this one.
        const NOBODY_ELSE: usize = 2;

        let mut lines = lock(&self.lines);
        if Arc::strong_count(&self.line) == NOBODY_ELSE {
            lines.remove(&self.key);
        }
    }
}

fn lock(lines: &Mutex<Lines>) -> MutexGuard<'_, Lines> {
    lines.lock().unwrap_or_else(PoisonError::into_inner)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn key(name: &str) -> Arc<[u8]> {
        Arc::from(name.as_bytes())
    }

    #[tokio::test]
    async fn turns_are_taken_in_the_order_in_which_they_were_asked_for() {
        let turns = Turns::default();
        let first = turns.try_take(&key("k")).unwrap();
        let order = Arc::new(Mutex::new(Vec::new()));
        let mut tasks = Vec::new();
        for number in 0..10 {
            let (turns, order) = (turns.clone(), Arc::clone(&order));
            tasks.push(tokio::spawn(async move {
                let _turn = turns.take(&key("k")).await;
                order.lock().unwrap().push(number);
            }));
            tokio::task::yield_now().await;
        }
        assert!(turns.try_take(&key("k")).is_none());
        assert!(turns.try_take(&key("another")).is_some());
        drop(first);
        for task in tasks {
            task.await.unwrap();
        }
        assert_eq!(*order.lock().unwrap(), (0..10).collect::<Vec<_>>());
    }

    #[tokio::test]
    async fn nothing_is_kept_of_a_key_that_nobody_wants_any_more() {
        let turns = Turns::default();
        let turn = turns.take(&key("k")).await;
        let waiting = turns.clone();
        let waiter = tokio::spawn(async move { waiting.take(&key("k")).await });
        tokio::task::yield_now().await;
        waiter.abort();
        assert!(waiter.await.is_err());
        drop(turn);
        assert!(lock(&turns.lines).is_empty());
    }
}
