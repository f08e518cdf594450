//! The interrupts of the board, their handlers, and the exit codes of the firmware.

use core::panic::PanicInfo;

use cortex_m::interrupt::InterruptNumber;
use cortex_m::peripheral::NVIC;
use cortex_m_rt::{ExceptionFrame, exception};

use crate::{lan9118, time_driver};

/// The interrupts in use, by their numbers on this board.
#[derive(Clone, Copy)]
#[repr(u16)]
pub(crate) enum Interrupt {
    Timer0 = 8,
    Timer1 = 9,
    Ethernet = 13,
}

impl Interrupt {
    const ALL: [Self; 3] = [Self::Timer0, Self::Timer1, Self::Ethernet];

    pub(crate) fn enable(self) {
        // SAFETY: no critical section is built on masking single interrupts, and the handlers are in
        // place from the first instruction on.
        unsafe { NVIC::unmask(self) }
    }
}

// SAFETY: the numbers are those of the board, and each stands for one interrupt.
unsafe impl InterruptNumber for Interrupt {
    fn number(self) -> u16 {
        self as u16
    }
}

/// How the firmware ends, as the exit code of QEMU.
#[derive(Clone, Copy)]
#[repr(i32)]
pub(crate) enum Exit {
    Passed = 0,
    Failed = 1,
    Panicked = 101,
    UnexpectedInterrupt = 102,
    HardFault = 103,
}

pub(crate) fn exit(how: Exit) -> ! {
    semihosting::process::exit(how as i32)
}

/// The handler of all interrupts: three interrupts do not need a vector table of the board.
#[exception]
unsafe fn DefaultHandler(number: i16) {
    let interrupt = Interrupt::ALL
        .into_iter()
        .find(|interrupt| i32::from(interrupt.number()) == i32::from(number));
    match interrupt {
        Some(Interrupt::Timer0) => time_driver::on_timer0(),
        Some(Interrupt::Timer1) => time_driver::on_timer1(),
        Some(Interrupt::Ethernet) => lan9118::on_interrupt(),
        None => {
            #[cfg(feature = "scenarios")]
            semihosting::eprintln!("unexpected interrupt {number}");
            exit(Exit::UnexpectedInterrupt)
        }
    }
}

#[exception]
unsafe fn HardFault(frame: &ExceptionFrame) -> ! {
    #[cfg(feature = "scenarios")]
    semihosting::eprintln!("HardFault: {frame:?}");
    // Used where there is no text, too.
    let _ = frame;
    exit(Exit::HardFault)
}

#[panic_handler]
fn panic(info: &PanicInfo<'_>) -> ! {
    // Without this feature, a panic is silent: `sizes.sh` measures the lock without texts. Keep the text in firmware of your
    // own.
    #[cfg(feature = "scenarios")]
    semihosting::eprintln!("{info}");
    // Used where there is no text, too.
    let _ = info;
    exit(Exit::Panicked)
}
