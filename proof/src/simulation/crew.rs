//! The tasks of one client.

use std::rc::Rc;

use redlock_core::mock::SeededEntropy;
use redlock_core::{Redlock, Transport};

use super::chance::Chance;
use super::device::Device;
use super::executor::Executor;
use super::history::Task;
use super::place::Route;
use super::scenario::Scenario;
use super::transport::{LocalClock, Wire};
use super::user::{Lock, User};
use super::world::World;

/// The tasks of one client. Those of a server have a lock each, over the same connections; a device has one task.
pub(crate) struct Crew<'a> {
    pub(crate) scenario: &'a Scenario,
    pub(crate) world: &'a Rc<World>,
    pub(crate) chance: &'a mut Chance,
    pub(crate) client: usize,
}

impl Crew<'_> {
    /// Spawns the tasks, the first of which draws its tokens from `entropy`.
    pub(crate) fn spawn(&mut self, executor: &mut Executor, entropy: u64) {
        let Self {
            scenario,
            world,
            client,
            ..
        } = *self;
        let nodes = 0..scenario.nodes.len();
        if let Some(hardware) = scenario.clients[client].hardware {
            let nodes = nodes.map(|node| Device::new(world, Route { client, node }, &hardware));
            if let Some(lock) = self.lock(nodes, entropy) {
                let user = self.user(lock, 0);
                executor.spawn(client, user.live());
            }
            return;
        }
        let nodes = nodes.map(|node| Wire::new(Rc::clone(world), Task { client, number: 0 }, node));
        let Some(lock) = self.lock(nodes, entropy) else {
            return;
        };
        let mut locks: Vec<_> = (1..scenario.clients[client].tasks)
            .map(|_| lock.fork(SeededEntropy::new(self.chance.bits())))
            .collect();
        locks.insert(0, lock);
        for (number, mut lock) in locks.into_iter().enumerate() {
            let task = Task { client, number };
            lock.nodes_mut().for_each(|wire| wire.belongs_to(task));
            let user = self.user(lock, number);
            executor.spawn(client, user.live());
        }
    }

    /// None where the clock is too coarse for the leases: then the client does nothing.
    fn lock<T: Transport>(
        &self,
        nodes: impl IntoIterator<Item = T>,
        entropy: u64,
    ) -> Option<Lock<T>> {
        let clock = LocalClock::new(Rc::clone(self.world), self.client);
        let options = self.scenario.clients[self.client].options[0];
        Redlock::new(nodes, clock, SeededEntropy::new(entropy), options).ok()
    }

    fn user<T>(&mut self, lock: Lock<T>, number: usize) -> User<T> {
        let Self {
            scenario, client, ..
        } = *self;
        let character = &scenario.clients[client];
        User {
            world: Rc::clone(self.world),
            task: Task { client, number },
            lock,
            chance: self.chance.child(),
            options: character.options.clone(),
            calm: character.calm,
            keys: scenario.keys,
            steps: character.steps,
            open: Vec::new(),
            left_to_expire: None,
            held: Vec::new(),
            calm_at: scenario.calm_at,
            restored_at: scenario.restored_at() + 1_000,
            clear_at: scenario.clear_at,
            comes_back: number == 0 && character.comes_back,
            rushes: scenario.has_lines,
            hands_over: scenario.hands_over,
            is_back: false,
        }
    }
}
