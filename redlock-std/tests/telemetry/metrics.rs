//! Each metric with its attributes.

use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::Duration;

use redlock_std::{HoldError, LossCause, MAX_KEY, MemoryNode, Options};
use tokio::time::sleep;

use crate::recorder::Metrics;
use crate::{KEY, TTL, fleet, handle};

const WAITING: &str = "redlock.client.waiting{}";
const HELD: &str = "redlock.client.held{}";

#[tokio::test(start_paused = true)]
async fn a_lock_that_is_released_is_counted_with_its_times() {
    let metrics = Metrics::install();
    let (nodes, redlock) = fleet();
    nodes
        .iter()
        .for_each(|node| node.set_latency(Duration::from_millis(4)));
    let guard = redlock.acquire(KEY).await.unwrap();
    let series = metrics.series();
    let acquired = "redlock.client.acquire.duration{outcome=acquired}";
    assert_eq!(series[acquired], [0.004]);
    let tries = "redlock.client.acquire.tries{outcome=acquired}";
    assert_eq!(series[tries], [1.0]);
    assert_eq!(
        (&*series[HELD], &*series[WAITING]),
        (&[1.0][..], &[0.0][..])
    );

    sleep(Duration::from_secs(3)).await;
    guard.release().await;
    let series = metrics.series();
    let held = &series["redlock.client.hold.duration{end=released}"];
    assert!(held.len() == 1 && (held[0] - 3.0).abs() < 0.002, "{held:?}");
    assert_eq!(series[HELD], [0.0]);
    let lost = series.iter().filter(|(name, _)| name.contains(".lost"));
    assert!(lost.map(|(_, count)| count).all(|count| *count == [0.0]));
}

#[tokio::test(start_paused = true)]
async fn an_acquire_that_fails_is_counted_by_its_outcome() {
    let metrics = Metrics::install();
    let (nodes, redlock) = fleet();
    let _guard = redlock.acquire(KEY).await.unwrap();
    let count = |outcome: &str| {
        let name = format!("redlock.client.acquire.duration{{outcome={outcome}}}");
        metrics.values(&name).len()
    };
    redlock.try_acquire(KEY).await.unwrap_err();
    assert_eq!(count("held"), 1, "by a task of this process");
    handle(&nodes).try_acquire(KEY).await.unwrap_err();
    assert_eq!(count("held"), 2, "by another process");
    redlock.try_acquire("redlock:key").await.unwrap_err();
    assert_eq!(count("invalid"), 1);
    let too_long = [0; MAX_KEY + 1];
    redlock.acquire(&too_long).await.unwrap_err();
    redlock.try_acquire(&too_long).await.unwrap_err();
    assert_eq!(count("invalid"), 3, "keys that are too long");
    // Their validity is no longer than a tick of the clock.
    let short = Options::new(Duration::from_millis(3)).unwrap();
    let too_short = redlock.with_options(short);
    too_short.acquire("other").await.unwrap_err();
    too_short.try_acquire("other").await.unwrap_err();
    assert_eq!(count("invalid"), 5, "options that cannot work");
    let tries = metrics.values("redlock.client.acquire.tries{outcome=invalid}");
    assert_eq!(tries, [0.0; 5], "no node was asked");
    nodes.iter().for_each(MemoryNode::kill);
    redlock.try_acquire("other").await.unwrap_err();
    assert_eq!(count("unreachable"), 1);
    let waiting = tokio::spawn({
        let redlock = redlock.clone();
        async move { redlock.acquire(KEY).await.map(drop) }
    });
    sleep(Duration::from_millis(1)).await;
    assert_eq!(metrics.values(WAITING), [1.0]);
    redlock.close().await;
    waiting.await.unwrap().unwrap_err();
    assert_eq!(count("closed"), 1);
    redlock.acquire(KEY).await.unwrap_err();
    redlock.try_acquire(KEY).await.unwrap_err();
    assert_eq!(count("closed"), 3);
    assert_eq!(metrics.values(WAITING), [0.0]);
}

