//! Tests of an application without servers, in virtual time: a start for your own.

#![expect(
    clippy::unwrap_used,
    clippy::panic,
    reason = "what fails here fails a test"
)]

use std::future::poll_fn;
use std::pin::{Pin, pin};
use std::sync::atomic::{AtomicU32, Ordering};
use std::sync::{Arc, Mutex};
use std::task::Poll;
use std::time::Duration;

use redlock_std::{
    AcquireError, AdoptError, Fencing, Guard, HoldError, LossCause, MAX_KEY, MemoryNode, Options,
    Redlock, Token,
};
use tokio::task::JoinSet;
use tokio::time::{Instant, sleep};

/// The handler under test: charges an invoice under its lock, in one minute.
async fn charge(redlock: &Redlock, invoice: u32) -> Result<&'static str, HoldError> {
    let work = async |_guard: &Guard| {
        sleep(Duration::from_secs(60)).await;
        "charged"
    };
    redlock.hold(format!("invoice:{invoice}"), work).await
}

const TTL: Duration = Duration::from_secs(10);

fn fleet() -> ([MemoryNode; 5], Redlock) {
    let nodes = MemoryNode::array();
    let redlock = Redlock::in_memory(&nodes, Options::new(TTL).unwrap()).unwrap();
    (nodes, redlock)
}

fn lock_count(nodes: &[MemoryNode]) -> usize {
    nodes.iter().map(MemoryNode::lock_count).sum()
}

#[tokio::test(start_paused = true)]
async fn a_node_that_is_given_twice_is_an_error_as_with_servers() {
    let [first, second, third] = MemoryNode::array();
    let options = Options::new(Duration::from_secs(10)).unwrap();
    let twice = [first.clone(), second, third, first];
    let error = Redlock::in_memory(&twice, options).unwrap_err();
    assert!(error.to_string().contains("node 1"), "{error}");
    Redlock::in_memory(&twice[..3], options).unwrap();
}

#[tokio::test(start_paused = true)]
async fn an_invoice_is_charged_although_a_node_hangs_and_another_one_dies() {
    let (nodes, redlock) = fleet();
    nodes[0].hang();
    let fault = async {
        sleep(Duration::from_secs(30)).await;
        nodes[1].kill();
    };
    let (charged, ()) = tokio::join!(charge(&redlock, 42), fault);
    assert_eq!(charged, Ok("charged"));
    nodes[0].resume();
    assert_eq!(lock_count(&nodes), 0, "the lock is released everywhere");
}

#[tokio::test(start_paused = true)]
async fn the_work_is_stopped_when_a_node_hangs_and_two_die_half_way() {
    let (nodes, redlock) = fleet();
    nodes[0].hang();
    let start = Instant::now();
    let fault = async {
        sleep(Duration::from_secs(30)).await;
        nodes[1].kill();
        nodes[2].kill();
    };
    let (charged, ()) = tokio::join!(charge(&redlock, 42), fault);
    let Err(HoldError::Lost(cause)) = charged else {
        panic!("{charged:?}");
    };
    assert!(matches!(*cause, LossCause::Unreachable(_)), "{cause}");
    let words = cause.to_string();
    assert!(words.contains("node 2: connection refused"), "{words}");
    let stopped_after = start.elapsed();
    assert!(stopped_after > Duration::from_secs(30) && stopped_after < Duration::from_secs(41));
}

#[tokio::test(start_paused = true)]
async fn a_majority_that_restarts_without_its_data_has_no_vote_for_one_ttl() {
    let (nodes, redlock) = fleet();
    for node in &nodes[..3] {
        node.kill();
        node.restart();
    }
    let error = redlock.try_acquire("dock").await.unwrap_err();
    assert!(error.is_unreachable(), "{error}");
    assert!(error.to_string().contains("`redlock init`"), "{error}");
    // The default wait outlasts this time.
    let start = Instant::now();
    drop(redlock.acquire("dock").await.unwrap());
    assert!(start.elapsed() >= TTL);
}

