//! One seed, from the first choice to the verdict.

use core::fmt;
use std::rc::Rc;

use super::assumption::Assumption;
use super::chance::Chance;
use super::crew::Crew;
use super::executor::Executor;
use super::fault::Kind;
use super::history::Fact;
use super::judge::{Breach, judge};
use super::promise::Promise;
use super::scenario::Scenario;
use super::summary::Summary;
use super::trace::Excerpt;
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
            let mut crew = Crew {
                scenario: &scenario,
                world: &world,
                chance: &mut chance,
                client,
            };
            crew.spawn(&mut executor, entropy);
        }
        executor.run();

        let mut state = world.look();
        let facts = state.take_facts();
        let breaches = judge(
            &facts,
            scenario.nodes.len(),
            scenario.promised(),
            scenario.line_limits(state.clock_spread()),
        );
        let is_device = |client: usize| scenario.clients[client].hardware.is_some();
        let mut summary = Summary::of(&facts, is_device, state.now, state.commands, state.faults);
        summary.count(Kind::DriftAtTheLimit, scenario.is_at_the_limit);
        for client in &scenario.clients {
            summary.count_client(client.hardware.is_some());
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
