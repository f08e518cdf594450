//! Keeps the [owner record](crate::owner) of a lock up to date while the command runs.

use core::time::Duration;
use std::collections::BTreeSet;
use std::sync::Arc;

use redis::Value;
use redlock_std::{Redlock, Token};
use tokio::sync::watch;
use tokio::task::JoinSet;

use super::arguments::Plan;
use super::journal::{Event, Journal};
use crate::lease_file::LeaseFile;
use crate::nodes::{Connection, Node, in_words, quorum};
use crate::owner;

/// The record of a lease that this process holds. Dropping it leaves the record to its TTL.
#[derive(Debug)]
pub(crate) struct OwnerRecord {
    ending: watch::Sender<Option<Ending>>,
    copies: Copies,
}

/// What becomes of the record when the lease is released.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Ending {
    Deleted,
    /// The lock stays held for a while, and the record with it.
    Kept,
}

/// The time from the grant to the first write. An operator cannot look at a lock that is held for less, so a short command costs no
/// connection.
const FIRST: Duration = Duration::from_millis(100);

/// How long to wait for a connection, and for an answer. Nothing of the lock waits for it.
const PATIENCE: Duration = Duration::from_secs(1);

/// How long to wait for a quorum of nodes when the record ends, and for another node that answers the lock, after a quorum.
const MOMENT: Duration = Duration::from_millis(200);

impl OwnerRecord {
    /// Keeps the record of the lease with this token, if the plan has an owner.
    pub(crate) fn keep(plan: &Plan, token: &Token, journal: &Journal) -> Self {
        let (ending, _) = watch::channel(None);
        let mut copies = Copies::default();
        for copy in Copy::of(plan, token) {
            // In each third of the validity, the lease is extended once.
            let pause = plan.options.validity() / 3;
            // A lease that is adopted may have a record already.
            let is_written = plan.adopt.is_some();
            let node = copy.node.clone();
            let keep = copy.keep(ending.subscribe(), pause, is_written, journal.clone());
            copies.spawn(&node, keep);
        }
        Self { ending, copies }
    }

    /// Ends the record with the lease: deletes it, or keeps it for as long as the lock stays held.
    pub(crate) fn end(&self, is_kept: bool) {
        let ending = if is_kept {
            Ending::Kept
        } else {
            Ending::Deleted
        };
        self.ending.send_replace(Some(ending));
    }

    /// Waits for a moment until the nodes have heard of the end. On a node that does not answer, the record ends with its TTL.
    pub(crate) async fn ended(mut self, redlock: &Redlock) {
        // A node may hang since its last answer.
        self.copies.settle(redlock, MOMENT, MOMENT / 10).await;
    }
}

/// Writes the record of a lease that no process keeps. Waits until a quorum of nodes has it, and for the others a moment.
pub(crate) async fn write(redlock: &Redlock, plan: &Plan, token: &Token, journal: &Journal) {
    let mut copies = Copies::default();
    for mut copy in Copy::of(plan, token) {
        let journal = journal.clone();
        let node = copy.node.clone();
        let write = async move { copy.write_or_tell(&journal, &mut false).await };
        copies.spawn(&node, write);
    }
    copies.settle(redlock, PATIENCE, MOMENT).await;
}

/// Deletes the record of a lease that no process keeps.
pub(crate) async fn delete(redlock: &Redlock, plan: &Plan, token: &Token) {
    let mut copies = Copies::default();
    for mut copy in Copy::of(plan, token) {
        let node = copy.node.clone();
        copies.spawn(&node, async move { copy.delete().await });
    }
    copies.settle(redlock, MOMENT, MOMENT).await;
}

/// The tasks of the record, one for each node. A task returns whether its node has answered.
#[derive(Debug, Default)]
struct Copies {
    tasks: JoinSet<(String, bool)>,
    /// The nodes whose tasks have not ended.
    open: BTreeSet<String>,
}

impl Copies {
    fn spawn(&mut self, node: &Node, task: impl Future<Output = bool> + Send + 'static) {
        let node = node.name().to_owned();
        self.open.insert(node.clone());
        self.tasks.spawn(async move { (node, task.await) });
    }

    /// Waits up to `patience` until a quorum of nodes have answered. Then waits for each other node that `redlock` has connected to: for
    /// `moment`, or ten times as long as the quorum took. No other node has got a command of the lock from this process.
    async fn settle(&mut self, redlock: &Redlock, patience: Duration, moment: Duration) {
        let (quorum, mut answers) = (quorum(self.tasks.len()), 0);
        let mut decided_at = None;
        // Counts sleeps instead of time: on a busy machine, time passes without any task running.
        for turn in 0..patience.as_millis() {
            // The tasks take their turn first.
            tokio::task::yield_now().await;
            while let Some(ended) = self.tasks.try_join_next() {
                if let Ok((node, has_answered)) = ended {
                    self.open.remove(&node);
                    answers += usize::from(has_answered);
                }
            }
            if answers >= quorum {
                decided_at = decided_at.or(Some(turn));
            }
            let is_over = decided_at.is_some_and(|decided_at| {
                let moment = moment.as_millis().max(decided_at * 10);
                turn >= decided_at + moment || !self.is_due(redlock)
            });
            if self.tasks.is_empty() || is_over {
                return;
            }
            tokio::time::sleep(Duration::from_millis(1)).await;
        }
    }

