//! The servers and the clients of one run, and what is between them.

use std::collections::BTreeSet;
use std::error::Error;
use std::net::Ipv4Addr;
use std::path::PathBuf;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::thread;
use std::time::Duration;

use redis::FromRedisValue;
use redlock_core::{Clock, Instant};
use redlock_std::SystemClock;
use tempfile::TempDir;

use super::client::KEY;
use super::counter::Counters;
use super::crew::{Crew, Place};
use super::device::{Device, Settings};
use super::fault::{Kind, NODES};
use super::gate::Gate;
use super::lock::{Lock, rules};
use super::network::Network;
use super::operator::Operator;
use super::record::{Fault, Left, LeftKey, Recorder};
use super::resource::Resource;
use redlock_tests::Servers;

#[derive(Debug)]
pub(super) struct Stage {
    pub(super) crew: Crew,
    pub(super) device: Option<Device>,
    pub(super) servers: Servers,
    /// None where nothing can be cut.
    pub(super) network: Option<Network>,
    pub(super) recorder: Recorder,
    lock: Lock,
    /// What the operator runs.
    program: Option<PathBuf>,
    /// Beside a fenced lock.
    counters: Option<Counters>,
    addresses: Vec<Ipv4Addr>,
    ttl: Duration,
    clock: WallClock,
    interrupted: Arc<AtomicBool>,
    _directory: TempDir,
}

impl Stage {
    /// Starts the servers, then `clients` clients of the lock and, where there is an image of it, the
    /// firmware.
    pub(super) fn set(
        lock: Lock,
        network: Option<Network>,
        clients: usize,
        programs: &Programs,
        ttl: Duration,
        seed: u64,
    ) -> Result<Self, Box<dyn Error>> {
        let interrupted = interruption()?;
        let directory = TempDir::new()?;
        let resource = directory.path().join("resource");
        Resource::create(&resource)?;
        Gate::create(&resource)?;
        let servers = match lock {
            Lock::Plain => Servers::start(NODES),
            Lock::Fenced => Servers::start_with_clocks(NODES),
        };
        // Plain clients would wait for the longest TTL of a record with longer ones.
        let rules = rules(ttl).map(|rule| rule.as_millis().to_string());
        let rules = rules.join(":");
        servers.iter().for_each(|server| server.vouch(&rules));
        let recorder = Recorder::default();
        let addresses: Vec<_> = (0..clients)
            .map(|client| match network {
                Some(_) => Network::address_for(lock, client),
                None => Ipv4Addr::LOCALHOST,
            })
            .collect();
        for node in 0..NODES {
            listen(&servers, node, &addresses)?;
        }
        let began = SystemClock.now();
        let ports: Vec<_> = servers.iter().map(|server| server.port()).collect();
        let place = Place {
            ports: ports.clone(),
            addresses: addresses.clone(),
            resource: resource.clone(),
            lock,
            ttl,
        };
        let crew = Crew::start(place, &recorder, seed)?;
        let counters = lock
            .is_fenced()
            .then(|| Counters::start(&ports, ttl, &recorder, seed));
        let device = programs.firmware.as_ref().map(|image| {
            let settings = Settings {
                image: image.clone(),
                ports,
                resource,
                ttl,
            };
            Device::boot(settings, &recorder)
        });
        let device = device.transpose()?;
        recorder.note(|record| {
            record.lock = lock;
            record.time = Some([began, began]);
        });
        Ok(Self {
            crew,
            device,
            servers,
            network,
            recorder,
            lock,
            program: programs.redlock.clone(),
            counters,
            addresses,
            ttl,
            clock: WallClock::new(),
            interrupted,
            _directory: directory,
        })
    }

    pub(super) const fn is_fenced(&self) -> bool {
        self.lock.is_fenced()
    }

    /// Runs a command of the operator.
    pub(super) fn operate(
        &self,
        kind: Kind,
        has_settings: bool,
    ) -> Result<Operator, Box<dyn Error>> {
        let program = self.program.as_ref().ok_or("no redlock to be run")?;
        let ports: Vec<_> = self.servers.iter().map(|server| server.port()).collect();
        Operator::run(program, kind, &ports, self.ttl, has_settings)
    }

    /// Whether every plain client has a connection to these nodes, and so knows which data they have. Fenced
    /// ones need not: their nodes know.
    pub(super) fn have_met(&self, nodes: &[usize]) -> Result<bool, Box<dyn Error>> {
        let mut wanted: BTreeSet<_> = self.addresses.iter().copied().collect();
        if self.device.is_some() {
            wanted.insert(Ipv4Addr::LOCALHOST);
        }
        let count = self.addresses.len() + usize::from(self.device.is_some());
        for node in nodes {
            let list: String = ask(&self.servers, *node, &["CLIENT", "LIST"])?;
            let lines = list.lines().filter(|line| !line.contains(" cmd=client"));
            let met: Vec<_> = lines.filter_map(met_at).collect();
            let is_met = match self.network {
                // Each has an address of its own.
                Some(_) => wanted.iter().all(|address| met.contains(address)),
                None => met.len() >= count,
            };
            if !is_met && !self.is_fenced() {
                return Ok(false);
            }
        }
        Ok(true)
    }

