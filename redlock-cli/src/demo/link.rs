//! The link of one worker to one node, with its own delays.

use core::cell::Cell;
use core::time::Duration;
use std::rc::Rc;

use redlock_core::mock::{MockError, MockName, MockNode};
use redlock_core::transport::{Command, OwnedCommand, Reply, RunId};
use redlock_core::{Failure, NodeError, NodeErrorOf, Token, Transport};
use redlock_std::SystemClock;
use tokio::sync::{mpsc, oneshot};
use tokio::task::spawn_local;
use tokio::time::sleep;

use super::random::Random;

/// Carries commands to a node in order, and replies back, each with a random delay.
///
/// A node in memory has the same delay for all clients, so every node would see their commands in the same order. With
/// different links, the nodes disagree on which client was first, as in a real network: this is what a quorum is for.
#[derive(Debug)]
pub(crate) struct Link {
    node: Rc<Node>,
    parcels: mpsc::UnboundedSender<Parcel>,
    /// How many commands the node has not answered.
    outstanding: Rc<Cell<usize>>,
    room: usize,
    /// The token of an acquire that was not sent because there was no room: there is nothing to release.
    unsent: Option<Token>,
}

/// A node of the demo: in memory, in real time.
pub(crate) type Node = MockNode<SystemClock>;

/// A command in transit.
struct Parcel {
    command: OwnedCommand<Vec<u8>>,
    reply: oneshot::Sender<Result<Reply, NodeErrorOf<Link>>>,
}

impl Link {
    /// How many clients a node has room for, with four commands in flight for each.
    pub(crate) const MOST: usize = 16;

    /// How many commands a node takes before it answers.
    const ROOM: usize = 64;

    /// One of `clients` links to `node`, which share its room.
    pub(crate) fn new(node: Rc<Node>, clients: usize, random: Random) -> Self {
        let (parcels, queue) = mpsc::unbounded_channel();
        let outstanding = Rc::default();
        spawn_local(carry(
            Rc::clone(&node),
            queue,
            Rc::clone(&outstanding),
            random,
        ));
        Self {
            node,
            parcels,
            outstanding,
            room: Self::ROOM / clients,
            unsent: None,
        }
    }

    fn unanswered(&self) -> NodeErrorOf<Self> {
        NodeError::new(self.name(), Failure::TimedOut(Duration::ZERO))
    }

    /// Whether the command may be sent. An acquire may be sent only if there is room for its release: otherwise it could
    /// block the key for a whole TTL after a node that hangs has recovered.
    fn admits(&mut self, command: &Command<'_>) -> bool {
        let is_full = self.outstanding.get() + 2 > self.room;
        let is_admitted = !is_full || !command.is_acquire();
        if !is_admitted {
            self.unsent = Some(*command.token);
        }
        is_admitted
    }
}

impl Transport for Link {
    type Name = MockName;
    type Error = MockError;

    fn name(&self) -> MockName {
        (&*self.node).name()
    }

    async fn execute(&mut self, command: &Command<'_>) -> Result<Reply, NodeErrorOf<Self>> {
        if !self.admits(command) {
            return Err(self.unanswered());
        }
        if command.is_release() && self.unsent.as_ref() == Some(command.token) {
            return Err(NodeError::new(self.name(), Failure::NothingToRelease));
        }
        let (reply, answer) = oneshot::channel();
        let parcel = Parcel {
            command: OwnedCommand::from(command),
            reply,
        };
        self.outstanding.set(self.outstanding.get() + 1);
        // Never fails: the queue is read for as long as the link lives.
        let _unsent = self.parcels.send(parcel);
        answer.await.unwrap_or_else(|_| Err(self.unanswered()))
    }

    fn run_id(&self) -> Option<RunId> {
        (&*self.node).run_id()
    }
}

async fn carry(
    node: Rc<Node>,
    mut queue: mpsc::UnboundedReceiver<Parcel>,
    outstanding: Rc<Cell<usize>>,
    mut random: Random,
) {
    while let Some(Parcel { command, reply }) = queue.recv().await {
        let (there, back) = (delay(&mut random), delay(&mut random));
        travel(there).await;
        let (node, outstanding) = (Rc::clone(&node), Rc::clone(&outstanding));
        let mut call = Box::pin(async move {
            let result = (&*node).execute(&command.command()).await;
            outstanding.set(outstanding.get() - 1);
            travel(back).await;
            // The command takes effect even if no caller waits for the reply.
            let _unread = reply.send(result);
        });
        // The first poll hands the command to the node, before the next one is on its way.
        tokio::select! {
            biased;
            () = &mut call => {}
            () = core::future::ready(()) => { spawn_local(call); }
        }
    }
}

/// Most commands arrive at once, faster than the resolution of tokio's timers. Some take milliseconds.
fn delay(random: &mut Random) -> Duration {
    if random.one_in(12) {
        random.between_ms(1, 2)
    } else {
        Duration::ZERO
    }
}

async fn travel(delay: Duration) {
    if !delay.is_zero() {
        sleep(delay).await;
    }
}
