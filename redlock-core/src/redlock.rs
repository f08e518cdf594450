//! The lock: acquire, extend, release.

use core::array;

use crate::admission::RunId;
use crate::command::{Command, Token};
use crate::entropy::Entropy;
use crate::error::{AcquireError, BuildError, ExtendError};
use crate::fence::{Fence, Proposal};
use crate::lease::Lease;
use crate::options::Options;
use crate::race::race;
use crate::readings::Readings;
use crate::report::{KeyName, Outcome, Report};
use crate::round::{NodeSet, Round, Verdict};
use crate::time::{Clock, Instant};
use crate::transport::Transport;

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
/// left on the nodes is released by the next operation, or by [`tidy`](Self::tidy), if the key has
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
        if options.valid_until(origin, options.ttl_ms(), clock.resolution()) == origin {
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
            abandoned: None,
        }
    }

    /// The options for the next lease.
    #[must_use]
    pub const fn options(&self) -> &Options {
        &self.options
    }

    /// Takes other options for the next lease; those that are out keep their TTL.
    pub const fn set_options(&mut self, options: Options) {
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

    /// Tries once to acquire the lock.
    ///
    /// One round: every node is asked at once, and the answer comes as soon as the missing votes
    /// cannot change it, at the latest after the node time-out. A fenced lock takes a second round where
    /// the first was lost for the fence that was proposed, and for nothing else. A round that is not won is
    /// cleaned up before this returns: every node that may have granted it is told to delete the key, and
    /// those that said so are waited for, one node time-out at the most.
    ///
    /// # Errors
    ///
    /// [`AcquireError`] tells held by another from no quorum of nodes reached, with the outcome of
    /// each node.
    pub async fn try_acquire<K: AsRef<[u8]>>(
        &mut self,
        key: K,
    ) -> Result<Lease<K>, AcquireError<T::Error, MAX>> {
        self.hand_over_abandoned().await;
        let mut highest = Fence::ZERO;
        let grant = self.attempt(key.as_ref(), &mut highest).await?;
        Ok(self.lease(key, grant))
    }

    /// Acquires the lock, trying again after a random delay until [`Options::wait`] is over.
    ///
    /// # Errors
    ///
    /// The [`AcquireError`] of the last round.
    pub async fn acquire<K: AsRef<[u8]>>(
        &mut self,
        key: K,
    ) -> Result<Lease<K>, AcquireError<T::Error, MAX>> {
        let give_up_at = self.clock.now().saturating_add(self.options.wait_time());
        self.hand_over_abandoned().await;
        let mut failed_rounds = 0_u32;
        let mut highest = Fence::ZERO;
        loop {
            let error = match self.attempt(key.as_ref(), &mut highest).await {
                Ok(grant) => return Ok(self.lease(key, grant)),
                Err(error) => error,
            };
            let now = self.clock.now();
            if now >= give_up_at || matches!(error, AcquireError::Entropy) {
                return Err(error);
            }
            failed_rounds = failed_rounds.saturating_add(1);
            let again_at = now.saturating_add(self.retry_delay(failed_rounds));
            self.clock.sleep_until(again_at.min(give_up_at)).await;
        }
    }

    /// Lets the keys live for the lease's TTL from now, and the lease with them.
    ///
    /// One round, which ends before the validity of the lease does. Only keys that still carry the
    /// token are extended; none is made again.
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
    pub async fn tidy(&mut self) {
        if let Some(abandoned) = self.abandoned {
            if let Some(key) = abandoned.key.whole() {
                let release = abandoned.release(key);
                self.deletion(&release, self.all, self.all, self.quorum())
                    .await;
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
        let report = self
            .deletion(&lease.release_command(), self.all, self.all, self.quorum())
            .await;
        self.abandoned = None;
        Released(report)
    }

    pub(crate) fn abandon(&mut self, key: &[u8], token: &Token, proposal: Option<Proposal>) {
        self.abandoned = Some(Abandoned {
            key: KeyName::new(key),
            token: *token,
            proposal,
        });
    }

    pub(crate) fn retry_delay(&mut self, failed_rounds: u32) -> core::time::Duration {
        let mut random = [0; 4];
        self.entropy.fill(&mut random);
        self.options
            .delay_after(failed_rounds, u32::from_ne_bytes(random))
    }

    fn lease<K>(&self, key: K, grant: Grant) -> Lease<K> {
        let ttl_ms = self.options.ttl_ms();
        Lease::new(key, grant.token, ttl_ms, grant.valid_until, grant.proposal)
    }

    /// One attempt with a token of its own. Of a fenced lock, `highest` is the highest fence that is known
    /// to have been accepted, and is raised to what the nodes say.
    ///
    /// The Redlock specification, "The Redlock algorithm": steps 1 to 5, with the nodes asked at once
    /// as "Retry on failure" recommends.
    async fn attempt(
        &mut self,
        key: &[u8],
        highest: &mut Fence,
    ) -> Result<Grant, AcquireError<T::Error, MAX>> {
        let token = self.fresh_token().ok_or(AcquireError::Entropy)?;
        let mut rounds = 0;
        let (verdict, report, valid_until, proposal) = loop {
            let proposal = self.proposal(*highest);
            let (verdict, report, valid_until, mut readings) =
                self.acquisition(key, &token, proposal).await;
            rounds += 1;
            if let Some(proposal) = proposal {
                *highest = (*highest).max(proposal.fence).max(readings.highest());
                self.learn(&mut readings);
                // Another fence may win, with the same token.
                if rounds == 1 && self.may_fit(verdict, &report, &readings) {
                    continue;
                }
            }
            break (verdict, report, valid_until, proposal);
        };
        if verdict != Verdict::Won {
            // Those that granted it are waited for, so that the key is gone when the error is known.
            let (asked, granted) = left_by(&report);
            let release = Command::Release {
                key,
                token: &token,
                proposal,
            };
            self.deletion(&release, asked, granted, granted.len()).await;
        }
        self.abandoned = None;
        match verdict {
            Verdict::Won => Ok(Grant {
                token,
                valid_until,
                proposal,
            }),
            Verdict::TooLate => Err(AcquireError::TooLate(report)),
            Verdict::Refused => Err(AcquireError::Held(report)),
            Verdict::Unreachable | Verdict::Pending => Err(AcquireError::Unreachable(report)),
        }
    }

    /// One round of an attempt.
    async fn acquisition(
        &mut self,
        key: &[u8],
        token: &Token,
        proposal: Option<Proposal>,
    ) -> (Verdict, Report<T::Error, MAX>, Instant, Readings<MAX>) {
        let ttl_ms = self.options.ttl_ms();
        let command = Command::Acquire {
            key,
            token,
            ttl_ms,
            rules: self.options.rules(),
            proposal,
        };
        self.abandon(key, token, proposal);

        let started_at = self.clock.now();
        let resolution = self.clock.resolution();
        let valid_until = self.options.valid_until(started_at, ttl_ms, resolution);
        let deadline = started_at.saturating_add(self.options.round_time());
        let voters = self.all.without(self.duplicates());
        let round = Round::new(voters, self.quorum(), deadline, valid_until);
        let mut readings = Readings::new();
        let (mut verdict, mut report) = self.ask(voters, &command, round, &mut readings).await;
        report.set_free_in_ms(readings.free_in_ms(self.quorum()));
        if self.name_duplicates(&mut report) != self.all.without(voters) {
            // They were met in this very round, and one process has voted twice: it has refused what it had
            // granted itself, or granted it again.
            let is_refused = self.count() - report.tally().refused < self.quorum() as usize;
            if verdict == Verdict::Won || verdict == Verdict::Refused && !is_refused {
                verdict = Verdict::Unreachable;
            }
        }
        (verdict, report, valid_until, readings)
    }

    /// The fence for the next round: the nodes' time, or more than all before.
    fn proposal(&self, highest: Fence) -> Option<Proposal> {
        let fleet = self.options.fleet()?;
        let time = self.nodes_time();
        let fence = Fence::from_u64(time).max(highest.next());
        Some(Proposal { fence, fleet, time })
    }

    /// In microseconds. Zero as long as it is unknown: the nodes refuse it, and tell.
    fn nodes_time(&self) -> u64 {
        let offset = self.clock_offset.unwrap_or(i64::MIN);
        self.clock.now().as_micros().saturating_add_signed(offset)
    }

    fn learn(&mut self, readings: &mut Readings<MAX>) {
        self.clock_offset = readings.offset().or(self.clock_offset);
    }

    /// Whether a round was lost for nothing but our idea of the nodes' time and fences, which is better now.
    fn may_fit(
        &self,
        verdict: Verdict,
        report: &Report<T::Error, MAX>,
        readings: &Readings<MAX>,
    ) -> bool {
        let misfits = readings.misfits() as usize;
        let open = misfits + report.tally().granted;
        verdict != Verdict::Won && misfits > 0 && open >= self.quorum() as usize
    }

    /// Nodes that are the same process as one before them.
    fn duplicates(&self) -> NodeSet {
        let mut duplicates = NodeSet::EMPTY;
        for (node, transport) in self.nodes.iter().flatten().enumerate() {
            if self.first_of(transport.run_id(), node).is_some() {
                duplicates.insert(node);
            }
        }
        duplicates
    }

    /// The first of the nodes before `node` that is this process.
    fn first_of(&self, run_id: Option<RunId>, node: usize) -> Option<&T> {
        let run_id = run_id?;
        let mut before = self.nodes.iter().flatten().take(node);
        before.find(|transport| transport.run_id() == Some(run_id))
    }

    fn name_duplicates(&self, report: &mut Report<T::Error, MAX>) -> NodeSet {
        let mut duplicates = NodeSet::EMPTY;
        for (node, transport) in self.nodes.iter().flatten().enumerate() {
            if let Some(first) = self.first_of(transport.run_id(), node) {
                duplicates.insert(node);
                let outcome = transport.duplicate_of(first).map(Outcome::Failed);
                report.record(node, outcome.unwrap_or(Outcome::Unanswered));
            }
        }
        duplicates
    }

    pub(crate) async fn extension<K: AsRef<[u8]>>(
        &mut self,
        lease: &mut Lease<K>,
    ) -> Result<(), ExtendError<T::Error, MAX>> {
        let mut rounds = 0;
        let (verdict, report, valid_until) = loop {
            let started_at = self.clock.now();
            if !lease.is_valid(started_at) {
                return Err(ExtendError::Expired);
            }
            let (verdict, report, valid_until, mut readings) =
                self.extension_round(lease, started_at).await;
            rounds += 1;
            if lease.proposal().is_some() {
                self.learn(&mut readings);
                if rounds == 1 && self.may_fit(verdict, &report, &readings) {
                    continue;
                }
            }
            break (verdict, report, valid_until);
        };
        match verdict {
            Verdict::Won => {
                lease.extended_until(valid_until);
                Ok(())
            }
            Verdict::TooLate => Err(ExtendError::TooLate(report)),
            // Lost for certain only when too few other nodes are left for a quorum; with an even number
            // of nodes that may be so although as many are silent.
            Verdict::Refused | Verdict::Unreachable | Verdict::Pending
                if self.count() - report.tally().refused < self.quorum() as usize =>
            {
                Err(ExtendError::Lost(report))
            }
            Verdict::Refused | Verdict::Unreachable | Verdict::Pending => {
                Err(ExtendError::Unreachable(report))
            }
        }
    }

    async fn extension_round<K: AsRef<[u8]>>(
        &mut self,
        lease: &Lease<K>,
        started_at: Instant,
    ) -> (Verdict, Report<T::Error, MAX>, Instant, Readings<MAX>) {
        let ttl_ms = lease.ttl_ms();
        let time = self.nodes_time();
        let command = Command::Extend {
            key: lease.key().as_ref(),
            token: lease.token(),
            ttl_ms,
            proposal: lease
                .proposal()
                .map(|proposal| Proposal { time, ..proposal }),
        };
        let resolution = self.clock.resolution();
        let valid_until = self.options.valid_until(started_at, ttl_ms, resolution);
        let deadline = started_at.saturating_add(self.options.round_time());
        let voters = self.all.without(self.duplicates());
        let round = Round::new(
            voters,
            self.quorum(),
            deadline.min(lease.valid_until()),
            valid_until.min(lease.valid_until()),
        );
        let mut readings = Readings::new();
        let (verdict, mut report) = self.ask(voters, &command, round, &mut readings).await;
        self.name_duplicates(&mut report);
        (verdict, report, valid_until, readings)
    }

    /// Hands the release of a dropped future to the nodes and waits for none of them: on each
    /// connection it is ahead of what comes next.
    pub(crate) async fn hand_over_abandoned(&mut self) {
        if let Some(abandoned) = self.abandoned
            && let Some(key) = abandoned.key.whole()
        {
            let release = abandoned.release(key);
            self.deletion(&release, self.all, NodeSet::EMPTY, 0).await;
        }
        self.abandoned = None;
    }

    /// Sends the release to all of `asked` and waits for `enough` answers of `voters`.
    async fn deletion(
        &mut self,
        release: &Command<'_>,
        asked: NodeSet,
        voters: NodeSet,
        enough: u32,
    ) -> Report<T::Error, MAX> {
        let deadline = self.clock.now().saturating_add(self.options.round_time());
        let round = Round::new(voters, enough, deadline, Instant::MAX);
        let (_verdict, report) = self.ask(asked, release, round, &mut Readings::new()).await;
        report
    }

    /// Holds one round: puts `command` to the nodes in `asked`.
    async fn ask(
        &mut self,
        asked: NodeSet,
        command: &Command<'_>,
        mut round: Round,
        readings: &mut Readings<MAX>,
    ) -> (Verdict, Report<T::Error, MAX>) {
        let mut report = Report::new(command.key(), self.count());
        let verdict = race(
            &mut self.nodes,
            asked,
            command,
            &self.clock,
            &mut round,
            &mut report,
            readings,
        )
        .await;
        (verdict, report)
    }

    /// A token that is not the last one and not what a source gives that does not work.
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

    fn count(&self) -> usize {
        self.all.len() as usize
    }

    fn quorum(&self) -> u32 {
        self.all.len() / 2 + 1
    }
}

impl Abandoned {
    /// The release of the whole `key`.
    const fn release<'a>(&'a self, key: &'a [u8]) -> Command<'a> {
        Command::Release {
            key,
            token: &self.token,
            proposal: self.proposal,
        }
    }
}

/// What an attempt has won.
struct Grant {
    token: Token,
    valid_until: Instant,
    proposal: Option<Proposal>,
}

/// Where a lost round may have left its token, and where it has. A node that refused has not set the key,
/// since no token is sent to it twice.
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