#[tokio::test(start_paused = true)]
async fn gauges_return_to_zero_after_drops_cancellations_and_panics_in_tasks() {
    let metrics = Metrics::install();
    let (nodes, redlock) = fleet();
    drop(redlock.acquire(KEY).await.unwrap());

    nodes.iter().for_each(MemoryNode::hang);
    let cancelled = tokio::time::timeout(Duration::from_millis(20), redlock.acquire("a"));
    cancelled.await.map(drop).unwrap_err();
    nodes.iter().for_each(MemoryNode::resume);

    let panicking = tokio::spawn({
        let redlock = redlock.clone();
        async move {
            let mut guard = redlock.acquire("b").await.unwrap();
            guard.keep_alive();
            std::panic::resume_unwind(Box::new("in a task"));
        }
    });
    assert!(panicking.await.unwrap_err().is_panic());

    let aborted = tokio::spawn({
        let redlock = redlock.clone();
        async move {
            let work = async |_: &_| std::future::pending::<()>().await;
            redlock.hold("c", work).await
        }
    });
    sleep(Duration::from_millis(10)).await;
    assert_eq!(metrics.values(HELD), [1.0]);
    aborted.abort();
    let _aborted = aborted.await;

    let handed_over = redlock.acquire("d").await.unwrap().hand_over();
    let adopted = redlock.adopt(&handed_over).await.unwrap();
    assert_eq!(metrics.values(HELD), [1.0]);
    adopted.release().await;
    drop(redlock);

    let series = metrics.series();
    assert_eq!(
        (&*series[HELD], &*series[WAITING]),
        (&[0.0][..], &[0.0][..])
    );
    let dropped = "redlock.client.acquire.duration{outcome=dropped}";
    assert_eq!(series[dropped].len(), 1);
    let ends = |end: &str| {
        let name = format!("redlock.client.hold.duration{{end={end}}}");
        series.get(&name).map(Vec::len)
    };
    assert_eq!(ends("dropped"), Some(3), "the guard, the panic, the abort");
    for node in ["node 1", "node 2", "node 3"] {
        let up = format!("redlock.client.node.up{{server.address={node}}}");
        assert_eq!(series[&up], [0.0], "the handle is gone");
    }
}

