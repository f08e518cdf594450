//! The lines that a node does not keep for this client.

use std::collections::HashMap;
use std::hash::{BuildHasher, RandomState};
use std::sync::Arc;
use std::time::Duration;

use tokio::time::Instant;

/// What a node has refused lately: the line of a lock, or all lines.
#[derive(Debug, Default)]
pub(super) struct Refusals {
    all: Option<Refusal>,
    /// By a hash of the key of the lock. If two keys share it, acquires of one poll in vain.
    keys: HashMap<u64, Refusal>,
    /// A random one, so that no key can be chosen to have the hash of another.
    hash: RandomState,
}

#[derive(Debug)]
struct Refusal {
    at: Instant,
    why: Arc<str>,
}

/// For this time after a refusal, a node gets only commands without a place.
pub(super) const LASTS: Duration = Duration::from_secs(60);

/// If a node refuses more lines than that, all are refused. So the memory is bounded.
const MAX_KEYS: usize = 1 << 10;

impl Refusals {
    /// Records that the node has refused to keep the line of the lock `key`, for this reason.
    pub(super) fn record(&mut self, key: &[u8], why: Arc<str>) {
        let refusal = Refusal {
            at: Instant::now(),
            why,
        };
        if self.keys.len() >= MAX_KEYS {
            self.keys.retain(|_, refusal| !refusal.is_over());
        }
        if concerns_one_key(&refusal.why) && self.keys.len() < MAX_KEYS {
            self.keys.insert(self.hash.hash_one(key), refusal);
        } else {
            self.all = Some(refusal);
        }
    }

    /// Whether the node refuses the line of the lock `key`; all lines if there is no key.
    pub(super) fn contains(&mut self, key: Option<&[u8]>) -> bool {
        self.all.take_if(|refusal| refusal.is_over());
        if self.all.is_some() || self.keys.is_empty() {
            return self.all.is_some();
        }
        let hash = key.map(|key| self.hash.hash_one(key));
        let is_over = hash
            .and_then(|hash| self.keys.get(&hash))
            .map(Refusal::is_over);
        if let Some(hash) = hash.filter(|_| is_over == Some(true)) {
            self.keys.remove(&hash);
        }
        is_over == Some(false)
    }

    /// Returns why the node refuses all lines, or a line.
    pub(super) fn why(&self) -> Option<&Arc<str>> {
        let mut refusals = self.all.iter().chain(self.keys.values());
        let refusal = refusals.find(|refusal| !refusal.is_over());
        refusal.map(|refusal| &refusal.why)
    }
}

impl Refusal {
    fn is_over(&self) -> bool {
        self.at.elapsed() >= LASTS
    }
}

/// Whether an error concerns the line of one lock: the user has no permission for its key, or the key holds something else. Redis 6
/// says it in other words than later versions.
fn concerns_one_key(why: &str) -> bool {
    ["WRONGTYPE", "access a key", "access one of the keys"]
        .iter()
        .any(|words| why.contains(words))
}

#[cfg(test)]
mod tests {
    use super::*;

    const OF_A_KEY: &str = "NOPERM No permissions to access a key";
    const OF_ALL: &str = "NOPERM User keyuser has no permissions to run the 'evalsha' command";

    #[tokio::test(start_paused = true)]
    async fn a_node_that_refuses_one_line_keeps_the_others() {
        let mut refusals = Refusals::default();
        refusals.record(b"dock", OF_A_KEY.into());
        assert!(refusals.contains(Some(b"dock")));
        assert!(!refusals.contains(Some(b"crane")) && !refusals.contains(None));
        assert_eq!(refusals.why().map(|why| &**why), Some(OF_A_KEY));
        tokio::time::advance(LASTS - Duration::from_millis(1)).await;
        assert!(refusals.contains(Some(b"dock")));
        tokio::time::advance(Duration::from_millis(1)).await;
        assert!(!refusals.contains(Some(b"dock")) && refusals.why().is_none());
    }

    #[tokio::test(start_paused = true)]
    async fn a_missing_command_refuses_all_lines_and_so_do_very_many_refused_lines() {
        let mut refusals = Refusals::default();
        refusals.record(b"dock", OF_ALL.into());
        assert!(refusals.contains(Some(b"crane")) && refusals.contains(None));
        tokio::time::advance(LASTS).await;
        assert!(!refusals.contains(Some(b"dock")));

        for number in 0..MAX_KEYS {
            refusals.record(&number.to_be_bytes(), OF_A_KEY.into());
        }
        assert!(!refusals.contains(Some(b"dock")));
        refusals.record(b"crane", OF_A_KEY.into());
        assert!(refusals.contains(Some(b"dock")));
        assert_eq!(refusals.keys.len(), MAX_KEYS);
    }
}
