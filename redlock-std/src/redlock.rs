//! The lock: a handle that any number of tasks share.

use std::sync::Arc;
use std::time::Duration;

use redlock_core::{Acquisition, BuildError, Clock, Instant, KeyName, Lease, Options};
use tokio::runtime::Handle;

use crate::LossCause;
use crate::clock::SystemClock;
use crate::core::{Core, MAX_KEY, MAX_NODES};
use crate::entropy::SystemEntropy;
use crate::error::{AcquireError, ConnectError, HoldError};
use crate::guard::Guard;
use crate::key_queues::{KeyQueues, Term, Turn};
use crate::knowledge::{FleetKnowledge, Told};
use crate::node::{Address, NodeError, RedisNode};
use crate::rounds::{Round, Rounds};

/// What the nodes said.
type NodesError = redlock_core::AcquireError<NodeError, MAX_NODES>;

/// A lock over independent Redis or Valkey masters.
///
/// Cheap to clone; any number of tasks and keys at once. What it guarantees is written at
/// [`redlock_core::Redlock`].
///
/// ```no_run
/// use std::time::Duration;
/// use redlock_std::{Options, Redlock};
///
/// # async fn charge() {}
/// # async fn example() -> Result<(), Box<dyn std::error::Error>> {
/// let redlock = Redlock::connect(
///     ["redis://10.0.0.1", "redis://10.0.0.2", "redis://10.0.0.3"],
///     Options::new(Duration::from_secs(10))?,
/// )?;
/// let guard = redlock.acquire("invoice:42").await?;
/// charge().await;
/// guard.release().await;
/// # Ok(())
/// # }
/// ```
#[derive(Debug, Clone)]
pub struct Redlock {
    core: Arc<Core>,
    knowledge: FleetKnowledge,
    options: Options,
    prefix: Arc<[u8]>,
    key_queues: KeyQueues,
    rounds: Rounds,
    runtime: Handle,
}

impl Redlock {
    /// A lock over the nodes at `urls`, on the current tokio runtime.
    ///
    /// The URLs are read at once; connections are made in the background, and made again for as long
    /// as the lock, a clone of it or a guard lives. A node may take four node timeouts to be connected to, at least a
    /// second and at most a minute, and as long again for the handshake and the login, over TLS at least 8 seconds.
    /// Where it is there and takes longer, the next attempt may take twice as long, up to a minute. Of a host name with
    /// several addresses the first one that answers is used.
    ///
    /// URLs begin with `redis://`, `valkey://`, `redis+unix://` or, with the feature `tls-rustls`, `rediss://`; user,
    /// password and database are written as in `redis://user:password@host:port/db`, with `#`, `/`, `?`, `@`, `:` and `%`
    /// percent-encoded in user and password. A socket has them in its parameters:
    /// `redis+unix:///run/redis.sock?user=user&pass=password&db=1`.
    ///
    /// Certificates are always verified, against those that this system trusts: they are read at the first `rediss://`
    /// URL of the process.
    ///
    /// The user needs the permissions `+set +get +del +pexpire +evalsha +eval +script|load +info +time` on the
    /// keys of the locks and on `redlock:guard`; with a database in the URL also `+select`; for
    /// [fenced](Options::fenced) locks also `+pttl`, and on the
    /// same keys with `redlock:fence:` before them. To log in needs no permission, and the name that `CLIENT LIST` shows is
    /// done without if `+client|setinfo` is missing. Say, with locks whose keys begin with `lock:`,
    ///
    /// ```text
    /// ACL SETUSER locker on >password ~lock:* ~redlock:guard ~redlock:fence:lock:* +set +get +del +pexpire
    ///     +evalsha +eval +script|load +info +time +pttl
    /// ```
    ///
    /// A node is asked who it is on every new connection before anything else, and later ahead of an acquire if
    /// the answer may be out of date. One that has restarted, and may have forgotten locks, has no vote yet, a
    /// replica has none, and a server that is named twice has one: see [`Options::restart_guard`]. If the server
    /// does not let its scripts call INFO or TIME, it has no vote unless the restart guard is off. A proxy that
    /// hides that the connection to the server behind it was made anew hides restarts too.
    ///
    /// # Dropping
    ///
    /// When the last clone and the last guard are dropped, the background tasks send the releases that wait, and
    /// end. For a node that cannot be reached they try that until the keys have expired, for 30 seconds at the
    /// most. When the runtime shuts down they end at once: what was not sent expires, and every call of a clone
    /// that still lives fails with [`NodeErrorKind::RuntimeGone`](crate::NodeErrorKind::RuntimeGone).
    ///
    /// # Errors
    ///
    /// If a URL cannot be read or names a node that is named already, if there is none or more than
    /// [`MAX_NODES`], if TLS is asked for and cannot be set up, or if there is no tokio runtime.
    pub fn connect<U: AsRef<str>>(
        urls: impl IntoIterator<Item = U>,
        options: Options,
    ) -> Result<Self, ConnectError> {
        Self::connect_to(urls, options, Address::parse)
    }

