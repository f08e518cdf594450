//! One node of five sends what no Redis sends: it costs a bounded buffer and its own vote.

use std::env;
use std::error::Error;
use std::io::{BufRead, BufReader};
use std::net::TcpListener;
use std::process::{Child, Stdio};
use std::sync::Arc;
use std::time::{Duration, Instant};

use redlock_std::{Options, Redlock};
use rustix::process::{Pid, Signal, kill_process};
use rustls::ClientConfig;

use super::attacker::{Attack, KEYS, Moment};
use super::crowd;
use super::histogram::Histogram;
use super::length::Length;
use super::report::{Measurement, Ratio, Report, millis};
use super::runtime::Runtime;
use super::stage::{NODES, Stage, TTL};
use super::tally::{Counts, Tally};
use super::usage::cpu_time;
use super::watch::{Limits, Watch};
use redlock_tests::{Authority, child};

/// By how much the node may let this process grow.
const MAX_GROWTH: u64 = 8 << 20;

/// Of the p50 of an acquire, beside the hostile node to beside a dead one.
const MAX_RATIO: Ratio = Ratio::percent(120);

/// What else the machine does moves a p50 too; a lock that suffers from the node does so each time.
const TRIES: u32 = 5;

/// Of the time, while no task uses the lock.
const MAX_IDLE_CPU: Ratio = Ratio::percent(5);

/// Then the attack is ended, for the sake of the machine.
const MAX_GROWTH_OF_MACHINE: u64 = 200 << 20;

/// So much longer than planned, then the attack is ended: the runtime stands still.
const MAX_DELAY: Duration = Duration::from_secs(5);

/// How many tasks use the lock, two for each key: the one hands its lock on to the other.
const TASKS: usize = 2 * KEYS;

/// How long the lock is used beside a dead node, before the attack and after it: for some thousand acquires.
const MAX_REFERENCE: Duration = Duration::from_secs(5);

/// What the node does.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) struct Hostility {
    pub(super) attack: Attack,
    pub(super) moment: Moment,
    /// Whether it speaks TLS. The good nodes do not, so that what it costs shows.
    pub(super) over_tls: bool,
}

impl Hostility {
    /// How many locks share the tasks. Only clients of different locks wait for calls of the nodes.
    const fn locks(self) -> usize {
        match self.attack {
            Attack::Calls => 2,
            _ => 1,
        }
    }
}

pub(super) fn perform(
    name: String,
    hostility: Hostility,
    length: Length,
) -> Result<Report, Box<dyn Error>> {
    let (idle, length) = match length {
        Length::Short => (2, 1),
        Length::Full => (10, 10),
        // Longer than the TTL: as many releases wait as ever will.
        Length::Long => (20, 30),
    };
    let [idle, length] = [idle, length].map(Duration::from_secs);
    let reference = MAX_REFERENCE.min(length / 2);
    let stage = Stage::start(NODES - 1);
    // On one thread, where nothing hides that one node keeps it from the others.
    Runtime::CurrentThread.build()?.block_on(Box::pin(async {
        let mut dead = Histogram::new();
        dead.add(&beside_dead_node(&stage, hostility, reference).await?);

        let attacker = Attacker::start(hostility)?;
        let limits = Limits {
            growth: MAX_GROWTH_OF_MACHINE,
            time: idle + length + MAX_DELAY,
        };
        let pid = attacker.pid();
        let measurement = Measurement::begin_with(Watch::begin_with(limits, move || {
            end(pid);
        }));
        let locks = attacker.connect(&stage, hostility).await?;
        let idle_cpu = idle_cpu(idle).await;
        let mut counts = busy(&locks, length).await;
        drop(locks);
        let alarm = measurement.watch.alarm();
        let mut report = measurement.end(name, &stage, counts.clone()).await;
        drop(attacker);

        dead.add(&beside_dead_node(&stage, hostility, reference).await?);
        let ratio = |counts: &Counts, dead: &Histogram| {
            Ratio::of(counts.latencies.percentile(50), dead.percentile(50))
        };
        let mut tries = 1;
        while ratio(&counts, &dead) > MAX_RATIO && tries < TRIES && alarm.is_none() {
            tries += 1;
            counts = again(&stage, hostility, length).await?;
            dead = beside_dead_node(&stage, hostility, reference * 2).await?;
        }

        let ratio = ratio(&counts, &dead);
        report.note(format!(
            "p50 {} ms, beside a dead node {} ms: {ratio} times, try {tries}; idle CPU {idle_cpu} of the time",
            millis(counts.latencies.percentile(50)),
            millis(dead.percentile(50)),
        ));
        report.expect_growth_below(MAX_GROWTH);
        if let Some(alarm) = alarm {
            report.complain(format!("{alarm}; the hostile node was stopped"));
        } else if ratio > MAX_RATIO {
            report.complain(format!(
                "p50 is {ratio} times that beside a dead node; the limit is {MAX_RATIO}"
            ));
        }
        if idle_cpu > MAX_IDLE_CPU {
            report.complain(format!(
                "an idle lock takes {idle_cpu} of a core; the limit is {MAX_IDLE_CPU}"
            ));
        }
        Ok(report)
    }))
}