#[tokio::test(start_paused = true)]
async fn a_lock_that_is_lost_is_counted_by_its_cause_and_so_are_the_extensions_that_failed() {
    let metrics = Metrics::install();
    let (nodes, redlock) = fleet();
    let series = metrics.series();
    for cause in [
        "lost",
        "unreachable",
        "expired",
        "extensions_spent",
        "not_asked",
    ] {
        let name = format!("redlock.client.lost{{cause={cause}}}");
        assert_eq!(series[&name], [0.0], "before the first loss");
    }
    for error in ["lost", "unreachable", "too_late", "expired", "not_asked"] {
        let name = format!("redlock.client.extend.failures{{error.type={error}}}");
        assert_eq!(series[&name], [0.0], "before the first failure");
    }
    let work = redlock.hold(KEY, async |_guard| sleep(TTL * 3).await);
    let fault = async {
        sleep(Duration::from_secs(1)).await;
        nodes[0].kill();
        nodes[1].kill();
    };
    let (held, ()) = tokio::join!(work, fault);
    assert!(matches!(held, Err(HoldError::Lost(_))), "{held:?}");
    let series = metrics.series();
    assert_eq!(series["redlock.client.lost{cause=unreachable}"], [1.0]);
    let ends = &series["redlock.client.hold.duration{end=lost}"];
    assert!(ends.len() == 1 && ends[0] < TTL.as_secs_f64(), "{ends:?}");
    let failures = &series["redlock.client.extend.failures{error.type=unreachable}"];
    assert!(failures[0] >= 2.0, "{failures:?}");
    assert_eq!(series[HELD], [0.0]);

    // So it is if the application extends, and knows of the failures itself.
    let (nodes, redlock) = fleet();
    let mut guard = redlock.acquire(KEY).await.unwrap();
    nodes.iter().for_each(MemoryNode::kill);
    while guard.is_valid() {
        guard.extend().await.unwrap_err();
        sleep(TTL / 10).await;
    }
    assert!(matches!(guard.lost().await, LossCause::Unreachable(_)));
    let series = metrics.series();
    assert_eq!(series["redlock.client.lost{cause=unreachable}"], [2.0]);

    // The extension that finds the lock lost has failed too.
    let (nodes, redlock) = fleet();
    let mut guard = redlock.acquire(KEY).await.unwrap();
    guard.keep_alive();
    for node in &nodes {
        node.kill();
        node.restart();
    }
    guard.lost().await;
    drop(guard);
    let series = metrics.series();
    assert_eq!(series["redlock.client.lost{cause=lost}"], [1.0]);
    let failures = &series["redlock.client.extend.failures{error.type=lost}"];
    assert_eq!(failures[..], [1.0]);

    let (_nodes, redlock) = fleet();
    let mut guard = redlock.acquire(KEY).await.unwrap();
    sleep(TTL * 2).await;
    for _ in 0..2 {
        guard.extend().await.unwrap_err();
    }
    drop(guard);
    let series = metrics.series();
    let failures = &series["redlock.client.extend.failures{error.type=expired}"];
    assert_eq!(failures[..], [2.0]);
    assert_eq!(series["redlock.client.lost{cause=expired}"], [1.0]);
    assert_eq!(series["redlock.client.hold.duration{end=expired}"].len(), 1);
    assert_eq!(series[HELD], [0.0]);
}

#[tokio::test(start_paused = true)]
async fn a_node_that_fails_is_counted_by_its_address_and_shown_as_down_until_it_is_back() {
    let metrics = Metrics::install();
    let (nodes, redlock) = fleet();
    let up = "redlock.client.node.up{server.address=node 2}";
    assert_eq!(metrics.values(up), [1.0]);
    nodes[1].kill();
    redlock.acquire(KEY).await.unwrap().release().await;
    let series = metrics.series();
    assert_eq!(series[up], [0.0]);
    let failed = "redlock.client.node.failures{error.type=unreachable,server.address=node 2}";
    assert!(series[failed][0] >= 1.0);
    let others = series.keys().filter(|name| name.contains("node.failures"));
    assert_eq!(others.count(), 1, "{series:?}");

    nodes[1].restart();
    redlock.acquire(KEY).await.unwrap().release().await;
    let series = metrics.series();
    assert_eq!(series[up], [1.0]);
    let denied = "redlock.client.node.failures{error.type=restarted,server.address=node 2}";
    assert_eq!(series[denied], [1.0]);

    let _other = handle(&nodes);
    assert_eq!(metrics.values(up), [2.0], "one for each handle");
}

#[tokio::test(start_paused = true)]
async fn a_hand_off_is_timed_within_the_process_and_through_the_line() {
    let metrics = Metrics::install();
    let (nodes, redlock) = fleet();
    nodes
        .iter()
        .for_each(|node| node.set_latency(Duration::from_millis(2)));
    let acquire = async |handle: redlock_std::Redlock| {
        let guard = redlock.acquire(KEY).await.unwrap();
        let waiting = tokio::spawn(async move { handle.acquire(KEY).await.map(drop) });
        sleep(Duration::from_secs(1)).await;
        guard.release().await;
        waiting.await.unwrap().unwrap();
    };
    acquire(redlock.clone()).await;
    let via = |via: &str| metrics.values(&format!("redlock.client.handoff.duration{{via={via}}}"));
    let within = via("process");
    assert!(within.len() == 1 && within[0] <= 0.004, "{within:?}");
    acquire(handle(&nodes)).await;
    let through = via("line");
    assert!(through.len() == 1 && through[0] <= 0.008, "{through:?}");
}

