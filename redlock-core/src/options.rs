//! The options of a lock. They are checked when they are built, so an `Options` value is always valid.

mod fenced;

use core::time::Duration;

use crate::fence::Fencing;
use crate::lease::Terms;
use crate::options_error::OptionsError;
use crate::time::{drift_micros, whole_micros, whole_millis};
use crate::vote_conditions::VoteConditions;
use fenced::ClockJumps;

/// The options of a lock: TTL, timeouts, retries, and the conditions for a vote. The TTL is truncated to whole milliseconds.
///
/// | option | default | meaning |
/// |---|---|---|
/// | `Options::new(ttl)` | | how long the keys live on the nodes; a lease is valid for the TTL minus the drift |
/// | `wait` | the TTL, or the time for which a new server has no vote if that is longer, the drift of it and two node timeouts | how long `acquire` keeps trying; zero means what `try_acquire` does |
/// | `node_timeout` | 1/200 of the TTL, but at least 100 ms and at most 1 s; never more than half the validity | how long a round waits for nodes that do not answer |
/// | `retry_delay` | 5 ms to 50 ms | the range from which the delay before another round is drawn; its upper end doubles after each round, up to four times 50 ms |
/// | `drift_ppm` | 10,000 (1 %) | by how much the client's clock may run faster or slower than a node's, in millionths of the node's rate; 2 ms are added |
/// | `max_extensions` | 100 | how many times `hold` and `keep` (`keep_alive` in `redlock-std`) extend a lease; `unlimited_extensions` removes the limit |
/// | `restart_guard` | on | whether a node that has restarted has no vote for `max_ttl` and the drift; for plain locks |
/// | `min_hold` | zero | for how long after its acquire a lock stays held although it is released; with the feature `min-hold` |
/// | `refuse_eviction` | off; on for fenced locks | whether a node that may evict keys has no vote |
/// | `max_ttl` | the TTL | the longest TTL of any client of the nodes; a restarted node has no vote for at least this time; for plain locks |
/// | `queue` | on with the feature `queue` | whether `acquire` stands in the waiting line of a lock that is held |
/// | `fenced(fencing)` | off | fencing tokens, by the rules of a [`Fencing`], which must be the same for all fenced clients |
/// | `tolerate_clock_jumps` | on if the TTL is at least 40 windows, with a skew of one window | whether leases stay exclusive while a minority of clocks jumps; for fenced locks |
///
/// The order of the calls does not change the options. But a call fails if the options are invalid after it. So if a node
/// timeout is valid only with your `drift_ppm` or `tolerate_clock_jumps`, set these before it.
///
/// ```
/// use core::time::Duration;
/// use redlock_core::{Options, OptionsError};
///
/// # fn main() -> Result<(), OptionsError> {
/// let options = Options::new(Duration::from_secs(10))?.wait(Duration::from_secs(2));
/// assert_eq!(options.validity(), Duration::from_millis(9_898));
/// # Ok(())
/// # }
/// ```
///
/// On a device, the options can be a constant:
///
/// ```
/// use core::time::Duration;
/// use redlock_core::Options;
///
/// const OPTIONS: Options = match Options::new(Duration::from_secs(10)) {
///     Ok(options) => options,
///     Err(_) => panic!("a TTL of 10 s is long enough"),
/// };
/// # assert_eq!(OPTIONS.ttl(), Duration::from_secs(10));
/// ```
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
#[cfg_attr(feature = "defmt", derive(defmt::Format))]
pub struct Options {
    ttl_ms: u32,
    // Times that are added to instants are in microseconds, and the validity is computed here, once: on a microcontroller, the
    // arithmetic on `Duration` takes much flash.
    validity_micros: u64,
    wait_micros: u64,
    node_timeout_micros: u64,
    retry_delay_min_micros: u64,
    retry_delay_max_micros: u64,
    drift_ppm: u32,
    max_extensions: Option<u32>,
    restart_guard: bool,
    refuse_eviction: bool,
    /// Zero if the caller has not set it.
    max_ttl_ms: u32,
    #[cfg(feature = "min-hold")]
    min_hold_ms: u32,
    queue: bool,
    fencing: Option<Fencing>,
    /// `None` if the caller has not set it.
    clock_jumps: Option<ClockJumps>,
    are_set: AreSet,
}

/// If new nodes have no vote for longer than this, the default wait ends before. An acquire that is silent for hours helps less
/// than an error that says what to do.
const LONGEST_DEFAULT_MS: u32 = 120_000;

