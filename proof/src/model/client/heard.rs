//! Wrong rules for who may write the guard record of a node that has lost it.

use super::MAX_NODES;
use super::message::{Answer, Order, Saying};
use crate::model::flaw::Flaw;

/// What nodes have said of a client's rules in its last round.
#[derive(Debug, Default)]
pub(super) struct Heard {
    round: Option<Order>,
    sayings: [Option<Saying>; MAX_NODES],
    may_vouch: bool,
}

impl Heard {
    /// Whether a client with this flaw judges by itself.
    pub(super) const fn is_judged(flaw: Flaw) -> bool {
        matches!(
            flaw,
            Flaw::VouchesAlways
                | Flaw::VouchesUnopposed
                | Flaw::VouchesByQuorum
                | Flaw::VouchesForHeard
        )
    }

    pub(super) const fn may_vouch(&self) -> bool {
        self.may_vouch
    }

    /// A round begins with this acquire, if it is not that of the current one.
    pub(super) fn begin_round(&mut self, acquire: Order, flaw: Option<Flaw>) {
        if self.round != Some(acquire) {
            self.end_round(flaw);
            self.round = Some(acquire);
        }
        self.may_vouch |= flaw == Some(Flaw::VouchesAlways);
    }

    pub(super) fn take(&mut self, node: usize, answer: Answer) {
        if let (Some(_), Answer::Fenced(saying, _)) = (self.round, answer) {
            self.sayings[node] = Some(saying);
        }
    }

    pub(super) fn end_round(&mut self, flaw: Option<Flaw>) {
        if self.round.take().is_none() {
            return;
        }
        let said = self.sayings.iter().flatten();
        let count =
            |is_it: fn(Saying) -> bool| said.clone().filter(|saying| is_it(**saying)).count();
        let other = count(|saying| saying == Saying::FencingMismatch);
        let none = count(|saying| saying == Saying::Unguarded(false));
        let own = said.clone().count() - other - none;
        let quorum = 2;
        let is_confirmed = own >= quorum || other == 0 && own > 0 && own + none >= quorum;
        self.may_vouch = match flaw {
            // No quorum has other rules.
            Some(Flaw::VouchesUnopposed) => other == 0 && own + none >= quorum,
            Some(Flaw::VouchesByQuorum) => own >= quorum,
            Some(Flaw::VouchesForHeard) => {
                let is_unguarded = |saying| matches!(saying, Saying::Unguarded(_));
                is_confirmed && count(is_unguarded) > 0
            }
            _ => is_confirmed,
        };
        self.sayings = Default::default();
    }
}
