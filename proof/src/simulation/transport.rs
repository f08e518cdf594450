//! What a client of the lock is given: a transport for each node, and a clock.

use core::fmt;
use core::future::poll_fn;
use core::task::{Context, Poll};
use core::time::Duration;
use std::rc::Rc;

use redlock_core::transport::{Call as LineCall, Command, Mailbox, Reply, RunId};
use redlock_core::{Clock, Failure, Instant, NodeError, NodeErrorOf, Transport};

use super::assumption::Assumption;
use super::history::{Message, Task};
use super::link::Handed;
use super::place::Route;
use super::slab::Name;
use super::state::PendingCall;
use super::world::World;

/// The way of one task to one node.
#[derive(Debug, Clone)]
pub(crate) struct Wire {
    world: Rc<World>,
    task: Task,
    node: usize,
}

impl Wire {
    pub(crate) const fn new(world: Rc<World>, task: Task, node: usize) -> Self {
        Self { world, task, node }
    }

    /// Another task of the same client takes it over.
    pub(crate) const fn belongs_to(&mut self, task: Task) {
        self.task = task;
    }

    const fn error(&self, failure: Failure<usize, WireError>) -> NodeErrorOf<Self> {
        NodeError::new(self.node, failure)
    }
}

impl Transport for Wire {
    type Name = usize;
    type Error = WireError;

    fn name(&self) -> usize {
        self.node
    }

    async fn execute(&mut self, command: &Command<'_>) -> Result<Reply, NodeErrorOf<Self>> {
        let command = command.at_node(self.mailbox());
        let message = self.world.look().message_of(&command);
        let message = self.world.look().vouching(self.task.client, message);
        let name = self.world.look().calls.insert(PendingCall::default());
        let mut call = Call {
            wire: self,
            message,
            name,
            is_sent: false,
        };
        poll_fn(|context| call.poll(context)).await
    }

    fn mailbox(&self) -> Option<Mailbox> {
        self.world.look().mailbox(self.task, self.node)
    }

    async fn called(&mut self, key: &[u8]) -> LineCall {
        poll_fn(|context| {
            let mut state = self.world.look();
            state.take_call(self.task, self.node, key, context.waker())
        })
        .await
    }

    fn run_id(&self) -> Option<RunId> {
        let Task { client, .. } = self.task;
        let route = Route {
            client,
            node: self.node,
        };
        let mut state = self.world.look();
        // Without it, the client does not notice that two names are one server.
        if state.fails(Assumption::Duplicates) {
            return None;
        }
        state.link(route).admission.run_id()
    }
}

/// One call; dropped, it leaves its command on the way.
struct Call<'a> {
    wire: &'a Wire,
    message: Message,
    name: Name,
    is_sent: bool,
}

impl Call<'_> {
    fn poll(&mut self, context: &Context<'_>) -> Poll<Result<Reply, NodeErrorOf<Wire>>> {
        let (task, node) = (self.wire.task, self.wire.node);
        let mut state = self.wire.world.look();
        state.touch(task.client);
        if state.is_endless() {
            // Whoever calls again and again without end is stopped here.
            return Poll::Pending;
        }
        if !self.is_sent {
            match state.hand_over(task, node, self.message, self.name) {
                Handed::Sent => self.is_sent = true,
                Handed::NotYet => (),
                Handed::Refused => {
                    return Poll::Ready(Err(self
                        .wire
                        .error(Failure::Transport(WireError::Refused))));
                }
                Handed::Denied(denial) => {
                    return Poll::Ready(Err(self.wire.error(Failure::Denied(denial))));
                }
            }
        }
        let Some(pending) = state.calls.get_mut(self.name) else {
            return Poll::Pending;
        };
        if let Some(result) = pending.result.take() {
            return Poll::Ready(match result {
                Ok(answer) => answer.map_err(|denial| self.wire.error(Failure::Denied(denial))),
                Err(()) => Err(self.wire.error(Failure::Transport(WireError::Reset))),
            });
        }
        pending.waker = Some(context.waker().clone());
        Poll::Pending
    }
}

impl Drop for Call<'_> {
    fn drop(&mut self) {
        self.wire.world.look().calls.remove(self.name);
    }
}

/// What went wrong on the way to a node.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum WireError {
    Refused,
    Reset,
}

impl fmt::Display for WireError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{self:?}")
    }
}

impl core::error::Error for WireError {}

/// The clock of one client.
#[derive(Debug, Clone)]
pub(crate) struct LocalClock {
    world: Rc<World>,
    client: usize,
}

impl LocalClock {
    pub(crate) const fn new(world: Rc<World>, client: usize) -> Self {
        Self { world, client }
    }
}

impl Clock for LocalClock {
    fn now(&self) -> Instant {
        let state = self.world.look();
        let at = state.moment_of(self.client);
        Instant::from_micros(state.processes[self.client].clock.reads(at))
    }

    fn resolution(&self) -> Duration {
        let state = self.world.look();
        if state.fails(Assumption::Resolution) {
            return Duration::ZERO;
        }
        state.processes[self.client].clock.resolution()
    }

    async fn sleep_until(&self, deadline: Instant) {
        let is_long = self.world.look().fails(Assumption::LongTimer);
        let mut sleep = Sleep {
            clock: self,
            began_at: is_long.then(|| self.now()),
            timer: None,
        };
        poll_fn(|context| sleep.poll(deadline, context)).await;
    }
}

/// How long clients sleep that sleep for long.
const LONG: Duration = Duration::from_secs(2);

struct Sleep<'a> {
    clock: &'a LocalClock,
    /// When it began, if it lasts for too long.
    began_at: Option<Instant>,
    timer: Option<Name>,
}

impl Sleep<'_> {
    fn poll(&mut self, deadline: Instant, context: &Context<'_>) -> Poll<()> {
        let deadline = match self.began_at {
            Some(began_at) => deadline.max(began_at.saturating_add(LONG)),
            None => deadline,
        };
        if self.clock.now() >= deadline {
            return Poll::Ready(());
        }
        let waker = context.waker().clone();
        self.clock
            .world
            .look()
            .set_timer(self.clock.client, deadline, &mut self.timer, waker);
        Poll::Pending
    }
}

impl Drop for Sleep<'_> {
    fn drop(&mut self) {
        if let Some(timer) = self.timer {
            self.clock.world.look().timers.remove(timer);
        }
    }
}
