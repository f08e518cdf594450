//! How faults happen.

use super::clock::NEVER;
use super::fault::{Fault, Kind};
use super::history::What;
use super::machine::Left;
use super::state::{Event, State};

impl State {
    /// Lets `fault` happen now.
    pub(super) fn inject(&mut self, fault: Fault) {
        self.tell(What::Fault(fault));
        match fault {
            Fault::Break(route) => self.break_connection(route),
            Fault::CutRequests(route, until) => {
                self.count(Kind::CutRequests);
                self.link(route).requests_cut_until = until;
            }
            Fault::CutReplies(route, until) => {
                self.count(Kind::CutReplies);
                self.link(route).replies_cut_until = until;
            }
            Fault::Spike(route, delay, until) => {
                self.count(Kind::Spike);
                self.link(route).spike = (delay, until);
            }
            Fault::Hang(node, until) => {
                let is_for_good = until == NEVER;
                self.count(if is_for_good {
                    Kind::DeadForGood
                } else {
                    Kind::Hang
                });
                let machine = &mut self.machines[node];
                machine.hung_until = machine.hung_until.max(until);
            }
            Fault::Crash(node, until) => self.crash(node, until, Left::All),
            Fault::Forget(node, until) => self.crash(node, until, Left::Nothing),
            Fault::Restore(node, until) => self.crash(node, until, Left::Saved),
            Fault::Flush(node) => {
                self.count(Kind::Flush);
                self.forget(node);
                self.lose_unnoticed(node);
            }
            Fault::Save(node) => self.machines[node].saved = self.machines[node].server.data(),
            Fault::Demote(node) => self.demote(node),
            Fault::Promote(node) => self.promote(node),
            Fault::Policy(node, may_evict) => self.set_policy(node, may_evict),
            Fault::Evict(node, key) => self.evict(node, key),
            Fault::Init => self.init(),
            Fault::Repair => self.repair(),
            Fault::Change => self.change(),
            Fault::Set(node, ahead) => self.step_clock(node, ahead),
            Fault::SetBack(node, by) => {
                self.count(Kind::ClockSetBack);
                let reading = self.machines[node].dial.reads(self.now);
                self.set_clock(node, reading.saturating_sub(by));
            }
            Fault::SetForward(node, by) => {
                self.count(Kind::BrokenAssumption);
                let reading = self.machines[node].dial.reads(self.now);
                self.set_clock(node, reading + by);
            }
            Fault::FlushScripts(node) => {
                self.count(Kind::ScriptFlush);
                self.machines[node].scripts = Default::default();
            }
            Fault::Die(client) => {
                if let Some(at) = self.die(client) {
                    self.queue.add(at, Event::Die(client));
                }
            }
            Fault::ForgetLine(node, key) => self.forget_line(node, key),
            Fault::Pause(client, length) => {
                self.count(Kind::Pause);
                self.pause(client, length);
            }
        }
    }

    pub(super) fn count(&mut self, kind: Kind) {
        self.count_many(kind, 1);
    }

    pub(super) fn count_many(&mut self, kind: Kind, times: usize) {
        self.faults[kind as usize] += times as u64;
    }
}
