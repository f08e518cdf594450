//! `redlock-std` beside `rslock`, and fenced beside plain, on the same five servers in the same run. Ratios
//! count, not times.
//!
//! `cargo bench -p redlock-tests --bench peer`. A harness of its own, since criterion and divan time
//! one closure: what is compared here are tasks that run at once, client CPU, fairness and commands,
//! peer and peer in turns, so that a noisy machine troubles both alike.

#![expect(clippy::print_stdout, reason = "a benchmark prints")]
#![expect(clippy::float_arithmetic, reason = "ratios, for people")]
#![expect(clippy::unwrap_used, reason = "a benchmark that cannot run stops")]

mod client;
mod load;

use std::time::Duration;

use redlock_tests::{Server, Servers};
use tokio::runtime::{Builder, Runtime};

use client::{Client, Ours, Theirs};
use load::{Contention, Latency, Throughput};

/// How often each measurement is repeated; the median counts.
const REPETITIONS: usize = 5;

fn main() {
    let servers = Servers::start(5);
    println!(
        "five redis-servers and the client on one machine; median of {REPETITIONS} runs in turns"
    );
    for (name, runtime) in [
        ("multi-thread", multi_thread()),
        ("current-thread", current_thread()),
    ] {
        println!("\n# tokio's {name} runtime\n");
        runtime.block_on(async {
            let ours = Ours::connect(&servers).await;
            let theirs = Theirs::connect(&servers).await;
            // First: what a server is sent late, after it has hung, would be counted here.
            contended(&servers, &ours, &theirs).await;
            uncontended(&servers, &ours, &theirs).await;
            fenced(&servers, &ours).await;
            paused(&servers, &ours).await;
        });
    }
    current_thread().block_on(servers.expect_no_keys());
    println!("\nno key is left on any server");
}

async fn uncontended(servers: &Servers, ours: &Ours, theirs: &Theirs) {
    for hung in [0, 1] {
        servers[..hung].iter().for_each(Server::pause);
        let mut latency = (Vec::new(), Vec::new());
        let mut throughput = (Vec::new(), Vec::new());
        for _ in 0..REPETITIONS {
            latency.0.push(load::latency(ours).await);
            latency.1.push(load::latency(theirs).await);
            throughput.0.push(load::throughput(ours).await);
            throughput.1.push(load::throughput(theirs).await);
        }
        servers[..hung].iter().for_each(Server::resume);
        let state = if hung == 0 {
            "five servers up"
        } else {
            "one of five hung"
        };
        let p50 = |runs: &[Latency]| median(runs.iter().map(|run| run.p50.as_secs_f64() * 1e6));
        line(
            state,
            "lock + unlock, one task, p50 us",
            p50(&latency.0),
            p50(&latency.1),
        );
        let rate = |runs: &[Throughput]| median(runs.iter().map(|run| run.per_second));
        line(
            state,
            "cycles/s, 64 tasks, 64 keys",
            rate(&throughput.0),
            rate(&throughput.1),
        );
        let cpu = |runs: &[Throughput]| median(runs.iter().map(|run| run.cpu_us_per_cycle));
        line(
            state,
            "client CPU us per cycle, 64 tasks",
            cpu(&throughput.0),
            cpu(&throughput.1),
        );
        servers.expect_no_keys().await;
    }
}

/// What a fence costs.
async fn fenced(servers: &Servers, plain: &Ours) {
    let fenced = plain.fenced().await;
    let clients = [plain, &fenced];
    let mut p50 = [Vec::new(), Vec::new()];
    let mut rate = [Vec::new(), Vec::new()];
    let mut cpu = [Vec::new(), Vec::new()];
    let mut server_cpu = [Vec::new(), Vec::new()];
    let mut bytes = [Vec::new(), Vec::new()];
    for _ in 0..REPETITIONS {
        for (kind, client) in clients.into_iter().enumerate() {
            p50[kind].push(load::latency(client).await.p50.as_secs_f64() * 1e6);
            let before: Duration = servers.iter().map(Server::cpu_time).sum();
            let throughput = load::throughput(client).await;
            servers.expect_no_keys().await;
            let after: Duration = servers.iter().map(Server::cpu_time).sum();
            let busy = (after - before).as_secs_f64() * 1e6 / servers.len() as f64;
            server_cpu[kind].push(busy / throughput.cycles);
            rate[kind].push(throughput.per_second);
            cpu[kind].push(throughput.cpu_us_per_cycle);
            bytes[kind].push(load::bytes_on_the_wire(servers, client).await);
        }
    }
    for (what, runs) in [
        ("lock + unlock, one task, p50 us", p50),
        ("cycles/s, 64 tasks, 64 keys", rate),
        ("client CPU us per cycle, 64 tasks", cpu),
        ("CPU us of one server per cycle, 64 tasks", server_cpu),
        ("bytes on the wire per cycle, both ways", bytes),
    ] {
        let [plain, fenced] = runs.map(|runs| median(runs.into_iter()));
        println!(
            "fenced: {what}: fenced {fenced:.1}, plain {plain:.1}, ratio {:.3}",
            fenced / plain
        );
    }
}

/// Our own latency with no, one and two hung servers, in turns.
async fn paused(servers: &Servers, ours: &Ours) {
    let mut p50 = [Vec::new(), Vec::new(), Vec::new()];
    for _ in 0..REPETITIONS {
        for (hung, runs) in p50.iter_mut().enumerate() {
            servers[..hung].iter().for_each(Server::pause);
            runs.push(load::latency(ours).await.p50.as_secs_f64() * 1e6);
            servers[..hung].iter().for_each(Server::resume);
            servers.expect_no_keys().await;
        }
    }
    let [healthy, one, two] = p50.map(|runs| median(runs.into_iter()));
    println!(
        "ours, p50 us with 0 / 1 / 2 of 5 hung: {healthy:.0} / {one:.0} / {two:.0}, to healthy: {:.2} / {:.2}",
        one / healthy,
        two / healthy,
    );
}

async fn contended(servers: &Servers, ours: &Ours, theirs: &Theirs) {
    let ours = load::contention(servers, ours).await;
    let theirs = load::contention(servers, theirs).await;
    let state = "16 tasks, one key";
    let handoff = |run: &Contention| run.handoff_p50.as_secs_f64() * 1e6;
    line(
        state,
        "hand-off to another task, p50 us",
        handoff(&ours),
        handoff(&theirs),
    );
    line(
        state,
        "commands per acquisition",
        ours.commands,
        theirs.commands,
    );
    for (name, run) in [(Ours::NAME, &ours), (Theirs::NAME, &theirs)] {
        println!(
            "{state}: turns per task, {name}: {} to {} (max/min {:.2})",
            run.least,
            run.most,
            run.most as f64 / run.least.max(1) as f64,
        );
    }
}

fn line(state: &str, what: &str, ours: f64, theirs: f64) {
    println!(
        "{state}: {what}: {} {ours:.1}, {} {theirs:.1}, ratio {:.3}",
        Ours::NAME,
        Theirs::NAME,
        ours / theirs,
    );
}

fn median(values: impl Iterator<Item = f64>) -> f64 {
    let mut values: Vec<_> = values.collect();
    values.sort_by(f64::total_cmp);
    values.get(values.len() / 2).copied().unwrap_or(f64::NAN)
}

fn multi_thread() -> Runtime {
    Builder::new_multi_thread().enable_all().build().unwrap()
}

fn current_thread() -> Runtime {
    Builder::new_current_thread().enable_all().build().unwrap()
}

/// The TTL of every lock here.
const TTL: Duration = Duration::from_secs(10);