/// Which of the options that follow from others the caller has set.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
#[cfg_attr(feature = "defmt", derive(defmt::Format))]
struct AreSet {
    wait: bool,
    node_timeout: bool,
}

impl Options {
    /// The longest TTL: what fits in 32 bits of milliseconds, more than 49 days.
    pub const MAX_TTL: Duration = Duration::from_millis(u32::MAX as u64);

    /// The shortest delay before another round: 1 ms, also if [`retry_delay`](Self::retry_delay) is
    /// shorter. So `acquire` never busy-loops.
    pub const MIN_RETRY_DELAY: Duration = Duration::from_millis(1);

    /// Creates options for a lease of `ttl`. All other options have the defaults of the
    /// [table](Self) above.
    ///
    /// # Errors
    ///
    /// Fails if the drift leaves nothing of the TTL, or if the TTL is longer than
    /// [`MAX_TTL`](Self::MAX_TTL).
    pub const fn new(ttl: Duration) -> Result<Self, OptionsError> {
        let Some(ttl_ms) = whole_millis(ttl) else {
            return Err(OptionsError::TtlTooLong);
        };
        let options = Self {
            ttl_ms,
            validity_micros: 0,
            wait_micros: 0,
            node_timeout_micros: 0,
            retry_delay_min_micros: 5_000,
            retry_delay_max_micros: 50_000,
            drift_ppm: 10_000,
            max_extensions: Some(100),
            restart_guard: true,
            refuse_eviction: false,
            max_ttl_ms: 0,
            #[cfg(feature = "min-hold")]
            min_hold_ms: 0,
            queue: cfg!(feature = "queue"),
            fencing: None,
            clock_jumps: None,
            are_set: AreSet {
                wait: false,
                node_timeout: false,
            },
        };
        options.settled()
    }

    /// Sets how long [`acquire`](crate::Redlock::acquire) keeps trying. Zero means what
    /// [`try_acquire`](crate::Redlock::try_acquire) does. Default: the longest of these times, its drift and two node timeouts:
    ///
    /// - the TTL;
    /// - for a plain lock, [`max_ttl`](Self::max_ttl) and `min_hold`, if both are at most two minutes;
    /// - for a fenced lock, the [quarantine](crate::Fencing::quarantine), if it is at most two minutes. With the default
    ///   [`Fencing`] it is 62 s.
    ///
    /// So the default is long enough to outlast a lease of the same TTL that is never released. It also outlasts the time for
    /// which new or restarted nodes have no vote, so that the first acquire on new servers succeeds, if all of these hold:
    ///
    /// - The TTL is at least 100 ms.
    /// - `max_ttl` and `min_hold`, or the quarantine, are at most two minutes.
    /// - For a plain lock, the `max_ttl` of the guard records is no longer than the TTL and the `max_ttl` of these options.
    /// - The acquire begins when the client is connected to the nodes.
    /// - No more than some hundred tasks of the client wait for that: all of them try when the votes begin to count, and the margin is
    ///   two node timeouts.
    ///
    /// `redlock init` skips this time on a new fleet. A caller that cannot wait for so long, such as the handler of a request,
    /// sets a shorter wait.
    ///
    /// The last attempt starts when this time is over, or later if the task is not polled then. A task whose last attempt cannot begin,
    /// as too many others are ahead, gets the error of the one before. After that, `acquire`
    /// returns within one node timeout for each round of the attempt, plus one for its cleanup. An attempt takes one round, or
    /// up to three for a fenced lock. If the votes of the first attempt were split, its retries may start up to eight node
    /// timeouts after it began, even if this time is over.
    #[must_use]
    pub const fn wait(mut self, wait: Duration) -> Self {
        self.wait_micros = whole_micros(wait);
        self.are_set.wait = true;
        self
    }

    /// Sets how long a round waits for nodes that do not answer. Default: 1/200 of the TTL, but at least 100 ms and at
    /// most 1 s, and never more than half the validity.
    ///
    /// The Redlock specification, step 2: small compared to the TTL. A dead minority does not cost this time, because a
    /// round ends at its quorum. A dead majority does.
    ///
    /// # Errors
    ///
    /// Fails if it is zero, or not shorter than the validity.
    pub const fn node_timeout(mut self, node_timeout: Duration) -> Result<Self, OptionsError> {
        self.node_timeout_micros = whole_micros(node_timeout);
        self.are_set.node_timeout = true;
        self.settled()
    }

