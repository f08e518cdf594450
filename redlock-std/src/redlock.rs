//! The handle of the locks, which any number of tasks can share.

use std::future::poll_fn;
use std::pin::pin;
use std::sync::Arc;
use std::task::Poll;
use std::time::Duration;

use redlock_core::{
    Acquisition, BuildError, Clock, Failure, Instant, KeyName, Lease, Options, RESERVED_PREFIX,
    Transport,
};
use tokio::runtime::Handle;
use tokio::time::timeout;

use crate::LossCause;
use crate::closing::Closing;
use crate::core::{self, Core, MAX_NODES};
use crate::entropy::SystemEntropy;
use crate::error::{AcquireError, ConnectError, ExtendError, HoldError};
use crate::guard::{Effort, Guard, Shared};
use crate::handover::{AdoptError, Handover};
use crate::key_queues::{KeyQueues, Term, Turn};
use crate::knowledge::{FleetKnowledge, Told};
use crate::lines::Lines;
use crate::lock_clock::LockClock;
use crate::member::Member;
#[cfg(feature = "mock")]
use crate::memory::MemoryNode;
use crate::node::{
    Address, MAX_KEY, NodeError, NodeStatus, RedisNode, Wanted, jittered, random_mailbox,
};
use crate::rounds::{Round, Rounds};
use crate::telemetry::{AcquireScope, HoldScope, Telemetry};

/// Why a round acquired no lock.
type NodesError = redlock_core::AcquireError<NodeError, MAX_NODES>;

/// The first acquire of a handle waits for the connections for this number of node timeouts. A connect and its login take up to four
/// round trips, and each node timeout should be four of them.
const CONNECT_TIMEOUTS: u32 = 2;

/// If no node keeps a line for this client, its tasks pass a lock on for this number of node timeouts. Then one of them stands back,
/// so that a client of another process finds the lock free.
const PASSED_ON_TIMEOUTS: u32 = 8;

/// For how long it stands back, or a random part of up to half of it less: as long as others wait between two looks.
const STAND_BACK: Duration = Duration::from_millis(50);

/// A handle for locks over independent Redis or Valkey masters.
///
/// One handle serves any number of tasks and keys at once. A clone is cheap, and shares the connections and the queues.
/// For the guarantees see [`redlock_core::Redlock`].
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
    lines: Arc<Lines>,
    rounds: Rounds,
    closing: Closing,
    telemetry: Telemetry,
    runtime: Handle,
}

impl Redlock {
    /// Returns a handle for locks over the nodes at `urls`, on the current tokio runtime.
    ///
    /// The URLs are parsed at once. The connections are made in the background. If they break, they are made again, for
    /// as long as the handle, a clone of it or a guard lives. The timeouts of a connect are:
    ///
    /// - for the connection itself: four node timeouts, but at least one second and at most one minute;
    /// - for the TLS handshake, the login and the scripts: the same time again, but over TLS at least 8 seconds. Each
    ///   time that the node accepts the connection but this timeout is exceeded, the timeout doubles, up to one minute.
    ///
    /// If a host name has several addresses, the first one that accepts a connection is used, even if no node answers there. Only 16 of
    /// them are tried.
    ///
    /// [`Address::SCHEMES`] lists the schemes of the URLs. `rediss` and `valkeys` need the feature `tls-rustls`. User,
    /// password and database are written as in `redis://user:password@host:port/db`. In user and password,
    /// percent-encode `#`, `/`, `?`, `@`, `:` and `%`. The URL of a Unix socket has them as parameters, in which `+` and `&` are
    /// encoded too: `redis+unix:///run/redis.sock?user=user&pass=password&db=1`. A user with `nopass` takes any password, and needs one
    /// here.
    ///
    /// The certificates of nodes are always verified, against the authorities that this system trusts. The authorities
    /// are read once per process, at its first TLS URL.
    ///
    /// The user needs the permissions `+set +get +del +pexpire +evalsha +eval +script|load +info +time` on the
    /// keys of the locks and on `redlock:guard`. With a database in the URL, the user also needs `+select`. For
    /// [fenced](Options::fenced) locks the user also needs `+pttl`, and the permissions on the same keys with
    /// `redlock:fence:` before them. The login itself needs no permission. Without `+client|setinfo`, `CLIENT LIST` shows no
    /// library name.
    ///
    /// For the waiting line the user also needs `+exists +pttl +zadd +zrem +zrange +zrank +zscore +zcard`, the permissions on the
    /// same keys with `redlock:queue:` before them, and `+publish +pubsub +subscribe` on the channels `redlock:mail:*`. Without
    /// them, locks work, but [`acquire`](Self::acquire) looks at a held lock after random delays, and
    /// [`warnings`](Self::warnings) says so. For example, if the keys of all locks begin with `lock:`,
    ///
    /// ```text
    /// ACL SETUSER locker on >password ~lock:* ~redlock:guard ~redlock:fence:lock:* ~redlock:queue:lock:* &redlock:mail:*
    ///     +set +get +del +pexpire +evalsha +eval +script|load +info +time +pttl +exists +zadd +zrem +zrange +zrank
    ///     +zscore +zcard +publish +pubsub +subscribe
    /// ```
    ///
    /// Nodes call a waiting client on a second connection. It is made when an acquire has to wait, and closed when none has
    /// waited for a minute.
    ///
    /// Each node is asked for its identity first on every new connection, and again ahead of an acquire if the last
    /// answer may be out of date. A replica has no vote, and a server that is named twice has one. The name of such a node may lead
    /// elsewhere by now, so the client connects anew every three seconds to a replica, and to both names of one server while that costs
    /// a lock. A node that has
    /// restarted may have lost keys, and has no vote yet: see [`Options::restart_guard`]. If the scripts on the server
    /// may not call INFO or TIME, the node has no vote, unless the restart guard is off. A proxy that hides its
    /// reconnects to the server behind it hides restarts too.
    ///
    /// # Dropping
    ///
    /// When the last clone and the last guard are dropped, the background tasks send the queued releases, and end. If a
    /// node cannot be reached, its task retries for at most 30 seconds.
    ///
    /// # Fork
    ///
    /// The connections are those of the process that has called `connect`. In a process that is forked off, they are not used: what asks
    /// the nodes fails with [`TransportError::Forked`](crate::TransportError::Forked), an `acquire` when its wait is over and any other
    /// call after its node timeouts; it blocks for ever if another thread has used the handle at the moment of the fork. A guard that is
    /// dropped there sends nothing, and [`status`](Self::status) tells what was true at the fork. A fork that has the process ID of its
    /// parent, in a PID namespace of its own, is not noticed. Connect after the fork, on a new runtime:
    /// tokio has no support for one that was forked. If it runs there, it takes events of the process from which it comes, whose calls
    /// may time out then. A process that the fork replaces by another program (`std::process::Command`) is not concerned.
    ///
    /// # Shutdown of the runtime
    ///
    /// When the runtime shuts down, the tasks end at once, and the keys whose releases were not sent expire. From then
    /// on every call of a remaining clone that asks the nodes fails with
    /// [`TransportError::RuntimeGone`](crate::TransportError::RuntimeGone): an `acquire` when its wait is over, any
    /// other call at once. If a guard of this handle still holds the key, an acquire asks no node: it fails with
    /// [`AcquireError::HeldHere`], or with [`AcquireError::NotAsked`] when its wait is over.
    ///
    /// # Errors
    ///
    /// If a URL cannot be parsed, if two URLs name the same node, if there is no URL or more than [`MAX_NODES`], if TLS
    /// cannot be set up for a `rediss://` URL, or if there is no tokio runtime.
    ///
    /// # Panics
    ///
    /// The runtime needs its I/O and time drivers (`enable_all`). Without them, the background tasks panic, and calls
    /// that wait panic too. So do calls of this handle and its guards that are polled outside a tokio runtime. The runtime must run
    /// while the handle is used: one that is between two `block_on` sends nothing, and the status of the nodes does not change.
    pub fn connect<U: AsRef<str>>(
        urls: impl IntoIterator<Item = U>,
        options: Options,
    ) -> Result<Self, ConnectError> {
        Self::connect_to(urls, options, Address::parse)
    }