/// As on servers: `a_guard_record_vouches_for_a_young_node_up_to_its_longest_ttl` is their test.
#[tokio::test(start_paused = true)]
async fn a_plain_lock_whose_ttl_is_longer_than_the_fenced_locks_of_its_nodes_allow_is_refused() {
    let nodes = MemoryNode::array::<3>();
    let plain = Redlock::in_memory(&nodes, Options::new(TTL).unwrap()).unwrap();
    let longer = plain.with_options(Options::new(TTL + Duration::from_millis(1)).unwrap());
    drop(longer.acquire("crane").await.unwrap());

    let fencing = Fencing::default().with_max_ttl(TTL).unwrap();
    let options = Options::new(TTL / 2).unwrap().fenced(fencing).unwrap();
    let fenced = Redlock::in_memory(&nodes, options).unwrap();
    fenced.acquire("dock").await.unwrap().release().await;
    let error = longer.try_acquire("crane").await.unwrap_err().to_string();
    let words = "its guard record allows a TTL or min_hold of up to 10000 ms";
    assert!(error.contains(words), "{error}");
    plain.acquire("crane").await.unwrap().release().await;
    assert_eq!(lock_count(&nodes), 0);
}

#[tokio::test(start_paused = true)]
async fn after_a_restart_a_plain_lock_waits_for_the_longest_fenced_lease_of_its_nodes() {
    let nodes = MemoryNode::array::<3>();
    let fencing = Fencing::default().with_max_ttl(TTL * 3).unwrap();
    let options = Options::new(TTL * 3).unwrap().fenced(fencing).unwrap();
    let fenced = Redlock::in_memory(&nodes, options).unwrap();
    let guard = fenced.acquire("dock").await.unwrap();
    for node in &nodes[..2] {
        node.kill();
        node.restart();
    }
    let options = Options::new(TTL).unwrap().wait(TTL * 4);
    let plain = Redlock::in_memory(&nodes, options).unwrap();
    drop(plain.acquire("dock").await.unwrap());
    assert!(!guard.is_valid());
}

#[tokio::test(start_paused = true)]
async fn two_processes_compete_and_the_one_that_waits_is_called_when_the_other_releases() {
    let (nodes, redlock) = fleet();
    nodes
        .iter()
        .for_each(|node| node.set_latency(Duration::from_millis(2)));
    let other = Redlock::in_memory(&nodes, *redlock.options()).unwrap();
    let guard = redlock.acquire("dock").await.unwrap();
    let error = other.try_acquire("dock").await.unwrap_err();
    assert!(error.is_held(), "{error}");

    let waiting =
        tokio::spawn(async move { other.acquire("dock").await.map(|_guard| Instant::now()) });
    while nodes[0].waiting("dock") == 0 {
        sleep(Duration::from_millis(1)).await;
    }
    sleep(Duration::from_secs(1)).await;
    let released_at = Instant::now();
    drop(guard);
    let acquired_at = waiting.await.unwrap().unwrap();
    let after = acquired_at - released_at;
    assert!(after <= Duration::from_millis(8), "no poll: {after:?}");
}

#[tokio::test(start_paused = true)]
async fn tasks_of_one_handle_take_turns_and_leave_no_key() {
    let (nodes, redlock) = fleet();
    let mut tasks = JoinSet::new();
    for _ in 0..100 {
        let redlock = redlock.clone();
        tasks.spawn(async move {
            let guard = redlock.with_options(redlock.options().wait(TTL * 100));
            let guard = guard.acquire("dock").await.unwrap();
            sleep(Duration::from_millis(10)).await;
            guard.release().await;
        });
    }
    let start = Instant::now();
    while let Some(done) = tasks.join_next().await {
        done.unwrap();
    }
    assert!(
        start.elapsed() >= Duration::from_millis(1_000),
        "one after the other"
    );
    assert_eq!(lock_count(&nodes), 0);
}

#[derive(Debug, Clone, Copy)]
enum End {
    Released,
    Dropped,
}