    /// Sets the range from which the delay before another round is drawn, uniformly. Default: 5 ms to 50 ms.
    ///
    /// The upper end doubles from round to round, up to four times `max`. Zero is legal: the delay
    /// is then [`MIN_RETRY_DELAY`](Self::MIN_RETRY_DELAY).
    ///
    /// On a clock with long ticks, choose a range of several ticks. A delay ends with a tick, so if the whole range is shorter than one,
    /// clients whose ticks begin at the same moment can split the votes again and again.
    ///
    /// # Errors
    ///
    /// Fails if `min` is longer than `max`.
    pub const fn retry_delay(mut self, min: Duration, max: Duration) -> Result<Self, OptionsError> {
        if min.as_nanos() > max.as_nanos() {
            return Err(OptionsError::RetryDelay);
        }
        self.retry_delay_min_micros = whole_micros(min);
        self.retry_delay_max_micros = whole_micros(max);
        Ok(self)
    }

    /// Sets by how much the clock of this client may run faster or slower than that of a node, in millionths of the node's
    /// rate. 2 ms are added to the drift of a TTL. Default: 10,000 (1 %).
    ///
    /// The Redlock specification, "Safety arguments": `CLOCK_DRIFT`.
    ///
    /// # Errors
    ///
    /// Fails if nothing of the validity is left, or if a node timeout is set that is not shorter than the validity.
    pub const fn drift_ppm(mut self, drift_ppm: u32) -> Result<Self, OptionsError> {
        self.drift_ppm = drift_ppm;
        self.settled()
    }

    /// Sets how many times [`hold`](crate::Redlock::hold) and [`keep`](crate::Redlock::keep) extend a lease. The work is
    /// stopped when the validity of the last extension is over. Default: 100.
    ///
    /// The Redlock specification, "Making the algorithm more reliable": the number of extensions
    /// should be limited, because a client that hangs would keep the lock forever.
    #[must_use]
    pub const fn max_extensions(mut self, max_extensions: u32) -> Self {
        self.max_extensions = Some(max_extensions);
        self
    }

    /// Removes the limit of [`max_extensions`](Self::max_extensions): a lease is extended for as long as the
    /// work runs, even forever.
    #[must_use]
    pub const fn unlimited_extensions(mut self) -> Self {
        self.max_extensions = None;
        self
    }

    /// Sets whether a node that has restarted has no vote until every lease that it may have forgotten is over: for
    /// [`max_ttl`](Self::max_ttl) and the drift. Default: on. Turn it off if the nodes write every command to a disk
    /// before they answer (`appendonly yes`, `appendfsync always`).
    ///
    /// If the guard is on, a node that does not identify itself has no vote. If it is off, a server that is named twice
    /// and does not identify itself has two votes. A fenced lock ignores this option: the guard
    /// records on the nodes protect it.
    ///
    /// On some managed servers, scripts may not call INFO or TIME, so no node identifies itself. Plain locks work there if
    /// you turn the guard off. This gives up promise 4 of the README: a node that has restarted without its data, and a
    /// replica that was promoted, have a vote at once, so two clients can hold the lock. Do it only if the servers keep
    /// their data through restarts and failovers, or if a lock that is granted twice does no harm.
    ///
    /// The Redlock specification, "Performance, crash recovery and fsync": delayed restarts.
    #[must_use]
    pub const fn restart_guard(mut self, is_on: bool) -> Self {
        self.restart_guard = is_on;
        self
    }

    /// Sets whether a node that may evict keys, by its `maxmemory-policy`, has no vote. Default: off for plain locks.
    /// Fenced locks always refuse such a node.
    ///
    /// The client asks for the policy on every connection. If half of `max_ttl` has passed since the last check, it asks
    /// again before the next acquire. For a plain lock, `max_ttl` is [that of these options](Self::max_ttl), for a fenced
    /// lock that of its [`Fencing`]. The client does not notice keys that are evicted between a change of the policy and
    /// its next check. If it has seen that a node could evict keys and no longer can, the node has no vote until every lease that
    /// it may have evicted is over.
    #[must_use]
    pub const fn refuse_eviction(mut self, is_on: bool) -> Self {
        self.refuse_eviction = is_on;
        self
    }

