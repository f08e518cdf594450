//! Signals to the first process of a container or system.

use std::thread;

use nix::sys::signal::{SigSet, Signal};
use rustix::process::getpid;

use crate::exit;
use crate::run::is_ignored;

/// Those that ask a process to end.
const ENDING: [Signal; 4] = [
    Signal::SIGINT,
    Signal::SIGTERM,
    Signal::SIGHUP,
    Signal::SIGQUIT,
];

/// Ends this process on a signal that asks for it, if it is the first one: the system does so only to all others. A signal that
/// was ignored from the beginning stays so.
///
/// A thread waits for them, because a command may be at a prompt. Not for commands that start processes, which would inherit the mask.
pub(crate) fn end_on_signals() {
    if !getpid().is_init() {
        return;
    }
    let signals = ENDING.into_iter();
    let signals: SigSet = signals
        .filter(|signal| !is_ignored(*signal as i32))
        .collect();
    // This fails only for an invalid operation, and the operation is a constant. Threads that are started later inherit it.
    let _never = signals.thread_block();
    let waiting = thread::Builder::new().name("signals".to_owned());
    let waiting = waiting.spawn(move || {
        if let Ok(signal) = signals.wait() {
            std::process::exit(exit::signal(signal as i32).into());
        }
    });
    if waiting.is_err() {
        let _never = signals.thread_unblock();
    }
}