/// Eight tasks of one handle and one task of another want the same lock all the time. Returns the most leases of the eight tasks while
/// the other task waits.
async fn most_leases_while_another_handle_waits(end: End, latency: Duration) -> u32 {
    const LEASES: u32 = 40;

    let nodes = MemoryNode::array::<5>();
    nodes.iter().for_each(|node| node.set_latency(latency));
    let options = Options::new(TTL).unwrap().wait(TTL);
    let use_lock = async move |redlock: &Redlock| {
        let guard = redlock.acquire("dock").await.unwrap();
        sleep(Duration::from_millis(5)).await;
        match end {
            End::Released => drop(guard.release().await),
            End::Dropped => drop(guard),
        }
    };
    let many = Redlock::in_memory(&nodes, options).unwrap();
    let leases = Arc::new(AtomicU32::new(0));
    let mut tasks = JoinSet::new();
    for _ in 0..8 {
        let (many, leases) = (many.clone(), Arc::clone(&leases));
        tasks.spawn(async move {
            loop {
                use_lock(&many).await;
                leases.fetch_add(1, Ordering::Relaxed);
            }
        });
    }
    sleep(Duration::from_millis(100)).await;
    let one = Redlock::in_memory(&nodes, options).unwrap();
    let mut most = 0;
    for _ in 0..LEASES {
        leases.store(0, Ordering::Relaxed);
        use_lock(&one).await;
        most = most.max(leases.load(Ordering::Relaxed));
    }
    most
}

#[tokio::test(start_paused = true)]
async fn a_task_of_another_handle_is_overtaken_once_by_each_task_at_most() {
    for end in [End::Released, End::Dropped] {
        for latency in [0, 1, 4].map(Duration::from_millis) {
            let most = most_leases_while_another_handle_waits(end, latency).await;
            assert!(most <= 9, "{end:?}, {latency:?}: {most}");
        }
    }
}

#[tokio::test(start_paused = true)]
async fn tasks_that_wait_for_minutes_are_not_overtaken_by_those_of_another_handle() {
    const TASKS: usize = 15;

    // The mailboxes are random, and decide which of two equal clients is first.
    for _ in 0..8 {
        let nodes = MemoryNode::array::<3>();
        let options = Options::new(TTL).unwrap().wait(Duration::from_secs(3_600));
        let order = Arc::new(Mutex::new(String::new()));
        let mut tasks = JoinSet::new();
        for (name, called_after) in [('a', 0), ('b', 5)] {
            let redlock = Redlock::in_memory(&nodes, options).unwrap();
            for _ in 0..TASKS {
                let (redlock, order) = (redlock.clone(), Arc::clone(&order));
                tasks.spawn(async move {
                    sleep(Duration::from_secs(called_after)).await;
                    let guard = redlock.acquire("dock").await.unwrap();
                    order.lock().unwrap().push(name);
                    sleep(Duration::from_secs(8)).await;
                    guard.release().await;
                });
            }
        }
        tasks.join_all().await;
        let order = order.lock().unwrap().clone();
        // Those of the first handle stand in no line before another handle wants the lock, so one can go first.
        let last = order.rfind('a').unwrap();
        assert!(order[..last].matches('b').count() <= 1, "{order}");
    }
}

/// A plain lock learns the nodes' time only in a line, and its first task has none to go by.
#[tokio::test(start_paused = true)]
async fn tasks_that_waited_before_their_process_knew_the_nodes_time_are_not_overtaken_either() {
    let nodes = MemoryNode::array::<3>();
    for node in &nodes {
        node.set_latency(Duration::from_millis(1));
    }
    let options = Options::new(TTL).unwrap().wait(Duration::from_secs(60));
    let redlock = Redlock::in_memory(&nodes, options).unwrap();
    let guard = redlock.acquire("dock").await.unwrap();
    let order = Arc::new(Mutex::new(String::new()));
    let mut tasks = JoinSet::new();
    for name in "aaaabcdefg".chars() {
        let redlock = match name {
            'a' => redlock.clone(),
            _ => Redlock::in_memory(&nodes, options).unwrap(),
        };
        let order = Arc::clone(&order);
        tasks.spawn(async move {
            let guard = redlock.acquire("dock").await.unwrap();
            order.lock().unwrap().push(name);
            sleep(Duration::from_millis(50)).await;
            guard.release().await;
        });
        sleep(Duration::from_millis(200)).await;
    }
    guard.release().await;
    tasks.join_all().await;
    assert_eq!(*order.lock().unwrap(), "aaaabcdefg");
}

