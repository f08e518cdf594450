//! The task that owns the connection to one node.

use std::collections::VecDeque;
use std::future::{Future, poll_fn};
use std::pin::{Pin, pin};
use std::sync::Arc;
use std::task::{Context, Poll};
use std::time::{Duration, Instant};

use redis::aio::MultiplexedConnection;
use redis::{RedisError, Value};
use redlock_core::Options;
use tokio::time::{Sleep, sleep};

use super::address::Address;
use super::answer;
use super::error::NodeErrorKind;
use super::link::{Link, in_words};
use super::queue::{Call, Queue, Turn};

/// Sends what is queued for one node, and keeps the connection to it.
#[derive(Debug)]
pub(crate) struct Actor {
    address: Address,
    queue: Arc<Queue>,
    patience: Patience,
}

/// How long a node may be silent. Counted while it owes an answer.
#[derive(Debug, Clone, Copy)]
struct Patience {
    /// Acquires and extends whose caller has stopped waiting are not sent any more after this time.
    stale: Duration,
    /// The node is left out until it answers.
    left_out: Duration,
    /// The connection is given up, and a new one made.
    replaced: Duration,
}

/// The delay before another connect: doubles from the first to the last.
const FIRST_BACKOFF: Duration = Duration::from_millis(20);
const LAST_BACKOFF: Duration = Duration::from_secs(1);

impl Actor {
    pub(crate) fn new(address: Address, queue: Arc<Queue>, node_timeout: Duration) -> Self {
        // Longer than any round, and short enough to be added to an instant.
        let node_timeout = node_timeout.min(Options::MAX_TTL);
        let patience = Patience {
            stale: node_timeout,
            left_out: node_timeout * 2,
            replaced: (node_timeout * 8).max(Duration::from_secs(1)),
        };
        Self {
            address,
            queue,
            patience,
        }
    }

    /// Runs until the last handle of the node is gone and everything is sent.
    pub(crate) async fn run(self) {
        let mut backoff = FIRST_BACKOFF;
        loop {
            match Link::connect(&self.address).await {
                Ok((link, introduction)) => {
                    // Before anything is sent: it may be another process by now.
                    self.queue.introduced(introduction);
                    self.queue.promise();
                    let connected_at = Instant::now();
                    match Session::new(&self, link).run().await {
                        End::Closed => return,
                        End::Broken(kind) => self.queue.fail(&kind),
                    }
                    // Not for a server that accepts connections only to close them.
                    if connected_at.elapsed() > LAST_BACKOFF {
                        backoff = FIRST_BACKOFF;
                    }
                }
                Err(kind) => self.queue.fail(&kind),
            }
            if self.pause(backoff).await.is_break() {
                return;
            }
            backoff = backoff.saturating_mul(2).min(LAST_BACKOFF);
        }
    }

    /// Waits before the next connect; ends at once when nobody needs the node any more.
    async fn pause(&self, backoff: Duration) -> std::ops::ControlFlow<()> {
        let mut timer = pin!(sleep(backoff));
        poll_fn(|context| {
            if self.queue.is_closed() {
                return Poll::Ready(std::ops::ControlFlow::Break(()));
            }
            self.queue.register(context.waker());
            timer
                .as_mut()
                .poll(context)
                .map(std::ops::ControlFlow::Continue)
        })
        .await
    }
}

/// The life of one connection.
struct Session<'a> {
    queue: &'a Queue,
    patience: Patience,
    link: Link,
    in_flight: VecDeque<Batch>,
    is_left_out: bool,
    alarm: Pin<Box<Sleep>>,
    alarm_is_set: bool,
}

/// Commands that were sent in one write.
struct Batch {
    calls: Vec<Call>,
    sent_at: Instant,
    answers: Pin<Box<dyn Future<Output = Result<Vec<Value>, RedisError>> + Send>>,
}

enum End {
    /// Nobody needs the node any more.
    Closed,
    /// The connection is of no use any more, for this reason.
    Broken(NodeErrorKind),
}

/// How many commands go out in one write: what Redis reads at once.
const MAX_BATCH: usize = 128;

/// How many writes may be unanswered. Beyond it commands wait in the queue, where they are counted.
const MAX_IN_FLIGHT: usize = 16;

/// How many times in a row it sends and receives before it lets other tasks run.
const MAX_TURNS: u32 = 32;

impl<'a> Session<'a> {
    fn new(actor: &'a Actor, link: Link) -> Self {
        Self {
            queue: &actor.queue,
            patience: actor.patience,
            link,
            in_flight: VecDeque::new(),
            is_left_out: false,
            alarm: Box::pin(sleep(Duration::ZERO)),
            alarm_is_set: false,
        }
    }

    async fn run(mut self) -> End {
        // To a task that has done much in one turn tokio makes every channel look full: then a batch
        // would not be handed over by its first poll, and the next one would overtake it.
        let end = tokio::task::unconstrained(poll_fn(|context| self.poll(context))).await;
        self.rescue_releases();
        end
    }

