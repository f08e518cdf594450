//! Many want one lock.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU32, Ordering};
use std::time::Duration;

use redlock_std::Redlock;
use redlock_tests::{Proxy, Servers};
use tokio::task::JoinSet;

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

/// Each of three clients is near one server, and far from the others.
#[tokio::test(flavor = "multi_thread")]
async fn of_three_clients_that_split_the_votes_one_wins() {
    const TRIALS: usize = 200;
    const WAYS: [Duration; 3] = [
        Duration::from_micros(250),
        Duration::from_micros(2_500),
        Duration::from_millis(10),
    ];

    let servers = Servers::start(3);
    let mut proxies = Vec::new();
    let mut clients = Vec::new();
    for number in 0..3 {
        let mut urls = Vec::new();
        for (other, server) in servers.iter().enumerate() {
            let proxy = Proxy::start(server, WAYS[(3 + other - number) % 3]).await;
            urls.push(proxy.url());
            proxies.push(proxy);
        }
        clients.push(Redlock::connect(urls, patient(TTL)).unwrap());
    }
    for client in &clients {
        client.acquire("set-up").await.unwrap().release().await;
    }
    // Ten trials at a time, each on its own key.
    let mut lanes = JoinSet::new();
    for lane in 0..10 {
        let clients = clients.clone();
        lanes.spawn(async move {
            let mut won = 0;
            for trial in 0..TRIALS / 10 {
                let key = format!("job-{lane}-{trial}");
                let (first, second, third) = tokio::join!(
                    clients[0].try_acquire(&key),
                    clients[1].try_acquire(&key),
                    clients[2].try_acquire(&key)
                );
                let guards: Vec<_> = [first, second, third]
                    .into_iter()
                    .filter_map(Result::ok)
                    .collect();
                let holders = guards.len();
                assert!(holders <= 1, "{key}: {holders} hold the lock");
                won += holders;
            }
            won
        });
    }
    let won: usize = lanes.join_all().await.into_iter().sum();
    assert!(won >= TRIALS * 99 / 100, "{won} of {TRIALS} trials");
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
