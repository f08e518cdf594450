//! Whose votes made a lease: distinct nodes, which have not lost anything lately, and no replica.

use std::collections::{BTreeMap, BTreeSet};

use redlock_core::Reply;

use super::super::clock::Moment;
use super::super::fault::Fault;
use super::super::history::{Claim, Message, Route, Verb, What};
use super::Promise;

/// The votes of a world. A server that a client names twice is one node here.
#[derive(Debug, Default)]
pub(super) struct Votes {
    quorum: usize,
    /// By the token and the node: what was wrong with its grant, if anything.
    granted: BTreeMap<(usize, usize), Option<Promise>>,
    /// By the token: the nodes whose grants or extensions have reached the client since the last lease.
    heard: BTreeMap<usize, BTreeSet<usize>>,
    /// By the node: when it became another process, and when it lost its data or was a replica.
    restarted: BTreeMap<usize, Moment>,
    lost: BTreeMap<usize, Moment>,
    replicas: BTreeSet<usize>,
    /// Nodes whose clocks were stepped: they do not know how long anything was ago.
    stepped: BTreeSet<usize>,
    /// Then all clocks are made right where some were not.
    is_calm: bool,
}

impl Votes {
    pub(super) fn new(quorum: usize) -> Self {
        Self {
            quorum,
            ..Self::default()
        }
    }

    /// What is wrong with the lease that was just won or extended, if anything.
    pub(super) fn hear(&mut self, at: Moment, what: &What) -> Option<(Claim, Promise)> {
        match *what {
            What::Restarted(node) => {
                self.restarted.insert(node, at);
            }
            What::Forgets(node, None) => {
                self.lost.insert(node, at);
            }
            What::Role(node, is_master) => {
                self.lost.insert(node, at);
                if is_master {
                    self.replicas.remove(&node);
                } else {
                    self.replicas.insert(node);
                }
            }
            What::Initialized(node) => {
                self.restarted.remove(&node);
                self.lost.remove(&node);
            }
            What::Fault(
                Fault::Set(node, _) | Fault::SetBack(node, _) | Fault::SetForward(node, _),
            ) => {
                self.stepped.insert(node);
            }
            What::Calm => self.is_calm = true,
            What::Executed(Route { node, .. }, message, Ok(Reply::Acquired(_))) => {
                let problem = self.problem(at, node, message);
                self.granted.insert((message.token, node), problem);
            }
            What::Answered(
                Route { node, .. },
                Message { token, .. },
                Ok(Reply::Acquired(_) | Reply::Extended(_)),
            ) => {
                self.heard.entry(token).or_default().insert(node);
            }
            What::Granted(claim, _) | What::Works(claim, _) => return self.won(claim, true),
            What::Extended(claim, _) => return self.won(claim, false),
            _ => (),
        }
        None
    }

    fn won(&mut self, claim: Claim, is_new: bool) -> Option<(Claim, Promise)> {
        let voters = self.heard.remove(&claim.token).unwrap_or_default();
        if voters.len() < self.quorum {
            return Some((claim, Promise::Votes));
        }
        let problem = |node| self.granted.get(&(claim.token, node)).copied().flatten();
        let found = voters.into_iter().find_map(problem)?;
        is_new.then_some((claim, found))
    }

    /// Why the grant of a node must not count.
    fn problem(&self, at: Moment, node: usize, message: Message) -> Option<Promise> {
        if message.verb == Verb::Acquire && self.replicas.contains(&node) {
            return Some(Promise::Replica);
        }
        if self.stepped.contains(&node) || self.is_calm && !self.stepped.is_empty() {
            return None;
        }
        let restarted = self.restarted.get(&node).copied();
        let (lost_at, longest) = match message.proposal {
            None if !message.rules.restart_guard => return None,
            // FLUSHALL is no sign to a plain client.
            None => (restarted, u64::from(message.ttl_ms) * 1_000),
            Some(proposal) => {
                let longest = proposal.fleet.max_ttl().as_micros();
                let lost = self.lost.get(&node).copied();
                (
                    restarted.max(lost),
                    u64::try_from(longest).unwrap_or_default(),
                )
            }
        };
        lost_at
            .is_some_and(|lost_at| at - lost_at < longest)
            .then_some(Promise::Restart)
    }
}
