//! The time: embassy's driver on two of the board's timers (CMSDK APB timers: 32 bits, counting down).
//!
//! Timer 0 runs freely and tells the time; it wraps every 172 s, which its interrupt counts. Timer 1
//! is the alarm.

use core::cell::{Cell, RefCell};
use core::task::Waker;

use critical_section::{CriticalSection, Mutex};
use embassy_time_driver::{Driver, TICK_HZ};
use embassy_time_queue_utils::Queue;

use crate::board::Interrupt;
use crate::registers::Registers;

/// Starts the time at zero. Comes before everything that looks at a clock.
pub(crate) fn start() {
    TIMER0.write(CTRL, 0);
    TIMER0.write(INT, INT_PENDING);
    TIMER0.write(RELOAD, u32::MAX);
    TIMER0.write(VALUE, u32::MAX);
    TIMER0.write(CTRL, CTRL_ENABLE | CTRL_INTERRUPT);
    Interrupt::Timer0.enable();
    Interrupt::Timer1.enable();
}

/// Timer 0 has wrapped.
pub(crate) fn on_timer0() {
    critical_section::with(|cs| {
        TIMER0.write(INT, INT_PENDING);
        let wraps = DRIVER.wraps.borrow(cs);
        wraps.set(wraps.get() + 1);
    });
}

/// The alarm of timer 1 has gone off.
pub(crate) fn on_timer1() {
    critical_section::with(|cs| DRIVER.wake_due(cs));
}

struct Timers {
    /// How often timer 0 has wrapped.
    wraps: Mutex<Cell<u32>>,
    queue: Mutex<RefCell<Queue>>,
}

embassy_time_driver::time_driver_impl!(static DRIVER: Timers = Timers {
    wraps: Mutex::new(Cell::new(0)),
    queue: Mutex::new(RefCell::new(Queue::new())),
});

impl Driver for Timers {
    fn now(&self) -> u64 {
        self.cycles() / CYCLES_PER_TICK
    }

    fn schedule_wake(&self, at: u64, waker: &Waker) {
        critical_section::with(|cs| {
            let is_next = self.queue.borrow_ref_mut(cs).schedule_wake(at, waker);
            if is_next {
                self.wake_due(cs);
            }
        });
    }
}

impl Timers {
    /// Cycles of the timers' clock since the start.
    fn cycles(&self) -> u64 {
        critical_section::with(|cs| {
            let mut wraps = self.wraps.borrow(cs).get();
            let mut left = TIMER0.read(VALUE);
            if TIMER0.read(INT) & INT_PENDING != 0 {
                // Wrapped and not counted yet. What was read may be from before the wrap.
                left = TIMER0.read(VALUE);
                wraps += 1;
            }
            (u64::from(wraps) << u32::BITS) | u64::from(u32::MAX - left)
        })
    }

    /// Wakes the tasks whose time has come and sets the alarm for the next one.
    fn wake_due(&self, cs: CriticalSection<'_>) {
        let mut queue = self.queue.borrow_ref_mut(cs);
        loop {
            let next = queue.next_expiration(self.now());
            if self.set_alarm(next) {
                return;
            }
        }
    }

    /// Sets the alarm for the tick `at`; false if that has passed.
    fn set_alarm(&self, at: u64) -> bool {
        const NEVER: u64 = u64::MAX;

        TIMER1.write(CTRL, 0);
        TIMER1.write(INT, INT_PENDING);
        if at == NEVER {
            return true;
        }
        let left = at
            .saturating_mul(CYCLES_PER_TICK)
            .saturating_sub(self.cycles());
        if left == 0 {
            return false;
        }
        // If the alarm is further away than the timer can count, it goes off early, finds no task due, and is set again.
        let left = u32::try_from(left).unwrap_or(u32::MAX);
        TIMER1.write(RELOAD, left);
        TIMER1.write(VALUE, left);
        TIMER1.write(CTRL, CTRL_ENABLE | CTRL_INTERRUPT);
        true
    }
}

const CYCLES_PER_SECOND: u64 = 25_000_000;
const CYCLES_PER_TICK: u64 = CYCLES_PER_SECOND / TICK_HZ;

// SAFETY: the board's timer 0, with the registers below; this module alone has it.
static TIMER0: Registers = unsafe { Registers::at(0x4000_0000) };
// SAFETY: the board's timer 1, with the registers below; this module alone has it.
static TIMER1: Registers = unsafe { Registers::at(0x4000_1000) };

const CTRL: usize = 0x00;
const CTRL_ENABLE: u32 = 1 << 0;
const CTRL_INTERRUPT: u32 = 1 << 3;
/// The remaining count.
const VALUE: usize = 0x04;
/// The count after zero.
const RELOAD: usize = 0x08;
/// Reads whether the interrupt is pending; writing the bit clears it.
const INT: usize = 0x0c;
const INT_PENDING: u32 = 1 << 0;
