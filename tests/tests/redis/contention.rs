//! Many want one lock.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU32, Ordering};
use std::time::Duration;

use redlock_std::Redlock;

use crate::setup::{connected, five, patient};

const TTL: Duration = Duration::from_secs(10);

#[tokio::test(flavor = "multi_thread")]
async fn tasks_of_one_process_take_turns_for_ten_commands_each() {
    const TASKS: u32 = 16;
    const TURNS: u32 = 20;

    let (servers, redlock) = five(patient(TTL).wait(TTL * 3)).await;
    let before: u64 = servers.iter().map(|server| commands(&server.calls())).sum();
    let resource = Arc::new(Resource::default());
    let tasks: Vec<_> = (0..TASKS)
        .map(|_| work(&redlock, &resource, TURNS))
        .collect();
    for task in tasks {
        task.await.unwrap();
    }
    assert_eq!(resource.count(), TASKS * TURNS);
    servers.expect_no_keys().await;
    let after: u64 = servers.iter().map(|server| commands(&server.calls())).sum();
    let acquisitions = u64::from(TASKS * TURNS);
    // One acquire and one release for each of five servers; no task asks in vain.
    assert_eq!((after - before) / acquisitions, 10);
}

#[tokio::test(flavor = "multi_thread")]
async fn two_clients_exclude_each_other_and_both_make_progress() {
    const TURNS: u32 = 100;

    let (servers, redlock) = five(patient(TTL).wait(TTL * 3)).await;
    let other = connected(&servers, *redlock.options()).await;
    let resource = Arc::new(Resource::default());
    let tasks = [
        work(&redlock, &resource, TURNS),
        work(&other, &resource, TURNS),
    ];
    for task in tasks {
        task.await.unwrap();
    }
    assert_eq!(resource.count(), 2 * TURNS);
    servers.expect_no_keys().await;
}

/// Sends of a client: what a script calls inside is not counted.
fn commands(calls: &redlock_tests::Calls) -> u64 {
    calls["set"] + calls["evalsha"] + calls["eval"]
}

/// Spawns a client that uses `resource` under the lock, `turns` times.
pub(crate) fn work(
    redlock: &Redlock,
    resource: &Arc<Resource>,
    turns: u32,
) -> tokio::task::JoinHandle<()> {
    let (redlock, resource) = (redlock.clone(), Arc::clone(resource));
    tokio::spawn(async move {
        for _ in 0..turns {
            let guard = redlock.acquire("dock-7").await.unwrap();
            resource.use_alone().await;
            guard.release().await;
        }
    })
}

/// Something that only one may use at a time: it notices a second one, and loses its count.
#[derive(Debug, Default)]
pub(crate) struct Resource {
    is_used: AtomicBool,
    count: AtomicU32,
}

impl Resource {
    pub(crate) async fn use_alone(&self) {
        assert!(
            !self.is_used.swap(true, Ordering::SeqCst),
            "two hold the lock at once"
        );
        let count = self.count.load(Ordering::SeqCst);
        tokio::task::yield_now().await;
        self.count.store(count + 1, Ordering::SeqCst);
        assert!(
            self.is_used.swap(false, Ordering::SeqCst),
            "two hold the lock at once"
        );
    }

    pub(crate) fn count(&self) -> u32 {
        self.count.load(Ordering::SeqCst)
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn a_guard_that_was_forgotten_keeps_no_task_waiting_past_its_validity() {
    let short = Duration::from_millis(700);
    let (servers, redlock) = five(patient(short).wait(TTL)).await;
    std::mem::forget(redlock.acquire("dock-7").await.unwrap());
    let waiting: Vec<_> = (0..3)
        .map(|_| {
            let redlock = redlock.clone();
            tokio::spawn(async move { std::mem::forget(redlock.acquire("dock-7").await.unwrap()) })
        })
        .collect();
    for waiting in waiting {
        waiting.await.unwrap();
    }
    // Nor is it in the way of a single try.
    let start = std::time::Instant::now();
    let guard = loop {
        match redlock.try_acquire("dock-7").await {
            Ok(guard) => break guard,
            Err(error) => assert!(start.elapsed() < TTL, "{error}"),
        }
        tokio::time::sleep(Duration::from_millis(2)).await;
    };
    guard.release().await;
    servers.expect_no_keys().await;
}
