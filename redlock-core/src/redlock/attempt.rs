//! One attempt to acquire the lock.

#[cfg(feature = "min-hold")]
use core::time::Duration;

use crate::clock_samples::Confirmation;
use crate::command::Command;
use crate::entropy::Entropy;
use crate::error::AcquireError;
use crate::fence::{Fence, Proposal};
use crate::key::RESERVED_PREFIX;
use crate::lease::{Lease, Terms};
use crate::line::Place;
use crate::observer::Observer;
use crate::race::Ballot;
use crate::redlock::Redlock;
use crate::redlock::waiting::Waiting;
use crate::report::{Outcome, Report};
use crate::round::{Distrust, NodeSet, Verdict};
use crate::time::{Clock, Instant};
use crate::token::Token;
use crate::transport::{NodeErrorOf, Transport};

/// The parts of the lease that an attempt has won.
pub(super) struct Grant {
    token: Token,
    valid_until: Instant,
    proposal: Option<Proposal>,
    place: Option<Place>,
}

/// The largest number of rounds of an attempt: the first, a second that uses the answers of the first, and a third if most of
/// the answers to the first came from wrong clocks.
const ROUNDS_MAX: u32 = 3;

/// What the attempts of one acquire have learned.
#[derive(Debug)]
pub(super) struct Learned {
    /// How long the last round took, in microseconds.
    pub(super) round_micros: u64,
    /// The highest fence that a node has reported or that this acquire has proposed, of those within the window.
    highest: Fence,
    /// Whether a node has reported a fence above the window.
    has_ignored: bool,
    /// When the last round began, and what it told about the rules.
    confirmed: Option<(Instant, Confirmation)>,
    /// The place of the client in the line of the lock.
    pub(super) waiting: Waiting,
}

impl Learned {
    pub(super) const fn nothing(waiting: Waiting) -> Self {
        Self {
            round_micros: 0,
            highest: Fence::ZERO,
            has_ignored: false,
            confirmed: None,
            waiting,
        }
    }

    /// Records the fences of one round, after which `newest` is the [newest fence](Redlock::newest_fence).
    ///
    /// A fence above it comes from a clock that is ahead, from a hostile node, or from this client, when its own idea of the time was
    /// ahead. Right nodes have not accepted it. If it counted, it would hide the fence that they have accepted.
    fn record_fences(
        &mut self,
        proposed: Fence,
        reported: Fence,
        has_ignored: bool,
        newest: Fence,
    ) {
        self.has_ignored |= has_ignored || self.highest > newest;
        let known = [self.highest, proposed, reported];
        let in_window = known.into_iter().filter(|fence| *fence <= newest);
        self.highest = in_window.max().unwrap_or(Fence::ZERO);
    }
}

