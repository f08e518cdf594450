//! Some hundred servers that answer anything, alone and beside honest nodes.

use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::Duration;

use fastrand::Rng;
use redlock_std::{Fencing, Guard, Options, Redlock};
use redlock_tests::{Server, Servers, resident_bytes};
use tokio::sync::Semaphore;
use tokio::task::JoinSet;

use crate::babbler::Babbler;

const SEEDS: u64 = 400;
const AT_A_TIME: usize = 32;

/// For each seed.
const LOCKS: u32 = 8;

const TTL: Duration = Duration::from_secs(10);
const NODE_TIMEOUT: Duration = Duration::from_millis(40);

/// A call takes less than a second here. The rest is for a machine that stands still for a while: what is to be found is a
/// call that never ends.
const MAX_CALL: Duration = Duration::from_secs(120);

const HONEST: usize = 4;
/// With one more node that says yes, they are a quorum.
const NEEDED: usize = 2;
const MAX_GROWTH: u64 = 64 << 20;

#[tokio::test(flavor = "multi_thread")]
async fn a_node_that_answers_anything_costs_its_own_vote_and_nothing_else() {
    let panics = count_panics();
    let servers = Arc::new(Servers::start(HONEST));
    let before = resident_bytes();
    let permits = Arc::new(Semaphore::new(AT_A_TIME));
    let mut seeds = JoinSet::new();
    for seed in 0..SEEDS {
        let servers = Arc::clone(&servers);
        let permits = Arc::clone(&permits);
        seeds.spawn(async move {
            let _permit = permits.acquire().await;
            Box::pin(run(seed, &servers)).await
        });
    }
    let granted: usize = seeds.join_all().await.into_iter().sum();
    let growth = resident_bytes().saturating_sub(before);
    assert_eq!(panics.load(Ordering::Relaxed), 0, "panics in tasks");
    assert!(growth < MAX_GROWTH, "grew by {} MB", growth >> 20);
    // A quarter of the seeds are alone, and of the rest each second lock is free: about 1,200, less on a machine so busy that
    // honest nodes are late.
    assert!(granted > 500, "{granted} locks were granted");
}

/// How many locks were granted on honest nodes.
async fn run(seed: u64, servers: &Servers) -> usize {
    let mut random = Rng::with_seed(seed);
    let babbler = Babbler::start(seed).await;
    let is_alone = random.u8(0..4) == 0;
    let honest = if is_alone { Vec::new() } else { servers.urls() };
    let mut urls: Vec<_> = honest.iter().map(String::as_str).collect();
    urls.insert(random.usize(..=urls.len()), babbler.url());
    let redlock = Redlock::connect(urls, options(&mut random)).unwrap();

    let mut granted = 0;
    for number in 0..LOCKS {
        let key = format!("seed-{seed}-{number}");
        let is_taken = !is_alone && random.bool();
        if is_taken {
            // A majority of the honest nodes, and so many of all that no quorum is left.
            for server in servers.iter().skip(1) {
                let set = ["SET", &key, "another", "PX", "60000"];
                server.query::<String>(&set).unwrap();
            }
        }
        let result = in_time(seed, redlock.try_acquire(&key)).await;
        let Ok(guard) = result else {
            continue;
        };
        assert!(!is_taken, "seed {seed}: {key} was granted to two");
        if !is_alone {
            let holders = servers.iter().filter(|server| has(server, &guard));
            let holders = holders.count();
            assert!(
                holders >= NEEDED,
                "seed {seed}: {holders} honest nodes have {key}"
            );
            granted += 1;
        }
        Box::pin(end(seed, guard, &mut random)).await;
    }
    granted
}

/// Plain or fenced.
fn options(random: &mut Rng) -> Options {
    let options = Options::new(TTL).unwrap();
    let options = options.node_timeout(NODE_TIMEOUT).unwrap();
    if random.bool() {
        options.fenced(Fencing::default()).unwrap()
    } else {
        options
    }
}

async fn end(seed: u64, mut guard: Guard, random: &mut Rng) {
    if random.bool() {
        // It may be lost by what the node says; it must be said in time.
        drop(in_time(seed, guard.extend()).await);
    }
    if random.bool() {
        in_time(seed, guard.release()).await;
    }
}

async fn in_time<R>(seed: u64, call: impl Future<Output = R>) -> R {
    let result = tokio::time::timeout(MAX_CALL, call).await;
    result.unwrap_or_else(|_| panic!("seed {seed}: a call did not end within {MAX_CALL:?}"))
}

fn has(server: &Server, guard: &Guard) -> bool {
    let holder: Option<Vec<u8>> = server.query(&[b"GET", guard.key()]).unwrap();
    holder.as_deref() == Some(guard.token().as_bytes())
}

/// Also those of tasks that the library has spawned, for which no caller waits.
fn count_panics() -> Arc<AtomicUsize> {
    let count = Arc::new(AtomicUsize::new(0));
    let panics = Arc::clone(&count);
    let print = std::panic::take_hook();
    std::panic::set_hook(Box::new(move |panic| {
        panics.fetch_add(1, Ordering::Relaxed);
        print(panic);
    }));
    count
}
