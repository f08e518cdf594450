//! One attempt to acquire the lock.

use crate::clock_samples::{ClockSamples, Confirmation};
use crate::command::Command;
use crate::entropy::Entropy;
use crate::error::AcquireError;
use crate::fence::{Fence, Proposal};
use crate::key::RESERVED_PREFIX;
use crate::lease::Lease;
use crate::race::Ballot;
use crate::redlock::Redlock;
use crate::report::{Outcome, Report};
use crate::round::{Doubt, NodeSet, Round, Verdict};
use crate::time::{Clock, Instant};
use crate::token::Token;
use crate::transport::{NodeErrorOf, Transport};

/// What an attempt has won.
pub(super) struct Grant {
    token: Token,
    valid_until: Instant,
    proposal: Option<Proposal>,
}

/// The most rounds of an attempt: one to ask, one that uses the answers, and one more if most of the first answers came
/// from wrong clocks.
const ROUNDS_MAX: u32 = 3;

/// What the attempts of one acquire have learned about a fenced lock.
#[derive(Debug)]
pub(super) struct Learned {
    /// The highest fence that is known to have been accepted.
    highest: Fence,
    /// When the last round began, if no node had a guard record in that round.
    cold_start_at: Option<Instant>,
}

impl Learned {
    pub(super) const NOTHING: Self = Self {
        highest: Fence::ZERO,
        cold_start_at: None,
    };
}

impl<T: Transport, C: Clock, E: Entropy, const MAX: usize> Redlock<T, C, E, MAX> {
    pub(super) fn lease<K>(&self, key: K, grant: Grant) -> Lease<K> {
        let terms = self.options.terms();
        Lease::new(key, grant.token, terms, grant.valid_until, grant.proposal)
    }

    /// Makes one attempt with its own token.
    ///
    /// The Redlock specification, "The Redlock algorithm": steps 1 to 5, with the nodes asked at once
    /// as "Retry on failure" recommends.
    pub(super) async fn grant(
        &mut self,
        key: &[u8],
        learned: &mut Learned,
    ) -> Result<Grant, AcquireError<NodeErrorOf<T>, MAX>> {
        if key.starts_with(RESERVED_PREFIX.as_bytes()) {
            return Err(AcquireError::ReservedKey);
        }
        let token = self.fresh_token().ok_or(AcquireError::Entropy)?;
        let mut rounds = 0;
        let mut last_but_one = None;
        let (mut ballot, proposal) = loop {
            let asked_at = self.clock.now();
            let proposal = self.proposal(learned, rounds);
            let mut ballot = self.acquisition(key, &token, proposal);
            if let Some(proposal) = proposal
                && rounds > 0
            {
                ballot.round.doubt(if proposal.fence() > learned.highest {
                    Doubt::Time
                } else {
                    Doubt::TimeAndFences
                });
            }
            self.ask(&mut ballot).await;
            self.judge_duplicates(&mut ballot);
            rounds += 1;
            if let Some(proposal) = proposal {
                let free_in_ms = ballot.readings.free_in_ms(self.quorum());
                ballot.report.set_free_in_ms(free_in_ms);
                let seen = ballot.readings.highest();
                learned.highest = learned.highest.max(proposal.fence()).max(seen);
                self.learn(&mut ballot);
                self.learn_rules(asked_at, &ballot.readings, learned);
                // A fence that was refused is not proposed again.
                if rounds < ROUNDS_MAX
                    && ballot.verdict != Verdict::Won
                    && let Some(next) = self.proposal(learned, rounds)
                    && next.fence() != proposal.fence()
                    && last_but_one.replace(proposal.fence()) != Some(next.fence())
                {
                    // Another fence may win with the same token. So may a round that restores guard records, now that the
                    // rules are confirmed; at least it starts the quarantine.
                    let may_restore = next.vouches()
                        && !proposal.vouches()
                        && ballot.readings.unguarded().len() > 0;
                    if may_restore || self.may_fit(&ballot) {
                        continue;
                    }
                }
            }
            break (ballot, proposal);
        };
        if let Some(proposal) = proposal
            && ballot.verdict == Verdict::Won
        {
            let guarded = ballot.readings.guarded();
            self.restore_records(key, &token, proposal, guarded).await;
            if self.clock.now() >= ballot.round.valid_until() {
                ballot.verdict = Verdict::TooLate;
            }
        }
        if ballot.verdict != Verdict::Won {
            // Waits for the nodes that granted it, so that they have deleted the key before the error is returned.
            let (asked, granted) = left_by(&ballot.report);
            let release = Command::release(key, &token).with_proposal(proposal);
            let mut ballot = self.deletion(release, asked, granted, granted.len());
            self.ask(&mut ballot).await;
        }
        self.abandoned = None;
        match ballot.verdict {
            Verdict::Won => Ok(Grant {
                token,
                valid_until: ballot.round.valid_until(),
                proposal,
            }),
            Verdict::TooLate => Err(AcquireError::TooLate(ballot.report)),
            Verdict::Refused => Err(AcquireError::Held(ballot.report)),
            Verdict::Unreachable | Verdict::Pending => {
                Err(AcquireError::Unreachable(ballot.report))
            }
        }
    }