    /// Sets the longest TTL that any client of these nodes uses. A node that has restarted has no vote for at least this
    /// time, because it may have forgotten a lease of another client. Default: the TTL of these options.
    ///
    /// This option is for plain locks. A fenced lock uses the `max_ttl` of its [`Fencing`] instead; both may be set. The
    /// guard record on each node contains the `max_ttl` of the fleet. A plain client reads it there, and uses the longer
    /// of that value and its own.
    ///
    /// # Errors
    ///
    /// Fails if the TTL of these options is longer, or if `max_ttl` is longer than [`MAX_TTL`](Self::MAX_TTL).
    pub const fn max_ttl(mut self, max_ttl: Duration) -> Result<Self, OptionsError> {
        let Some(max_ttl_ms) = whole_millis(max_ttl) else {
            return Err(OptionsError::TtlTooLong);
        };
        if self.ttl_ms > max_ttl_ms {
            return Err(OptionsError::MaxTtl);
        }
        self.max_ttl_ms = max_ttl_ms;
        self.settled()
    }

    /// Sets for how long after its acquire a lock stays held, even if it is released earlier. Default: zero. For a job that is due
    /// once per period on many hosts: a host whose clock is late finds the lock held, although the job is done.
    ///
    /// A release before this time does not delete the keys. It lets them live for the rest of the time, on the clock of each node.
    /// [`Released::kept`](crate::Released::kept) tells on how many nodes it did. If they are no quorum, the lock may be free
    /// earlier. A node that gets the release late lets the keys live for the rest of the time from then on: if a quorum gets it late, the
    /// lock stays held for longer by as much, at most by one TTL. The time may be longer than the TTL.
    ///
    /// From the release on, a `~` follows the token in the key: an extension that arrives late does not end it earlier, unless the node
    /// had no memory for the `~`.
    ///
    /// For other fenced clients, a fenced lock stays held for at least the rest of its TTL: a node never makes a fenced lease shorter.
    /// A node that gets the release
    /// of a fenced lock late by more than the window refuses it, and its key lives for no longer than that. So does one whose clock has
    /// drifted by more than the window since the acquire: a release then asks once more, with the time of the nodes; a guard of
    /// `redlock-std` that is dropped does not. The fence stays the highest one until the next holder has a higher one. A release that
    /// comes after the TTL sets the keys of a fenced lock again, for the rest of the time, unless a node has accepted another fence
    /// since; a plain lock stays free then.
    ///
    /// If the future of [`hold`](crate::Redlock::hold) is dropped, the next operation
    /// deletes the keys; the guards of `redlock-std` let them live in any case. If the holder dies, the lock is free when its TTL is over.
    ///
    /// Choose a time that is shorter than the period by more than the clocks of the hosts differ, and longer than they differ. A node
    /// that has restarted has no vote for at least this time, for clients with this option. Clients of the key that do not set it must
    /// set a `max_ttl` of at least this time, otherwise they may get the kept lock after a majority has restarted. If the nodes have
    /// guard records, the time must be at most their `max_ttl`.
    ///
    /// # Errors
    ///
    /// Fails if the time is longer than [`MAX_TTL`](Self::MAX_TTL), or than the `max_ttl` of a fenced lock.
    #[cfg(feature = "min-hold")]
    pub const fn min_hold(mut self, min_hold: Duration) -> Result<Self, OptionsError> {
        let Some(min_hold_ms) = whole_millis(min_hold) else {
            return Err(OptionsError::TtlTooLong);
        };
        self.min_hold_ms = min_hold_ms;
        self.settled()
    }

    /// Sets whether [`acquire`](crate::Redlock::acquire) stands in the waiting line of a lock that is held. Default: on. If it is
    /// off, it retries after random delays. In both cases, a release calls the first client in the line, unless `min_hold` keeps the lock.
    #[cfg(feature = "queue")]
    #[must_use]
    pub const fn queue(mut self, is_on: bool) -> Self {
        self.queue = is_on;
        self
    }

    /// How long the turn of a client lasts that a node calls: 25 ms and two node timeouts, but at most 10 s. During its turn,
    /// the node refuses other clients in the line.
    #[must_use]
    pub const fn turn(&self) -> Duration {
        Duration::from_millis(self.turn_ms() as u64)
    }

    /// How long the keys live, in whole milliseconds.
    #[must_use]
    pub const fn ttl(&self) -> Duration {
        Duration::from_millis(self.ttl_ms as u64)
    }