    /// [`connect`](Self::connect), with TLS as `tls` says: with an authority of your own, or a certificate of this
    /// client, which servers ask for unless they are told otherwise (`tls-auth-clients`).
    ///
    /// It is for all `rediss://` URLs; others have no TLS. The types are those of the [`rustls`] of this crate.
    /// [`system_roots`](crate::system_roots) are the authorities that `connect` trusts.
    ///
    /// ```no_run
    /// use std::sync::Arc;
    /// use std::time::Duration;
    /// use redlock_std::rustls::pki_types::pem::PemObject;
    /// use redlock_std::rustls::pki_types::{CertificateDer, PrivateKeyDer};
    /// use redlock_std::rustls::{ClientConfig, RootCertStore};
    /// use redlock_std::{Options, Redlock};
    ///
    /// # fn example() -> Result<(), Box<dyn std::error::Error>> {
    /// let mut roots = RootCertStore::empty();
    /// roots.add(CertificateDer::from_pem_file("ca.pem")?)?;
    /// let chain = CertificateDer::pem_file_iter("client.pem")?.collect::<Result<_, _>>()?;
    /// let key = PrivateKeyDer::from_pem_file("client-key.pem")?;
    /// let tls = ClientConfig::builder()
    ///     .with_root_certificates(roots)
    ///     .with_client_auth_cert(chain, key)?;
    /// let redlock = Redlock::connect_with_tls(
    ///     ["rediss://10.0.0.1", "rediss://10.0.0.2", "rediss://10.0.0.3"],
    ///     Options::new(Duration::from_secs(10))?,
    ///     &Arc::new(tls),
    /// )?;
    /// # Ok(())
    /// # }
    /// ```
    ///
    /// # Errors
    ///
    /// Those of [`connect`](Self::connect).
    #[cfg(feature = "tls-rustls")]
    pub fn connect_with_tls<U: AsRef<str>>(
        urls: impl IntoIterator<Item = U>,
        options: Options,
        tls: &Arc<rustls::ClientConfig>,
    ) -> Result<Self, ConnectError> {
        Self::connect_to(urls, options, |url| Address::parse_with_tls(url, tls))
    }

    fn connect_to<U: AsRef<str>>(
        urls: impl IntoIterator<Item = U>,
        options: Options,
        parse: impl Fn(&str) -> Result<Address, ConnectError>,
    ) -> Result<Self, ConnectError> {
        let runtime = Handle::try_current().map_err(|_| ConnectError::NoRuntime)?;
        let mut nodes: Vec<RedisNode> = Vec::new();
        let mut actors = Vec::new();
        for url in urls {
            let address = parse(url.as_ref())?;
            if nodes.iter().any(|node| node.name() == &**address.name()) {
                return Err(ConnectError::DuplicateNode {
                    node: address.name().to_string(),
                });
            }
            let (node, actor) = RedisNode::prepare(address, options.round_time());
            nodes.push(node);
            actors.push(actor);
        }
        let core = Core::new(nodes, SystemClock, SystemEntropy, options)?;
        for actor in actors {
            runtime.spawn(actor.run());
        }
        Ok(Self {
            core: Arc::new(core),
            knowledge: FleetKnowledge::nothing(),
            options,
            prefix: Arc::from([]),
            key_queues: KeyQueues::default(),
            rounds: Rounds::default(),
            runtime,
        })
    }

