//! One seed, from the first choice to the verdict.

use core::fmt;
use std::rc::Rc;

use redlock_core::Redlock;
use redlock_core::mock::SeededEntropy;

use super::assumption::Assumption;
use super::chance::Chance;
use super::executor::Executor;
use super::fault::Kind;
use super::history::{Fact, Task};
use super::judge::judge;
use super::judge::{Breach, Promise};
use super::scenario::Scenario;
use super::summary::Summary;
use super::trace::Excerpt;
use super::transport::{LocalClock, Wire};
use super::user::{Lock, User};
use super::world::World;

/// What happened in the world of one seed.
#[derive(Debug)]
pub struct Run {
    scenario: Scenario,
    facts: Vec<Fact>,
    breaches: Vec<Breach>,
    summary: Summary,
}

impl Run {
    /// Runs the world that `seed` gives, with an assumption broken or with none. The same again gives the same.
    #[must_use]
    pub fn of(seed: u64, broken: Option<Assumption>) -> Self {
        let mut chance = Chance::new(seed);
        let scenario = Scenario::draw(&mut chance, broken);
        let world = Rc::new(World::new(&scenario, &mut chance));
        let mut executor = Executor::new(Rc::clone(&world));
        // Clients that cannot draw tokens of their own draw those of the first one.
        let shared = chance.bits();
        for client in 0..scenario.clients.len() {
            let entropy = match broken {
                Some(Assumption::Entropy) => shared,
                _ => chance.bits(),
            };
            for user in users(&scenario, &world, &mut chance, client, entropy) {
                executor.spawn(client, user.live());
            }
        }
        executor.run();

        let mut state = world.look();
        let facts = state.take_facts();
        let breaches = judge(&facts, scenario.nodes.len(), scenario.promised());
        let mut summary = Summary::of(&facts, state.now, state.commands, state.faults);
        summary.count(Kind::DriftAtTheLimit, scenario.is_at_the_limit);
        for client in &scenario.clients {
            summary.count(Kind::CoarseClock, client.has_coarse_clock());
            summary.count(Kind::ServerNamedTwice, client.names_twice);
        }
        let is_broken_from_the_beginning = !matches!(broken, None | Some(Assumption::Jump));
        summary.count(Kind::BrokenAssumption, is_broken_from_the_beginning);
        Self {
            scenario,
            facts,
            breaches,
            summary,
        }
    }

    /// The promises that were broken.
    pub fn broken_promises(&self) -> impl Iterator<Item = Promise> {
        self.breaches.iter().map(|breach| breach.promise)
    }

    /// What was done in that world, in numbers.
    #[must_use]
    pub const fn summary(&self) -> &Summary {
        &self.summary
    }

    /// What led to the first breach of `promise`.
    pub(crate) fn excerpt(&self, promise: Promise) -> Option<Excerpt<'_>> {
        let breaches = self
            .breaches
            .iter()
            .filter(|breach| breach.promise == promise);
        let first = breaches.min_by_key(|breach| breach.at)?;
        Some(Excerpt::new(&self.facts, first))
    }
}

/// The tasks of one client, each with a lock of its own over the same connections.
fn users(
    scenario: &Scenario,
    world: &Rc<World>,
    chance: &mut Chance,
    client: usize,
    entropy: u64,
) -> Vec<User> {
    let character = &scenario.clients[client];
    let clock = LocalClock::new(Rc::clone(world), client);
    let wires = (0..scenario.nodes.len())
        .map(|node| Wire::new(Rc::clone(world), Task { client, number: 0 }, node));
    let lock = Redlock::new(
        wires,
        clock,
        SeededEntropy::new(entropy),
        character.options[0],
    );
    // A clock too coarse for its leases is refused: then the client does nothing.
    let Ok(lock) = lock else {
        return Vec::new();
    };
    let mut locks: Vec<Lock> = (1..character.tasks)
        .map(|_| lock.fork(SeededEntropy::new(chance.bits())))
        .collect();
    locks.insert(0, lock);
    let with_number = locks.into_iter().enumerate().map(|(number, mut lock)| {
        let task = Task { client, number };
        lock.nodes_mut().for_each(|wire| wire.belongs_to(task));
        User {
            world: Rc::clone(world),
            task,
            lock,
            chance: chance.child(),
            options: character.options.clone(),
            calm: character.calm,
            keys: scenario.keys,
            steps: character.steps,
            open: Vec::new(),
            held: Vec::new(),
            calm_at: scenario.calm_at,
            restored_at: scenario.restored_at() + 1_000,
            clear_at: scenario.clear_at,
            comes_back: number == 0 && character.comes_back,
            is_back: false,
        }
    });
    with_number.collect()
}

/// Everything that happened, line by line.
impl fmt::Display for Run {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}", self.scenario)?;
        for fact in &self.facts {
            writeln!(f, "{fact}")?;
        }
        for breach in &self.breaches {
            writeln!(f, "{breach}")?;
        }
        Ok(())
    }
}