    /// Creates one round of an attempt.
    fn acquisition<'c>(
        &mut self,
        key: &'c [u8],
        token: &'c Token,
        proposal: Option<Proposal>,
    ) -> Ballot<'c, NodeErrorOf<T>, MAX> {
        let terms = self.options.terms();
        let command = Command::acquire(key, token, terms.ttl_ms, self.options.vote_conditions())
            .with_proposal(proposal);
        self.abandon(key, token, proposal);
        self.ballot(command, self.clock.now(), terms, Instant::MAX)
    }

    /// The fence for the next round, after `rounds` rounds of the attempt: the nodes' time, or one more than all fences
    /// before.
    ///
    /// Only a node whose clock is ahead of the others can have accepted a fence beyond the window, and the others do
    /// not accept a higher one. So a proposal above it would be refused for as long as the clocks differ.
    fn proposal(&self, learned: &Learned, rounds: u32) -> Option<Proposal> {
        let fencing = self.options.fencing()?;
        let time = self.nodes_time();
        let newest = time.saturating_add(u64::from(fencing.window_ms) * 1_000);
        let next = learned.highest.next();
        let is_in_window = next <= Fence::from_u64(newest);
        let fence = Fence::from_u64(time);
        let fence = if is_in_window { fence.max(next) } else { fence };
        // A cold start that an earlier attempt saw is out of date.
        let is_cold_start = rounds > 0 && self.is_recent(learned.cold_start_at);
        let vouches = self.may_vouch() || is_cold_start;
        Some(Proposal::new(fence, fencing, time, vouches))
    }

    /// Restores the guard record on the nodes that have lost it, or may have: all but `guarded`. Called after a round that
    /// was won without them. It waits for no answer, because it only starts their quarantine. This is rare: a client that
    /// acquires often vouches in the round itself.
    async fn restore_records(
        &mut self,
        key: &[u8],
        token: &Token,
        proposal: Proposal,
        guarded: NodeSet,
    ) {
        let others = self.all.without(self.duplicates()).without(guarded);
        if others.len() == 0 || proposal.vouches() || !self.may_vouch() {
            return;
        }
        let mut ballot = self.acquisition(key, token, Some(proposal.vouching()));
        ballot.asked = others;
        ballot.round = Round::new(NodeSet::EMPTY, 0, ballot.round.deadline(), Instant::MAX);
        self.ask(&mut ballot).await;
    }

    /// Records whether the next round may write guard records, after a round that began at `asked_at`.
    fn learn_rules(
        &mut self,
        asked_at: Instant,
        readings: &ClockSamples<MAX>,
        learned: &mut Learned,
    ) {
        let voters = self.all.without(self.duplicates());
        let confirmation = readings.confirmation(voters, self.quorum());
        let is_fleet = confirmation == Confirmation::Fleet;
        self.rules_confirmed_at = is_fleet.then_some(asked_at);
        let is_cold_start = confirmation == Confirmation::ColdStart;
        learned.cold_start_at = is_cold_start.then_some(asked_at);
    }

    /// A new token. `None` if it equals the last one or is all zeros, as from a broken source.
    fn fresh_token(&mut self) -> Option<Token> {
        let mut bytes = [0; Token::LEN];
        self.entropy.fill(&mut bytes);
        let token = Token::from_bytes(bytes);
        if token == self.last_token || bytes == [0; Token::LEN] {
            return None;
        }
        self.last_token = token;
        Some(token)
    }
}

/// The nodes where a lost round may have left its token, and those where it has. On a node that refused, the
/// key carries another token.
///
/// The Redlock specification, "Retry on failure": release the locks that were acquired ASAP.
fn left_by<E, const MAX: usize>(report: &Report<E, MAX>) -> (NodeSet, NodeSet) {
    let mut asked = NodeSet::EMPTY;
    let mut granted = NodeSet::EMPTY;
    for (node, outcome) in report.outcomes().iter().enumerate() {
        if !matches!(outcome, Outcome::Refused) {
            asked.insert(node);
        }
        if matches!(outcome, Outcome::Granted) {
            granted.insert(node);
        }
    }
    (asked, granted)
}