#[tokio::test(start_paused = true)]
async fn a_guard_that_is_kept_alive_for_hours_beside_a_hung_node_passes_in_a_moment() {
    let (nodes, redlock) = fleet();
    nodes[4].hang();
    let options = redlock.options().unlimited_extensions();
    let mut guard = redlock.with_options(options).acquire("dock").await.unwrap();
    guard.keep_alive();
    sleep(Duration::from_secs(3 * 3_600)).await;
    assert!(guard.is_valid());
    drop(guard);
    nodes[4].resume();
    assert_eq!(lock_count(&nodes), 0);
}

#[tokio::test(start_paused = true)]
async fn fences_grow_and_a_key_that_is_too_long_says_so() {
    let nodes = MemoryNode::array::<3>();
    let options = Options::new(TTL).unwrap();
    let options = options.fenced(Fencing::default()).unwrap();
    let redlock = Redlock::in_memory(&nodes, options).unwrap();
    let mut last = None;
    for _ in 0..3 {
        let guard = redlock.acquire("dock").await.unwrap();
        assert!(guard.fence() > last);
        last = guard.fence();
        drop(guard);
    }
    let error = redlock.try_acquire([7; 65]).await.unwrap_err().to_string();
    assert!(
        error.contains("the key is too long for a node in memory"),
        "{error}"
    );
    let error = redlock.try_acquire(vec![7; MAX_KEY + 1]).await.unwrap_err();
    assert!(matches!(error, AcquireError::KeyTooLong(_)), "{error}");
}

#[tokio::test(start_paused = true)]
async fn a_key_that_is_set_in_memory_for_the_longest_time_stays_there() {
    let nodes = MemoryNode::array::<3>();
    for node in &nodes {
        node.set("dock", Token::from_bytes([7; 20]), Duration::MAX);
    }
    let redlock = Redlock::in_memory(&nodes, Options::new(TTL).unwrap()).unwrap();
    sleep(TTL * 1_000).await;
    let error = redlock.try_acquire("dock").await.unwrap_err();
    assert!(error.is_held(), "{error}");
}

#[tokio::test(flavor = "multi_thread")]
async fn tasks_on_many_threads_share_nodes_in_memory() {
    let (nodes, redlock) = fleet();
    let mut tasks = JoinSet::new();
    for number in 0..40 {
        let redlock = redlock.clone();
        tasks.spawn(async move {
            let guard = redlock
                .acquire(format!("dock-{}", number % 8))
                .await
                .unwrap();
            assert!(guard.is_valid());
            guard.release().await;
        });
    }
    while let Some(done) = tasks.join_next().await {
        done.unwrap();
    }
    assert_eq!(lock_count(&nodes), 0);
}

#[tokio::test(start_paused = true)]
async fn a_closed_handle_acquires_nothing_and_ends_the_acquires_that_wait() {
    let (nodes, redlock) = fleet();
    let guard = redlock.acquire("dock").await.unwrap();
    let here = tokio::spawn({
        let redlock = redlock.clone();
        async move { redlock.acquire("dock").await }
    });
    let other = Redlock::in_memory(&nodes, *redlock.options()).unwrap();
    let there = tokio::spawn({
        let other = other.clone();
        async move { other.acquire("dock").await }
    });
    sleep(Duration::from_secs(1)).await;
    assert_eq!(nodes[0].waiting("dock"), 1);
    let start = Instant::now();
    assert_eq!((redlock.close().await, other.close().await), (0, 0));
    for waiting in [here, there] {
        let error = waiting.await.unwrap().unwrap_err();
        assert!(matches!(error, AcquireError::Closed(_)), "{error}");
    }
    assert!(
        start.elapsed() < Duration::from_millis(10),
        "nothing is waited for"
    );
    assert_eq!(nodes[0].waiting("dock"), 0, "the place in the line is left");
    let error = redlock.try_acquire("crane").await.unwrap_err();
    assert!(matches!(error, AcquireError::Closed(_)), "{error}");
    assert!(guard.is_valid());
    guard.release().await;
    assert_eq!(lock_count(&nodes), 0);
}