    /// The same lock with other options: the same connections, the same queues for keys.
    ///
    /// How long a node may be silent before a call leaves it out follows from the node timeout of that call. If
    /// [`connect`](Self::connect) would refuse these options, because the TTL is only a few milliseconds, every acquire
    /// fails with [`AcquireError::Build`].
    #[must_use]
    pub fn with_options(&self, options: Options) -> Self {
        let knowledge = if options.fleet() == self.options.fleet() {
            self.knowledge.clone()
        } else {
            self.knowledge.with_other_rules()
        };
        Self {
            options,
            knowledge,
            ..self.clone()
        }
    }

    /// The same lock, each key with `prefix` before it. Without one the key is what other Redlock
    /// clients use.
    #[must_use]
    pub fn with_prefix(&self, prefix: impl AsRef<[u8]>) -> Self {
        Self {
            prefix: prefix.as_ref().into(),
            ..self.clone()
        }
    }

    /// The options for the next lease.
    #[must_use]
    pub const fn options(&self) -> &Options {
        &self.options
    }

    /// What is wrong with the nodes although their votes count: one that may delete keys for want of memory
    /// ([`Options::refuse_eviction`] takes its vote away), and one for which so many releases waited, more than a
    /// million, that some were given up. As the nodes said when they were connected to; after the first acquire a quorum of
    /// them has.
    #[must_use]
    pub fn warnings(&self) -> Vec<NodeError> {
        self.core.nodes().flat_map(RedisNode::warnings).collect()
    }

    /// Tries once to acquire the lock.
    ///
    /// One round, which ends at the quorum. If another task holds the lock through this handle or a clone of it, or waits
    /// for it, this fails at once and asks no node. If very many tasks acquire or extend at the moment, the round begins
    /// a little later; if it cannot within a node timeout, this fails with [`AcquireError::NotAsked`].
    ///
    /// Dropping the future releases what the round may have granted.
    ///
    /// # Errors
    ///
    /// [`AcquireError`] tells held from no quorum of nodes reached, and from no round begun.
    pub async fn try_acquire(&self, key: impl AsRef<[u8]>) -> Result<Guard, AcquireError> {
        check(&self.options).map_err(AcquireError::Build)?;
        let key = self.full_key(key.as_ref());
        let key = key.map_err(AcquireError::KeyTooLong)?;
        let turn = self
            .key_queues
            .try_take(&key, term(&self.options, SystemClock.now()));
        let turn = turn.ok_or_else(|| held_here(&key))?;
        let mut core = self.client(self.options);
        let mut acquisition = core.begin();
        let round_time = self.options.round_time();
        let give_up_at = SystemClock.now().saturating_add(round_time);
        let lease = self.attempt(&mut core, &mut acquisition, &key, give_up_at);
        let lease = lease.await.ok_or_else(|| self.not_asked(&key))?;
        let lease = lease.map_err(AcquireError::Nodes)?;
        Ok(self.guard(core, lease, turn))
    }

