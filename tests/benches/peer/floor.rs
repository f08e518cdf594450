//! Floors: clients that only ask for votes, on the same servers. They show what the transport costs by itself. They do not
//! reconnect, have no timeouts, ask no node who it is, and take no randomness from the operating system.

pub(crate) mod actors;
pub(crate) mod sockets;

use core::future::{Future, poll_fn};
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Arc, Mutex};
use std::task::{Poll, Waker};
use std::time::Duration;

use redis::Cmd;

use crate::TTL;
use crate::client::{Client, warm_up};

/// A connection to one node, shared by all tasks. It sends in the order of the calls: so no release overtakes its acquire.
pub(crate) trait Node: Send + Sync + Sized + 'static {
    const NAME: &'static str;
    /// A command as the connection takes it, made once for all nodes.
    type Command: From<Cmd> + Send + Sync;

    fn connect(url: &str) -> impl Future<Output = Self> + Send;
    fn send(&self, command: &Arc<Self::Command>, votes: &Arc<Votes>);
}

/// A lock over such nodes: `SET NX PX`, compare and delete, and a quorum of the answers.
pub(crate) struct Floor<N> {
    nodes: Arc<[N]>,
    /// The hash of the script that compares and deletes.
    release: Arc<str>,
}

#[derive(Debug)]
pub(crate) struct Lock {
    key: String,
    token: String,
}

impl<N: Node> Floor<N> {
    pub(crate) async fn connect(urls: &[String]) -> Self {
        let script = redis::Script::new(
            "if redis.call('get',KEYS[1])==ARGV[1] then return redis.call('del',KEYS[1]) else return 0 end",
        );
        let mut nodes = Vec::new();
        for url in urls {
            let client = redis::Client::open(url.as_str()).unwrap();
            let mut connection = client.get_multiplexed_async_connection().await.unwrap();
            script.load_async(&mut connection).await.unwrap();
            nodes.push(N::connect(url).await);
        }
        let floor = Self {
            nodes: nodes.into(),
            release: script.get_hash().into(),
        };
        warm_up(&floor).await;
        floor
    }

    /// Sends `command` to all nodes, and returns whether a quorum said yes.
    async fn ask(&self, command: Cmd) -> bool {
        let command = Arc::new(N::Command::from(command));
        let votes = Votes::among(self.nodes.len());
        for node in &*self.nodes {
            node.send(&command, &votes);
        }
        votes.decision().await
    }

    fn release(&self, lock: &Lock) -> Cmd {
        let mut release = redis::cmd("EVALSHA");
        release
            .arg(&*self.release)
            .arg(1)
            .arg(&lock.key)
            .arg(&lock.token);
        release
    }
}

impl<N> Clone for Floor<N> {
    fn clone(&self) -> Self {
        Self {
            nodes: Arc::clone(&self.nodes),
            release: Arc::clone(&self.release),
        }
    }
}

impl<N: Node> Client for Floor<N> {
    const NAME: &'static str = N::NAME;
    type Lock = Lock;

    async fn lock(&self, key: &str) -> Lock {
        loop {
            let lock = Lock {
                key: key.to_owned(),
                token: format!("{:016x}{:08x}", fastrand::u64(..), fastrand::u32(..)),
            };
            let mut acquire = redis::cmd("SET");
            acquire.arg(key).arg(&lock.token).arg("NX").arg("PX");
            acquire.arg(TTL.as_millis().to_string());
            if self.ask(acquire).await {
                return lock;
            }
            self.ask(self.release(&lock)).await;
            tokio::time::sleep(Duration::from_millis(fastrand::u64(..200))).await;
        }
    }

    async fn unlock(&self, lock: Lock) {
        self.ask(self.release(&lock)).await;
    }
}

/// The votes of one round. Its task is woken once, when they decide.
#[derive(Debug)]
pub(crate) struct Votes {
    nodes: usize,
    yes: AtomicUsize,
    no: AtomicUsize,
    task: Mutex<Option<Waker>>,
}

impl Votes {
    fn among(nodes: usize) -> Arc<Self> {
        Arc::new(Self {
            nodes,
            yes: AtomicUsize::new(0),
            no: AtomicUsize::new(0),
            task: Mutex::new(None),
        })
    }

    pub(crate) fn count(&self, is_yes: bool) {
        let votes = if is_yes { &self.yes } else { &self.no };
        votes.fetch_add(1, Ordering::AcqRel);
        if self.decided().is_some()
            && let Some(task) = self.task.lock().unwrap().take()
        {
            task.wake();
        }
    }

    fn decided(&self) -> Option<bool> {
        let quorum = self.nodes / 2 + 1;
        if self.yes.load(Ordering::Acquire) >= quorum {
            return Some(true);
        }
        (self.no.load(Ordering::Acquire) > self.nodes - quorum).then_some(false)
    }

    async fn decision(&self) -> bool {
        poll_fn(|context| {
            if let Some(decision) = self.decided() {
                return Poll::Ready(decision);
            }
            *self.task.lock().unwrap() = Some(context.waker().clone());
            self.decided().map_or(Poll::Pending, Poll::Ready)
        })
        .await
    }
}
