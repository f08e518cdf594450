//! Another Redlock client, on the same keys.

use std::sync::Arc;
use std::time::Duration;

use crate::contention::Resource;
use crate::setup::{five, patient};

#[tokio::test(flavor = "multi_thread")]
async fn rslock_and_we_exclude_each_other() {
    const TURNS: u32 = 1_000;
    const TTL: Duration = Duration::from_secs(10);

    let (servers, redlock) = five(patient(TTL).wait(TTL * 6)).await;
    let resource = Arc::new(Resource::default());
    let ours = {
        let resource = Arc::clone(&resource);
        tokio::spawn(async move {
            for _ in 0..TURNS {
                let guard = redlock.acquire("dock-7").await.unwrap();
                resource.use_alone().await;
                guard.release().await;
                // Lets the other side have its turn, as a client with other work to do would.
                tokio::time::sleep(Duration::from_millis(1)).await;
            }
        })
    };
    let theirs = {
        let resource = Arc::clone(&resource);
        let mut peer = rslock::LockManager::new(servers.urls());
        peer.set_retry(u32::MAX, Duration::from_millis(10));
        tokio::spawn(async move {
            for _ in 0..TURNS {
                let lock = peer.lock(b"dock-7", TTL).await.unwrap();
                resource.use_alone().await;
                peer.unlock(&lock).await;
                tokio::time::sleep(Duration::from_millis(1)).await;
            }
        })
    };
    ours.await.unwrap();
    theirs.await.unwrap();
    assert_eq!(resource.count(), 2 * TURNS);
    servers.expect_no_keys().await;
}
