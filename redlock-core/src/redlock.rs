//! The lock: acquire, extend, release.

mod acquisition;
mod attempt;
mod duplicates;
mod extension;
mod nodes_time;

use core::array;
use core::future::Future;
use core::pin::Pin;
use core::task::{Context, Poll};

use pin_project_lite::pin_project;

use crate::command::Command;
use crate::entropy::Entropy;
use crate::error::{BuildError, ExtendError};
use crate::fence::Proposal;
use crate::key::KeyName;
use crate::lease::{Lease, Terms};
use crate::options::Options;
use crate::race::{Ballot, race};
use crate::report::Report;
use crate::round::{NodeSet, Round};
use crate::time::{Clock, Instant};
use crate::token::Token;
use crate::transport::Transport;
pub use acquisition::Acquisition;

/// A lock over up to `MAX` independent nodes: the Redlock algorithm.
///
/// `T` is the way to one node, `C` the clock on which leases are counted, `E` the source of tokens.
///
/// # What it guarantees
///
/// While `now < lease.valid_until()` on this clock, no other client holds a lease on the key,
/// provided that clocks run at the same rate within [`Options::drift_ppm`] and that no node forgets a
/// key that lives. Any minority of nodes may be down, hung or slow: no operation fails or waits for
/// them. Every key expires by itself.
///
/// # Dropping a future
///
/// Each future may be dropped at any point. What a dropped [`acquire`](Self::acquire),
/// [`try_acquire`](Self::try_acquire), [`hold`](Self::hold) or [`release`](Self::release) may have
/// left on the nodes is released by the next operation, or by [`release_abandoned`](Self::release_abandoned), if the key has
/// no more than 64 bytes; else it expires. A future that is dropped before its first poll has done
/// nothing: a release that is called and not awaited keeps the lock until its TTL is over.
#[derive(Debug)]
pub struct Redlock<T, C, E, const MAX: usize> {
    nodes: [Option<T>; MAX],
    all: NodeSet,
    pub(crate) clock: C,
    entropy: E,
    pub(crate) options: Options,
    last_token: Token,
    clock_offset: Option<i64>,
    rules_confirmed_at: Option<Instant>,
    abandoned: Option<Abandoned>,
}

/// A token that may stand on nodes although nobody holds it any more.
#[derive(Debug, Clone, Copy)]
struct Abandoned {
    key: KeyName,
    token: Token,
    proposal: Option<Proposal>,
}

impl<T: Transport, C: Clock, E: Entropy, const MAX: usize> Redlock<T, C, E, MAX> {
    /// A lock over `nodes`, which must be independent of each other: masters, each on a machine of
    /// its own, none the replica of another.
    ///
    /// Nothing is sent. A quorum is `nodes / 2 + 1`; an odd number of nodes is the best use of them.
    ///
    /// # Errors
    ///
    /// When there is no node, or more than `MAX` or 32, or when a tick of the clock is as long as a
    /// lease of these options would be valid.
    pub fn new(
        nodes: impl IntoIterator<Item = T>,
        clock: C,
        entropy: E,
        options: Options,
    ) -> Result<Self, BuildError> {
        // Not a constant, which would stand in the flash of a device in its full size.
        let mut places = array::from_fn(|_| None);
        let mut count = 0;
        for node in nodes {
            let place = places
                .get_mut(count)
                .filter(|_| count < NodeSet::CAPACITY)
                .ok_or_else(|| BuildError::TooManyNodes {
                    max: MAX.min(NodeSet::CAPACITY),
                })?;
            *place = Some(node);
            count += 1;
        }
        if count == 0 {
            return Err(BuildError::NoNode);
        }
        let origin = Instant::from_micros(0);
        if options.terms().valid_until(origin, clock.resolution()) == origin {
            return Err(BuildError::ClockTooCoarse);
        }
        Ok(Self {
            nodes: places,
            all: NodeSet::first(count),
            clock,
            entropy,
            options,
            last_token: Token::from_bytes([0; Token::LEN]),
            clock_offset: None,
            rules_confirmed_at: None,
            abandoned: None,
        })
    }

    /// Another client over the same nodes, on the same clock, with a source of tokens of its own. It
    /// knows nothing of what a dropped future has left to this one.
    #[must_use]
    pub fn fork(&self, entropy: E) -> Self
    where
        T: Clone,
        C: Clone,
    {
        Self {
            nodes: self.nodes.clone(),
            all: self.all,
            clock: self.clock.clone(),
            entropy,
            options: self.options,
            last_token: Token::from_bytes([0; Token::LEN]),
            clock_offset: self.clock_offset,
            rules_confirmed_at: self.rules_confirmed_at,
            abandoned: None,
        }
    }

    /// The options for the next lease.
    #[must_use]
    pub const fn options(&self) -> &Options {
        &self.options
    }

