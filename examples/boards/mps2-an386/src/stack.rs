//! How deep the stack has been: the part that may be used is filled with a pattern first, and what is left of it is counted later.

use core::ptr;

/// More than any variant takes.
const DEPTH: usize = 64 * 1024;

/// More than the frame of [`paint`].
const OWN_FRAME: usize = 256;

const PATTERN: u32 = 0x5AFE_57AC;

/// Fills the stack below the caller. Call it first, before interrupts are enabled.
#[inline(never)]
pub(crate) fn paint() {
    let here = 0_u32;
    let top = (&raw const here).addr() - OWN_FRAME;
    for address in (bottom()..top).step_by(size_of::<u32>()) {
        // SAFETY: the address is in RAM, 64 KiB of which are free below the stack, and below all frames, so no code uses it. It is
        // aligned, because both ends of the stack are.
        unsafe { ptr::with_exposed_provenance_mut::<u32>(address).write_volatile(PATTERN) }
    }
}

/// How many bytes of the stack have been used since [`paint`].
pub(crate) fn deepest() -> usize {
    let mut address = bottom();
    // SAFETY: as in `paint`; above the pattern, the address is in a frame, which may be read.
    while address < start() && unsafe { read(address) } == PATTERN {
        address += size_of::<u32>();
    }
    start() - address
}

/// # Safety
///
/// `address` must be aligned and in RAM.
unsafe fn read(address: usize) -> u32 {
    // SAFETY: the caller's.
    unsafe { ptr::with_exposed_provenance::<u32>(address).read_volatile() }
}

fn bottom() -> usize {
    start() - DEPTH
}

/// The end of RAM, from where the stack grows down. By the linker script of `cortex-m-rt`.
fn start() -> usize {
    unsafe extern "C" {
        static _stack_start: u32;
    }
    // The address, not the value.
    (&raw const _stack_start).addr()
}
