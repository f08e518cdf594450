//! Whose votes made a lease: distinct nodes, which have not lost anything lately, and no replica.

use std::collections::{BTreeMap, BTreeSet};

use redlock_core::transport::{Reply, Verb, VoteConditions};

use super::super::clock::Moment;
use super::super::fault::Fault;
use super::super::history::{Call, Claim, Message, Task, What};
use super::super::place::Route;
use super::super::promise::Promise;

/// The votes of a world. A server that a client names twice is one node here.
#[derive(Debug, Default)]
pub(super) struct Votes {
    quorum: usize,
    /// By the token and the node: its grant.
    granted: BTreeMap<(usize, usize), Grant>,
    /// By the token and the node: its extension, by which a lease may be taken over.
    extended: BTreeMap<(usize, usize), Grant>,
    /// Tokens of leases that were extended by one server that was two to the client.
    excused: BTreeSet<usize>,
    /// By the token and the client: the nodes whose grants or extensions have reached the client since its last lease, and when.
    heard: BTreeMap<(usize, usize), BTreeMap<usize, Moment>>,
    /// The same of extensions by which the client takes a lease over.
    heard_adoption: BTreeMap<(usize, usize), BTreeMap<usize, Moment>>,
    /// The token of the lease that each task is just taking over.
    adopting: BTreeMap<Task, usize>,
    /// By the client and the node: the longest TTL that the node allows, in milliseconds, by what it last told the client.
    allowed: BTreeMap<(usize, usize), u32>,
    /// Tokens and nodes: a vote for a plain lease that is longer than that.
    too_long: BTreeSet<(usize, usize)>,
    /// By the node: when it became another process, and when it lost its data or was a replica.
    restarted: BTreeMap<usize, Moment>,
    lost: BTreeMap<usize, Moment>,
    replicas: BTreeSet<usize>,
    /// Nodes whose clocks were stepped: they do not know how long anything was ago.
    stepped: BTreeSet<usize>,
    /// Then all clocks are made right where some were not.
    is_calm: bool,
}

/// What a quorum has voted for.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Won {
    New,
    HeldOn,
    /// The nodes need votes, unless the client has no restart guard.
    Adopted {
        needs_votes: bool,
    },
}

