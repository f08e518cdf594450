//! A client: a process that takes the lock again and again, in its own way, and says so.

use std::cell::Cell;
use std::io::{self, BufRead, Write};
use std::path::PathBuf;
use std::process::ExitCode;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

use redlock_core::{Clock, Instant};
use redlock_std::{
    AcquireError, Denial, ExtendError, Guard, HoldError, LossCause, Outcome, Redlock, SystemClock,
};

use super::gate::Gate;
use super::lock::Lock;
use super::random::Random;
use super::resource::Resource;
use super::said::{Flaw, Refusal, Said};

/// Takes the lock again and again until its standard input ends.
#[derive(Debug, Clone, clap::Args)]
pub(super) struct Arguments {
    #[arg(long, value_enum)]
    pub(super) habit: Habit,
    /// The longest TTL of any client.
    #[arg(long)]
    pub(super) ttl_ms: u32,
    #[arg(long)]
    pub(super) fenced: bool,
    #[arg(long)]
    pub(super) seed: u64,
    #[arg(long)]
    pub(super) voice: usize,
    #[arg(long)]
    pub(super) resource: PathBuf,
    pub(super) nodes: Vec<String>,
}

/// The way in which a client uses the lock.
#[derive(Debug, Clone, Copy, PartialEq, Eq, clap::ValueEnum)]
pub(super) enum Habit {
    /// `acquire`, `release`, at once or at the end of the lease.
    Plain,
    /// `keep_alive`, for longer than a TTL.
    Keeping,
    /// `hold`.
    Holding,
    /// `extend` by hand, and a guard that is dropped.
    Extending,
    /// Waits for the end of its lease instead of giving it back.
    Lapsing,
    /// Tries once, or is cancelled while it waits.
    Hasty,
}

impl Habit {
    pub(super) const ALL: [Self; 6] = [
        Self::Plain,
        Self::Keeping,
        Self::Holding,
        Self::Extending,
        Self::Lapsing,
        Self::Hasty,
    ];

    pub(super) const fn name(self) -> &'static str {
        match self {
            Self::Plain => "plain",
            Self::Keeping => "keeping",
            Self::Holding => "holding",
            Self::Extending => "extending",
            Self::Lapsing => "lapsing",
            Self::Hasty => "hasty",
        }
    }

    /// Short ones end while a client is paused or cut off, and have to be extended while the work runs.
    fn ttl(self, longest: Duration) -> Duration {
        match self {
            Self::Plain | Self::Extending => longest,
            Self::Hasty => longest / 2,
            Self::Keeping | Self::Holding | Self::Lapsing => longest / 4,
        }
    }
}

/// The lock that all clients want.
pub(super) const KEY: &str = "chaos";

/// Does what a client does, until the standard input ends.
pub(super) fn run(arguments: &Arguments) -> ExitCode {
    match begin(arguments) {
        Ok(()) => ExitCode::SUCCESS,
        Err(error) => {
            drop(writeln!(
                io::stderr(),
                "{}: {error}",
                arguments.habit.name()
            ));
            ExitCode::FAILURE
        }
    }
}

fn begin(arguments: &Arguments) -> Result<(), Box<dyn std::error::Error>> {
    let longest = Duration::from_millis(arguments.ttl_ms.into());
    let ttl = arguments.habit.ttl(longest);
    let lock = if arguments.fenced {
        Lock::Fenced
    } else {
        Lock::Plain
    };
    let options = lock.options(ttl, longest)?;
    let long = lock.options(longest, longest)?;
    let runtime = tokio::runtime::Builder::new_current_thread()
        .enable_all()
        .build()?;
    let orders = Orders::listen();
    runtime.block_on(async {
        let client = Client {
            redlock: Redlock::connect(&arguments.nodes, options)?,
            ttl,
        };
        let mut user = User {
            resource: Resource::open(&arguments.resource, arguments.voice)?,
            gate: match lock {
                Lock::Plain => None,
                Lock::Fenced => Some(Gate::open(&arguments.resource)?),
            },
            random: Random::new(arguments.seed),
        };
        while !orders.stop.load(Ordering::Relaxed) {
            client.take_turn(arguments.habit, &mut user).await?;
            user.rest(ttl / 50).await;
        }
        // The last lease is a long one that is given back: a key that stayed would be seen.
        let last = Client {
            redlock: client.redlock.with_options(long),
            ttl: longest,
        };
        while !last.plain(&mut user, false).await? {}
        say(Said::Idle { at: now() });
        // Its nodes still get what is in their queues.
        while !orders.end.load(Ordering::Relaxed) {
            tokio::time::sleep(Duration::from_millis(2)).await;
        }
        Ok(())
    })
}

struct Client {
    redlock: Redlock,
    ttl: Duration,
}

impl Client {
    async fn take_turn(&self, habit: Habit, user: &mut User) -> io::Result<()> {
        match habit {
            Habit::Plain => {
                let stays = user.random.one_in(4);
                self.plain(user, stays).await.map(drop)
            }
            Habit::Keeping => self.keeping(user).await,
            Habit::Holding => self.holding(user).await,
            Habit::Extending => self.extending(user).await,
            Habit::Lapsing => self.lapsing(user).await,
            Habit::Hasty => self.hasty(user).await,
        }
    }