    /// How long a lease is valid, counted from before its round: the TTL minus the drift. For a fenced lock, the margin
    /// of `tolerate_clock_jumps` is subtracted too.
    #[must_use]
    pub const fn validity(&self) -> Duration {
        Duration::from_micros(self.validity_micros)
    }

    /// How long `acquire` keeps trying, see [`wait`](Self::wait).
    #[must_use]
    pub const fn wait_time(&self) -> Duration {
        Duration::from_micros(self.wait_micros)
    }

    /// How long a round waits, see [`node_timeout`](Self::node_timeout).
    #[must_use]
    pub const fn round_time(&self) -> Duration {
        Duration::from_micros(self.node_timeout_micros)
    }

    /// The conditions that a node must meet before its vote counts.
    #[must_use]
    pub const fn vote_conditions(&self) -> VoteConditions {
        let longest_ms = match self.fencing {
            Some(fencing) => fencing.max_ttl_ms,
            None if self.max_ttl_ms > 0 => self.max_ttl_ms,
            None => self.ttl_ms,
        };
        let is_fenced = self.fencing.is_some();
        let min_hold_ms = self.min_hold_ms();
        let longest_ms = if min_hold_ms > longest_ms {
            min_hold_ms
        } else {
            longest_ms
        };
        VoteConditions {
            #[cfg(feature = "min-hold")]
            min_hold_ms,
            max_ttl_ms: longest_ms,
            #[cfg(any(feature = "fence", feature = "mock"))]
            quarantine_ms: match self.fencing {
                Some(fencing) => fencing.quarantine_ms(),
                None => 0,
            },
            drift_ppm: self.drift_ppm,
            restart_guard: self.restart_guard && !is_fenced,
            refuse_eviction: self.refuse_eviction || is_fenced,
            obeys_record: !is_fenced,
        }
    }

    /// The rules that all fenced clients of the fleet share. `None` if the lock is plain.
    #[must_use]
    pub const fn fencing(&self) -> Option<Fencing> {
        self.fencing
    }

    /// How many times a lease is extended at most. `None` if there is no limit.
    #[must_use]
    pub const fn extensions(&self) -> Option<u32> {
        self.max_extensions
    }

    #[cfg(any(feature = "queue", feature = "mock"))]
    pub(crate) const fn is_queue_on(&self) -> bool {
        self.queue
    }

    /// The [`turn`](Self::turn) in milliseconds.
    pub(crate) const fn turn_ms(&self) -> u32 {
        const LONGEST_MS: u64 = 10_000;

        let rounds = self.node_timeout_micros.div_ceil(1_000).saturating_mul(2);
        let turn_ms = rounds.saturating_add(25);
        #[expect(clippy::cast_possible_truncation, reason = "at most 10,000")]
        if turn_ms > LONGEST_MS {
            LONGEST_MS as u32
        } else {
            turn_ms as u32
        }
    }

    /// The delay before the round after `failed_rounds` failed ones; `random` picks it from the range.
    /// In microseconds, because arithmetic on `Duration` takes much flash on a microcontroller.
    pub(crate) fn delay_micros(&self, failed_rounds: u32, random: u32) -> u64 {
        let doublings = failed_rounds.saturating_sub(1).min(2);
        let min = self.retry_delay_min_micros;
        // Capped, so that the shift does not overflow.
        let max = self.retry_delay_max_micros.min(u64::MAX >> doublings) << doublings;
        let drawn = part_of(max.saturating_sub(min), random);
        min.saturating_add(drawn)
            .max(whole_micros(Self::MIN_RETRY_DELAY))
    }

    /// How long `acquire` keeps trying, in microseconds.
    pub(crate) const fn wait_micros(&self) -> u64 {
        self.wait_micros
    }

    /// How long a round waits, in microseconds.
    pub(crate) const fn round_micros(&self) -> u64 {
        self.node_timeout_micros
    }

    /// In microseconds. At least 100 ms: a busy runtime or a distant node takes tens of milliseconds.
    const fn default_node_timeout(&self) -> u64 {
        let half_the_validity = self.validity_micros / 2;
        let mut micros = self.ttl_ms as u64 * 1_000 / 200;
        if micros < 100_000 {
            micros = 100_000;
        }
        if micros > 1_000_000 {
            micros = 1_000_000;
        }
        if micros > half_the_validity {
            micros = half_the_validity;
        }
        micros
    }

