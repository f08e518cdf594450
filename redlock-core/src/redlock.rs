//! The lock: acquire, extend, release.

mod acquisition;
mod attempt;
mod duplicates;
mod extension;
mod nodes_time;
mod observation;
mod released;
mod waiting;

use core::array;
use core::future::Future;
use core::pin::Pin;
use core::task::{Context, Poll};
use core::time::Duration;

use pin_project_lite::pin_project;

use crate::command::Command;
use crate::entropy::Entropy;
use crate::error::{BuildError, ExtendError};
use crate::fence::Proposal;
use crate::key::KeyName;
use crate::lease::{Lease, Terms};
use crate::line::Place;
use crate::observer::Observer;
use crate::options::Options;
use crate::race::{Ballot, race};
use crate::report::Report;
use crate::round::{NodeSet, Round};
use crate::time::{Clock, Instant};
use crate::token::Token;
use crate::transport::{NodeErrorOf, Transport};
pub use acquisition::Acquisition;
pub use released::Released;
use waiting::Contention;

/// A lock over up to `MAX` independent nodes: the Redlock algorithm.
///
/// `T` is the transport to one node, `C` the clock that measures leases, `E` the source of random bytes for tokens, `O` the
/// [`Observer`], which learns what the lock does: `()` if there is none.
///
/// # What it guarantees
///
/// - While `now < lease.valid_until()` on this clock, no other client holds a lease on the key. This assumes that clocks
///   run at the same rate within [`Options::drift_ppm`], and that no node loses a key that has not expired.
/// - Every key of a lock expires by itself.
/// - Any minority of nodes may be down, hung or slow. An extend and a release neither wait for these nodes nor fail
///   because of them. The same holds for an acquire that competes with no other client.
///
/// The README names the exceptions.
///
/// # Dropping a future
///
/// Every future may be dropped at any point. A dropped [`acquire`](Self::acquire), [`try_acquire`](Self::try_acquire),
/// [`hold`](Self::hold) or [`release`](Self::release) may leave its token on the nodes, and its place in the line of the lock:
///
/// - If the key has at most 64 bytes, the next operation releases the token and leaves the line. To do this earlier, call
///   [`release_abandoned`](Self::release_abandoned).
/// - A longer key expires. If it is the turn of the client in the line, the turn passes.
///
/// With `Options::min_hold`, a [`release`](Self::release) before the end of that time leaves nothing for the next operation, which would
/// delete the keys. If it is dropped before it has given each node its command, the lock may stay held for no longer than its TTL. So may
/// it if nodes do not execute the command, unless it is sent again, as a guard of `redlock-std` does, and a `TcpNode` of `redlock-embassy`.
///
/// A future that is dropped before its first poll has done nothing. For example, if `release` is called but not awaited,
/// the lock is held until its TTL is over.
#[derive(Debug)]
pub struct Redlock<T, C, E, const MAX: usize, O = ()> {
    nodes: [Option<T>; MAX],
    all: NodeSet,
    pub(crate) clock: C,
    entropy: E,
    pub(crate) observer: O,
    pub(crate) options: Options,
    last_token: Token,
    clock_offset: Option<i64>,
    looked_at: Option<Instant>,
    contention: Contention,
    /// Set before a command that may put a token on the nodes, and before a release. Cleared when the release was sent, or
    /// when the caller gets the lease. So if a future is dropped in between, the next operation finds the token here. It stays
    /// set while an acquire waits in the line of the lock: the release leaves the line.
    abandoned: Option<Abandoned>,
}

/// A token that nodes may carry if the current future is dropped.
#[derive(Debug, Clone, Copy)]
struct Abandoned {
    key: KeyName,
    token: Token,
    proposal: Option<Proposal>,
    place: Option<Place>,
}

impl<T: Transport, C: Clock, E: Entropy, const MAX: usize> Redlock<T, C, E, MAX> {
    /// Creates a lock over `nodes`, which must be independent masters: each on its own machine, none the
    /// replica of another.
    ///
    /// Sends nothing. A quorum is `nodes / 2 + 1`, so an odd number of nodes is the best choice.
    ///
    /// # Errors
    ///
    /// Fails if there is no node, if there are more than `MAX` or more than 32 nodes, or if a tick of the
    /// clock is at least as long as the validity of a lease with these options.
    pub fn new(
        nodes: impl IntoIterator<Item = T>,
        clock: C,
        entropy: E,
        options: Options,
    ) -> Result<Self, BuildError> {
        // `from_fn`, not a constant array: the constant would take its full size in flash.
        let mut slots = array::from_fn(|_| None);
        let mut count = 0;
        for node in nodes {
            let slot = slots
                .get_mut(count)
                .filter(|_| count < NodeSet::CAPACITY)
                .ok_or_else(|| BuildError::TooManyNodes {
                    max: MAX.min(NodeSet::CAPACITY),
                })?;
            *slot = Some(node);
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
            nodes: slots,
            all: NodeSet::first(count),
            clock,
            entropy,
            observer: (),
            options,
            last_token: Token::from_bytes([0; Token::LEN]),
            clock_offset: None,
            looked_at: None,
            contention: Contention::NONE,
            abandoned: None,
        })
    }

    /// Returns the same client, which reports to `observer` what it does. Call it before the first operation.
    #[cfg(feature = "observe")]
    pub fn with_observer<O: Observer<NodeErrorOf<T>>>(
        self,
        observer: O,
    ) -> Redlock<T, C, E, MAX, O> {
        Redlock {
            nodes: self.nodes,
            all: self.all,
            clock: self.clock,
            entropy: self.entropy,
            observer,
            options: self.options,
            last_token: self.last_token,
            clock_offset: self.clock_offset,
            looked_at: self.looked_at,
            contention: self.contention,
            abandoned: self.abandoned,
        }
    }
}

