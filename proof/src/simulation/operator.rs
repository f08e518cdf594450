//! What an operator does at a shell: `redlock init`, and `redlock init --repair`.

use super::assumption::Assumption;
use super::fault::Kind;
use super::history::What;
use super::machine::Machine;
use super::state::{Event, State};

impl State {
    /// Repairs the fleet if its clients cannot do so by themselves: `redlock doctor` says when that is so.
    pub(super) fn repair_if_stuck(&mut self) {
        let Some(rules) = self.rules else {
            return;
        };
        // Nobody hears of the record of a node that has no vote for what it is.
        let heard = |machine: &&Machine| {
            machine.is_live() && machine.server.is_master() && !machine.server.may_evict()
        };
        let live = self.machines.iter().filter(heard);
        let recorded: Vec<_> = live.map(|machine| machine.server.rules()).collect();
        let own = recorded
            .iter()
            .filter(|recorded| **recorded == Some(rules))
            .count();
        let none = recorded
            .iter()
            .filter(|recorded| recorded.is_none())
            .count();
        let has_others = own + none < recorded.len();
        let quorum = self.machines.len() / 2 + 1;
        let is_confirmed = own >= quorum
            || !has_others && own > 0 && recorded.len() >= quorum
            || none == self.machines.len();
        if !is_confirmed {
            self.repair();
        }
    }

    /// `redlock init`: if the fleet has never been used, its nodes are told so.
    pub(super) fn init(&mut self) {
        let Some(rules) = self.rules else {
            return;
        };
        let machines = self.machines.iter();
        let is_new = machines.clone().all(|machine| {
            let has_anything = machine.server.rules().is_some() || !machine.server.is_empty();
            machine.is_live()
                && machine.server.is_master()
                && !machine.server.may_evict()
                && !has_anything
        });
        let is_known = machines
            .clone()
            .all(|machine| machine.server.rules() == Some(rules));
        if self.fails(Assumption::Init) && !is_known || is_new {
            self.count(Kind::Init);
            for node in 0..self.machines.len() {
                let at = self.now + self.chance.below(5_000);
                self.queue.add(at, Event::Init(node));
            }
        }
    }

    /// Much may have happened since the operator looked.
    pub(super) fn write_init(&mut self, node: usize) {
        let is_careless = self.fails(Assumption::Init);
        let machine = &mut self.machines[node];
        let now = machine.reads(self.now);
        let Some(rules) = self.rules else {
            return;
        };
        if machine.is_live()
            && machine.server.is_master()
            && machine.server.init(rules, now, is_careless)
            && !is_careless
        {
            self.tell(What::Initialized(node));
        }
    }

    /// Writes the record on every node that can be reached and has none that is right.
    pub(super) fn repair(&mut self) {
        let Some(rules) = self.rules else {
            return;
        };
        self.count(Kind::Repair);
        self.tell(What::Repaired);
        let now = self.now;
        for machine in self
            .machines
            .iter_mut()
            .filter(|machine| machine.is_live() && machine.server.is_master())
        {
            let reading = machine.reads(now);
            machine.server.repair(rules, reading);
        }
    }
}
