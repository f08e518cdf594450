//! Two tasks with a key each, over one set of sockets, beside clients on the host that want the same keys.

use core::cell::Cell;

use embassy_futures::join::join;
use embassy_sync::blocking_mutex::raw::NoopRawMutex;
use embassy_sync::mutex::Mutex;
use embassy_time::Timer;
use semihosting::println;

use super::arguments::Arguments;
use super::control::Control;
use super::{Failure, finish};
use crate::lock::SharedLock;

const KEYS: [&str; 2] = ["dock-a", "dock-b"];
/// How many clients are at each dock, on the control server.
const VISITORS: [&str; 2] = ["visitors-a", "visitors-b"];

pub(crate) async fn run(
    lock: &'static SharedLock,
    control: Control,
    arguments: &Arguments,
) -> Result<(), Failure> {
    let share = Share {
        lock,
        control: Mutex::new(control),
        holds: [const { Cell::new(false) }; 2],
        overlaps: Cell::new(0),
    };
    for _ in 0..arguments.acquisitions {
        share.holds.iter().for_each(|holds| holds.set(false));
        let (first, second) = join(share.hold_together(0), share.hold_together(1)).await;
        first.and(second)?;
    }
    println!("overlaps={}", share.overlaps.get());
    println!("held_together={}", arguments.acquisitions);
    share.control.lock().await.expect_order("wait").await?;
    let (waited, used) = join(share.wait(), share.use_meanwhile()).await;
    waited.and(used)?;
    println!("waited=1");
    let mut turn = lock.turn().await;
    finish(&mut turn, &mut *share.control.lock().await).await
}

struct Share {
    lock: &'static SharedLock,
    control: Mutex<NoopRawMutex, Control>,
    /// Which task holds its key.
    holds: [Cell<bool>; 2],
    /// How often a client of the host was at a dock at the same time.
    overlaps: Cell<u32>,
}

impl Share {
    /// Holds the key of task `number` until the other task has held its key at the same time.
    async fn hold_together(&self, number: usize) -> Result<(), Failure> {
        let work = async |_: &_| {
            self.visit(number).await?;
            self.holds[number].set(true);
            while !self.holds.iter().all(Cell::get) {
                Timer::after_millis(1).await;
            }
            self.leave(number).await
        };
        self.lock.hold(KEYS[number], work).await?
    }

    async fn visit(&self, number: usize) -> Result<(), Failure> {
        let mut control = self.control.lock().await;
        if control.ask(&["INCR", VISITORS[number]]).await?.as_deref() != Some("1") {
            self.overlaps.set(self.overlaps.get() + 1);
        }
        Ok(())
    }

    async fn leave(&self, number: usize) -> Result<(), Failure> {
        let mut control = self.control.lock().await;
        control.ask(&["DECR", VISITORS[number]]).await.map(drop)
    }

    /// Waits for the second key, which the host holds until the first one was used often enough.
    async fn wait(&self) -> Result<(), Failure> {
        self.holds[1].set(false);
        let lease = self.lock.acquire(KEYS[1]).await?;
        self.holds[1].set(true);
        self.lock.release(lease).await;
        Ok(())
    }

    async fn use_meanwhile(&self) -> Result<(), Failure> {
        while !self.holds[1].get() {
            let lease = self.lock.acquire(KEYS[0]).await?;
            let mut control = self.control.lock().await;
            control.ask(&["INCR", "uses"]).await?;
            drop(control);
            self.lock.release(lease).await;
        }
        Ok(())
    }
}
