//! Several tasks compete for one lock, with each other and with a program on the host.
//!
//! The lock protects a count on the control server, which is read and written in two commands, and the name of its
//! user. If two uses overlap, counts are lost, and each user sees the name of the other.

mod resource;
mod tally;

use core::cell::Cell;

use embassy_executor::Spawner;
use embassy_sync::blocking_mutex::raw::NoopRawMutex;
use embassy_sync::channel::Channel;
use embassy_sync::mutex::Mutex;
use embassy_time::Timer;
use redlock_embassy::{AcquireError, Clock, Lease};
use static_cell::StaticCell;

use super::arguments::{Arguments, Key};
use super::control::Control;
use super::{Failure, finish};
use crate::lock::Lock;
use crate::{entropy, executor};

use tally::Tally;

pub(crate) async fn run(
    spawner: Spawner,
    lock: &'static mut Lock,
    control: Control,
    arguments: &Arguments,
) -> Result<(), Failure> {
    static CONTEST: StaticCell<Contest> = StaticCell::new();

    let contest: &Contest = CONTEST.init(Contest {
        lock: Mutex::new(lock),
        control: Mutex::new(control),
        key: arguments.key.clone(),
        left: Cell::new(arguments.acquisitions),
        tally: Tally::default(),
        ends: Channel::new(),
    });
    for name in NAMES {
        executor::spawn(spawner, worker(name, contest));
    }
    for _ in NAMES {
        contest.ends.receive().await?;
    }
    contest.tally.print();
    let mut lock = contest.lock.lock().await;
    let mut control = contest.control.lock().await;
    finish(&mut lock, &mut control).await
}

/// What the tasks share.
struct Contest {
    /// Locked for one operation at a time, and never while a task holds the lease or waits for it: a task that releases
    /// must not wait for tasks that acquire.
    lock: Mutex<NoopRawMutex, &'static mut Lock>,
    control: Mutex<NoopRawMutex, Control>,
    key: Key,
    /// How often the lock is still to be taken.
    left: Cell<u32>,
    tally: Tally,
    ends: Channel<NoopRawMutex, Result<(), Failure>, WORKERS>,
}

const NAMES: [&str; WORKERS] = ["firmware-1", "firmware-2", "firmware-3"];
const WORKERS: usize = 3;

#[embassy_executor::task(pool_size = WORKERS)]
async fn worker(name: &'static str, contest: &'static Contest) {
    let end = contest.work(name).await;
    contest.ends.send(end).await;
}

impl Contest {
    async fn work(&self, name: &str) -> Result<(), Failure> {
        while let Some(left) = self.left.get().checked_sub(1) {
            self.left.set(left);
            let mut lease = self.acquire().await?;
            if let Some(fence) = lease.fence() {
                resource::show(&self.control, fence).await?;
            }
            resource::use_alone(&self.control, name).await?;
            if left.is_multiple_of(EXTEND_EVERY) {
                self.extend(&mut lease).await;
                resource::use_alone(&self.control, name).await?;
            }
            self.release(lease).await;
            pause().await;
        }
        Ok(())
    }

    /// Tries until the lock is acquired. The host limits the time of the whole run.
    async fn acquire(&self) -> Result<Lease<&str>, Failure> {
        loop {
            let result = self.lock.lock().await.try_acquire(self.key.as_str()).await;
            match result {
                Ok(lease) => {
                    self.tally.acquired.add_one();
                    return Ok(lease);
                }
                Err(AcquireError::Held(_)) => self.tally.held.add_one(),
                Err(AcquireError::Unreachable(_)) => self.tally.unreachable.add_one(),
                Err(error) => return Err(error.into()),
            }
            pause().await;
        }
    }

    async fn extend(&self, lease: &mut Lease<&str>) {
        match self.lock.lock().await.extend(lease).await {
            Ok(()) => self.tally.extended.add_one(),
            Err(_) => self.tally.not_extended.add_one(),
        }
    }

    async fn release(&self, lease: Lease<&str>) {
        let mut lock = self.lock.lock().await;
        // The lease must last until the work is done.
        if !lease.is_valid(lock.clock().now()) {
            self.tally.outlived.add_one();
        }
        // Nodes without the key are not a loss: in a split vote they never had it.
        lock.release(lease).await;
    }
}

/// The lease is extended and used again once in this number of acquisitions.
const EXTEND_EVERY: u32 = 8;

/// Pauses for up to 16 ms, so that other clients get the lock.
async fn pause() {
    let mut random = [0; 2];
    entropy::fill(&mut random);
    let micros = u16::from_ne_bytes(random) / 4;
    Timer::after_micros(micros.into()).await;
}