/// Three hosts whose clocks are 0.7 s apart start a job of 0.2 s every minute. Returns how often it ran in each period.
async fn runs_per_period(options: Options) -> Vec<u32> {
    const PERIOD: Duration = Duration::from_secs(60);
    const PERIODS: u32 = 20;

    let nodes = MemoryNode::array::<3>();
    nodes
        .iter()
        .for_each(|node| node.set_latency(Duration::from_millis(2)));
    let start = Instant::now();
    let mut hosts = JoinSet::new();
    for host in 0..3 {
        // A host of its own: it shares nothing with the others but the nodes.
        let redlock = Redlock::in_memory(&nodes, options.wait(Duration::ZERO)).unwrap();
        hosts.spawn(async move {
            let mut ran_in = Vec::new();
            for period in 0..PERIODS {
                tokio::time::sleep_until(
                    start + PERIOD * period + Duration::from_millis(700) * host,
                )
                .await;
                let job = async |_guard: &Guard| sleep(Duration::from_millis(200)).await;
                match redlock.hold("report", job).await {
                    Ok(()) => ran_in.push(period),
                    Err(HoldError::NotAcquired(error)) if error.is_held() => {}
                    Err(error) => panic!("{error}"),
                }
            }
            ran_in
        });
    }
    let mut runs = vec![0; PERIODS as usize];
    while let Some(ran_in) = hosts.join_next().await {
        for period in ran_in.unwrap() {
            runs[period as usize] += 1;
        }
    }
    runs
}

#[tokio::test(start_paused = true)]
async fn a_job_with_a_min_hold_runs_once_per_period_on_hosts_that_start_it_apart() {
    let options = Options::new(TTL).unwrap();
    let once = options.min_hold(Duration::from_secs(55)).unwrap();
    assert_eq!(runs_per_period(once).await, [1; 20]);
    // Without it, the lock is free again when the next host starts.
    assert_eq!(runs_per_period(options).await, [3; 20]);
}

#[tokio::test(start_paused = true)]
async fn a_released_lock_stays_held_for_the_rest_of_its_min_hold_unless_it_is_released_now() {
    for fencing in [
        None,
        Some(Fencing::default().with_max_ttl(TTL * 3).unwrap()),
    ] {
        stays_held_for_the_rest(fencing).await;
    }
}

async fn stays_held_for_the_rest(fencing: Option<Fencing>) {
    let (nodes, redlock) = fleet();
    let options = match fencing {
        Some(fencing) => redlock.options().fenced(fencing).unwrap(),
        None => *redlock.options(),
    };
    let options = options.min_hold(TTL * 3).unwrap();
    if fencing.is_some() {
        // The quarantine of new nodes.
        let first = redlock.with_options(options.wait(TTL * 100));
        first.acquire("dock").await.unwrap().release_now().await;
    }
    let redlock = redlock.with_options(options.wait(Duration::ZERO));
    let start = Instant::now();
    let guard = redlock.acquire("dock").await.unwrap();
    let fence = guard.fence();
    sleep(TTL / 2).await;
    let released = guard.release().await;
    assert!(
        released.kept() >= 3 && released.released() == 0,
        "{released:?}"
    );
    // The clock may be late by a tick.
    let tick = Duration::from_millis(1);
    assert_eq!(nodes[0].ttl("dock"), Some(TTL * 3 - TTL / 2 + tick));
    tokio::time::sleep_until(start + TTL * 3 - Duration::from_millis(2)).await;
    assert!(redlock.acquire("dock").await.unwrap_err().is_held());
    sleep(Duration::from_millis(4)).await;

    // A dropped guard keeps the lock too. The next fence is higher, as ever.
    let next = redlock.acquire("dock").await.unwrap();
    assert!(next.fence() > fence || fencing.is_none());
    drop(next);
    assert_eq!(nodes[0].ttl("dock"), Some(TTL * 3));
    sleep(TTL * 4).await;

    let released = redlock.acquire("dock").await.unwrap().release_now().await;
    assert!(
        released.kept() == 0 && released.released() >= 3,
        "{released:?}"
    );
    assert_eq!(lock_count(&nodes), 0);

    let too_long = redlock
        .options()
        .min_hold(TTL * 3 + Duration::from_millis(1));
    assert_eq!(
        too_long.err(),
        fencing.map(|_| redlock_std::OptionsError::MinHold)
    );
}

