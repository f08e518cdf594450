//! Whether fences grow, and what is released stays away.

use std::collections::{BTreeMap, BTreeSet};

use redlock_core::Fence;
use redlock_core::transport::Verb;

use super::super::clock::{Moment, Seconds};
use super::super::fault::Fault;
use super::super::history::{Claim, Message, What};
use super::super::place::Place;
use super::super::promise::Promise;
use super::Breach;

/// The fences of a world.
#[derive(Debug, Default)]
pub(super) struct Fences {
    leases: Vec<Fenced>,
    /// By the token and the fence: when it was first sent.
    sent: BTreeMap<(usize, Fence), Moment>,
    /// By the token: when it was first sent with any.
    first_sent: BTreeMap<usize, Moment>,
    /// By the token: how many fences were proposed with it, each higher than before, and the highest.
    proposed: BTreeMap<usize, (usize, Fence)>,
    /// By the key: the highest that was admitted to what it protects.
    admitted: BTreeMap<usize, Fence>,
    /// By the node and the token: it was released there.
    released: BTreeSet<(usize, usize)>,
    /// Nodes whose clocks were set: there a release may be out of the window, and its acquire in it.
    set: BTreeSet<usize>,
    /// When an operator has last said that nodes have forgotten nothing: their word is for a fleet without a past. Or when a
    /// node has taken rules of before.
    initialized_at: Option<Moment>,
}

#[derive(Debug)]
struct Fenced {
    claim: Claim,
    fence: Fence,
    /// When the round began that was won.
    sent_at: Moment,
    reported_at: Moment,
}

impl Fences {
    pub(super) fn hear(&mut self, at: Moment, what: &What) -> Option<Breach> {
        match *what {
            What::Sent(
                _,
                _,
                Message {
                    verb: Verb::Acquire { .. },
                    token,
                    proposal,
                    ..
                },
            ) => {
                let fence = proposal?.fence;
                self.sent.entry((token, fence)).or_insert(at);
                self.first_sent.entry(token).or_insert(at);
                let (count, highest) = self.proposed.entry(token).or_insert((0, fence));
                if fence > *highest || *count == 0 {
                    *count += 1;
                }
                *highest = fence.max(*highest);
                None
            }
            What::Granted(claim, _) | What::Works(claim, _) => {
                let (fence, token) = (claim.fence?, claim.token);
                let sent = self.sent.get(&(token, fence));
                let sent = sent.or_else(|| self.first_sent.get(&token));
                self.leases.push(Fenced {
                    claim,
                    fence,
                    sent_at: sent.copied().unwrap_or(at),
                    reported_at: at,
                });
                None
            }
            What::Visits(claim, true) => self.visits(at, claim),
            What::Burns(node, token, fence) => {
                // A second round burns its own fence only, which may be less than that of the first, or out of the
                // window where a wrong clock has led the client.
                let sent = self.proposed.get(&token);
                let is_all = sent.is_none_or(|(count, highest)| {
                    fence >= *highest && (*count == 1 || self.set.is_empty())
                });
                if is_all {
                    self.released.insert((node, token));
                }
                None
            }
            // What was released may come back with older data, and with it what is late.
            What::Forgets(node, _) | What::Role(node, _) => {
                self.released.retain(|(released, _)| *released != node);
                None
            }
            What::Initialized(_) | What::Captured(_) => {
                self.initialized_at = Some(at);
                None
            }
            What::Fault(Fault::Set(node, _)) => {
                self.set.insert(node);
                None
            }
            What::Stands(place, token, _) => self.stands(at, place, token),
            _ => None,
        }
    }

    fn visits(&mut self, at: Moment, claim: Claim) -> Option<Breach> {
        let fence = claim.fence?;
        let highest = self.admitted.entry(claim.key).or_insert(fence);
        if fence < *highest {
            let what = format!("{claim}: is admitted after {highest}");
            return Some(self.breach(Promise::Gate, at, &[claim.token], what));
        }
        *highest = fence;
        None
    }

    fn stands(&self, at: Moment, place: Place, token: usize) -> Option<Breach> {
        let is_back =
            self.released.contains(&(place.node, token)) && !self.set.contains(&place.node);
        is_back.then(|| {
            let what = format!("{place} = t{token}, which was released there before");
            self.breach(Promise::Burn, at, &[token], what)
        })
    }

    /// No two have the same, and none is lower than that of a lease that was reported before it was asked for.
    pub(super) fn conclude(&self) -> Vec<Breach> {
        let mut found = Vec::new();
        let begin = self.initialized_at.unwrap_or_default();
        let leases = self.leases.iter().filter(|lease| lease.sent_at >= begin);
        let mut by_fence: Vec<_> = leases.clone().collect();
        by_fence.sort_by_key(|lease| (lease.claim.key, lease.fence, lease.reported_at));
        for pair in by_fence.windows(2) {
            let [one, other] = [pair[0], pair[1]];
            if (one.claim.key, one.fence) == (other.claim.key, other.fence) {
                let what = format!("{} and {}: the same", one.claim, other.claim);
                found.push(self.breach_of(one, other, what));
            }
        }
        let mut reported: Vec<_> = leases.clone().collect();
        reported.sort_by_key(|lease| lease.reported_at);
        let mut asked: Vec<_> = leases.collect();
        asked.sort_by_key(|lease| lease.sent_at);
        let mut highest = BTreeMap::<usize, &Fenced>::new();
        let mut reported = reported.into_iter().peekable();
        for later in asked {
            while let Some(lease) = reported.next_if(|lease| lease.reported_at < later.sent_at) {
                let best = highest.entry(lease.claim.key).or_insert(lease);
                if lease.fence > best.fence {
                    *best = lease;
                }
            }
            if let Some(earlier) = highest.get(&later.claim.key)
                && earlier.fence > later.fence
            {
                let what = format!(
                    "{}, reported at {}, and {}, asked for at {}",
                    earlier.claim,
                    Seconds(earlier.reported_at),
                    later.claim,
                    Seconds(later.sent_at)
                );
                found.push(self.breach_of(earlier, later, what));
            }
        }
        found
    }

    fn breach_of(&self, one: &Fenced, other: &Fenced, what: String) -> Breach {
        let at = one.reported_at.max(other.reported_at);
        let tokens = [one.claim.token, other.claim.token];
        self.breach(Promise::Fence, at, &tokens, what)
    }

    fn breach(&self, promise: Promise, at: Moment, tokens: &[usize], what: String) -> Breach {
        let sent = tokens.iter().filter_map(|token| self.first_sent.get(token));
        Breach {
            promise,
            at,
            since: sent.min().copied().unwrap_or(at),
            tokens: tokens.to_vec(),
            what,
        }
    }
}