    /// Whether the lock is connected to a node whose task has not ended.
    fn is_due(&self, redlock: &Redlock) -> bool {
        let mut nodes = redlock.status().into_iter();
        nodes.any(|status| status.is_connected && self.open.contains(&*status.node))
    }
}

/// The record on one node.
struct Copy {
    node: Node,
    key: Arc<[u8]>,
    record_key: Arc<[u8]>,
    token: Token,
    text: Arc<str>,
    connection: Option<Connection>,
}

impl Copy {
    /// One for each node. None if the plan has no owner, and neither has the lease that it adopts.
    fn of(plan: &Plan, token: &Token) -> Vec<Self> {
        let adopted = plan.adopt.as_ref().and_then(LeaseFile::owner);
        let is_told = |owner: Option<&str>| owner.is_some_and(|text| !text.is_empty());
        if !is_told(plan.owner.as_deref()) && !is_told(adopted) {
            return Vec::new();
        }
        // An empty text deletes the record of the earlier owner.
        let text = plan.owner.as_deref().unwrap_or_default();
        // The connect of the lock has accepted these URLs.
        let nodes = plan.nodes.nodes(PATIENCE).unwrap_or_default();
        let (key, record_key) = (plan.key.clone().into(), owner::record_key(&plan.key).into());
        let text = text.into();
        nodes
            .into_iter()
            .map(|node| Self {
                node,
                key: Arc::clone(&key),
                record_key: Arc::clone(&record_key),
                token: *token,
                text: Arc::clone(&text),
                connection: None,
            })
            .collect()
    }

    /// Writes the record again and again, until the lease ends. Returns whether nothing is left to do.
    async fn keep(
        mut self,
        mut ending: watch::Receiver<Option<Ending>>,
        pause: Duration,
        mut may_be_written: bool,
        journal: Journal,
    ) -> bool {
        let (mut next, mut is_told) = (FIRST, false);
        let ending = loop {
            if let Ok(end) = tokio::time::timeout(next, end_of(&mut ending)).await {
                break end;
            }
            tokio::select! {
                biased;
                end = end_of(&mut ending) => break end,
                () = self.connect() => {}
            }
            may_be_written = true;
            self.write_or_tell(&journal, &mut is_told).await;
            next = pause;
        };
        match ending {
            // The TTL of the key is another one now.
            Ending::Kept => self.write_or_tell(&journal, &mut is_told).await,
            Ending::Deleted if may_be_written => self.delete().await,
            Ending::Deleted => true,
        }
    }

    /// Writes the record, and tells once why it cannot be written. Returns whether the node has answered.
    async fn write_or_tell(&mut self, journal: &Journal, is_told: &mut bool) -> bool {
        let text = Arc::clone(&self.text);
        if let Err(why) = self.run(&text).await
            && !core::mem::replace(is_told, true)
        {
            let node = self.node.name().to_owned();
            journal.write(&Event::NoOwner { node, why });
        }
        self.connection.is_some()
    }

    /// Deletes the record, and returns whether the node has answered. If this fails, the record ends with its TTL.
    async fn delete(&mut self) -> bool {
        let _failed = self.run("").await;
        self.connection.is_some()
    }

    /// Connects, unless it is connected. A failure is that of the next command.
    async fn connect(&mut self) {
        if self.connection.is_none() {
            self.connection = self.node.connect().await.ok();
        }
    }

    async fn run(&mut self, text: &str) -> Result<(), String> {
        let mut script = redis::pipe();
        let script = script
            .cmd("EVAL")
            .arg(include_str!("owner_record.lua"))
            .arg(2)
            .arg(&*self.key)
            .arg(&*self.record_key)
            .arg(self.token.as_bytes())
            .arg(text);
        // A connection that fails is not used again.
        let idle = self.connection.take();
        let was_idle = idle.is_some();
        let mut connection = match idle {
            Some(connection) => connection,
            None => self.node.connect().await?,
        };
        let mut replies = connection.ask(script).await;
        if replies.is_err() && was_idle && !connection.was_late() {
            // The node, or something on the way to it, may have closed it because it was idle.
            connection = self.node.connect().await?;
            replies = connection.ask(script).await;
        }
        let replies = replies?;
        self.connection = Some(connection);
        match replies.first() {
            Some(Value::ServerError(error)) => Err(in_words(error)),
            _ => Ok(()),
        }
    }
}

/// Waits for the end of the lease.
async fn end_of(ending: &mut watch::Receiver<Option<Ending>>) -> Ending {
    let end = ending.wait_for(Option::is_some).await;
    end.ok().and_then(|end| *end).unwrap_or(Ending::Deleted)
}
