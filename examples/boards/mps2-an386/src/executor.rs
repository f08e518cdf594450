//! The executor: embassy's, with an idle loop that lets the emulated processor sleep.
//!
//! Embassy's own idle loop uses WFE, on which QEMU spins: a run would take several times the processor time of the
//! host, and its measurements would vary more.

use core::ptr;
use core::sync::atomic::{AtomicBool, Ordering};

use cortex_m::{asm, interrupt};
use embassy_executor::raw::Executor;
use embassy_executor::{SpawnError, SpawnToken, Spawner};
use static_cell::StaticCell;

/// Runs what `start` spawns, for ever.
pub(crate) fn run(start: impl FnOnce(Spawner)) -> ! {
    static EXECUTOR: StaticCell<Executor> = StaticCell::new();

    let executor: &'static Executor = EXECUTOR.init(Executor::new(ptr::null_mut()));
    start(executor.spawner());
    loop {
        WORK.store(false, Ordering::SeqCst);
        // SAFETY: called from here only, so never while it runs.
        unsafe { executor.poll() };
        sleep_unless_there_is_work();
    }
}

/// Spawns a task that there is room for: `task` is what the task's function returned.
pub(crate) fn spawn<S>(spawner: Spawner, task: Result<SpawnToken<S>, SpawnError>) {
    spawner.spawn(task.expect("a task is spawned no more often than its pool says"));
}

fn sleep_unless_there_is_work() {
    // Interrupts are masked, so that an interrupt between the check and the WFI is not lost: it stays pending, ends the
    // WFI at once, and is served when interrupts are unmasked.
    interrupt::disable();
    if !WORK.load(Ordering::SeqCst) {
        asm::wfi();
    }
    // SAFETY: they were enabled before; no critical section is open here.
    unsafe { interrupt::enable() };
}

/// A task has been woken since the last poll began.
static WORK: AtomicBool = AtomicBool::new(true);

/// Embassy calls this for every task that is woken, also from interrupts.
#[unsafe(export_name = "__pender")]
fn pend(_context: *mut ()) {
    WORK.store(true, Ordering::SeqCst);
}