/// The latencies with four good nodes, and one whose port is closed.
async fn beside_dead_node(
    stage: &Stage,
    hostility: Hostility,
    length: Duration,
) -> Result<Histogram, Box<dyn Error>> {
    let url = {
        let listener = TcpListener::bind("127.0.0.1:0")?;
        format!("redis://{}", listener.local_addr()?)
    };
    let mut locks = Vec::new();
    for _ in 0..hostility.locks() {
        let more = std::slice::from_ref(&url);
        locks.push(stage.connect_with(more, Options::new(TTL)?).await?);
    }
    Ok(busy(&locks, length).await.latencies)
}

/// The same attack once more, for what the acquires take only.
async fn again(
    stage: &Stage,
    hostility: Hostility,
    length: Duration,
) -> Result<Counts, Box<dyn Error>> {
    let attacker = Attacker::start(hostility)?;
    let pid = attacker.pid();
    let limits = Limits {
        growth: MAX_GROWTH_OF_MACHINE,
        time: length + MAX_DELAY,
    };
    let _watch = Watch::begin_with(limits, move || end(pid));
    let locks = attacker.connect(stage, hostility).await?;
    Ok(busy(&locks, length).await)
}

/// Ends the attack. The process is ours, and not waited for before the watch is over; it may have ended by itself.
fn end(pid: Pid) {
    let _ended = kill_process(pid, Signal::KILL);
}

async fn busy(locks: &[Redlock], length: Duration) -> Counts {
    let tally = Arc::new(Tally::new());
    crowd::run_on(locks, &tally, TASKS, KEYS, length).await;
    tally.counts()
}

/// How much of the time a core works for a lock that no task uses.
async fn idle_cpu(length: Duration) -> Ratio {
    let (started_at, cpu) = (Instant::now(), cpu_time());
    tokio::time::sleep(length).await;
    Ratio::of(cpu_time().saturating_sub(cpu), started_at.elapsed())
}

/// The process of a hostile node, which ends with it.
struct Attacker {
    process: Child,
    url: String,
    /// `None` if it speaks plain TCP.
    tls: Option<Arc<ClientConfig>>,
}

impl Attacker {
    fn start(hostility: Hostility) -> Result<Self, Box<dyn Error>> {
        let Hostility {
            attack,
            moment,
            over_tls,
        } = hostility;
        let mut command = child::bound(env::current_exe()?);
        command.args(["load", "attacker", "--attack", &attack.to_string()]);
        command.args(["--moment", &moment.to_string()]);
        // Its files are there until the node has read them.
        let authority = over_tls.then(Authority::create);
        if let Some(authority) = &authority {
            let own = authority.sign("127.0.0.1");
            command.arg("--certificate").arg(own.certificate);
            command.arg("--key").arg(own.key);
        }
        command.stdin(Stdio::null()).stdout(Stdio::piped());
        let mut process = child::spawn(command)?;
        let stdout = process.stdout.take().ok_or("it has no output")?;
        let mut attacker = Self {
            process,
            url: String::new(),
            tls: authority.as_ref().map(|authority| authority.config(None)),
        };
        BufReader::new(stdout).read_line(&mut attacker.url)?;
        attacker.url.truncate(attacker.url.trim_end().len());
        Ok(attacker)
    }

    /// Locks over the good nodes and this one.
    async fn connect(
        &self,
        stage: &Stage,
        hostility: Hostility,
    ) -> Result<Vec<Redlock>, Box<dyn Error>> {
        let more = std::slice::from_ref(&self.url);
        let mut locks = Vec::new();
        for _ in 0..hostility.locks() {
            let options = Options::new(TTL)?;
            locks.push(match &self.tls {
                None => stage.connect_with(more, options).await?,
                Some(tls) => stage.connect_with_tls(more, options, tls).await?,
            });
        }
        Ok(locks)
    }

    fn pid(&self) -> Pid {
        Pid::from_child(&self.process)
    }
}

impl Drop for Attacker {
    fn drop(&mut self) {
        child::end(&mut self.process);
    }
}
