//! The way from a client to a node.

use core::future::poll_fn;
use core::task::Poll;

use redlock_core::transport::{Command, Proposal, Reply, RunId, Verb};
use redlock_core::{Failure, Transport};

use super::failure::{NodeError, Silent};
use super::heard::Heard;
use super::message::{Offer, Order};
use super::{Effect, MAX_NODES, World, number};
use crate::model::flaw::Flaw;
use crate::model::scene::Scene;

/// The way to a node; to none for the flaw of a node that grants everything and is not there.
#[derive(Debug, Clone)]
pub(super) struct Port<'w> {
    pub(super) node: Option<usize>,
    pub(super) scene: &'w Scene,
    pub(super) world: &'w World,
}

impl Transport for Port<'_> {
    type Name = usize;
    type Error = Silent;

    fn name(&self) -> usize {
        self.node.unwrap_or(MAX_NODES)
    }

    async fn execute(&mut self, command: &Command<'_>) -> Result<Reply, NodeError> {
        let (token, proposal) = (number(command.token), command.proposal);
        let (order, granted) = match command.verb {
            Verb::Acquire { .. } => {
                let offer = self.offer(proposal.map(without_time));
                let order = Order::Acquire(token, offer);
                (self.vouched(order), Reply::Acquired(None))
            }
            Verb::Extend { .. } | Verb::Keep { .. } => {
                let offer = self.offer(proposal.map(without_vouching));
                (Order::Extend(token, offer), Reply::Extended(None))
            }
            Verb::Release => {
                let offer = self.offer(proposal.map(without_time).map(without_vouching));
                (Order::Release(token, offer), Reply::Released)
            }
        };
        let Some(node) = self.node else {
            return Ok(granted);
        };
        let swallows_releases = self.scene.flaw == Some(Flaw::NothingIsReleased);
        if swallows_releases && matches!(order, Order::Release(..)) {
            return Ok(granted);
        }
        self.check(node, command)?;
        self.world.did(Effect::Sent(node, order));
        let mut call = Call {
            node,
            world: self.world,
            is_over: false,
        };
        poll_fn(|_| {
            let Some(answer) = self.world.answer(node) else {
                return Poll::Pending;
            };
            call.is_over = true;
            self.world.heard.borrow_mut().take(node, answer);
            let result = answer.result(self.scene, node);
            if let Ok(Reply::Acquired(Some(reading))) = &result {
                let count = self.world.count.get().max(reading.fence);
                self.world.count.set(count);
            }
            Poll::Ready(result)
        })
        .await
    }

    fn run_id(&self) -> Option<RunId> {
        let node = self.node?;
        // Extensions are not judged by missing answers.
        let is_silent =
            self.scene.flaw == Some(Flaw::TwiceExtended) && self.world.is_extending.get();
        let process = self.scene.process(node);
        (self.scene.upsets.has_twin && !is_silent).then_some(RunId::new(process as u64))
    }
}

impl Port<'_> {
    fn offer(&self, proposal: Option<Proposal>) -> Option<Offer> {
        proposal.map(|proposal| Offer {
            fence: self.scene.stamp(proposal.fence.as_u64()),
            time: self.scene.stamp(proposal.time),
            vouches: proposal.vouches,
        })
    }

    /// What a client sends that judges its rules wrongly.
    fn vouched(&self, order: Order) -> Order {
        let mut heard = self.world.heard.borrow_mut();
        heard.begin_round(order, self.scene.flaw);
        match (self.scene.flaw, order) {
            (Some(flaw), Order::Acquire(token, Some(offer))) if Heard::is_judged(flaw) => {
                let vouches = heard.may_vouch();
                Order::Acquire(token, Some(Offer { vouches, ..offer }))
            }
            _ => order,
        }
    }

    /// Whether the vote of the node counts.
    fn check(&self, node: usize, command: &Command<'_>) -> Result<(), NodeError> {
        let mut verb = command.verb;
        let Verb::Acquire { conditions, .. } = &mut verb else {
            return Ok(());
        };
        match self.scene.flaw {
            Some(Flaw::QuarantineTooShort) => {
                let unit = u32::try_from(self.scene.unit.as_millis());
                conditions.max_ttl_ms -= unit.expect("units are short");
            }
            Some(Flaw::Eviction) => conditions.refuse_eviction = false,
            Some(Flaw::LongPlain) => conditions.obeys_record = false,
            _ => {}
        }
        let admission = self.world.admissions.borrow()[node];
        let admitted = admission.check(verb, self.world.now());
        admitted.map_err(|denial| NodeError::new(node, Failure::Denied(denial)))
    }
}

/// Only an extend carries the time.
const fn without_time(mut proposal: Proposal) -> Proposal {
    proposal.time = 0;
    proposal
}

/// Only an acquire writes guard records.
const fn without_vouching(mut proposal: Proposal) -> Proposal {
    proposal.vouches = false;
    proposal
}

/// Says when it is dropped before its end.
struct Call<'w> {
    node: usize,
    world: &'w World,
    is_over: bool,
}

impl Drop for Call<'_> {
    fn drop(&mut self) {
        if !self.is_over {
            self.world.did(Effect::GivenUp(self.node));
        }
    }
}