    /// In microseconds. For how long a node that has granted a lease of this TTL grants no other, or for how long a new node has no vote, at any
    /// clock rate within the drift. Plus two node timeouts: one to connect to the node before this time, and one to ask it
    /// afterwards.
    const fn default_wait(&self) -> u64 {
        let mut longest_ms = self.ttl_ms;
        let voteless_ms = self.voteless_ms();
        if voteless_ms > longest_ms && voteless_ms <= LONGEST_DEFAULT_MS {
            longest_ms = voteless_ms;
        }
        let rounds = self.node_timeout_micros.saturating_mul(2);
        (longest_ms as u64 * 1_000)
            .saturating_add(drift_micros(longest_ms, self.drift_ppm))
            .saturating_add(rounds)
    }

    /// For how long a new node has no vote on its own clock, as far as these options tell.
    const fn voteless_ms(&self) -> u32 {
        match self.fencing {
            Some(fencing) => match whole_millis(fencing.quarantine()) {
                Some(quarantine_ms) => quarantine_ms,
                None => u32::MAX,
            },
            None => self.vote_conditions().max_ttl_ms,
        }
    }

    pub(crate) const fn min_hold_ms(&self) -> u32 {
        #[cfg(feature = "min-hold")]
        let min_hold_ms = self.min_hold_ms;
        #[cfg(not(feature = "min-hold"))]
        let min_hold_ms = 0;
        min_hold_ms
    }

    /// The terms of a lease.
    pub(crate) const fn terms(&self) -> Terms {
        Terms {
            ttl_ms: self.ttl_ms,
            validity_micros: self.validity_micros,
        }
    }

    /// Computes the validity and the defaults that follow from other options, and checks the options. The result does not depend on the order
    /// of the setters, if every setter on which these values and checks depend calls this function.
    const fn settled(mut self) -> Result<Self, OptionsError> {
        if let Some(fencing) = self.fencing
            && self.ttl_ms > fencing.max_ttl_ms
        {
            return Err(OptionsError::MaxTtl);
        }
        #[cfg(feature = "min-hold")]
        if let Some(fencing) = self.fencing
            && self.min_hold_ms > fencing.max_ttl_ms
        {
            // The quarantine of a node outlasts max_ttl, and no longer time.
            return Err(OptionsError::MinHold);
        }
        self.validity_micros = (self.ttl_ms as u64 * 1_000)
            .saturating_sub(drift_micros(self.ttl_ms, self.drift_ppm))
            .saturating_sub(self.jump_micros());
        if !self.are_set.node_timeout {
            self.node_timeout_micros = self.default_node_timeout();
        }
        if !self.are_set.wait {
            self.wait_micros = self.default_wait();
        }
        if self.validity_micros == 0 {
            return Err(OptionsError::TtlTooShort);
        }
        if self.node_timeout_micros == 0 || self.node_timeout_micros >= self.validity_micros {
            return Err(OptionsError::NodeTimeout);
        }
        Ok(self)
    }
}