#[tokio::test(start_paused = true)]
async fn a_fenced_lock_stays_held_for_its_min_hold_although_clocks_have_drifted_since_its_acquire()
{
    let (nodes, redlock) = fleet();
    let fencing = Fencing::default().with_max_ttl(TTL * 9).unwrap();
    let options = redlock.options().fenced(fencing).unwrap();
    let options = options.min_hold(TTL * 9).unwrap();
    let first = redlock.with_options(options.wait(TTL * 100));
    first.acquire("dock").await.unwrap().release_now().await;
    let redlock = redlock.with_options(options.wait(Duration::ZERO));
    let guard = redlock.acquire("dock").await.unwrap();
    let drift = i64::try_from(fencing.window().as_micros()).unwrap() * 2;
    nodes.iter().for_each(|node| node.set_clock_step(drift));
    assert!(guard.release().await.kept() >= 3);
    sleep(TTL * 2).await;
    assert!(redlock.acquire("dock").await.unwrap_err().is_held());
}

#[tokio::test(start_paused = true)]
async fn a_node_that_restarts_without_its_data_has_no_vote_for_the_min_hold() {
    let (nodes, redlock) = fleet();
    let options = redlock.options().min_hold(TTL * 3).unwrap();
    let redlock = redlock.with_options(options.wait(Duration::ZERO));
    redlock.acquire("dock").await.unwrap().release().await;
    nodes[..3].iter().for_each(|node| {
        node.kill();
        node.restart();
    });
    sleep(TTL * 2).await;
    let error = redlock.acquire("dock").await.unwrap_err();
    assert!(error.is_unreachable(), "{error}");
}

#[tokio::test(start_paused = true)]
async fn a_task_that_was_not_polled_while_another_one_adopted_the_lease_does_not_adopt_it() {
    let (nodes, redlock) = fleet();
    let handover = redlock.acquire("dock").await.unwrap().hand_over();
    delay_replies(&nodes);
    let mut late = pin!(redlock.adopt(&handover));
    assert!(polled_once(late.as_mut()).await.is_pending());
    sleep(TTL / 2).await;
    let adopted = redlock.adopt(&handover).await.unwrap();
    let refused = late.await.unwrap_err();
    assert!(matches!(refused, AdoptError::HeldHere(_)), "{refused}");
    assert!(adopted.is_valid());
}

#[tokio::test(start_paused = true)]
async fn a_handle_that_is_closed_while_it_adopts_a_lease_does_not_hold_it() {
    let (nodes, redlock) = fleet();
    let handover = redlock.acquire("dock").await.unwrap().hand_over();
    delay_replies(&nodes);
    let mut adoption = pin!(redlock.adopt(&handover));
    assert!(polled_once(adoption.as_mut()).await.is_pending());
    redlock.close().await;
    let refused = adoption.await.unwrap_err();
    assert!(matches!(refused, AdoptError::Closed(_)), "{refused}");
    // The lease is as it was.
    let successor = Redlock::in_memory(&nodes, *redlock.options()).unwrap();
    assert!(successor.adopt(&handover).await.is_ok());
}

#[tokio::test(start_paused = true)]
async fn an_adoption_that_was_too_late_succeeds_when_it_is_tried_again() {
    let nodes = MemoryNode::array::<5>();
    let options = Options::new(TTL).unwrap().drift_ppm(500_000).unwrap();
    let redlock = Redlock::in_memory(&nodes, options).unwrap();
    let handover = redlock.acquire("dock").await.unwrap().hand_over();
    delay_replies(&nodes);
    let mut late = pin!(redlock.adopt(&handover));
    assert!(polled_once(late.as_mut()).await.is_pending());
    tokio::time::advance(TTL * 6 / 10).await;
    let error = late.await.unwrap_err();
    assert!(error.is_retryable(), "{error}");
    assert!(redlock.adopt(&handover).await.is_ok());
}