    /// Acquires the lock, waiting for it until [`Options::wait`] is over.
    ///
    /// Tasks that want the same key through this handle or a clone of it wait in a queue, first come, first served; one of
    /// them at a time asks the nodes, again and again after a random delay. Of all keys together as many are asked for
    /// at once as the nodes answer in time; a burst of acquires waits here, behind extensions of leases, and not in rounds
    /// that time out. A task ahead in the queue is waited for until its guard is released or dropped, or the validity of
    /// its lease is over. If it is not polled when it is next, it is waited for until its own wait is over, four node
    /// timeouts and a second later at the latest.
    ///
    /// Dropping the future leaves the queue, and releases what a round may have granted.
    ///
    /// # Errors
    ///
    /// The [`AcquireError`] of the last round. If there was none, [`AcquireError::HeldHere`] if the queue for the key did
    /// not move in time, and [`AcquireError::NotAsked`] if too many other acquires or extensions were ahead, or no
    /// quorum of nodes answered those that were.
    pub async fn acquire(&self, key: impl AsRef<[u8]>) -> Result<Guard, AcquireError> {
        check(&self.options).map_err(AcquireError::Build)?;
        let key = self.full_key(key.as_ref());
        let key = key.map_err(AcquireError::KeyTooLong)?;
        let give_up_at = SystemClock.now().saturating_add(self.options().wait_time());
        let term = term(&self.options, give_up_at);
        let turn = match self.key_queues.try_take(&key, term) {
            Some(turn) => turn,
            None => {
                let turn = self.key_queues.take(&key, give_up_at, term).await;
                turn.ok_or_else(|| match self.rounds.nodes_answer() {
                    true => held_here(&key),
                    false => self.not_asked(&key),
                })?
            }
        };
        let left = give_up_at.saturating_duration_since(SystemClock.now());
        let mut core = self.client(self.options.wait(left));
        let mut acquisition = core.begin();
        let mut failed = None;
        // As `try_acquire` waits for its only round.
        let first = SystemClock.now().saturating_add(self.options.round_time());
        let mut admit_until = give_up_at.max(first);
        loop {
            let lease = self.attempt(&mut core, &mut acquisition, &key, admit_until);
            admit_until = give_up_at;
            let error = match lease.await {
                Some(Ok(lease)) => return Ok(self.guard(core, lease, turn)),
                Some(Err(error)) => error,
                None => {
                    return Err(failed.map_or_else(|| self.not_asked(&key), AcquireError::Nodes));
                }
            };
            let Some(again_at) = core.again_at(&mut acquisition, &error) else {
                return Err(AcquireError::Nodes(error));
            };
            failed = Some(error);
            SystemClock.sleep_until(again_at).await;
        }
    }

    /// Acquires the lock, runs `work` and releases the lock.
    ///
    /// The lease is extended while the work runs, in the same task, each time a third of its validity
    /// has passed; a TTL of less than about 10 ms leaves no time for that. When an extension finds the lock lost, the work is dropped at once, and no later than the validity
    /// ends. Dropping the work does not undo what it did.
    ///
    /// # Errors
    ///
    /// [`HoldError::NotAcquired`] before the work; [`HoldError::Lost`] when the lock was lost before
    /// the work was done, also when the work kept the task busy past the end of the validity.
    pub async fn hold<R>(
        &self,
        key: impl AsRef<[u8]>,
        work: impl AsyncFnOnce(&Guard) -> R,
    ) -> Result<R, HoldError> {
        let guard = self.acquire(key).await.map_err(HoldError::NotAcquired)?;
        let done = if let Some(keeping) = guard.keeping() {
            tokio::select! {
                // The lease is looked at before the work: after a long pause the work does not run on.
                biased;
                () = keeping => None,
                result = work(&guard) => Some(result).filter(|_| guard.is_valid()),
            }
        } else {
            None
        };
        let cause = guard.loss().unwrap_or(LossCause::Expired);
        guard.release().await;
        done.ok_or(HoldError::Lost(cause))
    }

