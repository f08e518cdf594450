//! A server whose locks can be watched: metrics for Prometheus over HTTP. `docs/grafana/redlock.json` is a dashboard for them.
//!
//! `REDLOCK_NODES=redis://10.0.0.1,redis://10.0.0.2,redis://10.0.0.3 cargo run --example metrics`, then
//! `curl http://127.0.0.1:9464/metrics`. The environment variable `METRICS` has another address.

#![expect(clippy::print_stderr, reason = "an example prints")]

use std::env;
use std::error::Error;
use std::net::SocketAddr;
use std::time::Duration;

use metrics_exporter_prometheus::{BuildError, Matcher, PrometheusBuilder};
use redlock_std::{Guard, Options, Redlock};
use tokio::time::sleep;

#[tokio::main]
async fn main() -> Result<(), Box<dyn Error>> {
    let nodes =
        env::var("REDLOCK_NODES").map_err(|_| "set REDLOCK_NODES to the URLs of the nodes")?;
    let address = env::var("METRICS").unwrap_or_else(|_| "127.0.0.1:9464".to_owned());
    // Before the first handle: it keeps the recorder that it finds.
    serve_metrics(address.parse()?)?;
    let options = Options::new(Duration::from_secs(10))?;
    let redlock = Redlock::connect(nodes.split(','), options)?.with_label(label);
    loop {
        let invoice = format!("invoice:{}", invoice_number());
        if let Err(error) = redlock.hold(&invoice, charge).await {
            eprintln!("{error}");
            sleep(Duration::from_secs(1)).await;
        }
    }
}

/// Serves the metrics of this process at `http://ADDRESS/metrics`.
fn serve_metrics(address: SocketAddr) -> Result<(), BuildError> {
    // In seconds. Without buckets, the exporter computes quantiles in the process, which cannot be added up over processes.
    const SECONDS: [f64; 14] = [
        0.000_5, 0.001, 0.002, 0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 1.0, 5.0, 15.0, 60.0, 300.0,
    ];
    const TRIES: [f64; 6] = [1.0, 2.0, 3.0, 5.0, 10.0, 30.0];

    PrometheusBuilder::new()
        .with_http_listener(address)
        .set_buckets_for_metric(Matcher::Suffix("duration".to_owned()), &SECONDS)?
        .set_buckets_for_metric(Matcher::Suffix("tries".to_owned()), &TRIES)?
        .install()
}

/// The kind of a lock: a few of them, and no key, which may be one of millions.
fn label(key: &[u8]) -> Option<&'static str> {
    key.starts_with(b"invoice:").then_some("invoice")
}

/// Every process takes another invoice, as a rule.
fn invoice_number() -> u32 {
    std::process::id() % 100
}

