//! The setup of every test.

use core::cell::Cell;
use core::future::poll_fn;
use core::pin::{Pin, pin};
use core::task::{Context, Poll, Waker};
use core::time::Duration;
use std::sync::{Mutex, MutexGuard, PoisonError};

use embassy_futures::join::join;
use embassy_futures::select::{Either, select};
use embassy_time::MockDriver;
use redlock_core::mock::MockClock;
use redlock_core::transport::{Command, Reply, VoteConditions};
use redlock_core::{Clock, Instant, Token, Transport};
use redlock_embassy::{Failure, NodeError, NodeName, TcpNode, TransportError};

use crate::wire::{Server, Wire};

/// With room for two scripts: where the network takes single bytes, the first one is still waiting when the
/// second one comes.
pub(crate) type Node<'w> = TcpNode<'w, Wire<'w>, &'w MockClock, 512>;

pub(crate) const KEY: &[u8] = b"dock-7";
pub(crate) const TTL_MS: u32 = 10_000;

pub(crate) const fn ms(ms: u64) -> Duration {
    Duration::from_millis(ms)
}

/// Time, and whether anything happens in it.
pub(crate) struct World {
    pub(crate) clock: MockClock,
    moves: Cell<u64>,
}

impl Default for World {
    fn default() -> Self {
        Self {
            // To the microsecond: what is known of a node is counted from the end of a tick.
            clock: MockClock::with_resolution(Duration::ZERO),
            moves: Cell::default(),
        }
    }
}

impl World {
    /// No test needs so many.
    const MOVES_MAX: u64 = 1_000_000;

    /// Records that bytes have moved: tasks that wait must be polled again before time advances.
    pub(crate) fn stir(&self) {
        self.moves.set(self.moves.get() + 1);
        assert!(
            self.moves.get() < Self::MOVES_MAX,
            "it goes round in circles"
        );
    }

    /// How much time has passed.
    pub(crate) fn time(&self) -> Duration {
        Duration::from_micros(self.clock.now().as_micros())
    }

    pub(crate) fn now_ms(&self) -> u64 {
        self.clock.now().as_micros() / 1_000
    }

    pub(crate) fn after(&self, by: Duration) -> Instant {
        self.clock.now().saturating_add(by)
    }

    /// Runs `future` to its end. Time passes only when no byte moves.
    pub(crate) fn run<F: Future>(&self, future: F) -> F::Output {
        let mut future = pin!(future);
        self.clock.run(poll_fn(|cx| {
            loop {
                let moves = self.moves.get();
                match future.as_mut().poll(cx) {
                    Poll::Pending if self.moves.get() != moves => {}
                    poll => return poll,
                }
            }
        }))
    }

    /// Runs `future` for this time and drops it if it is not done by then, as a round does.
    pub(crate) fn run_for<F: Future>(&self, time: Duration, future: F) -> Option<F::Output> {
        let deadline = self.after(time);
        match self.run(select(future, self.clock.sleep_until(deadline))) {
            Either::First(output) => Some(output),
            Either::Second(()) => None,
        }
    }

    /// A round: 50 ms.
    pub(crate) fn round(
        &self,
        node: &mut Node<'_>,
        command: &Command<'_>,
    ) -> Option<Result<Reply, Failure<NodeName, TransportError>>> {
        let executed = self.run_for(ms(50), node.execute(command));
        executed.map(|result| result.map_err(|error| *error.failure()))
    }

    /// The reply to `command`, or the error.
    pub(crate) fn execute(
        &self,
        node: &mut Node<'_>,
        command: &Command<'_>,
    ) -> Result<Reply, Failure<NodeName, TransportError>> {
        let result = self.run(node.execute(command));
        result.map_err(|error: NodeError| *error.failure())
    }

    /// The same, while `event` happens.
    pub(crate) fn execute_during(
        &self,
        event: impl Future<Output = ()>,
        node: &mut Node<'_>,
        command: &Command<'_>,
    ) -> Result<Reply, Failure<NodeName, TransportError>> {
        let (result, ()) = self.run(join(node.execute(command), event));
        result.map_err(|error| *error.failure())
    }
}

/// Polls `future` up to `polls` times and drops it. Time stands still.
pub(crate) fn poll_times<F: Future>(polls: usize, future: F) -> Option<F::Output> {
    let mut future = pin!(future);
    for _ in 0..polls {
        if let Poll::Ready(output) = poll_once(future.as_mut()) {
            return Some(output);
        }
    }
    None
}

/// Whether it is the result of a release whose acquire was never sent.
pub(crate) fn is_nothing_to_release(result: Option<Result<Reply, NodeError>>) -> bool {
    result.is_some_and(|result| {
        result.is_err_and(|error| matches!(error.failure(), Failure::NothingToRelease))
    })
}

pub(crate) fn poll_once<F: Future>(future: Pin<&mut F>) -> Poll<F::Output> {
    future.poll(&mut Context::from_waker(Waker::noop()))
}

/// Sets the clock of embassy to zero. There is only one in a program, so the tests that use it take turns.
pub(crate) fn embassy_time() -> MutexGuard<'static, ()> {
    static TURN: Mutex<()> = Mutex::new(());

    let turn = TURN.lock().unwrap_or_else(PoisonError::into_inner);
    MockDriver::get().reset();
    turn
}

/// What most tests begin with. It lives until the process ends, so that every test makes it in one line.
pub(crate) type Setup = (&'static World, &'static Server<'static>, Node<'static>);

/// A server in a world of its own.
pub(crate) fn start() -> (&'static World, &'static Server<'static>) {
    let world = Box::leak(Box::<World>::default());
    (world, Box::leak(Box::new(Server::new(world))))
}

/// The same, and a client that has not connected.
pub(crate) fn unconnected() -> Setup {
    let (world, server) = start();
    (world, server, server.node())
}

/// The same, and the client is connected.
pub(crate) fn connected() -> Setup {
    let (world, server) = start();
    (world, server, server.connected())
}

/// The same, and the client has the key under [`A`].
pub(crate) fn holding() -> Setup {
    let (world, server, mut node) = connected();
    assert_eq!(world.execute(&mut node, &acquire(A)), Ok(ACQUIRED));
    (world, server, node)
}

/// The token of which every byte is `letter`.
pub(crate) const fn token(letter: u8) -> Token {
    Token::from_bytes([letter; Token::LEN])
}

pub(crate) const A: &Token = &token(b'a');
pub(crate) const B: &Token = &token(b'b');
pub(crate) const C: &Token = &token(b'c');

/// What a node answers to an acquire of a plain lock.
pub(crate) const ACQUIRED: Reply = Reply::Acquired(None);
pub(crate) const HELD: Reply = Reply::Held(None);

pub(crate) const fn acquire(token: &Token) -> Command<'_> {
    acquire_by(VoteConditions::NONE, token)
}

pub(crate) const fn acquire_of<'c>(key: &'c [u8], token: &'c Token) -> Command<'c> {
    Command::acquire(key, token, TTL_MS, VoteConditions::NONE)
}

pub(crate) const fn acquire_by(conditions: VoteConditions, token: &Token) -> Command<'_> {
    Command::acquire(KEY, token, TTL_MS, conditions)
}

pub(crate) const fn extend(token: &Token) -> Command<'_> {
    Command::extend(KEY, token, TTL_MS)
}

pub(crate) const fn release(token: &Token) -> Command<'_> {
    release_of(KEY, token)
}

pub(crate) const fn release_of<'c>(key: &'c [u8], token: &'c Token) -> Command<'c> {
    Command::release(key, token)
}