#[tokio::test(start_paused = true)]
async fn ten_thousand_keys_leave_no_trace_without_labels_and_as_many_as_there_are_labels_with_them()
{
    let metrics = Metrics::install();
    let (_nodes, redlock) = fleet();
    let use_keys = async |redlock: &redlock_std::Redlock| {
        for number in 0..10_000 {
            let key = format!("invoice:{number}");
            redlock.acquire(&key).await.unwrap().release().await;
        }
    };
    redlock.acquire("first").await.unwrap().release().await;
    let before: Vec<_> = metrics.series().into_keys().collect();
    use_keys(&redlock).await;
    let after: Vec<_> = metrics.series().into_keys().collect();
    assert_eq!(before, after);
    assert!(!after.iter().any(|name| name.contains("invoice")));

    let labelled = redlock.with_label(|key| match key {
        b"invoice:0" => Some("first"),
        _ if key.starts_with(b"invoice:") => Some("invoice"),
        _ => None,
    });
    use_keys(&labelled).await;
    let series = metrics.series();
    let acquired = "redlock.client.acquire.duration{lock=invoice,outcome=acquired}";
    assert_eq!(series[acquired].len(), 9_999);
    let with_label = series.keys().filter(|name| name.contains("lock=first"));
    // Both gauges, two of an acquire, one of a hold, five causes of a loss, five errors of an extension.
    assert_eq!(with_label.count(), 15);
    assert_eq!(series.len(), before.len() + 30);
}

#[tokio::test(start_paused = true)]
async fn each_metric_is_described_with_its_unit() {
    let metrics = Metrics::install();
    let (nodes, redlock) = fleet();
    let hold = redlock.hold(KEY, async |_guard| sleep(TTL).await);
    let other = handle(&nodes);
    let (_held, _other, ()) = tokio::join!(hold, other.acquire(KEY), async {
        sleep(Duration::from_secs(1)).await;
        nodes[0].kill();
    });
    let lost = redlock.hold("other", async |_guard| {
        nodes[1].kill();
        sleep(TTL * 2).await;
    });
    let _lost = lost.await;
    let units = metrics.units();
    let seconds = units.iter().filter(|(_, unit)| **unit == Some("seconds"));
    let seconds: Vec<_> = seconds.map(|(name, _)| name.as_str()).collect();
    assert_eq!(
        seconds,
        [
            "redlock.client.acquire.duration",
            "redlock.client.handoff.duration",
            "redlock.client.hold.duration",
        ]
    );
    let counts = units.iter().filter(|(_, unit)| **unit == Some("count"));
    let counts: Vec<_> = counts.map(|(name, _)| name.as_str()).collect();
    assert_eq!(
        counts,
        [
            "redlock.client.acquire.tries",
            "redlock.client.extend.failures",
            "redlock.client.held",
            "redlock.client.lost",
            "redlock.client.node.failures",
            "redlock.client.node.up",
            "redlock.client.waiting",
        ]
    );
}

#[tokio::test(start_paused = true)]
async fn the_label_of_a_key_is_asked_for_once_and_before_the_nodes_are_asked() {
    let _metrics = Metrics::install();
    let (nodes, redlock) = fleet();
    let asked = Arc::new(AtomicUsize::new(0));
    let ask = || {
        let (asked, nodes) = (Arc::clone(&asked), nodes.clone());
        redlock.with_label(move |_key| {
            asked.fetch_add(1, Ordering::Relaxed);
            assert!(nodes.iter().all(|node| node.lock_count() == 0));
            Some("invoice")
        })
    };
    let guard = ask().acquire(KEY).await.unwrap();
    assert_eq!(asked.load(Ordering::Relaxed), 1);
    drop(guard);
    ask().try_acquire(KEY).await.unwrap().release().await;
    assert_eq!(asked.load(Ordering::Relaxed), 2);
}