/// `random / 2^32` of `whole`, without 128 bits.
pub(crate) fn part_of(whole: u64, random: u32) -> u64 {
    let (high, low) = (whole >> u32::BITS, whole & u64::from(u32::MAX));
    high * u64::from(random) + ((low * u64::from(random)) >> u32::BITS)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::time::Instant;

    fn delay(options: &Options, failed_rounds: u32, random: u32) -> Duration {
        Duration::from_micros(options.delay_micros(failed_rounds, random))
    }

    const fn ms(ms: u64) -> Duration {
        Duration::from_millis(ms)
    }

    #[test]
    fn a_ttl_no_longer_than_the_drift_is_refused() {
        // 3 ms: 30 us of drift and 2 ms leave 970 us; 2 ms leave nothing.
        assert_eq!(
            Options::new(ms(3)).unwrap().validity(),
            Duration::from_micros(970)
        );
        for ttl in [Duration::ZERO, Duration::from_micros(999), ms(1), ms(2)] {
            assert_eq!(Options::new(ttl), Err(OptionsError::TtlTooShort), "{ttl:?}");
        }
        let options = Options::new(ms(1_000)).unwrap();
        assert_eq!(options.drift_ppm(1_000_000), Err(OptionsError::TtlTooShort));
        assert_eq!(options.drift_ppm(u32::MAX), Err(OptionsError::TtlTooShort));
    }

    #[test]
    fn the_longest_ttl_loses_its_whole_drift() {
        let options = Options::new(Options::MAX_TTL).unwrap();
        // 1 % of 4,294,967,295 ms, rounded up, and 2 ms.
        let drift = Duration::from_micros(42_949_672_950 + 2_000);
        assert_eq!(options.validity(), Options::MAX_TTL - drift);
        assert_eq!(
            Options::new(Options::MAX_TTL + ms(1)),
            Err(OptionsError::TtlTooLong)
        );
        assert_eq!(Options::new(Duration::MAX), Err(OptionsError::TtlTooLong));
    }

    #[test]
    fn drift_is_rounded_up_and_the_ttl_down() {
        let options = Options::new(ms(101)).unwrap().drift_ppm(1).unwrap();
        // 0.101 us of drift count as 1 us.
        assert_eq!(options.validity(), ms(101) - Duration::from_micros(2_001));
        let options = Options::new(Duration::from_micros(101_999)).unwrap();
        assert_eq!(options.ttl(), ms(101));
    }

    #[test]
    fn one_tick_of_the_clock_is_taken_off_the_validity() {
        let options = Options::new(ms(1_000)).unwrap();
        let start = Instant::from_micros(5);
        let exact = options.terms().valid_until(start, Duration::ZERO);
        assert_eq!(exact, Instant::from_micros(5 + 988_000));
        let coarse = options.terms().valid_until(start, ms(10));
        assert_eq!(coarse, Instant::from_micros(5 + 978_000));
        assert_eq!(options.terms().valid_until(start, ms(5_000)), start);
        // A part of a microsecond counts as a whole one.
        let cut = options.terms().valid_until(start, Duration::from_nanos(1));
        assert_eq!(cut, Instant::from_micros(5 + 988_000 - 1));
        let last = options.terms().valid_until(Instant::MAX, Duration::ZERO);
        assert_eq!(last, Instant::MAX);
    }

    #[test]
    fn a_node_timeout_is_shorter_than_the_validity_and_not_zero() {
        let options = Options::new(ms(1_000)).unwrap();
        assert!(options.node_timeout(ms(987)).is_ok());
        for timeout in [Duration::ZERO, ms(988), Duration::MAX] {
            assert_eq!(
                options.node_timeout(timeout),
                Err(OptionsError::NodeTimeout)
            );
        }
        let shortest = Options::new(ms(3)).unwrap();
        assert!(shortest.round_time() < shortest.validity());
    }

    #[test]
    fn the_defaults_are_those_of_the_readme() {
        let options = Options::new(ms(1_000)).unwrap();
        assert_eq!(options.extensions(), Some(100));
        // The TTL, 1 % and 2 ms, and two node timeouts of 100 ms.
        assert_eq!(options.wait_time(), ms(1_000 + 12 + 200));
        assert_eq!(delay(&options, 1, 0), ms(5));
        let longest = delay(&options, 1, u32::MAX);
        assert!(longest < ms(50) && longest > ms(49), "{longest:?}");

        // 1/200 of the TTL, from 100 ms to 1 s, at most half the validity.
        for (ttl, node_timeout) in [
            (4_000, ms(100)),
            (20_200, ms(101)),
            (199_800, ms(999)),
            (200_200, ms(1_000)),
            (42, ms(42 - 2) / 2 - Duration::from_micros(210)),
        ] {
            let options = Options::new(ms(ttl)).unwrap();
            assert_eq!(options.round_time(), node_timeout, "TTL {ttl} ms");
        }
        assert_eq!(options.round_time(), ms(100), "the least of it");
        // It follows from what the drift leaves, unless it was set.
        let slow = Options::new(ms(110)).unwrap();
        let half = Duration::from_micros((110_000 - 55_000 - 2_000) / 2);
        assert_eq!(slow.drift_ppm(500_000).unwrap().round_time(), half);
        let set = slow.node_timeout(ms(60)).unwrap();
        assert_eq!(set.drift_ppm(500_000), Err(OptionsError::NodeTimeout));
    }

    #[test]
    fn a_retry_delay_is_drawn_from_its_range_and_the_range_grows_to_four_times() {
        let options = Options::new(ms(1_000))
            .unwrap()
            .retry_delay(ms(10), ms(20))
            .unwrap();
        let widest = [20, 40, 80, 80, 80];
        for (round, max) in (1..).zip(widest) {
            assert_eq!(delay(&options, round, 0), ms(10));
            let longest = delay(&options, round, u32::MAX);
            assert!(
                longest < ms(max) && longest > ms(max - 1),
                "{round}: {longest:?}"
            );
        }
        assert!(delay(&options, u32::MAX, u32::MAX) < ms(80));
        let [longer, shorter] = [1_500, 1_200].map(Duration::from_nanos);
        assert_eq!(
            options.retry_delay(longer, shorter),
            Err(OptionsError::RetryDelay)
        );
        assert_eq!(
            options.retry_delay(ms(2), ms(1)),
            Err(OptionsError::RetryDelay)
        );
    }

    #[test]
    fn a_retry_delay_of_zero_or_of_the_longest_duration_is_legal() {
        let options = Options::new(ms(1_000)).unwrap();
        let none = options.retry_delay(Duration::ZERO, Duration::ZERO).unwrap();
        assert_eq!(delay(&none, 9, u32::MAX), Options::MIN_RETRY_DELAY);
        let longest = options.retry_delay(Duration::ZERO, Duration::MAX).unwrap();
        assert!(delay(&longest, 9, u32::MAX) > Duration::from_secs(1 << 32));
        // Twice as long does not fit any more.
        let half = Duration::from_micros(1 << 63);
        let longest = options.retry_delay(Duration::ZERO, half).unwrap();
        assert!(delay(&longest, 9, u32::MAX) > half / 2);
    }

    #[cfg(feature = "fence")]
    type Setter = fn(Options) -> Result<Options, OptionsError>;

    /// Calls the setters in all orders, and then `check` with each result.
    #[cfg(feature = "fence")]
    fn in_all_orders(
        options: Result<Options, OptionsError>,
        setters: &[Setter],
        check: &mut impl FnMut(Result<Options, OptionsError>),
    ) {
        if setters.is_empty() {
            check(options);
        }
        for (number, setter) in setters.iter().enumerate() {
            let others = [&setters[..number], &setters[number + 1..]].concat();
            in_all_orders(options.and_then(setter), &others, check);
        }
    }

    #[cfg(feature = "fence")]
    #[test]
    fn the_order_of_the_calls_changes_neither_the_options_nor_a_refusal() {
        use crate::Fencing;

        const FENCED: Setter =
            |options| options.fenced(Fencing::default().with_max_ttl(ms(30_000))?);
        const TOLERANT: Setter = |options| options.tolerate_clock_jumps(true, ms(3_000));
        const MAX_TTL: Setter = |options| options.max_ttl(ms(20_000));
        const DRIFT: Setter = |options| options.drift_ppm(20_000);
        // The defaults of these, until other options are set.
        const NODE_TIMEOUT: Setter = |options| options.node_timeout(ms(100));
        const WAIT: Setter = |options| Ok(options.wait(ms(10_302)));

        const TOO_LONG: Setter = |options| options.node_timeout(ms(6_000));
        const FOR_SHORTER: Setter =
            |options| options.fenced(Fencing::default().with_max_ttl(ms(9_999))?);

        // So short a TTL that all of these change the default of the node timeout.
        const NARROW: Setter = |options| options.fenced(Fencing::new(ms(2))?);
        const JUMPY: Setter = |options| options.tolerate_clock_jumps(true, ms(10));
        const COARSE: Setter = |options| options.drift_ppm(200_000);

        let long = ms(10_000);
        let every = [FENCED, TOLERANT, MAX_TTL, DRIFT, NODE_TIMEOUT, WAIT];
        let slow = [FENCED, TOLERANT, MAX_TTL, DRIFT, TOO_LONG, WAIT];
        let short = [FOR_SHORTER, TOLERANT, MAX_TTL, DRIFT, NODE_TIMEOUT, WAIT];
        for (ttl, setters, refusal) in [
            (long, &every[..], None),
            (long, &slow, Some(OptionsError::NodeTimeout)),
            (long, &short, Some(OptionsError::MaxTtl)),
            (ms(210), &[NARROW, JUMPY, COARSE, MAX_TTL], None),
        ] {
            for subset in 1..1 << setters.len() {
                let chosen = (0..setters.len()).filter(|number| subset >> number & 1 == 1);
                let chosen: std::vec::Vec<_> = chosen.map(|number| setters[number]).collect();
                let mut first = None;
                in_all_orders(Options::new(ttl), &chosen, &mut |result| {
                    assert_eq!(*first.get_or_insert(result), result, "{subset:b}");
                });
                if chosen.len() == setters.len() {
                    assert_eq!(first.unwrap().err(), refusal);
                }
            }
        }
    }
}