    /// Whether the lock is held on all of these nodes.
    pub(super) fn have_locks(&self, nodes: &[usize]) -> Result<bool, Box<dyn Error>> {
        for node in nodes {
            if ask::<usize>(&self.servers, *node, &["EXISTS", KEY])? == 0 {
                return Ok(false);
            }
        }
        Ok(true)
    }

    /// The address of the nodes, as this client alone knows them.
    pub(super) fn address(&self, client: usize) -> Ipv4Addr {
        self.addresses[client]
    }

    /// Starts a node that was killed, without anything that it knew.
    pub(super) fn restart(&mut self, node: usize) -> Result<(), Box<dyn Error>> {
        self.servers[node].restart();
        listen(&self.servers, node, &self.addresses)
    }

    /// Sends a command to a node that is well.
    pub(super) fn tell(&self, node: usize, words: &[&str]) -> Result<(), Box<dyn Error>> {
        tell(&self.servers, node, words)
    }

    /// The nodes that have the key of the lock.
    fn keys(&self) -> Result<Vec<LeftKey>, Box<dyn Error>> {
        let mut keys = Vec::new();
        for node in 0..self.servers.len() {
            const NO_KEY: i64 = -2;

            let ttl: i64 = ask(&self.servers, node, &["PTTL", KEY])?;
            if ttl != NO_KEY {
                let ttl = u64::try_from(ttl).ok().map(Duration::from_millis);
                keys.push(LeftKey { node, ttl });
            }
        }
        Ok(keys)
    }

    /// How many connections of others the nodes have.
    fn connections(&self) -> Result<usize, Box<dyn Error>> {
        let mut connections = 0;
        for node in 0..self.servers.len() {
            let list: String = ask(&self.servers, node, &["CLIENT", "LIST"])?;
            // The one that asks is in the list too.
            connections += list.lines().count() - 1;
        }
        Ok(connections)
    }

    /// Lets a moment pass. An error when a client has ended by itself, or this run is to end.
    pub(super) fn watch(&mut self) -> Result<(), Box<dyn Error>> {
        self.look_again();
        self.crew.check()?;
        if let Some(device) = &mut self.device {
            device.check()?;
        }
        self.clock.look();
        if self.interrupted.load(Ordering::Relaxed) {
            return Err("interrupted".into());
        }
        Ok(())
    }

    fn look_again(&self) {
        thread::sleep(Duration::from_millis(2));
    }

    /// No more faults. Lets all clients come to their turn, lets them release everything and end, and looks at
    /// what is left.
    pub(super) fn clear(&mut self) -> Result<(), Box<dyn Error>> {
        // Long enough for any machine. A client that is slower than this is stuck.
        const LIMIT: Duration = Duration::from_secs(60);

        let calm_from = SystemClock.now();
        self.recorder
            .note(|record| record.calm_from = Some(calm_from));
        // Whatever was left by who was killed is over when the longest lease is.
        let recorder = self.recorder.clone();
        self.wait(self.ttl, |_| Ok(false))?;
        self.wait(LIMIT, |_| Ok(recorder.all_acquired_since(calm_from)))?;

        // A device gives nothing back: its power is cut.
        if self.device.take().is_some() {
            self.wait(self.ttl, |_| Ok(false))?;
        }
        drop(self.counters.take());
        // Releases have to do without their script once more.
        self.flush_scripts()?;
        self.crew.stop()?;
        if !self.wait(LIMIT, |stage| Ok(stage.crew.is_idle()))? {
            return Err("a client does not stop".into());
        }
        let mut left = Left::default();
        // A key that was not deleted would live for longer than this.
        self.wait(self.ttl / 2, |stage| {
            left.keys = stage.keys()?;
            Ok(left.keys.is_empty())
        })?;
        let mut crew_has_ended = false;
        let ended_by = SystemClock.now().saturating_add(LIMIT);
        while !crew_has_ended {
            crew_has_ended = self.crew.dismiss()?;
            if SystemClock.now() >= ended_by {
                return Err("a client does not end".into());
            }
            self.look_again();
        }
        self.wait(Duration::from_secs(5), |stage| {
            left.connections = stage.connections()?;
            Ok(left.connections == 0)
        })?;
        let clock_step = self.clock.step;
        self.recorder.note(|record| {
            record.left = left;
            record.clock_step = clock_step;
            if let Some([_, ended]) = &mut record.time {
                *ended = SystemClock.now();
            }
        });
        Ok(())
    }

    fn flush_scripts(&self) -> Result<(), Box<dyn Error>> {
        let nodes: Vec<_> = (0..NODES).collect();
        let from = SystemClock.now();
        for node in &nodes {
            self.tell(*node, &["SCRIPT", "FLUSH"])?;
        }
        self.recorder.begin(Fault {
            kind: Kind::FlushScripts,
            nodes,
            client: None,
            from,
            until: Some(SystemClock.now()),
        });
        Ok(())
    }

