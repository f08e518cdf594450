//! Device registers: the only place that touches the memory behind them.

/// The 32-bit registers of one device.
pub(crate) struct Registers {
    base: usize,
}

impl Registers {
    /// The registers from the address `base` on.
    ///
    /// # Safety
    ///
    /// A device is at `base`, nobody else has a `Registers` of it, and every offset that is read or
    /// written is that of one of its 32-bit registers.
    pub(crate) const unsafe fn at(base: usize) -> Self {
        Self { base }
    }

    pub(crate) fn read(&self, offset: usize) -> u32 {
        // SAFETY: a register of the device, by the promise made to `at`.
        unsafe { self.address(offset).read_volatile() }
    }

    pub(crate) fn write(&self, offset: usize, value: u32) {
        // SAFETY: a register of the device, by the promise made to `at`.
        unsafe { self.address(offset).write_volatile(value) }
    }

    const fn address(&self, offset: usize) -> *mut u32 {
        (self.base + offset) as *mut u32
    }
}