async fn charge(_guard: &Guard) {
    sleep(Duration::from_millis(100)).await;
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeSet;
    use std::fs;
    use std::io::{Read, Write};
    use std::net::{TcpListener, TcpStream};
    use std::path::Path;

    use redlock_std::MemoryNode;
    use serde_json::Value;

    use super::*;

    const TTL: Duration = Duration::from_secs(10);

    /// One test: a process has one recorder.
    #[test]
    fn each_metric_of_the_dashboard_is_in_a_scrape() -> Result<(), Box<dyn Error>> {
        let free = TcpListener::bind("127.0.0.1:0")?;
        let address = free.local_addr()?;
        drop(free);
        // The exporter gets a thread of its own.
        serve_metrics(address)?;
        let runtime = tokio::runtime::Builder::new_current_thread()
            .enable_all()
            .start_paused(true)
            .build()?;
        runtime.block_on(everything_that_can_happen())?;
        let scraped = scrape(address)?;
        for line in [
            "redlock_client_acquire_duration_count{outcome=\"acquired\",lock=\"invoice\"} 4",
            "redlock_client_lost{cause=\"unreachable\",lock=\"invoice\"} 1",
            "redlock_client_held{lock=\"invoice\"} 0",
            "redlock_client_node_failures{server_address=\"node 1\",error_type=\"unreachable\"}",
            "# TYPE redlock_client_acquire_duration histogram",
            "# HELP redlock_client_lost Locks that were found lost before they were released",
        ] {
            assert!(scraped.contains(line), "{line} is not in\n{scraped}");
        }
        assert!(!scraped.contains("invoice:"), "a key:\n{scraped}");

        let queried = queried_metrics()?;
        assert!(queried.len() >= 10, "{queried:?}");
        for metric in &queried {
            let is_there = scraped.lines().any(|line| {
                line.strip_prefix(metric.as_str())
                    .is_some_and(|rest| rest.starts_with(['{', ' ']))
            });
            assert!(is_there, "{metric} is not in\n{scraped}");
        }
        // And the other way round: the dashboard leaves nothing out.
        for line in scraped.lines() {
            let Some(name) = line.strip_prefix("# TYPE redlock_") else {
                continue;
            };
            let name = name.split(' ').next().unwrap_or_default();
            let is_queried = |metric: &String| metric.starts_with(&format!("redlock_{name}"));
            assert!(
                queried.iter().any(is_queried),
                "redlock_{name} has no panel"
            );
        }
        Ok(())
    }

    /// A task waits for another, a process for another, a lock is lost, a node is down.
    async fn everything_that_can_happen() -> Result<(), Box<dyn Error>> {
        let nodes = MemoryNode::array::<3>();
        let connect = || {
            let options = Options::new(TTL)?;
            Ok::<_, Box<dyn Error>>(Redlock::in_memory(&nodes, options)?.with_label(label))
        };
        let (redlock, other) = (connect()?, connect()?);
        let (first, second, third) = tokio::join!(
            redlock.hold("invoice:1", charge),
            redlock.hold("invoice:1", charge),
            other.hold("invoice:1", charge),
        );
        first.and(second).and(third)?;
        let lost = redlock.hold("invoice:2", async |_guard| {
            nodes[0].kill();
            nodes[1].kill();
            sleep(TTL * 2).await;
        });
        assert!(lost.await.is_err());
        Ok(())
    }

    fn scrape(address: SocketAddr) -> Result<String, Box<dyn Error>> {
        let mut connection = loop {
            match TcpStream::connect(address) {
                Ok(connection) => break connection,
                // The thread of the exporter has not begun to listen.
                Err(error) if error.kind() == std::io::ErrorKind::ConnectionRefused => {
                    std::thread::yield_now();
                }
                Err(error) => return Err(error.into()),
            }
        };
        let request =
            format!("GET /metrics HTTP/1.1\r\nHost: {address}\r\nConnection: close\r\n\r\n");
        connection.write_all(request.as_bytes())?;
        let mut response = String::new();
        connection.read_to_string(&mut response)?;
        assert!(response.starts_with("HTTP/1.1 200"), "{response}");
        Ok(response)
    }

    /// The names of the metrics in the queries of the dashboard.
    fn queried_metrics() -> Result<BTreeSet<String>, Box<dyn Error>> {
        let root = Path::new(env!("CARGO_MANIFEST_DIR")).join("..");
        let text = fs::read_to_string(root.join("docs/grafana/redlock.json"))?;
        let dashboard: Value = text.parse()?;
        let panels = dashboard["panels"].as_array().ok_or("no panels")?;
        let mut metrics = BTreeSet::new();
        for panel in panels {
            for target in panel["targets"].as_array().ok_or("no targets")? {
                let query = target["expr"].as_str().ok_or("no query")?;
                let words = query.split(|letter: char| !letter.is_alphanumeric() && letter != '_');
                let of_ours = words.filter(|word| word.starts_with("redlock_"));
                metrics.extend(of_ours.map(str::to_owned));
            }
        }
        Ok(metrics)
    }
}
