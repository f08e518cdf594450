//! `redlock-std` beside `rslock` and beside floors, and fenced beside plain, on the same five servers in the same run. Ratios
//! count, not times.
//!
//! `cargo bench -p redlock-tests --bench peer`. A harness of its own, since criterion and divan time
//! one closure: what is compared here are tasks that run at once, client CPU, fairness and commands,
//! peer and peer in turns, so that a noisy machine troubles all alike.
//!
//! - `-- --plot ../docs/latency.svg` draws the latencies too. Cargo runs benchmarks in the folder of their package.
//! - `-- --node-redlock` measures that client of another language too. It needs Node.js and npm.
//! - `-- --only redlock-std --tasks 64 --cycles 2000` runs so many cycles of one client and nothing else, for a profiler. Under
//!   `valgrind --tool=callgrind`, two runs that differ only in their cycles tell the instructions of one.
//!   With `--seconds 60 --tasks 1000` it prints how long the cycles of a crowd take.
//!   Build with `RUSTFLAGS="--cfg rustix_use_libc"` for it: valgrind does not show programs the clock that `rustix` asks otherwise.

#![expect(clippy::print_stdout, reason = "a benchmark prints")]
#![expect(clippy::float_arithmetic, reason = "ratios, for people")]
#![expect(clippy::unwrap_used, reason = "a benchmark that cannot run stops")]

mod client;
mod floor;
mod load;
mod node_redlock;
mod plot;

use std::path::PathBuf;
use std::time::Duration;

use clap::{Parser, ValueEnum};
use redlock_tests::{Server, Servers, eventually};
use tokio::runtime::{Builder, Runtime};

use client::{Client, Ours, Theirs};
use floor::Floor;
use floor::actors::Actor;
use floor::sockets::Socket;
use load::{Contention, Latency, Throughput};
use node_redlock::NodeRedlock;

/// How often each measurement is repeated; the median counts.
const REPETITIONS: usize = 5;

#[derive(Parser)]
struct Arguments {
    /// Draws the latencies into this SVG file
    #[arg(long, value_name = "FILE")]
    plot: Option<PathBuf>,
    /// Measures node-redlock too, which npm installs; asks the registry that npm is set to
    #[arg(long)]
    node_redlock: bool,
    /// Runs only cycles of this client
    #[arg(long, value_name = "CLIENT")]
    only: Option<Kind>,
    /// With --only: how many tasks, each with its own key
    #[arg(long, default_value_t = 1)]
    tasks: u32,
    /// With --only: how many cycles, of all tasks together
    #[arg(long, default_value_t = 1_000)]
    cycles: u32,
    /// With --only: for so many seconds, however many cycles that are, and then prints how long they took
    #[arg(long, value_name = "SECONDS")]
    seconds: Option<u64>,
    /// With --only: tokio's multi-thread runtime instead of the current-thread one
    #[arg(long)]
    multi_thread: bool,
    /// Cargo says so
    #[arg(long, hide = true)]
    bench: bool,
}

#[derive(Debug, Clone, Copy, ValueEnum)]
enum Kind {
    RedlockStd,
    Fenced,
    Rslock,
    Actors,
    Sockets,
}

fn main() {
    let arguments = Arguments::parse();
    let servers = Servers::start(5);
    if let Some(kind) = arguments.only {
        let runtime = match arguments.multi_thread {
            true => multi_thread(),
            false => current_thread(),
        };
        runtime.block_on(only(&servers, kind, &arguments));
        return;
    }
    println!(
        "five redis-servers and the client on one machine; median of {REPETITIONS} runs in turns, and the ratio of the first of \
         each turn to the other in the same turn: median (least to most)"
    );
    let mut latencies = Vec::new();
    for (name, runtime) in [
        ("multi-thread", multi_thread()),
        ("current-thread", current_thread()),
    ] {
        println!("\n# tokio's {name} runtime\n");
        runtime.block_on(async {
            let mut peers = Peers::connect(&servers, arguments.node_redlock).await;
            // First: what a server is sent late, after it has hung, would be counted here.
            contended(&servers, &mut peers).await;
            latencies = uncontended(&servers, &mut peers).await;
            fenced(&servers, &peers.ours).await;
            paused(&servers, &peers.ours).await;
            peers.ours.close().await;
        });
    }
    current_thread().block_on(servers.expect_no_keys());
    println!("\nno key is left on any server");
    if let Some(path) = arguments.plot {
        plot::draw(&latencies, &path).unwrap();
    }
}