impl<T, C, E, const MAX: usize, O> Redlock<T, C, E, MAX, O>
where
    T: Transport,
    C: Clock,
    E: Entropy,
    O: Observer<NodeErrorOf<T>>,
{
    pub(super) fn lease<K>(&self, key: K, grant: Grant) -> Lease<K> {
        let terms = self.options.terms();
        let Grant {
            token,
            valid_until,
            proposal,
            place,
        } = grant;
        let lease = Lease::new(key, token, terms, valid_until, proposal, place);
        #[cfg(feature = "observe")]
        let lease = if O::OBSERVES {
            lease.granted_at(self.clock.now())
        } else {
            lease
        };
        #[cfg(feature = "min-hold")]
        if self.options.min_hold_ms() > 0 {
            let min_hold_ms = self.options.min_hold_ms();
            // The clock may be late by a tick.
            let now = self.clock.now().saturating_add(self.clock.resolution());
            let hold_until = now.saturating_add(Duration::from_millis(min_hold_ms.into()));
            return lease.held_until(hold_until, min_hold_ms);
        }
        lease
    }

    /// Makes one attempt with its own token, in up to [`ROUNDS_MAX`] rounds.
    ///
    /// The Redlock specification, "The Redlock algorithm": steps 1 to 5. As "Retry on failure" recommends, all nodes get the
    /// command at once.
    pub(super) async fn attempt_once(
        &mut self,
        key: &[u8],
        learned: &mut Learned,
    ) -> Result<Grant, AcquireError<NodeErrorOf<T>, MAX>> {
        if key.starts_with(RESERVED_PREFIX.as_bytes()) {
            return Err(AcquireError::ReservedKey);
        }
        let token = self.fresh_token().ok_or(AcquireError::Entropy)?;
        self.join_if_wanted(&mut learned.waiting, key);
        let place = learned.waiting.place();
        let departure = self.departure(&learned.waiting);
        let mut rounds = 0;
        let mut previous_fence = None;
        let looks_at_all = self.options.fencing().is_some() && !self.has_looked_recently();
        // Outside of the loop: a future with two ballots is larger.
        let mut ballot;
        let proposal = loop {
            let started_at = self.clock.now();
            let proposal = self.proposal(learned, rounds);
            ballot = self.acquire_round(key, &token, proposal, place, departure);
            if looks_at_all {
                // A round that is won does not wait.
                ballot.round.wait_for_all();
            }
            if proposal.is_some() && rounds > 0 {
                // The nodes that answered first may have told a wrong time, and a fence of a clock that is ahead.
                ballot.round.distrust(if learned.has_ignored {
                    Distrust::TimeAndFences
                } else {
                    Distrust::Time
                });
            }
            self.run(&mut ballot).await;
            let now = self.clock.now().as_micros();
            learned.round_micros = now.saturating_sub(started_at.as_micros());
            rounds += 1;
            if let Some(proposal) = proposal {
                let free_in_ms = ballot.samples.free_in_ms(self.duplicates(), self.quorum());
                ballot.report.set_free_in_ms(free_in_ms);
                self.learn_time(&mut ballot, started_at);
                let newest = self.newest_fence();
                let (reported, has_ignored) = ballot.samples.highest(newest);
                learned.record_fences(proposal.fence(), reported, has_ignored, newest);
                let confirmation = ballot.samples.confirmation(
                    self.all,
                    self.duplicates(),
                    self.quorum(),
                    ballot.round.is_complete(self.clock.now()),
                );
                learned.confirmed = Some((started_at, confirmation));
                // A fence that this attempt has proposed is not proposed again.
                if rounds < ROUNDS_MAX
                    && ballot.verdict != Verdict::Won
                    && let Some(next) = self.proposal(learned, rounds)
                    && next.fence() != proposal.fence()
                    && previous_fence.replace(proposal.fence()) != Some(next.fence())
                {
                    // If this round has confirmed the rules, the next round can restore guard records. The next round may
                    // be won. If not, at least the quarantine of the nodes begins.
                    let may_restore = next.vouches()
                        && !proposal.vouches()
                        && ballot.samples.unguarded().len() > 0;
                    // The next round keeps the token.
                    if may_restore || self.is_worth_repeating(&ballot) {
                        continue;
                    }
                }
            }
            break proposal;
        };
        // Left out without fences: a wait that is never reached would still be in flash.
        #[cfg(any(feature = "fence", feature = "mock"))]
        if let Some(proposal) = proposal
            && ballot.verdict == Verdict::Won
        {
            if looks_at_all || ballot.samples.unguarded().len() > 0 {
                let guarded = ballot.samples.guarded();
                let mut restoration =
                    self.restoration(key, &token, proposal, departure, guarded, learned);
                if let Some(ballot) = &mut restoration {
                    self.run(ballot).await;
                }
            }
            if self.clock.now() >= ballot.round.valid_until() {
                ballot.verdict = Verdict::TooLate;
            }
        }
        if looks_at_all {
            self.looked_at = Some(self.clock.now());
        }
        if ballot.verdict != Verdict::Won {
            // Waits for the nodes that granted, so that they have deleted the key before the error is returned.
            let (possible_carriers, carriers) = self.carriers(&ballot.report);
            self.learn_ticket(&mut learned.waiting, &ballot);
            let (recipients, place) =
                self.departing(&mut learned.waiting, &ballot, possible_carriers);
            let release = Command::release(key, &token)
                .with_proposal(proposal)
                .with_place(place);
            let mut delivery = self.delivery_round(release, recipients, carriers, carriers.len());
            self.run(&mut delivery).await;
            self.record_duplicates(&mut ballot);
            // A process that refuses one of its names may hold the token under another.
            let tally = ballot.report.tally();
            if ballot.verdict == Verdict::Refused
                && self.duplicates().len() > 0
                && tally.granted + tally.refused < self.quorum() as usize
            {
                ballot.verdict = Verdict::Unreachable;
            }
            self.plan_look(&mut learned.waiting, &ballot, learned.round_micros);
        } else if O::OBSERVES && ballot.uncounted.len() > 0 {
            // Nobody sees the report of a lock that was won. But another name that is lost may cost the next one.
            self.record_duplicates(&mut ballot);
        }
        if ballot.verdict == Verdict::Won
            || !learned.waiting.is_in_line()
            || learned.waiting.is_over()
        {
            self.abandoned = None;
        }
        match ballot.verdict {
            Verdict::Won => Ok(Grant {
                token,
                valid_until: ballot.round.valid_until(),
                proposal,
                place: departure,
            }),
            Verdict::TooLate => Err(AcquireError::TooLate(ballot.report)),
            Verdict::Refused => Err(AcquireError::Held(ballot.report)),
            Verdict::Unreachable | Verdict::Pending => {
                Err(AcquireError::Unreachable(ballot.report))
            }
        }
    }

    /// Creates one round of an attempt.
    fn acquire_round<'c>(
        &mut self,
        key: &'c [u8],
        token: &'c Token,
        proposal: Option<Proposal>,
        place: Option<Place>,
        departure: Option<Place>,
    ) -> Ballot<'c, NodeErrorOf<T>, MAX> {
        let terms = self.options.terms();
        let command = self
            .acquire_command(key, token, terms, proposal, departure)
            .with_place(place);
        self.lease_round(command, self.clock.now(), terms, Instant::MAX)
    }

    /// Creates the command of an attempt. Records its token, which is abandoned if the future is dropped from now on. Then the
    /// client leaves the line by `departure`.
    fn acquire_command<'c>(
        &mut self,
        key: &'c [u8],
        token: &'c Token,
        terms: Terms,
        proposal: Option<Proposal>,
        departure: Option<Place>,
    ) -> Command<'c> {
        let command = Command::acquire(key, token, terms.ttl_ms, self.options.vote_conditions())
            .with_proposal(proposal);
        self.set_abandoned(key, token, proposal, departure);
        command
    }

    /// The proposal for the next round, after `rounds` rounds of the attempt. `None` if the lock is plain. Let `next` be one
    /// more than the [highest fence](Learned) known to this acquire. The fence of the proposal is:
    ///
    /// - If `next` is at most one window ahead of the nodes' time: `max(nodes' time, next)`.
    /// - If `next` is further ahead: the nodes' time. Only a node whose clock is ahead of the others can have accepted the
    ///   highest fence, and the other nodes accept no fence above it. So they would deny `next` for as long as the clocks
    ///   differ.
    fn proposal(&self, learned: &Learned, rounds: u32) -> Option<Proposal> {
        let fencing = self.options.fencing()?;
        let time = self.nodes_time();
        let next = learned.highest.next();
        let is_in_window = next <= self.newest_fence();
        let fence = Fence::from_u64(time);
        let fence = if is_in_window { fence.max(next) } else { fence };
        // What an earlier attempt was told about the rules is out of date: an operator may have changed them since.
        let vouches = rounds > 0 && self.may_vouch(learned);
        Some(Proposal::new(fence, fencing, time, vouches))
    }

    /// The highest fence that nodes with right clocks accept.
    fn newest_fence(&self) -> Fence {
        let window = self
            .options
            .fencing()
            .map_or(0, |fencing| fencing.window_ms);
        let newest = self.nodes_time().saturating_add(u64::from(window) * 1_000);
        Fence::from_u64(newest)
    }

    /// Whether the last round has confirmed the rules of this client, a moment ago: the process was not paused since.
    fn may_vouch(&self, learned: &Learned) -> bool {
        // A round lasts until the first tick after its node timeout.
        let round_time = self.options.round_time();
        let moment = round_time
            .saturating_add(self.clock.resolution())
            .saturating_mul(2);
        learned.confirmed.is_some_and(|(started_at, confirmation)| {
            confirmation != Confirmation::None
                && self.clock.now() < started_at.saturating_add(moment)
        })
    }

    /// After a round that was won and has confirmed the rules: creates a round that sends the acquire again to the nodes that may
    /// have lost their guard record. The new acquire vouches, so a node that has lost its record writes it. The round waits for no
    /// answer: it only starts quarantines. `None` if there is nothing to restore.
    ///
    /// A node may have lost its record if it said so, or if it had not answered when the round was won. The latter is common, and
    /// means little. So if no node said so, this happens at most once in half a quarantine, see
    /// [`looked_at`](Redlock::looked_at).
    #[cfg(any(feature = "fence", feature = "mock"))]
    fn restoration<'c>(
        &mut self,
        key: &'c [u8],
        token: &'c Token,
        proposal: Proposal,
        departure: Option<Place>,
        guarded: NodeSet,
        learned: &Learned,
    ) -> Option<Ballot<'c, NodeErrorOf<T>, MAX>> {
        let others = self.all.without(guarded);
        if others.len() == 0 || proposal.vouches() || !self.may_vouch(learned) {
            return None;
        }
        let terms = self.options.terms();
        let proposal = Some(proposal.vouching());
        let command = self.acquire_command(key, token, terms, proposal, departure);
        Some(self.delivery_round(command, others, NodeSet::EMPTY, 0))
    }

    /// A new token. `None` if it equals the last one or has only zeros: the source of random bytes is broken.
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

    /// The nodes that may carry the token of a lost attempt, and the nodes that do carry it because they granted. A node that
    /// refused does not: its key carries another token. But if a process has several names, it may have refused one of them
    /// because of the token that came under another.
    ///
    /// The Redlock specification, "Retry on failure": release the locks that were acquired ASAP.
    fn carriers(&self, report: &Report<NodeErrorOf<T>, MAX>) -> (NodeSet, NodeSet) {
        let has_duplicates = self.duplicates().len() > 0;
        let mut possible = NodeSet::EMPTY;
        let mut granted = NodeSet::EMPTY;
        for (node, outcome) in report.outcomes().iter().enumerate() {
            if has_duplicates || !matches!(outcome, Outcome::Refused) {
                possible.insert(node);
            }
            if matches!(outcome, Outcome::Granted) {
                granted.insert(node);
            }
        }
        (possible, granted)
    }
}