    /// Sets the options for the next lease. Existing leases keep their TTL, their drift and their rules. If the rules of
    /// fenced locks change, they are confirmed anew.
    pub fn set_options(&mut self, options: Options) {
        if self.options.fleet() != options.fleet() {
            self.rules_confirmed_at = None;
        }
        self.options = options;
    }

    /// The transports, in the order in which they were given.
    pub fn nodes_mut(&mut self) -> impl Iterator<Item = &mut T> {
        self.nodes.iter_mut().flatten()
    }

    /// The transports, in the order in which they were given.
    pub fn nodes(&self) -> impl Iterator<Item = &T> {
        self.nodes.iter().flatten()
    }

    /// The clock on which leases are counted.
    #[must_use]
    pub const fn clock(&self) -> &C {
        &self.clock
    }

    /// By how much the nodes' clocks are ahead of this one, in microseconds, as the answers to the last
    /// fenced acquire have told; none before the first. It is what a proposed fence is made of.
    #[must_use]
    pub const fn clock_offset(&self) -> Option<i64> {
        self.clock_offset
    }

    /// Takes over what another client on the same clock has learned, and saves a round.
    pub const fn set_clock_offset(&mut self, offset: Option<i64>) {
        self.clock_offset = offset;
    }

    /// When the last fenced acquire began to ask the round that confirmed the rules of its options: a quorum of nodes
    /// follows them, or some nodes do, none follows others and a quorum has answered. `None` if it confirmed nothing.
    ///
    /// For half a quarantine from then on, a fenced acquire restores the guard record of a node that has lost it, which
    /// begins the node's quarantine. Rules that are changed meanwhile by `redlock init --repair` begin with a quarantine
    /// too: no lease under them is granted before this has run out.
    #[must_use]
    pub const fn rules_confirmed_at(&self) -> Option<Instant> {
        self.rules_confirmed_at
    }

    /// Takes over what another client with the same options on the same clock has confirmed.
    pub const fn set_rules_confirmed_at(&mut self, confirmed_at: Option<Instant>) {
        self.rules_confirmed_at = confirmed_at;
    }

    /// Whether a fenced acquire may restore guard records now, see [`rules_confirmed_at`](Self::rules_confirmed_at).
    #[must_use]
    pub fn may_vouch(&self) -> bool {
        self.is_recent(self.rules_confirmed_at)
    }

    /// Whether what was heard of rules in a round that began then is still good.
    fn is_recent(&self, heard_at: Option<Instant>) -> bool {
        let heard = heard_at.zip(self.options.fleet());
        heard.is_some_and(|(heard_at, fleet)| {
            self.clock.now() < heard_at.saturating_add(fleet.quarantine() / 2)
        })
    }

    /// Lets the keys live for the lease's TTL from now, and the lease with them.
    ///
    /// One round, which ends before the validity of the lease does. Only keys that still carry the
    /// token are extended. A key that is gone stays so for a plain lock; for a fenced one it is made again, on a node that
    /// remembers the lease and has accepted no other since.
    ///
    /// # Errors
    ///
    /// After [`ExtendError::Unreachable`] the lease is as it was and may be extended again while it is
    /// valid. After every other error it is lost.
    pub async fn extend<K: AsRef<[u8]>>(
        &mut self,
        lease: &mut Lease<K>,
    ) -> Result<(), ExtendError<T::Error, MAX>> {
        self.hand_over_abandoned().await;
        self.extension(lease).await
    }

    /// Gives the lock back: tells every node to delete the key if it still carries the token.
    ///
    /// Returns when a quorum has answered, at the latest after the node time-out; what is on its way
    /// to the other nodes arrives all the same. A lease that has expired or was stolen is an answer
    /// in the report, not an error.
    pub async fn release<K: AsRef<[u8]>>(&mut self, lease: Lease<K>) -> Released<T::Error, MAX> {
        self.hand_over_abandoned().await;
        self.give_back(&lease).await
    }

    /// Releases what a dropped future may have left on the nodes, and waits for a quorum of them, at
    /// the longest for the node time-out. Does nothing when there is nothing.
    pub async fn release_abandoned(&mut self) {
        if let Some(abandoned) = self.abandoned {
            if let Some(key) = abandoned.key.whole() {
                let release = abandoned.release(key);
                let mut ballot = self.deletion(release, self.all, self.all, self.quorum());
                self.ask(&mut ballot).await;
            }
            self.abandoned = None;
        }
    }

    /// The token that the next operation is going to release, left by a dropped future.
    #[must_use]
    pub fn abandoned(&self) -> Option<&Token> {
        self.abandoned.as_ref().map(|abandoned| &abandoned.token)
    }

    /// The release of what a dropped future has left under `key`, for an adapter that sends it at once and
    /// waits for nobody.
    #[must_use]
    pub fn abandoned_release<'a>(&'a self, key: &'a [u8]) -> Option<Command<'a>> {
        let abandoned = self.abandoned.as_ref()?;
        Some(abandoned.release(key))
    }