/// Cycles of one client.
async fn only(servers: &Servers, kind: Kind, arguments: &Arguments) {
    let urls = servers.urls();
    match kind {
        Kind::RedlockStd => cycles(&Ours::connect(&urls).await, kind, arguments).await,
        Kind::Fenced => cycles(&Ours::connect(&urls).await.fenced().await, kind, arguments).await,
        Kind::Rslock => cycles(&Theirs::connect(&urls).await, kind, arguments).await,
        Kind::Actors => cycles(&Floor::<Actor>::connect(&urls).await, kind, arguments).await,
        Kind::Sockets => cycles(&Floor::<Socket>::connect(&urls).await, kind, arguments).await,
    }
}

async fn cycles<C: Client>(client: &C, kind: Kind, arguments: &Arguments) {
    let tasks = arguments.tasks;
    let Some(seconds) = arguments.seconds else {
        return load::cycles(client, tasks, arguments.cycles).await;
    };
    let mut cycles = load::crowd(client, tasks, Duration::from_secs(seconds)).await;
    cycles.sort_unstable();
    let ms = |part: usize| {
        let cycle = cycles.get(cycles.len() * part / 100).copied();
        cycle.unwrap_or_default().as_secs_f64() * 1e3
    };
    println!(
        "{}: {tasks} tasks on {tasks} keys for {seconds} s: {} cycles, p50 {:.1} ms, p99 {:.1} ms",
        kind.to_possible_value().unwrap().get_name(),
        cycles.len(),
        ms(50),
        ms(99)
    );
}

/// All clients, on connections of their own.
struct Peers {
    ours: Ours,
    theirs: Theirs,
    actors: Floor<Actor>,
    sockets: Floor<Socket>,
    node_redlock: Option<NodeRedlock>,
}

impl Peers {
    async fn connect(servers: &Servers, with_node_redlock: bool) -> Self {
        let urls = servers.urls();
        let node_redlock = match with_node_redlock {
            true => Some(NodeRedlock::start(&urls).await),
            false => None,
        };
        Self {
            node_redlock,
            ours: Ours::connect(&urls).await,
            theirs: Theirs::connect(&urls).await,
            actors: Floor::connect(&urls).await,
            sockets: Floor::connect(&urls).await,
        }
    }
}

/// What was measured of one client, in each repetition.
struct Runs {
    name: &'static str,
    p50: Vec<f64>,
    rate: Vec<f64>,
    cpu: Vec<f64>,
    /// The times of all cycles of one task.
    latencies: Vec<Duration>,
}

impl Runs {
    const fn of(name: &'static str) -> Self {
        Self {
            name,
            p50: Vec::new(),
            rate: Vec::new(),
            cpu: Vec::new(),
            latencies: Vec::new(),
        }
    }

    async fn measure<C: Client>(&mut self, client: &C) {
        let latency = load::latency(client).await;
        self.add(latency, load::throughput(client).await);
    }

    fn add(&mut self, latency: Latency, throughput: Throughput) {
        self.p50.push(latency.p50().as_secs_f64() * 1e6);
        self.rate.push(throughput.per_second);
        self.cpu.push(throughput.cpu_us_per_cycle);
        self.latencies.extend(latency.cycles);
    }
}