#[derive(Debug, Clone, Copy, Default)]
struct Grant {
    is_replica: bool,
    /// It does not count before: by then all that the node may have forgotten is over.
    counts_from: Moment,
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
                let grant = self.grant(node, message);
                // Where the node judges, it does so when it grants; a client, when it counts.
                let counts_from = match message.proposal {
                    Some(_) if grant.counts_from > at => Moment::MAX,
                    _ => grant.counts_from,
                };
                let grant = Grant {
                    counts_from,
                    ..grant
                };
                self.granted.insert((message.token, node), grant);
            }
            What::Executed(Route { node, .. }, message, Ok(Reply::Extended(_)))
                if message.is_adoption() =>
            {
                let grant = self.extension(node, message);
                self.extended.insert((message.token, node), grant);
            }
            What::Sent(task, _, message) if message.is_adoption() => {
                let is_new = self.adopting.insert(task, message.token) != Some(message.token);
                let adopter = (message.token, task.client);
                // A late answer to an earlier adoption of this lease is no vote for this one.
                self.heard_adoption
                    .retain(|it, _| !is_new || *it != adopter);
            }
            What::Ends(task, Call::Adopt(_), ..) => {
                self.adopting.remove(&task);
            }
            What::Told(Route { client, node }, max_ttl_ms) => {
                match max_ttl_ms {
                    Some(max_ttl_ms) => self.allowed.insert((client, node), max_ttl_ms),
                    None => self.allowed.remove(&(client, node)),
                };
            }
            What::Answered(
                Route { client, node },
                message @ Message { token, .. },
                Ok(Reply::Acquired(_) | Reply::Extended(_)),
            ) => {
                let allowed = self.allowed.get(&(client, node));
                let ttl_ms = message.plain_ttl_ms();
                if ttl_ms.is_some_and(|ttl| allowed.is_some_and(|allowed| ttl > *allowed)) {
                    self.too_long.insert((token, node));
                } else {
                    self.too_long.remove(&(token, node));
                }
                let heard = match message.is_adoption() {
                    true => &mut self.heard_adoption,
                    false => &mut self.heard,
                };
                heard
                    .entry((token, client))
                    .or_default()
                    .entry(node)
                    .or_insert(at);
            }
            What::Granted(claim, _) | What::Works(claim, _) => return self.won(claim, Won::New),
            What::Extended(claim, _) => return self.won(claim, Won::HeldOn),
            What::Adopted(claim, _, needs_votes) => {
                return self.won(claim, Won::Adopted { needs_votes });
            }
            _ => (),
        }
        None
    }

    /// Whether the lease may lack a quorum by what the library states as a limit.
    pub(super) fn is_excused(&self, token: usize) -> bool {
        self.excused.contains(&token)
    }

    fn won(&mut self, claim: Claim, won: Won) -> Option<(Claim, Promise)> {
        let heard = match won {
            Won::New | Won::HeldOn => &mut self.heard,
            Won::Adopted { .. } => &mut self.heard_adoption,
        };
        let voters = heard.remove(&(claim.token, claim.task.client));
        let voters = voters.unwrap_or_default();
        let is_new = won == Won::New;
        // A server with two names that restarts with its data within the round of an extension is two processes to the client. In
        // the round of an acquire, its key refuses the second name. If its clock is stepped forward, the key is gone.
        let has_restarted = |(node, heard_at): (&usize, &Moment)| {
            let restarted_at = self.restarted.get(node);
            restarted_at.is_some_and(|at| at >= heard_at)
                && (!is_new || self.stepped.contains(node))
        };
        let is_excused = voters.iter().any(has_restarted);
        if voters.len() < self.quorum {
            if is_excused {
                self.excused.insert(claim.token);
                return None;
            }
            return Some((claim, Promise::Votes));
        }
        let counts = |node: &&usize| !self.too_long.contains(&(claim.token, **node));
        if voters.keys().filter(counts).count() < self.quorum {
            return Some((claim, Promise::Ttl));
        }
        let found = voters.into_iter().find_map(|(node, heard_at)| {
            let grant = match won {
                Won::Adopted { .. } => self.extended.get(&(claim.token, node))?,
                Won::New | Won::HeldOn => self.granted.get(&(claim.token, node))?,
            };
            match grant {
                Grant {
                    is_replica: true, ..
                } => Some(Promise::Replica),
                Grant { counts_from, .. } if heard_at < *counts_from => Some(Promise::Restart),
                Grant { .. } => None,
            }
        });
        let needs_votes = matches!(won, Won::New | Won::Adopted { needs_votes: true });
        found
            .filter(|_| needs_votes)
            .map(|promise| (claim, promise))
    }

    /// From when on the extension of a node may count for an adoption: always by the process of the node.
    fn extension(&self, node: usize, message: Message) -> Grant {
        let Verb::Extend { ttl_ms, .. } = message.verb else {
            return Grant::default();
        };
        let restarted = self
            .restarted
            .get(&node)
            .filter(|_| !self.knows_no_time(node));
        Grant {
            is_replica: self.replicas.contains(&node),
            counts_from: restarted.map_or(0, |at| at + u64::from(ttl_ms) * 1_000),
        }
    }

    fn knows_no_time(&self, node: usize) -> bool {
        self.stepped.contains(&node) || self.is_calm && !self.stepped.is_empty()
    }

    /// From when on the grant of a node may count.
    fn grant(&self, node: usize, message: Message) -> Grant {
        let is_replica = message.is_acquire() && self.replicas.contains(&node);
        let knows_no_time = self.knows_no_time(node);
        let (ttl_ms, conditions) = match message.verb {
            Verb::Acquire { ttl_ms, conditions } => (ttl_ms, conditions),
            _ => (0, VoteConditions::NONE),
        };
        let restarted = self.restarted.get(&node).copied();
        let (lost_at, longest) = match message.proposal {
            _ if knows_no_time => (None, 0),
            None if !conditions.restart_guard => (None, 0),
            // FLUSHALL is no sign to a plain client.
            None => (restarted, u64::from(ttl_ms) * 1_000),
            Some(proposal) => {
                let longest = proposal.fencing.max_ttl().as_micros();
                let lost = self.lost.get(&node).copied();
                (
                    restarted.max(lost),
                    u64::try_from(longest).unwrap_or_default(),
                )
            }
        };
        Grant {
            is_replica,
            counts_from: lost_at.map_or(0, |lost_at| lost_at + longest),
        }
    }
}
