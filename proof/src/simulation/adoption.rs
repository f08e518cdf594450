//! Leases that go on in another process.

use redlock_core::Options;

use super::clock::NEVER;
use super::handover::Handover;
use super::history::{Message, Task, What};
use super::place::Route;
use super::state::State;

impl State {
    /// Writes down what a successor needs.
    pub(crate) fn write_handover(&mut self, handover: Handover) {
        self.discard_handover(handover.claim.token);
        self.handovers.push(handover);
    }

    pub(crate) fn discard_handover(&mut self, token: usize) -> Option<Handover> {
        let is_it = |handover: &Handover| handover.claim.token == token;
        let place = self.handovers.iter().position(is_it)?;
        Some(self.handovers.swap_remove(place))
    }

    /// Lets a successor have the lease: `task` does not use it from its own moment on.
    pub(crate) fn hand_over_lease(&mut self, handover: Handover) {
        let from = self.moment_of(handover.claim.task.client);
        self.write_handover(Handover { from, ..handover });
    }

    /// Gives `task` one of the leases that it may take over with `options`.
    pub(crate) fn take_handover(&mut self, task: Task, options: Options) -> Option<Handover> {
        let at = self.moment_of(task.client);
        let is_there = |handover: &Handover| {
            let Task { client, .. } = handover.claim.task;
            let is_dead = self.processes[client].free_at == NEVER;
            (is_dead || handover.from <= at) && handover.suits(options)
        };
        let handovers = self.handovers.iter().enumerate();
        let there: Vec<_> = handovers.filter(|(_, it)| is_there(it)).collect();
        let there: Vec<_> = there.into_iter().map(|(place, _)| place).collect();
        if there.is_empty() {
            return None;
        }
        let place = self.chance.pick(&there);
        let handover = self.handovers.swap_remove(place);
        if handover.from > at {
            // Its process is dead.
            self.tell_at(at, What::Over(handover.claim));
        }
        if !self.adopted.contains(&handover.claim.token) {
            self.adopted.push(handover.claim.token);
        }
        Some(handover)
    }

    /// A late acquire of the process that had the lease first may come behind the release of its successor.
    pub(super) fn look_at_late_acquire(&mut self, node: usize, message: Message) {
        if message.is_acquire() && self.adopted.contains(&message.token) {
            self.late_acquires.push((node, message.token));
        }
    }

    /// An adoption is handed over to the connection. What it adopts is looked for behind the release.
    pub(super) fn hand_over_adoption(&mut self, route: Route, message: Message) {
        if message.is_adoption() {
            let link = self.link(route);
            link.handed.retain(|(token, _)| *token != message.token);
            link.handed.push((message.token, link.epoch));
        }
    }
}
