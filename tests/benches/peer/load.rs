//! What is done to a client, and what is measured.

use std::sync::{Arc, Mutex};
use std::time::{Duration, Instant};

use redlock_tests::{Server, Servers};
use rustix::time::{ClockId, clock_gettime};

use crate::client::Client;

pub(crate) const LATENCY_RUN: Duration = Duration::from_millis(700);

pub(crate) const THROUGHPUT_RUN: Duration = Duration::from_millis(1_500);
pub(crate) const CROWD: u32 = 64;

pub(crate) const CONTENTION_RUN: Duration = Duration::from_secs(6);
pub(crate) const CONTENDERS: usize = 16;
pub(crate) const HOLD: Duration = Duration::from_millis(5);
pub(crate) const PAUSE: Duration = Duration::from_millis(50);

pub(crate) struct Latency {
    pub(crate) cycles: Vec<Duration>,
}

impl Latency {
    pub(crate) fn p50(&self) -> Duration {
        middle(self.cycles.clone())
    }
}

/// One task locks and unlocks one key.
pub(crate) async fn latency<C: Client>(client: &C) -> Latency {
    let client = client.clone();
    let task = tokio::spawn(async move {
        let mut cycles = Vec::new();
        let start = Instant::now();
        while start.elapsed() < LATENCY_RUN {
            let cycle = Instant::now();
            let lock = client.lock("latency").await;
            client.unlock(lock).await;
            cycles.push(cycle.elapsed());
        }
        cycles
    });
    Latency {
        cycles: task.await.unwrap(),
    }
}

/// What the servers have received and sent for a lock and an unlock, in bytes, all of them together.
pub(crate) async fn bytes_on_the_wire<C: Client>(servers: &Servers, client: &C) -> f64 {
    const CYCLES: u32 = 1_000;

    let before = wire(servers);
    for _ in 0..CYCLES {
        let lock = client.lock("wire").await;
        client.unlock(lock).await;
    }
    // The last release may be on its way; looking for its key would be counted.
    tokio::time::sleep(Duration::from_millis(50)).await;
    // Looking costs some bytes too: what two looks are apart is what one costs.
    let (first, second) = (wire(servers), wire(servers));
    (first - before - (second - first)) as f64 / f64::from(CYCLES)
}

fn wire(servers: &Servers) -> u64 {
    servers.iter().map(Server::bytes_on_the_wire).sum()
}

pub(crate) struct Throughput {
    pub(crate) cycles: f64,
    pub(crate) per_second: f64,
    pub(crate) cpu_us_per_cycle: f64,
}

/// [`CROWD`] tasks lock and unlock a key each.
pub(crate) async fn throughput<C: Client>(client: &C) -> Throughput {
    let start = Instant::now();
    let cpu_before = cpu_time();
    let tasks: Vec<_> = (0..CROWD)
        .map(|task| {
            let client = client.clone();
            tokio::spawn(async move {
                let key = format!("throughput-{task}");
                let mut cycles = 0_u32;
                while start.elapsed() < THROUGHPUT_RUN {
                    let lock = client.lock(&key).await;
                    client.unlock(lock).await;
                    cycles += 1;
                }
                cycles
            })
        })
        .collect();
    let mut cycles = 0;
    for task in tasks {
        cycles += task.await.unwrap();
    }
    let cycles = f64::from(cycles);
    Throughput {
        cycles,
        per_second: cycles / start.elapsed().as_secs_f64(),
        cpu_us_per_cycle: (cpu_time() - cpu_before).as_secs_f64() * 1e6 / cycles,
    }
}

/// So many `tasks` lock and unlock a key each, until there were so many `cycles` together.
pub(crate) async fn cycles<C: Client>(client: &C, tasks: u32, cycles: u32) {
    let tasks: Vec<_> = (0..tasks)
        .map(|task| {
            let client = client.clone();
            let share = cycles / tasks + u32::from(task < cycles % tasks);
            tokio::spawn(async move {
                let key = format!("throughput-{task}");
                for _ in 0..share {
                    let lock = client.lock(&key).await;
                    client.unlock(lock).await;
                }
            })
        })
        .collect();
    for task in tasks {
        task.await.unwrap();
    }
}

