//! How what was done is undone, at once or step by step.

use std::error::Error;
use std::time::Duration;

use redlock_core::{Clock, Instant};
use redlock_std::SystemClock;

use super::{Nemesis, micros};
use crate::chaos::eviction;
use crate::chaos::failback::{AGAIN, Leader, disconnect};
use crate::chaos::fault::{Kind, MAJORITY};
use crate::chaos::lock::{quarantine, window};
use crate::chaos::network::Cut;
use crate::chaos::operator::Operator;
use crate::chaos::schedule::away;

/// What has to be undone.
#[derive(Debug)]
pub(super) struct Lasting {
    pub(super) kind: Kind,
    /// Its number in the record.
    pub(super) fault: usize,
    /// When the next step is due.
    pub(super) until: Instant,
    /// When the run fails if a step has still not succeeded.
    pub(super) give_up_at: Instant,
    pub(super) nodes: Vec<usize>,
    pub(super) client: Option<usize>,
    pub(super) remedy: Remedy,
}

#[derive(Debug)]
pub(super) enum Remedy {
    ResumeNodes,
    RestartNodes,
    /// Their clocks are right again.
    SetClocks,
    /// Their clocks are right again, and their quarantine can begin.
    CatchUp,
    /// Time alone undoes it, or clients do, who write the guard records of a fenced lock again.
    Recover,
    /// They become replicas of these servers.
    Follow(Vec<Leader>),
    /// They are masters again.
    Lead(Vec<Leader>),
    /// They may evict keys, and do, as soon as there is a lock, or at this time.
    RunShort {
        patience: Instant,
    },
    /// They evict what has come since.
    Evict,
    /// They evict nothing any more.
    KeepKeys,
    /// The operator is done.
    Dismiss(Operator),
    ResumeClient,
    Mend(Vec<Cut>),
}