    pub(crate) async fn give_back<K: AsRef<[u8]>>(
        &mut self,
        lease: &Lease<K>,
    ) -> Released<T::Error, MAX> {
        self.abandon(lease.key().as_ref(), lease.token(), lease.proposal());
        let release = lease.release_command();
        let mut ballot = self.deletion(release, self.all, self.all, self.quorum());
        self.ask(&mut ballot).await;
        self.abandoned = None;
        Released(ballot.report)
    }

    pub(crate) fn abandon(&mut self, key: &[u8], token: &Token, proposal: Option<Proposal>) {
        self.abandoned = Some(Abandoned {
            key: KeyName::new(key),
            token: *token,
            proposal,
        });
    }

    pub(crate) fn retry_delay_micros(&mut self, failed_rounds: u32) -> u64 {
        let mut random = [0; 4];
        self.entropy.fill(&mut random);
        self.options
            .delay_micros(failed_rounds, u32::from_ne_bytes(random))
    }

    /// Hands the release of a dropped future to the nodes and waits for none of them: on each
    /// connection it is ahead of what comes next.
    pub(crate) fn hand_over_abandoned(&mut self) -> impl Future<Output = ()> {
        OnceInFlash {
            future: async {
                if let Some(abandoned) = self.abandoned
                    && let Some(key) = abandoned.key.whole()
                {
                    let release = abandoned.release(key);
                    let mut ballot = self.deletion(release, self.all, NodeSet::EMPTY, 0);
                    self.ask(&mut ballot).await;
                }
                self.abandoned = None;
            },
        }
    }

    /// The round that sends `release` to all of `asked` and waits for `enough` answers of `voters`.
    // Called in many places: once in flash.
    #[inline(never)]
    fn deletion<'c>(
        &self,
        release: Command<'c>,
        asked: NodeSet,
        voters: NodeSet,
        enough: u32,
    ) -> Ballot<'c, T::Error, MAX> {
        let deadline = self.clock.now().saturating_add(self.options.round_time());
        let round = Round::new(voters, enough, deadline, Instant::MAX);
        Ballot::new(release, asked, self.count(), round)
    }

    /// The round that puts `command` to all nodes, for a lease on these terms that is over by `end` in any case.
    // Called in many places: once in flash.
    #[inline(never)]
    fn ballot<'c>(
        &self,
        command: Command<'c>,
        started_at: Instant,
        terms: Terms,
        end: Instant,
    ) -> Ballot<'c, T::Error, MAX> {
        let deadline = started_at.saturating_add(self.options.round_time());
        let valid_until = terms.valid_until(started_at, self.clock.resolution());
        let voters = self.all.without(self.duplicates());
        let round = Round::new(
            voters,
            self.quorum(),
            deadline.min(end),
            valid_until.min(end),
        );
        Ballot::new(command, voters, self.count(), round)
    }

    /// Holds the round.
    async fn ask(&mut self, ballot: &mut Ballot<'_, T::Error, MAX>) {
        race(&mut self.nodes, &self.clock, ballot).await;
    }

    fn count(&self) -> usize {
        self.all.len() as usize
    }

    fn quorum(&self) -> u32 {
        self.all.len() / 2 + 1
    }
}

pin_project! {
    /// A future whose code the compiler would else put into each of its callers.
    struct OnceInFlash<F> {
        #[pin]
        future: F,
    }
}

impl<F: Future> Future for OnceInFlash<F> {
    type Output = F::Output;

    #[inline(never)]
    fn poll(self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<F::Output> {
        self.project().future.poll(cx)
    }
}

impl Abandoned {
    /// The release of the whole `key`.
    const fn release<'a>(&'a self, key: &'a [u8]) -> Command<'a> {
        Command::release(key, &self.token).with_proposal(self.proposal)
    }
}

/// What is known after a release. Nothing in it is an error: a key that was not deleted expires.
#[derive(Debug, Clone, PartialEq, Eq)]
#[cfg_attr(feature = "defmt", derive(defmt::Format))]
pub struct Released<E, const MAX: usize>(Report<E, MAX>);

impl<E, const MAX: usize> Released<E, MAX> {
    /// How many nodes have deleted the key.
    #[must_use]
    pub fn released(&self) -> usize {
        self.0.tally().granted
    }

    /// How many nodes did not have it any more: it had expired, or is another's.
    #[must_use]
    pub fn gone(&self) -> usize {
        self.0.tally().refused
    }

    /// How many nodes had not answered when a quorum had, or when the time was over. Those that can
    /// be reached delete the key a moment later; on the others it expires.
    #[must_use]
    pub fn unanswered(&self) -> usize {
        self.0.tally().unknown
    }

    /// The outcome of each node: granted for deleted, refused for gone.
    #[must_use]
    pub const fn report(&self) -> &Report<E, MAX> {
        &self.0
    }
}