    /// Whether it got the lock. If it `stays`, it uses the whole of its lease and asks no node meanwhile: it does not
    /// see what they forget.
    async fn plain(&self, user: &mut User, stays: bool) -> io::Result<bool> {
        let Some(guard) = self.acquire().await else {
            return Ok(false);
        };
        user.work(&guard, self.ttl / 50).await?;
        if stays {
            let left = guard.remaining().saturating_sub(self.ttl / 20);
            tokio::time::sleep(left).await;
            user.work(&guard, self.ttl / 50).await?;
        }
        say_lets_go(&guard);
        guard.release().await;
        Ok(true)
    }

    async fn keeping(&self, user: &mut User) -> io::Result<()> {
        let Some(mut guard) = self.acquire().await else {
            return Ok(());
        };
        guard.keep_alive();
        let steps = 1 + user.random.number() % 16;
        for _ in 0..steps {
            let lost = tokio::select! {
                biased;
                cause = guard.lost() => Some(cause),
                done = user.work(&guard, self.ttl / 4) => {
                    done?;
                    None
                }
            };
            if let Some(cause) = lost {
                say_loss(&cause);
                break;
            }
        }
        say_lets_go(&guard);
        guard.release().await;
        Ok(())
    }

    async fn holding(&self, user: &mut User) -> io::Result<()> {
        let asked = say_wants();
        let result = self.redlock.hold(KEY, async |guard| {
            self.say_acquired(guard, asked);
            // The work is dropped when the lock is lost, and what was held is given back right then.
            let _farewell = Farewell(guard);
            let steps = 1 + user.random.number() % 16;
            for _ in 0..steps {
                user.work(guard, self.ttl / 4).await?;
            }
            Ok(())
        });
        match result.await {
            Ok(done) => return done,
            Err(HoldError::NotAcquired(error)) => say_refusal(&error),
            Err(HoldError::Lost(cause)) => say_loss(&cause),
            Err(_) => {}
        }
        Ok(())
    }

    async fn extending(&self, user: &mut User) -> io::Result<()> {
        let Some(mut guard) = self.acquire().await else {
            return Ok(());
        };
        for _ in 0..1 + user.random.number() % 3 {
            user.work(&guard, self.ttl / 40).await?;
            match guard.extend().await {
                Ok(()) => say(Said::Extended {
                    valid_until: guard.valid_until(),
                }),
                Err(ExtendError::Lost(_)) => {
                    say(Said::Lost { at: now() });
                    break;
                }
                Err(error) if error.is_retryable() => {}
                Err(_) => break,
            }
        }
        user.work(&guard, self.ttl / 40).await?;
        say_lets_go(&guard);
        drop(guard);
        Ok(())
    }

    async fn lapsing(&self, user: &mut User) -> io::Result<()> {
        if let Some(guard) = self.acquire().await {
            user.work(&guard, self.ttl / 4).await?;
            guard.lost().await;
            say_lets_go(&guard);
            // Until the nodes have dropped it too: what this guard releases may be another's by then.
            tokio::time::sleep(self.ttl / 8).await;
            drop(guard);
        }
        Ok(())
    }

    async fn hasty(&self, user: &mut User) -> io::Result<()> {
        let asked = say_wants();
        let guard = if user.random.one_in(2) {
            self.redlock.try_acquire(KEY).await
        } else {
            let patience = user.random.between(Duration::ZERO, self.ttl / 40);
            match tokio::time::timeout(patience, self.redlock.acquire(KEY)).await {
                Ok(result) => result,
                Err(_) => {
                    let why = Refusal::GaveUp;
                    say(Said::Refused { at: now(), why });
                    return Ok(());
                }
            }
        };
        match guard {
            Ok(guard) => {
                self.say_acquired(&guard, asked);
                user.work(&guard, self.ttl / 100).await?;
                say_lets_go(&guard);
                if user.random.one_in(2) {
                    guard.release().await;
                }
            }
            Err(error) => say_refusal(&error),
        }
        Ok(())
    }

    fn say_acquired(&self, guard: &Guard, asked: Instant) {
        let (at, valid_until) = (now(), guard.valid_until());
        say(Said::Acquired { at, valid_until });
        if let Some(fence) = guard.fence() {
            // From then on the validity is counted, less a tick of the clock.
            let sent = valid_until.saturating_sub(self.redlock.options().validity());
            let fence = fence.as_u64();
            say(Said::Fenced { asked, sent, fence });
        }
    }

    async fn acquire(&self) -> Option<Guard> {
        let asked = say_wants();
        match self.redlock.acquire(KEY).await {
            Ok(guard) => {
                self.say_acquired(&guard, asked);
                Some(guard)
            }
            Err(error) => {
                say_refusal(&error);
                None
            }
        }
    }
}

/// Who uses what the lock protects.
struct User {
    resource: Resource,
    /// Of a fenced lock.
    gate: Option<Gate>,
    random: Random,
}