impl Nemesis<'_> {
    /// What becomes of nodes that have just lost everything, and when. The clocks of a few are set back besides, by
    /// up to `most`: then no client may write their guard records before they are right again.
    pub(super) fn recover(
        &mut self,
        nodes: &[usize],
        most: Duration,
        lasts: Duration,
        until: &mut Instant,
    ) -> Remedy {
        if !self.stage.is_fenced() || nodes.len() >= MAJORITY || !self.random.one_in(3) {
            *until = SystemClock.now().saturating_add(lasts);
            return Remedy::Recover;
        }
        for node in nodes {
            let step = micros(self.random.between(2 * window(self.ttl), most));
            self.stage.servers[*node].step_clock(-step);
        }
        self.stage
            .recorder
            .note(|record| record.set_back += nodes.len());
        *until = self.later(self.ttl / 4, self.ttl);
        Remedy::CatchUp
    }

    pub(super) fn undo_what_is_due(&mut self) -> Result<(), Box<dyn Error>> {
        let now = SystemClock.now();
        while let Some(due) = self.lasting.iter().position(|lasting| lasting.until <= now) {
            let mut lasting = self.lasting.swap_remove(due);
            let Some(next) = self.undo(&mut lasting)? else {
                self.stage.recorder.end(lasting.fault, SystemClock.now());
                continue;
            };
            if now >= lasting.give_up_at {
                let (name, nodes) = (lasting.kind.name(), &lasting.nodes);
                return Err(format!("'{name}' does not end, on nodes {nodes:?} from 0").into());
            }
            lasting.until = SystemClock.now().saturating_add(next.max(AGAIN));
            self.lasting.push(lasting);
        }
        Ok(())
    }

    /// Takes the next step; after which time there is another one.
    fn undo(&mut self, lasting: &mut Lasting) -> Result<Option<Duration>, Box<dyn Error>> {
        let nodes = &lasting.nodes;
        match &mut lasting.remedy {
            Remedy::ResumeNodes => {
                for node in nodes {
                    self.stage.servers[*node].resume();
                }
            }
            Remedy::RestartNodes => {
                for node in nodes {
                    self.stage.restart(*node)?;
                }
            }
            Remedy::SetClocks => {
                for node in nodes {
                    self.stage.servers[*node].step_clock(0);
                }
            }
            Remedy::CatchUp => {
                for node in nodes {
                    self.stage.servers[*node].step_clock(0);
                }
                lasting.remedy = Remedy::Recover;
                return Ok(Some(quarantine(self.ttl)));
            }
            Remedy::ResumeClient => {
                if let Some(client) = lasting.client {
                    self.stage.crew.resume(client)?;
                }
            }
            Remedy::Mend(cuts) => {
                if let Some(network) = &self.stage.network {
                    for cut in cuts {
                        network.mend(*cut)?;
                    }
                }
            }
            Remedy::Recover => return Ok((!self.have_recovered(nodes)).then_some(AGAIN)),
            Remedy::Follow(_) if !self.stage.have_met(nodes)? => return Ok(Some(AGAIN)),
            Remedy::Follow(leaders) => {
                for (leader, node) in leaders.iter().zip(nodes) {
                    leader.lead(&self.stage.servers[*node])?;
                }
                lasting.remedy = Remedy::Lead(std::mem::take(leaders));
                // Long enough for clients to meet replicas.
                return Ok(Some(self.random.between(self.ttl / 4, self.ttl / 2)));
            }
            Remedy::Lead(leaders) => {
                if !self.fail_back(nodes, leaders)? {
                    return Ok(Some(AGAIN));
                }
                lasting.remedy = Remedy::Recover;
                return Ok(Some(quarantine(self.ttl)));
            }
            Remedy::RunShort { patience } => {
                if !self.stage.have_locks(nodes)? && SystemClock.now() < *patience {
                    return Ok(Some(Duration::ZERO));
                }
                for node in nodes {
                    eviction::allow(&self.stage.servers[*node], &mut self.random)?;
                }
                // The lock may have been released a moment before.
                if self.evict(nodes)? == 0 && SystemClock.now() < *patience {
                    return Ok(Some(self.ttl / 16));
                }
                lasting.remedy = Remedy::Evict;
                return Ok(Some(self.random.between(Duration::ZERO, self.ttl / 4)));
            }
            Remedy::Evict => {
                self.evict(nodes)?;
                lasting.remedy = Remedy::KeepKeys;
                return Ok(Some(away(self.ttl)));
            }
            Remedy::KeepKeys => {
                for node in nodes {
                    eviction::forbid(&self.stage.servers[*node])?;
                }
                lasting.remedy = Remedy::Recover;
                return Ok(Some(Duration::ZERO));
            }
            Remedy::Dismiss(operator) => {
                let Some(operation) = operator.end()? else {
                    return Ok(Some(AGAIN));
                };
                self.stage
                    .recorder
                    .note(|record| record.operations.push(operation));
                lasting.remedy = Remedy::Recover;
                return Ok(Some(Duration::ZERO));
            }
        }
        Ok(None)
    }

    fn evict(&self, nodes: &[usize]) -> Result<u64, Box<dyn Error>> {
        let mut evicted = 0;
        for node in nodes {
            evicted += eviction::happen(&self.stage.servers[*node])?;
        }
        self.stage.recorder.note(|record| record.evicted += evicted);
        Ok(evicted)
    }

    /// Makes masters of nodes that have taken over the data of these leaders. Whether they have.
    fn fail_back(&self, nodes: &[usize], leaders: &[Leader]) -> Result<bool, Box<dyn Error>> {
        let nodes = nodes.iter().map(|node| &self.stage.servers[*node]);
        for (node, leader) in nodes.clone().zip(leaders) {
            if !leader.is_followed_by(node)? {
                return Ok(false);
            }
        }
        let mut refused = 0;
        for node in nodes {
            if !self.stage.is_fenced() {
                // Before it is a master: who comes back sees a replica, or what has become of it.
                disconnect(node)?;
            }
            refused += Leader::leave(node)?;
        }
        self.stage
            .recorder
            .note(|record| record.read_only += refused);
        Ok(true)
    }

    /// Whether the votes of nodes count again. What they have forgotten is over.
    fn have_recovered(&self, nodes: &[usize]) -> bool {
        let is_vouched = |node: &usize| matches!(self.stage.servers[*node].is_vouched(), Ok(true));
        !self.stage.is_fenced() || nodes.iter().all(is_vouched)
    }
}

/// Long enough for any machine. What takes longer does not come about by itself.
pub(super) const LIMIT: Duration = Duration::from_secs(60);