    /// Like [`connect`](Self::connect), but with the TLS configuration `tls`: for your own authority, or for a client
    /// certificate, which servers require unless `tls-auth-clients` is `no`.
    ///
    /// The configuration applies to all `rediss://` and `valkeys://` URLs. Other URLs have no TLS. The types are those
    /// of [`rustls`], which this crate re-exports. [`system_roots`](crate::system_roots) returns the authorities that
    /// `connect` trusts.
    ///
    /// The configuration verifies the certificates of the nodes on a thread of the runtime, and no timeout interrupts it. With the
    /// default verifier of rustls, a hostile node can keep the thread busy for seconds with each connection, so that leases are
    /// not extended in time. So use a [`BoundedVerifier`](crate::BoundedVerifier), as here. A verifier of your own must be as fast,
    /// whatever a node shows.
    ///
    /// ```no_run
    /// use std::sync::Arc;
    /// use std::time::Duration;
    /// use redlock_std::rustls::client::WebPkiServerVerifier;
    /// use redlock_std::rustls::pki_types::pem::PemObject;
    /// use redlock_std::rustls::pki_types::{CertificateDer, PrivateKeyDer};
    /// use redlock_std::rustls::{ClientConfig, RootCertStore};
    /// use redlock_std::{BoundedVerifier, Options, Redlock};
    ///
    /// # fn example() -> Result<(), Box<dyn std::error::Error>> {
    /// let mut roots = RootCertStore::empty();
    /// roots.add(CertificateDer::from_pem_file("ca.pem")?)?;
    /// let chain = CertificateDer::pem_file_iter("client.pem")?.collect::<Result<_, _>>()?;
    /// let key = PrivateKeyDer::from_pem_file("client-key.pem")?;
    /// let verifier = WebPkiServerVerifier::builder(Arc::new(roots)).build()?;
    /// let tls = ClientConfig::builder()
    ///     .dangerous()
    ///     .with_custom_certificate_verifier(Arc::new(BoundedVerifier::new(verifier)))
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
        let mailbox = random_mailbox();
        let clock = LockClock::System;
        let urls: Vec<U> = urls.into_iter().collect();
        let lines = Arc::new(Lines::new(clock, urls.len()));
        for (index, url) in urls.into_iter().enumerate() {
            let address = parse(url.as_ref()).map_err(|error| error.of_url(index))?;
            if nodes.iter().any(|node| node.name() == &**address.name()) {
                return Err(ConnectError::DuplicateNode {
                    node: address.name().to_string(),
                });
            }
            let node_timeout = options.round_time();
            let (node, actor) =
                RedisNode::prepare(address, node_timeout, mailbox, lines.teller(index));
            nodes.push(node);
            actors.push(actor);
        }
        let nodes = nodes.into_iter().map(Member::Redis);
        let redlock = Self::over(nodes, clock, lines, options, &runtime)?;
        for actor in actors {
            runtime.spawn(actor.run());
        }
        Ok(redlock)
    }

    /// Returns a handle for locks over `nodes` in memory, on the clock of the current tokio runtime, which a test may pause.
    ///
    /// It is for tests of your own code, without servers. Only the nodes and the clock are mocks: guards, extensions, queues, lines
    /// and errors are the real ones. Each call is another process: two handles over the same nodes compete.
    /// [`Guard::valid_until`] is on tokio's clock, not on [`SystemClock`](crate::SystemClock).
    ///
    /// ```
    /// use std::time::Duration;
    /// use redlock_std::{HoldError, MemoryNode, Options, Redlock};
    ///
    /// /// The function under test.
    /// async fn pay(redlock: &Redlock, work: Duration) -> Result<(), HoldError> {
    ///     redlock.hold("invoice:42", async |_guard| tokio::time::sleep(work).await).await
    /// }
    ///
    /// # let runtime = tokio::runtime::Builder::new_current_thread().enable_time().start_paused(true).build();
    /// # runtime.unwrap().block_on(async {
    /// // In a test: #[tokio::test(start_paused = true)]
    /// let nodes = MemoryNode::array::<3>();
    /// let redlock = Redlock::in_memory(&nodes, Options::new(Duration::from_secs(10)).unwrap()).unwrap();
    ///
    /// // One of three nodes hangs, without effect: the lease is extended for five minutes, which pass in a moment.
    /// nodes[0].hang();
    /// pay(&redlock, Duration::from_secs(300)).await.unwrap();
    ///
    /// // A second one dies while the lock is held: the work is stopped.
    /// let payment = pay(&redlock, Duration::from_secs(300));
    /// let fault = async {
    ///     tokio::time::sleep(Duration::from_secs(5)).await;
    ///     nodes[1].kill();
    /// };
    /// let (paid, ()) = tokio::join!(payment, fault);
    /// assert!(matches!(paid, Err(HoldError::Lost(_))));
    /// # });
    /// ```
    ///
    /// Each release is with its node as soon as the guard is dropped. [`close`](Self::close) counts those that a node has not executed,
    /// because it hangs.
    ///
    /// # Errors
    ///
    /// If there are no nodes or more than [`MAX_NODES`], if a node is given twice, if the options are not valid, or if there is no
    /// tokio runtime.
    #[cfg(feature = "mock")]
    pub fn in_memory(nodes: &[MemoryNode], options: Options) -> Result<Self, ConnectError> {
        let runtime = Handle::try_current().map_err(|_| ConnectError::NoRuntime)?;
        for (index, node) in nodes.iter().enumerate() {
            if nodes[..index].iter().any(|other| other.is_same(node)) {
                let node = node.name().to_owned();
                return Err(ConnectError::DuplicateNode { node });
            }
        }
        let mailbox = random_mailbox();
        let clock = LockClock::Tokio;
        let lines = Arc::new(Lines::new(clock, nodes.len()));
        let members: Vec<_> = nodes
            .iter()
            .enumerate()
            .map(|(index, node)| {
                Member::Memory(node.client(mailbox, lines.teller(index), &runtime))
            })
            .collect();
        Self::over(members, clock, lines, options, &runtime)
    }

    fn over(
        nodes: impl IntoIterator<Item = Member>,
        clock: LockClock,
        lines: Arc<Lines>,
        options: Options,
        runtime: &Handle,
    ) -> Result<Self, ConnectError> {
        Ok(Self {
            core: Arc::new(core::new(nodes, clock, options)?),
            knowledge: FleetKnowledge::nothing(),
            options,
            prefix: Arc::from([]),
            key_queues: KeyQueues::new(clock),
            lines,
            rounds: Rounds::new(clock),
            closing: Closing::default(),
            telemetry: Telemetry::new(clock),
            runtime: runtime.clone(),
        })
    }

    /// Returns a handle with other options. It shares the connections and the queues for keys with this one.
    ///
    /// Each call uses the node timeout of its own options. This timeout also decides how long a node can be silent
    /// before the call skips it. If commands with longer timeouts are in flight, the call may notice the silence later. A
    /// silent connection is replaced after eight node timeouts, the longest of the commands in flight, and at least a second. This time
    /// doubles with each connection that ends so, up to a minute, until the node has answered for a minute on one connection: over a slow
    /// network, a command with a long key may take so long. After the last handle is dropped, it does not double.
    ///
    /// If [`connect`](Self::connect) would refuse the options, because the TTL is only a few milliseconds, every acquire
    /// fails with [`AcquireError::Build`].
    #[must_use]
    pub fn with_options(&self, options: Options) -> Self {
        let knowledge = if options.fencing() == self.options.fencing() {
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

    /// Returns a handle that puts `prefix` before each key. Without a prefix, the keys are the same as those of other
    /// Redlock clients. No key of a lock may begin with `redlock:`.
    #[must_use]
    pub fn with_prefix(&self, prefix: impl AsRef<[u8]>) -> Self {
        Self {
            prefix: prefix.as_ref().into(),
            ..self.clone()
        }
    }

    /// Returns a handle whose metrics and spans have an attribute `lock` with the label that `label` returns for the key of a lock,
    /// with its prefix. If it returns `None`, there is no such attribute.
    ///
    /// Without labels, all locks of a handle are one series: a key is in no metric and no span, because keys may be secret, and a
    /// metric of each key can bring a monitoring system down. So return few different labels, the kinds of your locks. The function
    /// is called once in each acquire and adopt, before the nodes are asked, and should be quick.
    ///
    /// ```
    /// # fn example(redlock: redlock_std::Redlock) -> redlock_std::Redlock {
    /// redlock.with_label(|key| match key {
    ///     _ if key.starts_with(b"invoice:") => Some("invoice"),
    ///     b"nightly-backup" => Some("backup"),
    ///     _ => None,
    /// })
    /// # }
    /// ```
    #[cfg(any(feature = "metrics", feature = "tracing"))]
    #[must_use]
    pub fn with_label(
        &self,
        label: impl Fn(&[u8]) -> Option<&'static str> + Send + Sync + 'static,
    ) -> Self {
        Self {
            telemetry: self.telemetry.with_label(label),
            ..self.clone()
        }
    }

    /// The options for the next lease.
    #[must_use]
    pub const fn options(&self) -> &Options {
        &self.options
    }

    /// Returns the status of each node, for a readiness check or a log: whether it is connected, since when, why it has no vote, and
    /// how long its last answer took. A minority that is dead costs no lock, so this is how to notice it before the second death.
    ///
    /// Sends nothing. A node that dies, so that its connection is closed, is in the result at once. One that hangs or is cut off is in
    /// it when a command has not been answered for several node timeouts. What takes the vote of a node away for a fenced lock, such
    /// as a quarantine, is known from the answer to the last acquire, and so is a node that refuses all of them, because its memory is full
    /// or the user may not call the command, for example; not one that refuses because of the value of a key. Only an acquire asks a
    /// node again whose configuration cost it its vote, such as a replica: so a readiness check that keeps requests away should try
    /// one while it is not ready, of a key of its own.
    ///
    /// Two things are in the errors of acquires only: that a node answers later than the node timeout (compare
    /// [`round_trip`](NodeStatus::round_trip)), and for fenced locks, that the clocks of nodes differ by more than the window. Apart
    /// from them, the process can acquire locks if a majority has a vote:
    ///
    /// ```
    /// # fn is_ready(redlock: &redlock_std::Redlock) -> bool {
    /// let status = redlock.status();
    /// let votes = status.iter().filter(|node| node.has_vote()).count();
    /// votes > status.len() / 2
    /// # }
    /// ```
    #[must_use]
    pub fn status(&self) -> Vec<NodeStatus> {
        let mut nodes: Vec<&Member> = Vec::new();
        let mut status = Vec::new();
        for node in self.core.nodes() {
            let mut its = node.status(&self.options);
            let process = node.run_id().filter(|_| its.has_vote());
            let first = nodes
                .iter()
                .find(|other| process.is_some() && other.run_id() == process);
            if let Some(first) = first {
                let duplicate = Failure::DuplicateOf(first.name());
                its.error = Some(NodeError::new(node.name(), duplicate));
            }
            nodes.push(node);
            status.push(its);
        }
        status
    }

    /// Returns the problems of nodes that do not cost them their vote:
    ///
    /// - The node may evict keys. ([`Options::refuse_eviction`] takes its vote away.) This is what the node answered
    ///   when it was last asked for its identity, up to a minute before the last acquire. After the first successful acquire, at least a quorum of nodes has
    ///   answered.
    /// - The node cannot call this client when it is its turn for a lock, because the user lacks a permission, or the second
    ///   connection cannot be made. Then acquires wait longer than they must. A permission that is missing is told for a minute after
    ///   the node has refused a command of the line, a release among them; only then is the line tried again. It may also be one that
    ///   every lock needs.
    /// - Some releases were dropped, because more than a million of them, or more than 256 MB of their keys, waited for
    ///   the node.
    /// - The node refused the last release, because the user lacks a permission, for example. Its key is left until it expires. A
    ///   release that it refuses for now (`BUSY`, `READONLY`, `OOM` and the like) is sent again, and is not named here.
    #[must_use]
    pub fn warnings(&self) -> Vec<NodeError> {
        self.core.nodes().flat_map(Member::warnings).collect()
    }

    /// Returns whether each release was sent to its node, for a process that ends now: its commands arrive after its end. Nodes
    /// that were never connected are not counted, because they have no key of this process, unless it has adopted a lease. A release
    /// may still be on its way to another attempt, if a node could not execute it. If the releases together take more than about 16 KB,
    /// the last ones may still be in a buffer of this process, or be lost with the connection: [`close`](Self::close) waits for the
    /// answers.
    ///
    /// It stays `false` once releases were dropped, because too many waited, or because the runtime of the connections has shut down
    /// while they were queued or unanswered.
    #[cfg(feature = "probe")]
    #[must_use]
    pub fn has_sent_releases(&self) -> bool {
        !self.core.nodes().any(Member::owes_calls)
    }

    /// Acquires the lock if it is free.
    ///
    /// This takes one round for a plain lock, and up to three for a fenced one. A round ends as soon as a quorum has
    /// decided it. If another task holds the lock through this handle or a clone of it, or waits for it, this fails at
    /// once, and asks no node, unless other processes wait for the lock too. If very many tasks acquire or extend at the moment, the round begins a little later. If
    /// it cannot begin within one node timeout, this fails with [`AcquireError::NotAsked`].
    ///
    /// The first call on a new handle waits for the connections to a quorum of the nodes, for two node timeouts at most, before its
    /// round.
    ///
    /// Several clients that try at the same time may split the votes, so that none gets a quorum. So if some node granted
    /// the lock, but the round was lost because other nodes refused, this tries again, up to three times, after random
    /// delays. The longer the lost round took, the longer a delay can be. No delay ends later than eight node timeouts after
    /// the first round began.
    ///
    /// Dropping the future releases the keys that a round may have set.
    ///
    /// # Errors
    ///
    /// [`AcquireError`] distinguishes a lock that is held ([`is_held`](AcquireError::is_held)), too few nodes that gave
    /// a vote ([`is_unreachable`](AcquireError::is_unreachable)), and a round that could not begin
    /// ([`AcquireError::NotAsked`]).
    pub async fn try_acquire(&self, key: impl AsRef<[u8]>) -> Result<Guard, AcquireError> {
        let now = self.now();
        let (key, mut scope) = self.begin_acquire(key.as_ref(), now)?;
        let Some(_active) = self.closing.begin() else {
            let error = closed(&key);
            scope.end(Err(&error));
            return Err(error);
        };
        let trace = scope.trace();
        let acquired = trace
            .run(async {
                let turn = self.key_queues.try_take(&key, term(&self.options, now));
                let turn = turn.ok_or_else(|| held_here(&key))?;
                self.acquire_in_turn(key, now, now, turn, &mut scope).await
            })
            .await;
        scope.end(acquired.as_ref().map(Guard::fence));
        acquired
    }

    /// Acquires the lock, and waits for it until [`Options::wait`] is over.
    ///
    /// Tasks that want the same key through this handle or a clone of it wait in a queue, first come, first served. The first
    /// task in the queue asks the nodes. If the lock is held, it stands in the waiting line of the lock on every node. A
    /// release lets the nodes call the first in the line, so it gets the lock about two round trips after the release. The
    /// order in the line is that in which the tasks of all processes have called `acquire`, as far as the clocks of the nodes
    /// agree; but the next one or two tasks of the process that holds the lock can go before a task of another process that has
    /// waited longer. A process that died in the line before the release delays no other, and one that hangs, or whose host is cut
    /// off, delays the others by 25 ms and two node timeouts. Other Redlock clients and [`try_acquire`](Self::try_acquire) do not stand in the
    /// line, and may overtake those that do, as does an `acquire` of a plain lock that begins just after a release. When
    /// [`min_hold`](Options::min_hold) ends, nobody is called. If [`Options::queue`] turns the line off, or the nodes keep none
    /// for this client, the task retries after random delays. If the votes of its first round were split, it retries as
    /// [`try_acquire`](Self::try_acquire) does.
    ///
    /// A task passes its turn in the queue on when its guard is released or dropped, or when the validity of its lease is over; if
    /// tasks of other processes wait too, when it has the lock. A task that is not polled loses its turn no later than fifteen
    /// node timeouts and one second after its own wait is over.
    ///
    /// The number of rounds in flight, for all keys together, is limited to what the nodes answer in time. So the
    /// acquires of a burst wait until their round can begin, behind the extensions of leases, instead of timing out in
    /// flight.
    ///
    /// The lock is not re-entrant: a task that holds the lock and acquires its key again waits for itself.
    ///
    /// Where a try cannot help, because the nodes refuse the login, for example
    /// ([`is_misconfigured`](AcquireError::is_misconfigured)), this fails at once, without a wait. So a loop around it needs a pause of
    /// its own: otherwise it keeps its task busy, and no other branch of a `select!` is polled.
    ///
    /// Dropping the future leaves the queue and the line, and releases the keys that a round may have set.
    ///
    /// # Errors
    ///
    /// The [`AcquireError`] of the last round. If a majority of the nodes refuses the login, the TTL or the rules of this client, the
    /// wait ends with the round that hears so, because as a rule only an operator can change that: [`AcquireError::is_misconfigured`]. If there was no round:
    ///
    /// - [`AcquireError::HeldHere`] if the turn of this task did not come in time, although a quorum of nodes answers;
    /// - [`AcquireError::NotAsked`] if too many acquires or extensions of other tasks were ahead, or if no quorum of
    ///   nodes answered them.
    pub async fn acquire(&self, key: impl AsRef<[u8]>) -> Result<Guard, AcquireError> {
        let since = self.now();
        let (key, mut scope) = self.begin_acquire(key.as_ref(), since)?;
        let Some(_active) = self.closing.begin() else {
            let error = closed(&key);
            scope.end(Err(&error));
            return Err(error);
        };
        let give_up_at = since.saturating_add(self.options().wait_time());
        let term = term(&self.options, give_up_at);
        let trace = scope.trace();
        let acquired = trace
            .run(async {
                let turn = match self.key_queues.try_take(&key, term) {
                    Some(turn) => turn,
                    None => {
                        let turn = tokio::select! {
                            biased;
                            () = self.closing.closed() => return Err(closed(&key)),
                            turn = self.key_queues.take(&key, give_up_at, term) => turn,
                        };
                        scope.got_its_turn();
                        turn.ok_or_else(|| match self.rounds.nodes_answer() {
                            true => held_here(&key),
                            false => self.not_asked(&key),
                        })?
                    }
                };
                self.acquire_in_turn(key, since, give_up_at, turn, &mut scope)
                    .await
            })
            .await;
        scope.end(acquired.as_ref().map(Guard::fence));
        acquired
    }

    /// Acquires the lock, runs `work` and releases the lock.
    ///
    /// The lease is extended in the same task while the work runs, each time a third of its validity has passed, at most
    /// [`Options::max_extensions`] times: for about 34 times the TTL by default. A TTL
    /// of less than about 10 ms leaves no time for extensions. When an extension finds that the lock is lost, the work
    /// is dropped at once. In any case the work is not polled any more once the validity is over, and dropped when the runtime
    /// polls this future. Dropping the work does not undo what it did.
    ///
    /// # Errors
    ///
    /// [`HoldError::NotAcquired`] if the lock was not acquired: the work did not begin. [`HoldError::Lost`] if the lock
    /// was found lost before the work was done. This is also returned if the work ended by itself, but kept the task busy
    /// past the end of the validity.
    pub async fn hold<R>(
        &self,
        key: impl AsRef<[u8]>,
        work: impl AsyncFnOnce(&Guard) -> R,
    ) -> Result<R, HoldError> {
        // Boxed, because it would be most of the future.
        let acquire = Box::pin(self.acquire(key));
        let guard = acquire.await.map_err(HoldError::NotAcquired)?;
        let done = if let Some(keeping) = guard.keeping(None) {
            tokio::select! {
                // The lease is polled before the work, so that the work does not continue after a long pause.
                biased;
                () = keeping => None,
                result = work(&guard) => Some(result).filter(|_| guard.is_valid()),
            }
        } else {
            None
        };
        let cause = guard.loss().unwrap_or(LossCause::Expired);
        Box::pin(guard.release()).await;
        done.ok_or_else(|| HoldError::Lost(Box::new(cause)))
    }

    /// Closes this handle and its clones: no acquire begins any more, those that wait end with [`AcquireError::Closed`], and the
    /// queued releases are sent. Returns how many releases are still unanswered, or were dropped because too many waited: their keys
    /// may be left until they expire. (After an [`adopt`](Self::adopt), each node counts that has not answered its release, because the
    /// other process may have set the key there.) A release that a node refuses is answered: [`warnings`](Self::warnings) tells why, and of those
    /// that were dropped.
    ///
    /// Call it before the process ends. The releases of dropped guards are sent by background tasks: if the runtime shuts down right
    /// after a guard was dropped, its key is left. This waits until the nodes that can be reached have answered, at most for four node
    /// timeouts or a second, whichever is longer: a node that hangs, or that has just closed its connection, is waited for so long. A node
    /// that was silent for eight node timeouts, and at least a second, or with which no connection could be set up, is not waited for
    /// until it is connected again. Guards that still exist are not released by it. So the order of a shutdown is:
    ///
    /// 1. Take no new work.
    /// 2. Await the tasks that hold guards, or abort them and await their ends. This drops the guards.
    /// 3. Await `close`.
    /// 4. Let the runtime end.
    ///
    /// Extensions and releases of the guards that are left work as before. Dropping the future leaves the handle closed.
    ///
    /// ```no_run
    /// # async fn example(redlock: redlock_std::Redlock, mut tasks: tokio::task::JoinSet<()>) {
    /// tasks.shutdown().await;
    /// let unanswered = redlock.close().await;
    /// # }
    /// ```
    pub async fn close(&self) -> usize {
        const LEAST: Duration = Duration::from_secs(1);
        const BETWEEN_CHECKS: Duration = Duration::from_millis(1);

        self.closing.close();
        let unanswered = || {
            let nodes = self.core.nodes();
            nodes.map(Member::releases_to_wait_for).sum::<usize>()
        };
        let longest = self.options.round_time().saturating_mul(4).max(LEAST);
        let give_up_at = self.now().saturating_add(longest);
        while (!self.closing.is_idle() || unanswered() > 0) && self.now() < give_up_at {
            let again_at = self.now().saturating_add(BETWEEN_CHECKS);
            self.core.clock().sleep_until(again_at).await;
        }
        self.core.nodes().map(Member::unanswered_releases).sum()
    }

    /// Takes over a lease that another process has [handed over](Guard::hand_over), for example to its successor: extends it in one
    /// round, or two for a fenced lock. The options must have the rules and the TTL of the lease: an extension that was sent before, by
    /// the other process or by an adoption that failed, may arrive late, and sets its own TTL.
    ///
    /// If a quorum of nodes still carries the token, no other client has held the lock since it was granted: with a plain lock, unless
    /// a command of the lease has reached a node more than one TTL after it was sent, or a node has failed over and back behind an
    /// open connection; with a fenced lock, no other fenced client. A node of a fenced lock whose guard record is missing or new
    /// counts like one without the token. The validity counts from the
    /// moment before this round, whatever became of the first validity.
    ///
    /// Only one handle, with its clones, may adopt a lease, and the process that handed it over must not use it any more: the nodes
    /// cannot tell two holders of one token apart. So a lease that was released must not be adopted again. If the validity is over, the
    /// same handle may adopt the lease once more: the guard of the earlier adoption, if it still exists, no longer releases anything.
    /// The prefix of this handle is not put before the key.
    ///
    /// The first call on a new handle waits for the connections to a quorum of the nodes, for two node timeouts at most.
    /// Dropping the future, or closing the handle meanwhile, leaves the lease on the nodes. It may have been extended.
    ///
    /// # Errors
    ///
    /// [`AdoptError`] tells whether the lease is lost, or a later attempt may succeed.
    pub async fn adopt(&self, handover: &Handover) -> Result<Guard, AdoptError> {
        check(&self.options).map_err(AdoptError::Build)?;
        let Handover {
            key,
            token,
            fence,
            ttl,
        } = handover;
        if key.len() > MAX_KEY {
            return Err(AdoptError::KeyTooLong(key.len()));
        }
        if fence.is_some() != self.options.fencing().is_some() {
            return Err(AdoptError::OtherKind);
        }
        if self.options.ttl() != *ttl {
            return Err(AdoptError::OtherTtl(*ttl));
        }
        if self.closing.is_closed() {
            return Err(AdoptError::Closed(KeyName::new(key)));
        }
        let now = self.now();
        let scope = self.telemetry.adoption(key);
        let turn = self.key_queues.try_take(key, term(&self.options, now));
        let turn = turn.ok_or_else(|| AdoptError::HeldHere(KeyName::new(key)))?;
        let mut core = self.client(self.options);
        // Before the round is admitted: it would count as in flight meanwhile.
        let connected = self.until_connected(&core).await;
        connected.ok_or_else(|| AdoptError::Closed(KeyName::new(key)))?;
        let round_time = self.options.round_time();
        let until = now.saturating_add(self.options.validity());
        let round = self.rounds.admit_extension(until, round_time * 2).await;
        let Some(round) = round else {
            let nodes_answer = self.rounds.nodes_answer();
            return Err(adopt_error(ExtendError::NotAsked { nodes_answer }));
        };
        self.knowledge.tell(&mut core);
        let told = Told::by(&core);
        let adopted = core.adopt(Arc::clone(key), *token, *fence).await;
        self.knowledge.learn(&core, told);
        match &adopted {
            Ok(_) => round.end(true, round_time),
            Err(ExtendError::Unreachable(_)) => round.end(false, round_time),
            Err(_) => {}
        }
        let lease = adopted.map_err(adopt_error)?;
        if self.closing.is_closed() {
            return Err(AdoptError::Closed(KeyName::new(key)));
        }
        self.core.nodes().for_each(Member::adopted);
        if !turn.hold_if_not_passed_on(lease.valid_until()) {
            // This task was not polled for so long that another one may have adopted the lease, with the same token.
            return Err(AdoptError::HeldHere(KeyName::new(key)));
        }
        let effort = Effort {
            since: now,
            waited: self.now().saturating_duration_since(now),
            attempts: 1,
        };
        // It keeps the turn, also while others wait in the line: a second adoption would have the same token.
        let scope = scope.hold();
        Ok(self.new_guard(core, lease, turn, effort, scope).adopted())
    }

    /// Makes attempts until one succeeds, or until `give_up_at`. The wait has begun at `since`.
    async fn acquire_in_turn(
        &self,
        key: Arc<[u8]>,
        since: Instant,
        give_up_at: Instant,
        turn: Turn,
        scope: &mut AcquireScope,
    ) -> Result<Guard, AcquireError> {
        let left = give_up_at.saturating_duration_since(self.now());
        let mut core = self.client(self.options.wait(left));
        let ticket = self.knowledge.ticket(since);
        let wanted = Wanted::new(Arc::clone(&key));
        for node in core.nodes_mut() {
            node.want(Arc::clone(&wanted), ticket);
        }
        let keeps_line = core.nodes().all(Member::keeps_line);
        let longest = self.options.round_time().saturating_mul(PASSED_ON_TIMEOUTS);
        if !keeps_line && give_up_at > since && turn.stands_back_after(longest) {
            let clock = *self.core.clock();
            clock
                .sleep_until(self.now().saturating_add(jittered(STAND_BACK)))
                .await;
        }
        let (lease, attempts) = self
            .contend(&mut core, &key, since, give_up_at, scope)
            .await?;
        for node in core.nodes_mut() {
            node.end_wait();
        }
        let effort = Effort {
            since,
            waited: self.now().saturating_duration_since(since),
            attempts,
        };
        if self.lines.contains(lease.key()) {
            // The next task stands in the line as those of other processes do, by the time of its own call.
            turn.end();
        }
        let mut guard = self.new_guard(core, lease, turn, effort, scope.hold());
        if self.closing.is_closed() {
            // Dropping the guard frees the lock, which no caller has had.
            guard.end_min_hold();
            return Err(closed(guard.key()));
        }
        Ok(guard)
    }

    /// Waits for the connections of a new handle: otherwise its first round would have to make them within one node timeout. Returns
    /// `None` if the handle is closed meanwhile.
    async fn until_connected(&self, core: &Core) -> Option<()> {
        if self.knowledge.has_connected() {
            return Some(());
        }
        let longest = self.options.round_time().saturating_mul(CONNECT_TIMEOUTS);
        tokio::select! {
            biased;
            () = self.closing.closed() => return None,
            _late = timeout(longest, self.until_quorum_connects(core)) => {}
        }
        self.knowledge.set_connected();
        Some(())
    }

    /// Waits until a quorum of nodes are connected and have a vote, or so many have failed that there can be none. A node that hangs
    /// delays nothing, and one that has no vote is not counted on.
    async fn until_quorum_connects(&self, core: &Core) {
        let connects = core.nodes().map(|node| Box::pin(node.first_connect()));
        let mut connects: Vec<_> = connects.collect();
        poll_fn(|context| {
            connects.retain_mut(|connect| connect.as_mut().poll(context).is_pending());
            let votes = self.status().iter().filter(|node| node.has_vote()).count();
            let quorum = quorum(core);
            if votes >= quorum || votes + connects.len() < quorum {
                Poll::Ready(())
            } else {
                Poll::Pending
            }
        })
        .await;
    }

    async fn contend(
        &self,
        core: &mut Core,
        key: &Arc<[u8]>,
        since: Instant,
        give_up_at: Instant,
        scope: &mut AcquireScope,
    ) -> Result<(Lease<Arc<[u8]>>, u32), AcquireError> {
        let contender = Contender { core, key };
        let core = &mut *contender.core;
        let connected = self.until_connected(core).await;
        connected.ok_or_else(|| closed(key))?;
        let mut acquisition = core.begin().since(since);
        if self.lines.contains(key) {
            core.join_line(&mut acquisition);
        }
        let round_time = self.options.round_time();
        let mut failed = None;
        let mut has_mail = false;
        let mut attempts = 0_u32;
        // The first round of an acquire, and a retry for a split vote, may begin after its wait.
        let mut admit_until = give_up_at.max(self.now().saturating_add(round_time));
        loop {
            if acquisition.is_in_line() && !has_mail {
                // Before it is in the line: a node removes a client that it cannot call.
                // An attempt at the end of the wait does not stand in the line any more.
                tokio::select! {
                    biased;
                    () = open_mail(core) => {}
                    () = self.core.clock().sleep_until(give_up_at) => {}
                }
                has_mail = true;
            }
            let lease = self.attempt(core, &mut acquisition, key, admit_until, scope);
            let error = match lease.await {
                Some(Ok(lease)) => return Ok((lease, attempts.saturating_add(1))),
                Some(Err(error)) => error,
                None if self.closing.is_closed() => return Err(closed(key)),
                None => return Err(failed.unwrap_or_else(|| self.not_asked(key))),
            };
            let again_at = core.again_at(&mut acquisition, &error);
            let error = AcquireError::from(error);
            let Some(again_at) = again_at.filter(|_| !error.is_misconfigured()) else {
                return Err(error);
            };
            // Once: also if the lock was held at first.
            if error.is_unreachable() && !failed.as_ref().is_some_and(AcquireError::is_unreachable)
            {
                scope.waits(&error);
            }
            failed = Some(error);
            attempts = attempts.saturating_add(1);
            admit_until = if again_at > give_up_at {
                again_at.saturating_add(round_time)
            } else {
                give_up_at
            };
            tokio::select! {
                biased;
                () = self.closing.closed() => return Err(closed(key)),
                () = core.wait_for_turn(&mut acquisition, key, again_at) => {}
            }
        }
    }

    /// Makes one attempt when its round is admitted. Returns `None` if the round is not admitted by `give_up_at`.
    async fn attempt(
        &self,
        core: &mut Core,
        acquisition: &mut Acquisition,
        key: &Arc<[u8]>,
        give_up_at: Instant,
        scope: &mut AcquireScope,
    ) -> Option<Result<Lease<Arc<[u8]>>, NodesError>> {
        let round_time = self.options.round_time();
        // A round and one that cleans up. An attempt that takes longer does not delay others.
        let longest = round_time * 2;
        let mut round = tokio::select! {
            // Admission comes first: it is immediate as a rule.
            biased;
            round = self.rounds.admit_acquire(give_up_at, longest) => round?,
            () = self.closing.closed() => return None,
        };
        scope.tried(acquisition.was_called());
        let mut attempt = Attempt::new(core, &self.knowledge, &mut round);
        let trace = scope.trace_round();
        let lease = trace
            .run(attempt.core.attempt(acquisition, Arc::clone(key)))
            .await;
        attempt.is_over = true;
        drop(attempt);
        match &lease {
            Err(NodesError::Unreachable(_)) => round.end(false, round_time),
            // No node was asked.
            Err(error) if error.report().is_none() => {}
            _ => round.end(true, round_time),
        }
        Some(lease)
    }

    fn new_guard(
        &self,
        core: Box<Core>,
        lease: Lease<Arc<[u8]>>,
        turn: Turn,
        effort: Effort,
        scope: HoldScope,
    ) -> Guard {
        let shared = Shared {
            rounds: self.rounds.clone(),
            lines: Arc::clone(&self.lines),
            runtime: self.runtime.clone(),
        };
        Guard::new(core, lease, turn, effort, scope, shared)
    }

    /// The error of an acquire without a round.
    fn not_asked(&self, key: &[u8]) -> AcquireError {
        AcquireError::NotAsked {
            key: KeyName::new(key),
            nodes_answer: self.rounds.nodes_answer(),
        }
    }

    fn now(&self) -> Instant {
        self.core.clock().now()
    }

    /// The state machine for one operation.
    fn client(&self, options: Options) -> Box<Core> {
        let mut core = Box::new(self.core.fork(SystemEntropy));
        core.set_options(options);
        for node in core.nodes_mut() {
            node.set_node_timeout(options.round_time());
        }
        core
    }

    /// Returns the key with the prefix, and what the telemetry learns of its acquire. The telemetry learns also of an acquire that
    /// cannot begin.
    fn begin_acquire(
        &self,
        key: &[u8],
        since: Instant,
    ) -> Result<(Arc<[u8]>, AcquireScope), AcquireError> {
        let key = self.full_key(key);
        let scope = match &key {
            Ok(key) => self.telemetry.acquire(key, since),
            // The function that labels keys is asked only about keys of locks.
            Err(_) => self.telemetry.acquire_unlabelled(since),
        };
        let checked = check(&self.options).map_err(AcquireError::Build);
        match checked.and(key) {
            Ok(key) => Ok((key, scope)),
            Err(error) => {
                scope.end(Err(&error));
                Err(error)
            }
        }
    }

    /// Returns the key with the prefix, if a lock may have it.
    fn full_key(&self, key: &[u8]) -> Result<Arc<[u8]>, AcquireError> {
        let length = self.prefix.len() + key.len();
        if length > MAX_KEY {
            return Err(AcquireError::KeyTooLong(length));
        }
        let key: Arc<[u8]> = match self.prefix.is_empty() {
            true => Arc::from(key),
            false => self.prefix.iter().chain(key).copied().collect(),
        };
        // The core refuses it too. But an acquire that it refuses counts as one that has asked the nodes.
        match key.starts_with(RESERVED_PREFIX.as_bytes()) {
            true => Err(redlock_core::AcquireError::ReservedKey.into()),
            false => Ok(key),
        }
    }
}

/// Refuses the options that [`Redlock::connect`] refuses. [`Redlock::with_options`] returns no error, so each acquire
/// checks.
fn check(options: &Options) -> Result<(), BuildError> {
    if options.validity() <= LockClock::System.resolution() {
        return Err(BuildError::ClockTooCoarse);
    }
    Ok(())
}

/// The term of an acquire that waits until `give_up_at`. The first one of a handle waits for the connections. The last attempt takes up
/// to three rounds for a fenced lock, and one that cleans up. A retry for a split vote may start eight node timeouts after the first
/// one, and be admitted one later. A task that is not polled until the end of the term loses its turn.
fn term(options: &Options, give_up_at: Instant) -> Term {
    let rounds = options
        .round_time()
        .saturating_mul(CONNECT_TIMEOUTS + 8 + 1 + 3 + 1);
    Term {
        until: give_up_at.saturating_add(rounds.saturating_add(Duration::from_secs(1))),
        validity: options.validity(),
    }
}

fn closed(key: &[u8]) -> AcquireError {
    AcquireError::Closed(KeyName::new(key))
}

fn adopt_error(error: ExtendError) -> AdoptError {
    AdoptError::Nodes(Box::new(error))
}

fn held_here(key: &[u8]) -> AcquireError {
    AcquireError::HeldHere(KeyName::new(key))
}

/// Lets the nodes that can be reached call the client. Waits for a quorum of them, at most for a round, and then for the others as
/// long again: a node that is well follows at once, and one that hangs delays nothing. On a node that is late, the acquire waits for
/// its place by a timer.
async fn open_mail(core: &Core) {
    let nodes: Vec<_> = core.nodes().filter(|node| node.is_promising()).collect();
    nodes.iter().for_each(|node| node.want_mail());
    let mut opening: Vec<_> = nodes
        .iter()
        .map(|node| Box::pin(node.open_mail()))
        .collect();
    let late_allowed = nodes.len().saturating_sub(quorum(core));
    let begun_at = tokio::time::Instant::now();
    let quorum = until_left(&mut opening, late_allowed);
    if timeout(core.options().round_time(), quorum).await.is_ok() {
        let took = begun_at.elapsed() + core.clock().resolution();
        let _late = timeout(took, until_left(&mut opening, 0)).await;
    }
}

/// How many nodes decide a round.
fn quorum(core: &Core) -> usize {
    core.nodes().count() / 2 + 1
}

/// Polls these futures until at most `left` of them are not done.
async fn until_left<F: Future + Unpin>(futures: &mut Vec<F>, left: usize) {
    poll_fn(|context| {
        futures.retain_mut(|future| pin!(future).poll(context).is_pending());
        if futures.len() <= left {
            Poll::Ready(())
        } else {
            Poll::Pending
        }
    })
    .await;
}

/// An acquire in progress. If it is dropped before its end, it releases the keys that its last attempt may have set, and leaves the
/// line of the lock.
struct Contender<'a> {
    core: &'a mut Core,
    key: &'a [u8],
}