    fn poll(&mut self, context: &mut Context<'_>) -> Poll<End> {
        for turn in 1.. {
            self.send(context);
            if self.link.driver.as_mut().poll(context).is_ready() {
                return Poll::Ready(End::Broken(NodeErrorKind::Disconnected));
            }
            let received = self.receive(context);
            if let Err(kind) = received {
                return Poll::Ready(End::Broken(kind));
            }
            if received == Ok(0) {
                break;
            }
            if turn == MAX_TURNS {
                context.waker().wake_by_ref();
                break;
            }
        }
        if self.in_flight.is_empty() && self.queue.is_closed() {
            return Poll::Ready(End::Closed);
        }
        self.poll_alarm(context).map(End::Broken)
    }

    /// Hands everything that waits to the connection.
    fn send(&mut self, context: &mut Context<'_>) {
        while self.in_flight.len() < MAX_IN_FLIGHT {
            let too_old = Instant::now().checked_sub(self.patience.stale);
            let Turn::Send(calls) = self.queue.take(MAX_BATCH, too_old, context.waker()) else {
                return;
            };
            let mut batch = Batch {
                answers: answers(self.link.connection.clone(), &calls),
                calls,
                sent_at: Instant::now(),
            };
            // The first poll hands the batch over. What comes of it is looked at in its turn.
            let answered = batch.answers.as_mut().poll(context);
            if let Poll::Ready(result) = answered {
                batch.answers = Box::pin(std::future::ready(result));
            }
            self.in_flight.push_back(batch);
        }
    }

    /// Passes on the answers that are in, and says how many batches were answered.
    fn receive(&mut self, context: &mut Context<'_>) -> Result<usize, NodeErrorKind> {
        let mut count = 0;
        while let Some(batch) = self.in_flight.front_mut()
            && let Poll::Ready(answers) = batch.answers.as_mut().poll(context)
        {
            let answers = answers.map_err(|error| NodeErrorKind::Unreachable(in_words(&error)))?;
            let calls = std::mem::take(&mut batch.calls);
            self.in_flight.pop_front();
            self.pass_on(calls, answers);
            count += 1;
            if std::mem::take(&mut self.is_left_out) {
                self.queue.promise();
            }
        }
        Ok(count)
    }

    fn pass_on(&self, calls: Vec<Call>, answers: Vec<Value>) {
        let mut unknown_scripts = Vec::new();
        let mut answers = answers.into_iter();
        for mut call in calls {
            let answer = match answers.next() {
                Some(Value::ServerError(error))
                    if error.code() == "NOSCRIPT" && call.send_script_text() =>
                {
                    unknown_scripts.push(call);
                    continue;
                }
                Some(value) => answer::read(value),
                None => Err(NodeErrorKind::Unexpected),
            };
            call.answer(answer);
        }
        if !unknown_scripts.is_empty() {
            // SCRIPT FLUSH, or a restart behind a proxy: ahead of what has not been sent yet.
            self.queue.push_front(unknown_scripts.into_iter());
        }
    }

    /// Leaves a silent node out, and ends the session of one that has been silent for too long.
    fn poll_alarm(&mut self, context: &mut Context<'_>) -> Poll<NodeErrorKind> {
        loop {
            let Some(oldest) = self.in_flight.front() else {
                self.alarm_is_set = false;
                return Poll::Pending;
            };
            let silent_for = oldest.sent_at.elapsed();
            if !self.alarm_is_set {
                let next = if self.is_left_out {
                    self.patience.replaced
                } else {
                    self.patience.left_out
                };
                let due = tokio::time::Instant::now() + next.saturating_sub(silent_for);
                self.alarm.as_mut().reset(due);
                self.alarm_is_set = true;
            }
            if self.alarm.as_mut().poll(context).is_pending() {
                return Poll::Pending;
            }
            self.alarm_is_set = false;
            if silent_for >= self.patience.replaced {
                return Poll::Ready(NodeErrorKind::Silent(silent_for));
            }
            if silent_for >= self.patience.left_out && !self.is_left_out {
                self.is_left_out = true;
                self.queue.fail(&NodeErrorKind::Silent(silent_for));
            }
        }
    }

    /// A release may be sent twice, and must not be lost: the next connection sends it again. What
    /// else was on its way is unknown.
    fn rescue_releases(self) {
        let mut releases = Vec::new();
        for mut call in self.in_flight.into_iter().flat_map(|batch| batch.calls) {
            call.answer(Err(NodeErrorKind::Disconnected));
            if call.is_release() {
                releases.push(call);
            }
        }
        self.queue.push_front(releases.into_iter());
    }
}

/// Sends `calls` in one write: a lone command as it is, several as one pipeline.
fn answers(
    mut connection: MultiplexedConnection,
    calls: &[Call],
) -> Pin<Box<dyn Future<Output = Result<Vec<Value>, RedisError>> + Send>> {
    if let [call] = calls {
        let cmd = call.cmd();
        return Box::pin(async move { Ok(vec![connection.send_packed_command(&cmd).await?]) });
    }
    let mut pipeline = redis::Pipeline::with_capacity(calls.len());
    for call in calls {
        pipeline.add_command(call.cmd());
    }
    let count = calls.len();
    Box::pin(async move { connection.send_packed_commands(&pipeline, 0, count).await })
}