    /// Waits until `fact` holds, for `limit` at the longest. Whether it does.
    fn wait(
        &mut self,
        limit: Duration,
        mut fact: impl FnMut(&Self) -> Result<bool, Box<dyn Error>>,
    ) -> Result<bool, Box<dyn Error>> {
        let over = SystemClock.now().saturating_add(limit);
        loop {
            if fact(self)? {
                return Ok(true);
            }
            if SystemClock.now() >= over {
                return Ok(false);
            }
            self.watch()?;
        }
    }
}

/// What a run starts besides servers and clients.
#[derive(Debug, Clone, Default)]
pub(super) struct Programs {
    /// The image of the firmware.
    pub(super) firmware: Option<PathBuf>,
    /// What the operator runs.
    pub(super) redlock: Option<PathBuf>,
}

/// At which address of the node a client is connected that has asked who the node is, by its line of CLIENT LIST.
fn met_at(line: &str) -> Option<Ipv4Addr> {
    // The question is an EVAL, and the first thing after it an acquire.
    const ASKED: [&str; 3] = ["eval", "evalsha", "set"];

    let mut fields = line.split(' ').filter_map(|field| field.split_once('='));
    let laddr = fields.find(|(name, _)| *name == "laddr")?.1;
    let command = fields.find(|(name, _)| *name == "cmd")?.1;
    let (address, _port) = laddr.rsplit_once(':')?;
    ASKED.contains(&command).then(|| address.parse().ok())?
}

/// Lets a node listen at the addresses of all clients.
fn listen(servers: &Servers, node: usize, addresses: &[Ipv4Addr]) -> Result<(), Box<dyn Error>> {
    let mut all = vec![Ipv4Addr::LOCALHOST];
    all.extend(addresses);
    all.dedup();
    if all.len() == 1 {
        return Ok(());
    }
    let all: Vec<_> = all.iter().map(Ipv4Addr::to_string).collect();
    tell(servers, node, &["CONFIG", "SET", "bind", &all.join(" ")])
}

fn tell(servers: &Servers, node: usize, words: &[&str]) -> Result<(), Box<dyn Error>> {
    ask::<redis::Value>(servers, node, words).map(drop)
}

fn ask<T: FromRedisValue>(
    servers: &Servers,
    node: usize,
    words: &[&str],
) -> Result<T, Box<dyn Error>> {
    // A busy machine may take longer than a single look does.
    const TRIES: usize = 20;

    let mut tries = 1;
    loop {
        match servers[node].query(words) {
            Ok(answer) => return Ok(answer),
            Err(error) if tries == TRIES => {
                return Err(format!("node {}: {}: {error}", node + 1, words.join(" ")).into());
            }
            Err(_) => tries += 1,
        }
    }
}

/// Set when this process is told to end, so that it ends in order.
fn interruption() -> Result<Arc<AtomicBool>, Box<dyn Error>> {
    use tokio::signal::unix::{SignalKind, signal};

    let interrupted = Arc::new(AtomicBool::new(false));
    let runtime = tokio::runtime::Builder::new_current_thread()
        .enable_all()
        .build()?;
    let (mut terminate, mut interrupt) = {
        let _entered = runtime.enter();
        (
            signal(SignalKind::terminate())?,
            signal(SignalKind::interrupt())?,
        )
    };
    let flag = Arc::clone(&interrupted);
    thread::spawn(move || {
        runtime.block_on(async {
            tokio::select! {
                _ = terminate.recv() => {}
                _ = interrupt.recv() => {}
            }
        });
        flag.store(true, Ordering::Relaxed);
    });
    Ok(interrupted)
}

/// The clock by which nodes expire keys, beside the one on which leases are counted.
#[derive(Debug)]
struct WallClock {
    /// How far it was ahead at the last look.
    ahead: Duration,
    /// The most that it was moved between two looks.
    step: Duration,
}

impl WallClock {
    fn new() -> Self {
        Self {
            ahead: Self::ahead(),
            step: Duration::ZERO,
        }
    }

    fn look(&mut self) {
        let ahead = Self::ahead();
        self.step = self.step.max(ahead.abs_diff(self.ahead));
        self.ahead = ahead;
    }

    /// Read several times, since this process may be interrupted between the two clocks.
    fn ahead() -> Duration {
        let look = || {
            let before: Instant = SystemClock.now();
            let wall = std::time::SystemTime::now()
                .duration_since(std::time::UNIX_EPOCH)
                .unwrap_or_default();
            let after = SystemClock.now();
            let took = after.saturating_duration_since(before);
            let ahead = wall.saturating_sub(Duration::from_micros(before.as_micros()));
            (took, ahead)
        };
        let looks = [look(), look(), look()];
        let best = looks.into_iter().min_by_key(|(took, _)| *took);
        best.map(|(_, ahead)| ahead).unwrap_or_default()
    }
}