impl Drop for Contender<'_> {
    fn drop(&mut self) {
        if let Some(release) = self.core.abandoned_release(self.key) {
            for node in self.core.nodes() {
                node.release_unattended(&release);
            }
        }
    }
}

/// An attempt in progress. What it has learned about the nodes' clocks is kept in any case. If it is dropped before its end, its
/// round counts until its commands have left the queues of a majority of the nodes.
struct Attempt<'a, 'r> {
    core: &'a mut Core,
    knowledge: &'a FleetKnowledge,
    told: Told,
    round: &'a mut Round<'r>,
    is_over: bool,
}

impl<'a, 'r> Attempt<'a, 'r> {
    fn new(core: &'a mut Core, knowledge: &'a FleetKnowledge, round: &'a mut Round<'r>) -> Self {
        knowledge.tell(core);
        Self {
            told: Told::by(core),
            core,
            knowledge,
            round,
            is_over: false,
        }
    }
}

impl Drop for Attempt<'_, '_> {
    fn drop(&mut self) {
        self.knowledge.learn(self.core, self.told);
        if !self.is_over && self.core.abandoned().is_some() {
            let nodes: Vec<_> = self.core.nodes().cloned().collect();
            self.round.leave_behind(move || {
                let sent = nodes.iter().filter(|node| node.has_sent());
                sent.count() > nodes.len() / 2
            });
        }
    }
}