impl<T, C, E, const MAX: usize, O> Redlock<T, C, E, MAX, O>
where
    T: Transport,
    C: Clock,
    E: Entropy,
    O: Observer<NodeErrorOf<T>>,
{
    /// Creates another client over the same nodes, on the same clock, with its own source of random
    /// bytes. It does not release what a dropped future of this client has left.
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
            observer: self.observer.clone(),
            options: self.options,
            last_token: Token::from_bytes([0; Token::LEN]),
            clock_offset: self.clock_offset,
            looked_at: self.looked_at,
            contention: self.contention,
            abandoned: None,
        }
    }

    /// The options for the next lease.
    #[must_use]
    pub const fn options(&self) -> &Options {
        &self.options
    }

    /// Sets the options for the next lease. Existing leases keep their TTL, their drift and their rules. If the rules of fenced
    /// locks change, or the lock is plain from now on, [`looked_at`](Self::looked_at) becomes `None`.
    pub fn set_options(&mut self, options: Options) {
        if self.options.fencing() != options.fencing() {
            self.looked_at = None;
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

    /// The clock that measures leases.
    #[must_use]
    pub const fn clock(&self) -> &C {
        &self.clock
    }

    /// How far the nodes' clocks are ahead of this clock, in microseconds. Proposed fences are computed from it.
    ///
    /// Acquires and extensions of fenced locks learn it from the answers of the nodes. `None` until enough nodes have
    /// answered one of them.
    #[must_use]
    pub const fn clock_offset(&self) -> Option<i64> {
        self.clock_offset
    }

    /// Sets the offset that another client on the same clock has learned. This saves a round.
    pub const fn set_clock_offset(&mut self, offset: Option<i64>) {
        self.clock_offset = offset;
    }

    /// When this client has last looked at all nodes for lost guard records, also at the nodes that answer last. A fenced acquire
    /// does so once in half a quarantine. If a round is won before all nodes have answered, it sends the acquire to the others once
    /// more, and does not wait. If a round is lost, it waits for all nodes, for the node timeout at most. `None` if it has never
    /// done so.
    #[must_use]
    pub const fn looked_at(&self) -> Option<Instant> {
        self.looked_at
    }

    /// Sets the [`looked_at`](Self::looked_at) of another client with the same rules on the same clock. This saves commands and
    /// time.
    pub const fn set_looked_at(&mut self, looked_at: Option<Instant>) {
        self.looked_at = looked_at;
    }

    /// Whether [`looked_at`](Self::looked_at) is less than half a quarantine ago.
    fn has_looked_recently(&self) -> bool {
        let looked = self.looked_at.zip(self.options.fencing());
        looked.is_some_and(|(looked_at, fencing)| {
            self.clock.now() < looked_at.saturating_add(fencing.quarantine() / 2)
        })
    }

    /// The observer.
    #[must_use]
    pub const fn observer(&self) -> &O {
        &self.observer
    }

    /// Extends the lease: its keys live for its TTL from now on.
    ///
    /// Takes one round for a plain lock, and at most two for a fenced one. No round lasts longer than the validity of the
    /// lease.
    ///
    /// A node extends the key only if the key still carries the token. If the key is gone:
    ///
    /// - A node of a plain lock does not set it again.
    /// - A node of a fenced lock sets it again if the node remembers the lease and has accepted no other attempt since.
    ///
    /// # Errors
    ///
    /// After [`ExtendError::Unreachable`], the lease is unchanged. While it is valid, it may be extended again. After every
    /// other error, it is lost.
    pub async fn extend<K: AsRef<[u8]>>(
        &mut self,
        lease: &mut Lease<K>,
    ) -> Result<(), ExtendError<NodeErrorOf<T>, MAX>> {
        self.send_abandoned_release().await;
        self.extension(lease).await
    }

    /// Releases the lock: tells every node to delete the key if it still carries the token.
    ///
    /// Returns when a quorum has answered, at the latest after the node timeout, or after two if the lock is fenced and has a
    /// [`min_hold`](crate::Options::min_hold). If no quorum can answer, for example because nodes are down, it waits for those that
    /// can. Commands on their way to the other nodes still arrive. It is no error if the lease has
    /// expired or the key carries another token: the report shows it.
    pub async fn release<K: AsRef<[u8]>>(
        &mut self,
        lease: Lease<K>,
    ) -> Released<NodeErrorOf<T>, MAX> {
        self.send_abandoned_release().await;
        self.observe_end(&lease, None);
        self.release_lease(&lease).await
    }

    /// Releases the token that a dropped future may have left on the nodes. Returns when a quorum has answered, at the latest
    /// after the node timeout. Does nothing if no future has left a token.
    ///
    /// If the key has more than 64 bytes, it is not released: it expires.
    pub async fn release_abandoned(&mut self) {
        if let Some(abandoned) = self.abandoned {
            if let Some(key) = abandoned.key.whole() {
                let release = abandoned.release_command(key);
                let mut ballot = self.delivery_round(release, self.all, self.all, self.quorum());
                self.run(&mut ballot).await;
            }
            self.abandoned = None;
        }
    }

    /// The token that a dropped future may have left on the nodes. The next operation releases it if its key has at most 64
    /// bytes. While an acquire waits in the line of the lock, this is the token of its last attempt: its release leaves the
    /// line.
    #[must_use]
    pub fn abandoned(&self) -> Option<&Token> {
        self.abandoned.as_ref().map(|abandoned| &abandoned.token)
    }

    /// The command that releases the token that a dropped future may have left under `key`. For an adapter that sends it at
    /// once and does not wait for replies. `key` must be the key of that future. It is `Some` also between the attempts of an
    /// acquire that waits in the line of the lock. Then it leaves the line, so the adapter sends it only if the acquire ends.
    #[must_use]
    pub fn abandoned_release<'a>(&'a self, key: &'a [u8]) -> Option<Command<'a>> {
        let abandoned = self.abandoned.as_ref()?;
        Some(abandoned.release_command(key))
    }

    /// The command that releases a lease. Before `Options::min_hold` is over, it lets the keys live for the rest of that time. For an
    /// adapter that sends it and does not wait for replies. All other callers use [`release`](Self::release).
    #[must_use]
    pub fn release_command<'a, K: AsRef<[u8]>>(&self, lease: &'a Lease<K>) -> Command<'a> {
        match lease.rest_ms(self.clock.now()) {
            0 => lease.release_command(),
            // For a fenced lock, it is an extension, so the lock keeps its promises: only its client no longer uses it.
            rest_ms => Command::keep(lease.key().as_ref(), lease.token(), rest_ms).with_proposal(
                lease
                    .proposal()
                    .map(|proposal| proposal.at(self.nodes_time())),
            ),
        }
    }

    /// Releases the lease. If this future is dropped, the next operation does it.
    pub(crate) async fn release_lease<K: AsRef<[u8]>>(
        &mut self,
        lease: &Lease<K>,
    ) -> Released<NodeErrorOf<T>, MAX> {
        let key = lease.key().as_ref();
        let mut command = self.release_command(lease);
        let is_kept = !command.is_release();
        if is_kept {
            // A later release would delete the keys.
            self.abandoned = None;
        } else {
            // A lease that was adopted has no place.
            let place = lease.place().or_else(|| self.outside());
            self.set_abandoned(key, lease.token(), lease.proposal(), place);
            command = command.with_place(place);
        }
        #[cfg(feature = "min-hold")]
        let started_at = self.clock.now();
        let mut ballot = self.delivery_round(command, self.all, self.all, self.quorum());
        self.run(&mut ballot).await;
        // Left out without `min_hold`: a wait that is never reached would still be in flash.
        #[cfg(feature = "min-hold")]
        if is_kept
            && ballot.report.tally().granted < self.quorum() as usize
            && self.is_possible_with_misfits(&ballot)
        {
            // This client has not learned the nodes' time since the grant, which may be long ago.
            self.learn_time(&mut ballot, started_at);
            let command = self.release_command(lease);
            ballot = self.delivery_round(command, self.all, self.all, self.quorum());
            self.run(&mut ballot).await;
        }
        if !is_kept {
            self.abandoned = None;
            self.contention.record(key, ballot.report.has_waiters());
        }
        Released::new(ballot.report, is_kept)
    }

    /// Records a token that nodes may carry if the current future is dropped.
    // `inline(never)`: many callers, one copy in flash.
    #[inline(never)]
    pub(crate) fn set_abandoned(
        &mut self,
        key: &[u8],
        token: &Token,
        proposal: Option<Proposal>,
        place: Option<Place>,
    ) {
        self.abandoned = Some(Abandoned {
            key: KeyName::new(key),
            token: *token,
            proposal,
            place,
        });
    }

    /// The random delay before the next try, after this number of tries in a row has failed: see
    /// [`Options::retry_delay`](crate::Options::retry_delay). For an adapter that decides itself when it tries again.
    pub fn retry_delay(&mut self, failed_tries: u32) -> Duration {
        Duration::from_micros(self.retry_delay_micros(failed_tries))
    }

    pub(crate) fn retry_delay_micros(&mut self, failed_rounds: u32) -> u64 {
        let random = self.random();
        self.options.delay_micros(failed_rounds, random)
    }

    fn random(&mut self) -> u32 {
        let mut random = [0; 4];
        self.entropy.fill(&mut random);
        u32::from_ne_bytes(random)
    }

    /// Sends the release of an abandoned token and waits for no node. On each connection, it goes ahead of the next command.
    /// The token of a key with more than 64 bytes is only forgotten.
    pub(crate) fn send_abandoned_release(&mut self) -> impl Future<Output = ()> {
        OnceInFlash {
            future: async {
                if let Some(abandoned) = self.abandoned
                    && let Some(key) = abandoned.key.whole()
                {
                    let release = abandoned.release_command(key);
                    let mut ballot = self.delivery_round(release, self.all, NodeSet::EMPTY, 0);
                    self.run(&mut ballot).await;
                }
                self.abandoned = None;
            },
        }
    }

    /// Creates a round that grants no lease: it sends `command` to `recipients`, and waits for the answers of `count` nodes of
    /// `awaited`, or of all of them if so many cannot answer. For a release, and for an acquire that only restores guard records.
    // `inline(never)`: many callers, one copy in flash.
    #[inline(never)]
    fn delivery_round<'c>(
        &self,
        command: Command<'c>,
        recipients: NodeSet,
        awaited: NodeSet,
        count: u32,
    ) -> Ballot<'c, NodeErrorOf<T>, MAX> {
        let deadline = self.clock.now().plus_micros(self.options.round_micros());
        let mut round = Round::new(awaited, count, deadline, Instant::MAX);
        round.wait_for_all();
        Ballot::new(command, recipients, self.node_count(), round)
    }

    /// Creates a round that grants or extends a lease with these terms. A win counts only before `end`, and the round stops
    /// waiting at `end` at the latest. The recipients and the voters are all nodes, also those that are known to be duplicates: a
    /// hostile node may claim the run ID of another node, which must not go without the command.
    // `inline(never)`: many callers, one copy in flash.
    #[inline(never)]
    fn lease_round<'c>(
        &self,
        command: Command<'c>,
        started_at: Instant,
        terms: Terms,
        end: Instant,
    ) -> Ballot<'c, NodeErrorOf<T>, MAX> {
        let deadline = started_at.plus_micros(self.options.round_micros());
        let valid_until = terms.valid_until(started_at, self.clock.resolution());
        let round = Round::new(
            self.all,
            self.quorum(),
            deadline.min(end),
            valid_until.min(end),
        );
        Ballot::new(command, self.all, self.node_count(), round)
    }

    /// Runs the round until it has a verdict.
    // No `async fn`: a future in another takes more memory.
    #[cfg(not(feature = "observe"))]
    fn run(&mut self, ballot: &mut Ballot<'_, NodeErrorOf<T>, MAX>) -> impl Future<Output = ()> {
        race(&mut self.nodes, &self.clock, ballot)
    }

    /// Runs the round until it has a verdict, and tells how each node answered.
    #[cfg(feature = "observe")]
    async fn run(&mut self, ballot: &mut Ballot<'_, NodeErrorOf<T>, MAX>) {
        race(&mut self.nodes, &self.clock, ballot).await;
        self.observe_nodes(&ballot.report);
    }

    fn node_count(&self) -> usize {
        self.all.len() as usize
    }

    fn quorum(&self) -> u32 {
        self.all.len() / 2 + 1
    }

    /// Whether so many nodes refused that the others are no quorum. With an even number of nodes, half of them are enough,
    /// even if the other half has not answered.
    fn is_quorum_impossible(&self, report: &Report<NodeErrorOf<T>, MAX>) -> bool {
        self.node_count() - report.tally().refused < self.quorum() as usize
    }
}

pin_project! {
    /// A future with one copy of its code in flash. Without this type, the compiler would inline the code into each caller.
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
    /// The command that releases the token under `key`.
    const fn release_command<'a>(&'a self, key: &'a [u8]) -> Command<'a> {
        Command::release(key, &self.token)
            .with_proposal(self.proposal)
            .with_place(self.place)
    }
}