/// Returns the latencies of the library and of its peer, healthy and with a hung server.
async fn uncontended(servers: &Servers, peers: &mut Peers) -> Vec<plot::Latencies> {
    let mut latencies = Vec::new();
    for hung in [0, 1] {
        servers[..hung].iter().for_each(Server::pause);
        let mut ours = Runs::of(Ours::NAME);
        let mut theirs = Runs::of(Theirs::NAME);
        let mut actors = Runs::of(Floor::<Actor>::NAME);
        let mut sockets = Runs::of(Floor::<Socket>::NAME);
        let mut node_redlock = Runs::of(NodeRedlock::NAME);
        for _ in 0..REPETITIONS {
            ours.measure(&peers.ours).await;
            actors.measure(&peers.actors).await;
            sockets.measure(&peers.sockets).await;
            theirs.measure(&peers.theirs).await;
            if let Some(peer) = &mut peers.node_redlock {
                let latency = peer.latency().await;
                node_redlock.add(latency, peer.throughput().await);
            }
        }
        servers[..hung].iter().for_each(Server::resume);
        let state = ["five servers up", "one of five hung"][hung];
        let mut others = vec![&theirs, &actors, &sockets];
        others.extend(peers.node_redlock.is_some().then_some(&node_redlock));
        let what = "lock + unlock, one task, p50 us";
        compare(state, what, &ours, &others, |runs| &runs.p50);
        let what = "cycles/s, 64 tasks, 64 keys";
        compare(state, what, &ours, &others, |runs| &runs.rate);
        let what = "client CPU ms per 1,000 cycles, 64 tasks";
        compare(state, what, &ours, &others, |runs| &runs.cpu);
        // The clients without a limit have sent the server that hung more than it executes in a few seconds.
        eventually("no key is left", Duration::from_secs(60), || {
            servers.key_count() == 0
        })
        .await;
        for runs in [ours, theirs] {
            latencies.push(plot::Latencies {
                name: runs.name,
                state,
                is_hung: hung > 0,
                times: runs.latencies,
            });
        }
    }
    latencies
}

/// Prints a value of `ours`, and that of each peer with the ratios of the repetitions.
fn compare(state: &str, what: &str, ours: &Runs, peers: &[&Runs], value: impl Fn(&Runs) -> &[f64]) {
    println!(
        "{state}: {what}: {} {:.1}",
        ours.name,
        median(value(ours).iter().copied())
    );
    for peer in peers {
        let ratios = value(ours).iter().zip(value(peer));
        let mut ratios: Vec<_> = ratios.map(|(ours, peer)| ours / peer).collect();
        ratios.sort_by(f64::total_cmp);
        println!(
            "    {} {:.1}, ratio {:.3} ({:.3} to {:.3})",
            peer.name,
            median(value(peer).iter().copied()),
            median(ratios.iter().copied()),
            ratios.first().unwrap(),
            ratios.last().unwrap(),
        );
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
            p50[kind].push(load::latency(client).await.p50().as_secs_f64() * 1e6);
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
            runs.push(load::latency(ours).await.p50().as_secs_f64() * 1e6);
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

async fn contended(servers: &Servers, peers: &mut Peers) {
    let ours = load::contention(servers, &peers.ours).await;
    let theirs = load::contention(servers, &peers.theirs).await;
    let mut others = vec![(Theirs::NAME, theirs)];
    if let Some(peer) = &mut peers.node_redlock {
        others.push((NodeRedlock::NAME, peer.contention(servers).await));
    }
    let state = "16 tasks, one key";
    let handoff = |run: &Contention| run.handoff_p50.as_secs_f64() * 1e6;
    for (name, other) in &others {
        for (what, ours, theirs) in [
            (
                "hand-off to another task, p50 us",
                handoff(&ours),
                handoff(other),
            ),
            ("commands per acquisition", ours.commands, other.commands),
        ] {
            println!(
                "{state}: {what}: {} {ours:.1}, {name} {theirs:.1}, ratio {:.3}",
                Ours::NAME,
                ours / theirs,
            );
        }
    }
    others.insert(0, (Ours::NAME, ours));
    for (name, run) in &others {
        println!(
            "{state}: turns per task, {name}: {} to {} (max/min {:.2})",
            run.least,
            run.most,
            run.most as f64 / run.least.max(1) as f64,
        );
    }
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