    /// One attempt, when its round is admitted; `None` if it is not by `give_up_at`.
    async fn attempt(
        &self,
        core: &mut Core,
        acquisition: &mut Acquisition,
        key: &Arc<[u8]>,
        give_up_at: Instant,
    ) -> Option<Result<Lease<Arc<[u8]>>, NodesError>> {
        let round_time = self.options.round_time();
        // A round and one that cleans up. What takes longer does not keep others waiting.
        let longest = round_time * 2;
        let mut round = self.rounds.admit_acquire(give_up_at, longest).await?;
        let attempt = Attempt::new(core, &self.knowledge, key, &mut round);
        let lease = attempt.core.attempt(acquisition, Arc::clone(key)).await;
        drop(attempt);
        match &lease {
            Err(NodesError::Unreachable(_)) => round.end(false, round_time),
            // No node was asked.
            Err(error) if error.report().is_none() => {}
            _ => round.end(true, round_time),
        }
        Some(lease)
    }

    fn guard(&self, core: Core, lease: Lease<Arc<[u8]>>, turn: Turn) -> Guard {
        let (rounds, runtime) = (self.rounds.clone(), self.runtime.clone());
        Guard::new(core, lease, turn, rounds, runtime)
    }

    /// Why no round of an acquire has begun.
    fn not_asked(&self, key: &[u8]) -> AcquireError {
        AcquireError::NotAsked {
            key: KeyName::new(key),
            nodes_answer: self.rounds.nodes_answer(),
        }
    }

    /// The state machine for one operation.
    fn client(&self, options: Options) -> Core {
        let mut core = self.core.fork(SystemEntropy);
        core.set_options(options);
        for node in core.nodes_mut() {
            node.set_node_timeout(options.round_time());
        }
        core
    }

    /// Its length if it is too long.
    fn full_key(&self, key: &[u8]) -> Result<Arc<[u8]>, usize> {
        let length = self.prefix.len() + key.len();
        if length > MAX_KEY {
            return Err(length);
        }
        if self.prefix.is_empty() {
            return Ok(Arc::from(key));
        }
        Ok(self.prefix.iter().chain(key).copied().collect())
    }
}

/// What [`Redlock::connect`] checks, and [`Redlock::with_options`] cannot refuse.
fn check(options: &Options) -> Result<(), BuildError> {
    if options.validity() <= SystemClock.resolution() {
        return Err(BuildError::ClockTooCoarse);
    }
    Ok(())
}

/// For an acquire that starts its last round at `last_start`, which is two rounds of a fenced lock, and one that cleans
/// up. A task that is not polled until then loses its turn.
fn term(options: &Options, last_start: Instant) -> Term {
    let rounds = options.round_time().saturating_mul(4);
    Term {
        until: last_start.saturating_add(rounds.saturating_add(Duration::from_secs(1))),
        validity: options.validity(),
    }
}

fn held_here(key: &[u8]) -> AcquireError {
    AcquireError::HeldHere(KeyName::new(key))
}

/// An attempt on its way. Dropped in the middle, it releases what it may have been granted; what it has
/// learned of the nodes' clocks is kept, whatever came of it.
struct Attempt<'a, 'r> {
    core: &'a mut Core,
    knowledge: &'a FleetKnowledge,
    told: Told,
    key: &'a [u8],
    round: &'a mut Round<'r>,
}

impl<'a, 'r> Attempt<'a, 'r> {
    fn new(
        core: &'a mut Core,
        knowledge: &'a FleetKnowledge,
        key: &'a [u8],
        round: &'a mut Round<'r>,
    ) -> Self {
        knowledge.tell(core);
        Self {
            told: Told::by(core),
            core,
            knowledge,
            key,
            round,
        }
    }
}

impl Drop for Attempt<'_, '_> {
    fn drop(&mut self) {
        if self.core.options().fleet().is_some() {
            self.knowledge.learn(self.core, self.told);
        }
        if let Some(release) = self.core.abandoned_release(self.key) {
            for node in self.core.nodes() {
                node.release_unattended(&release);
            }
            let nodes: Vec<_> = self.core.nodes().cloned().collect();
            self.round.leave_behind(move || {
                let sent = nodes.iter().filter(|node| node.has_sent());
                sent.count() > nodes.len() / 2
            });
        }
    }
}
