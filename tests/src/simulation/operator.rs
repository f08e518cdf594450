//! What an operator does at a shell: `redlock init`, and `redlock init --repair`.

use super::clock::NEVER;
use super::fault::Kind;
use super::history::What;
use super::world::State;

impl State {
    /// Repairs the fleet if its clients cannot do so by themselves: `redlock doctor` says when that is so.
    pub(super) fn repair_if_stuck(&mut self) {
        let Some(fleet) = self.fleet else {
            return;
        };
        let live = self.machines.iter().filter(|machine| machine.is_live());
        let rules: Vec<_> = live.map(|machine| machine.node.rules()).collect();
        let own = rules.iter().filter(|rules| **rules == Some(fleet)).count();
        let none = rules.iter().filter(|rules| rules.is_none()).count();
        let has_others = own + none < rules.len();
        let quorum = self.machines.len() / 2 + 1;
        let is_confirmed = own >= quorum
            || !has_others && own > 0 && rules.len() >= quorum
            || none == self.machines.len();
        if !is_confirmed {
            self.repair();
        }
    }

    /// Writes the record on every node that can be reached and has none that is right.
    pub(super) fn repair(&mut self) {
        let Some(fleet) = self.fleet else {
            return;
        };
        self.count(Kind::Repair);
        self.tell(What::Repaired);
        let now = self.now;
        for machine in self.machines.iter_mut().filter(|machine| machine.is_live()) {
            let reading = machine.reads(now);
            machine.node.repair(fleet, reading);
        }
    }
}

impl super::machine::Machine {
    /// Whether it can be reached, or will be soon.
    pub(super) const fn is_live(&self) -> bool {
        !self.is_down && self.hung_until != NEVER
    }
}