/// As on servers, but for the room: `a_close_does_not_wait_for_nodes_that_are_dead_and_not_for_long_for_those_that_hang` is their test.
#[tokio::test(start_paused = true)]
async fn a_close_counts_the_releases_that_a_hung_node_has_not_executed_and_those_without_room() {
    let nodes = MemoryNode::array::<3>();
    let redlock = Redlock::in_memory(&nodes, Options::new(TTL * 10).unwrap()).unwrap();
    drop(redlock.acquire("crane").await.unwrap());
    assert_eq!((redlock.close().await, redlock.warnings()), (0, vec![]));

    let other = Redlock::in_memory(&nodes, *redlock.options()).unwrap();
    let redlock = Redlock::in_memory(&nodes, *redlock.options()).unwrap();
    // The answers to the release above are read.
    sleep(Duration::from_millis(1)).await;
    nodes[0].hang();
    let mut guards = Vec::new();
    for dock in 0..40 {
        guards.push(redlock.acquire(format!("dock-{dock}")).await.unwrap());
    }
    // 40 acquires are on their way, so 24 releases have room.
    drop(guards);
    // There is nothing to release on the node of a lock whose acquire had no room.
    drop(redlock.acquire("crane").await.unwrap());
    let start = Instant::now();
    assert_eq!(redlock.close().await, 40);
    assert!(start.elapsed() <= Duration::from_secs(2));
    assert_eq!(other.close().await, 0, "another process has sent nothing");

    nodes[0].resume();
    assert_eq!((redlock.close().await, nodes[0].lock_count()), (16, 16));
    let warnings = redlock
        .warnings()
        .into_iter()
        .map(|warning| warning.to_string());
    let words = "node 1: 16 releases were dropped because too many waited; their keys expire";
    assert_eq!(warnings.collect::<Vec<_>>(), [words]);
}

#[tokio::test(start_paused = true)]
async fn a_handle_that_is_closed_while_it_acquires_does_not_hold_the_lock_for_the_min_hold() {
    let nodes = MemoryNode::array::<5>();
    let options = Options::new(TTL).unwrap().min_hold(TTL * 100).unwrap();
    let redlock = Redlock::in_memory(&nodes, options).unwrap();
    delay_replies(&nodes);
    let mut acquiring = pin!(redlock.acquire("dock"));
    assert!(polled_once(acquiring.as_mut()).await.is_pending());
    let (acquired, unanswered) = tokio::join!(acquiring, redlock.close());
    assert!(
        matches!(acquired, Err(AcquireError::Closed(_))),
        "{acquired:?}"
    );
    sleep(TTL / 10).await;
    assert_eq!((unanswered, lock_count(&nodes)), (0, 0));
}

/// So that a future that was polled once has sent its commands and has no answer yet.
#[test]
fn a_guard_that_is_dropped_outside_of_the_runtime_releases_the_lock_on_distant_nodes() {
    for ends_first in [false, true] {
        let runtime = tokio::runtime::Builder::new_current_thread();
        let runtime = { runtime }.enable_time().build().unwrap();
        let (nodes, guard) = runtime.block_on(async {
            let (nodes, redlock) = fleet();
            (nodes, redlock.acquire("dock-7").await.unwrap())
        });
        let distance = Duration::from_micros(100);
        nodes.iter().for_each(|node| node.set_latency(distance));
        let left = (!ends_first).then_some(runtime);
        drop(guard);
        // Until the releases have arrived.
        while lock_count(&nodes) > 0 {
            std::thread::yield_now();
        }
        drop(left);
    }
}

fn delay_replies(nodes: &[MemoryNode]) {
    for node in nodes {
        node.set_latency(Duration::from_millis(4));
    }
}

/// Polls the future once.
async fn polled_once<F: Future>(mut future: Pin<&mut F>) -> Poll<F::Output> {
    poll_fn(|context| Poll::Ready(future.as_mut().poll(context))).await
}