/// So many `tasks` lock and unlock a key each for `time`. Returns how long each cycle took. A lock that is not granted is a panic.
pub(crate) async fn crowd<C: Client>(client: &C, tasks: u32, time: Duration) -> Vec<Duration> {
    let start = Instant::now();
    let tasks: Vec<_> = (0..tasks)
        .map(|task| {
            let client = client.clone();
            tokio::spawn(async move {
                let key = format!("crowd-{task}");
                let mut cycles = Vec::new();
                while start.elapsed() < time {
                    let cycle = Instant::now();
                    let lock = client.lock(&key).await;
                    client.unlock(lock).await;
                    cycles.push(cycle.elapsed());
                }
                cycles
            })
        })
        .collect();
    let mut cycles = Vec::new();
    for task in tasks {
        cycles.extend(task.await.unwrap());
    }
    cycles
}

pub(crate) struct Contention {
    pub(crate) handoff_p50: Duration,
    pub(crate) least: usize,
    pub(crate) most: usize,
    pub(crate) commands: f64,
}

impl Contention {
    /// From the turns of each task, the times of the hand-offs, and what `commands` told before.
    pub(crate) fn since(
        commands_before: u64,
        servers: &Servers,
        turns: &[usize],
        handoffs: Vec<Duration>,
    ) -> Self {
        Self {
            handoff_p50: middle(handoffs),
            least: turns.iter().copied().min().unwrap_or(0),
            most: turns.iter().copied().max().unwrap_or(0),
            commands: (commands(servers) - commands_before) as f64
                / turns.iter().sum::<usize>().max(1) as f64,
        }
    }
}

/// [`CONTENDERS`] tasks want one key, hold it for [`HOLD`], and pause for [`PAUSE`] after it.
pub(crate) async fn contention<C: Client>(servers: &Servers, client: &C) -> Contention {
    let commands_before = commands(servers);
    let released: Arc<Mutex<Option<(usize, Instant)>>> = Arc::default();
    let start = Instant::now();
    let tasks: Vec<_> = (0..CONTENDERS)
        .map(|task| {
            let (client, released) = (client.clone(), Arc::clone(&released));
            tokio::spawn(async move {
                let mut turns = 0_usize;
                let mut handoffs = Vec::new();
                while start.elapsed() < CONTENTION_RUN {
                    let lock = client.lock("contention").await;
                    let acquired_at = Instant::now();
                    if let Some((other, at)) = released.lock().unwrap().take()
                        && other != task
                    {
                        handoffs.push(acquired_at - at);
                    }
                    turns += 1;
                    tokio::time::sleep(HOLD).await;
                    *released.lock().unwrap() = Some((task, Instant::now()));
                    client.unlock(lock).await;
                    tokio::time::sleep(PAUSE).await;
                }
                (turns, handoffs)
            })
        })
        .collect();
    let mut turns = Vec::new();
    let mut handoffs = Vec::new();
    for task in tasks {
        let (count, times) = task.await.unwrap();
        turns.push(count);
        handoffs.extend(times);
    }
    Contention::since(commands_before, servers, &turns, handoffs)
}

/// What clients have sent; what a script calls inside is not counted.
pub(crate) fn commands(servers: &Servers) -> u64 {
    let calls = servers.iter().map(Server::calls);
    calls
        .map(|calls| calls["set"] + calls["evalsha"] + calls["eval"])
        .sum()
}

fn cpu_time() -> Duration {
    let time = clock_gettime(ClockId::ProcessCPUTime);
    Duration::new(
        time.tv_sec.unsigned_abs(),
        u32::try_from(time.tv_nsec).unwrap_or(0),
    )
}

fn middle(mut times: Vec<Duration>) -> Duration {
    times.sort_unstable();
    times.get(times.len() / 2).copied().unwrap_or_default()
}
