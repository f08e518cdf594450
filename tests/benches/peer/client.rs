//! A client, in one shape for all: the library and its peer.

use core::future::Future;
use std::time::Duration;

use crate::TTL;
use redlock_std::{Fencing, Guard, Options, Redlock};

/// A client that can lock and unlock, waiting for as long as it takes.
pub(crate) trait Client: Clone + Send + Sync + 'static {
    const NAME: &'static str;
    type Lock: Send;

    fn lock(&self, key: &str) -> impl Future<Output = Self::Lock> + Send;
    fn unlock(&self, lock: Self::Lock) -> impl Future<Output = ()> + Send;
}

#[derive(Clone)]
pub(crate) struct Ours(Redlock);

impl Ours {
    pub(crate) async fn connect(urls: &[String]) -> Self {
        let options = Options::new(TTL).unwrap().wait(TTL * 6);
        let ours = Self(Redlock::connect(urls, options).unwrap());
        warm_up(&ours).await;
        ours
    }

    /// The same connections, and a fence with every lease.
    pub(crate) async fn fenced(&self) -> Self {
        let options = self.0.options().fenced(Fencing::default()).unwrap();
        let fenced = Self(self.0.with_options(options));
        warm_up(&fenced).await;
        fenced
    }

    /// Waits for the releases that a server which has hung still owes, before the runtime ends. While its first answer is
    /// outstanding, `close` does not wait for such a server.
    pub(crate) async fn close(&self) {
        let closed = async {
            while self.0.close().await > 0 {
                tokio::time::sleep(Duration::from_millis(10)).await;
            }
        };
        let closed = tokio::time::timeout(Duration::from_secs(60), closed).await;
        assert!(closed.is_ok(), "all servers answer");
    }
}

impl Client for Ours {
    const NAME: &'static str = "redlock-std";
    type Lock = Guard;

    async fn lock(&self, key: &str) -> Guard {
        self.0.acquire(key).await.unwrap()
    }

    async fn unlock(&self, guard: Guard) {
        guard.release().await;
    }
}

#[derive(Clone)]
pub(crate) struct Theirs(rslock::LockManager);

impl Theirs {
    pub(crate) async fn connect(urls: &[String]) -> Self {
        let mut manager = rslock::LockManager::new(urls.to_vec());
        // Its own default delay; as many tries as it takes.
        manager.set_retry(u32::MAX, Duration::from_millis(200));
        let theirs = Self(manager);
        warm_up(&theirs).await;
        theirs
    }
}

impl Client for Theirs {
    const NAME: &'static str = "rslock";
    type Lock = rslock::Lock;

    async fn lock(&self, key: &str) -> rslock::Lock {
        self.0.lock(key.as_bytes(), TTL).await.unwrap()
    }

    async fn unlock(&self, lock: rslock::Lock) {
        self.0.unlock(&lock).await;
    }
}

pub(crate) async fn warm_up(client: &impl Client) {
    for _ in 0..200 {
        let lock = client.lock("warm-up").await;
        client.unlock(lock).await;
    }
}