impl User {
    /// Uses the resource, and takes up to `longest` for it. Looks at the lease before each half, as one
    /// should: a process that was paused must not go on.
    async fn work(&mut self, guard: &Guard, longest: Duration) -> io::Result<()> {
        if !guard.is_valid() {
            return Ok(());
        }
        if self.gate.is_some() {
            return self.work_behind_the_gate(guard, longest).await;
        }
        let found = self.resource.read()?;
        self.rest(longest).await;
        if guard.is_valid() {
            let used = self.resource.write(found)?;
            say(Said::Used {
                at: now(),
                valid_until: guard.valid_until(),
                used,
            });
        }
        Ok(())
    }

    /// Looks at no lease in the middle: who is too late has to be turned away. The fence is shown before
    /// anything is read.
    async fn work_behind_the_gate(&mut self, guard: &Guard, longest: Duration) -> io::Result<()> {
        let found = self.pass(guard, |resource| resource.read())?;
        self.rest(longest).await;
        let Some(found) = found else {
            return Ok(());
        };
        if let Some(used) = self.pass(guard, |resource| resource.write(found))? {
            say(Said::Used {
                at: now(),
                valid_until: guard.valid_until(),
                used,
            });
        }
        Ok(())
    }

    /// What `act` comes to; none when the gate did not let it in.
    fn pass<T>(
        &mut self,
        guard: &Guard,
        act: impl FnOnce(&mut Resource) -> io::Result<T>,
    ) -> io::Result<Option<T>> {
        let (Some(gate), Some(fence)) = (&self.gate, guard.fence()) else {
            return Err(io::Error::other("a lease without a fence"));
        };
        let done = gate.admit(fence, || act(&mut self.resource))?;
        if done.is_none() {
            say(Said::TurnedAway {
                at: now(),
                valid_until: guard.valid_until(),
            });
        }
        Ok(done)
    }

    async fn rest(&mut self, longest: Duration) {
        tokio::time::sleep(self.random.between(Duration::ZERO, longest)).await;
    }
}

/// Lets go when it is dropped.
struct Farewell<'a>(&'a Guard);

impl Drop for Farewell<'_> {
    fn drop(&mut self) {
        say_lets_go(self.0);
    }
}

/// When it said so.
fn say_wants() -> Instant {
    let at = now();
    say(Said::Wants { at });
    at
}

fn say_lets_go(guard: &Guard) {
    say(Said::LetsGo {
        at: now(),
        valid_until: guard.valid_until(),
    });
}

fn say_refusal(error: &AcquireError) {
    let why = if error.is_held() {
        Refusal::Held
    } else if error.is_unreachable() {
        Refusal::Unreachable
    } else {
        Refusal::TooLate
    };
    say(Said::Refused { at: now(), why });
    let flaws = flaws(error);
    for why in Flaw::ALL {
        let count = flaws.iter().filter(|flaw| **flaw == why).count();
        let nodes = u64::try_from(count).unwrap_or(u64::MAX);
        if nodes > 0 {
            say(Said::Denied { why, nodes });
        }
    }
}

/// Why nodes had no vote.
fn flaws(error: &AcquireError) -> Vec<Flaw> {
    let AcquireError::Nodes(error) = error else {
        return Vec::new();
    };
    let outcomes = error.report().map(|report| report.outcomes());
    let flaws = outcomes.into_iter().flatten().filter_map(|outcome| {
        let Outcome::Failed(error) = outcome else {
            return None;
        };
        match error.denial()? {
            Denial::Restarted { .. } => Some(Flaw::Restarted),
            Denial::Quarantined { .. } => Some(Flaw::Quarantined),
            Denial::Unguarded { .. } => Some(Flaw::Unguarded),
            Denial::Replica => Some(Flaw::Replica),
            Denial::MayEvict => Some(Flaw::MayEvict),
            _ => None,
        }
    });
    flaws.collect()
}

fn say_loss(cause: &LossCause) {
    if let LossCause::Lost(_) = cause {
        say(Said::Lost { at: now() });
    }
}

/// One write for a line, so that a client that is killed leaves no part of one.
fn say(said: Said) {
    thread_local! {
        static IS_HEARD: Cell<bool> = const { Cell::new(true) };
    }
    // If the program does not listen any more, this process is about to end.
    if IS_HEARD.get() {
        let line = format!("{said}\n");
        IS_HEARD.set(io::stdout().write_all(line.as_bytes()).is_ok());
    }
}

fn now() -> Instant {
    SystemClock.now()
}

/// What is to be read on the standard input: a line to stop with, and then the end.
#[derive(Debug, Clone, Default)]
struct Orders {
    stop: Arc<AtomicBool>,
    end: Arc<AtomicBool>,
}

impl Orders {
    fn listen() -> Self {
        let orders = Self::default();
        let heard = orders.clone();
        std::thread::spawn(move || {
            let mut lines = io::stdin().lock().lines();
            drop(lines.next());
            heard.stop.store(true, Ordering::Relaxed);
            for _ in lines {}
            heard.end.store(true, Ordering::Relaxed);
        });
        orders
    }
}
