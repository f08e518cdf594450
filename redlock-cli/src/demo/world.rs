//! The state that workers, chaos and checker share.

use core::cell::{Cell, RefCell};
use core::fmt;
use core::time::Duration;
use std::io::Write;
use std::rc::Rc;

use redlock_core::{Clock, Instant, Token};
use redlock_std::SystemClock;

use super::KEY;
use super::checker::{Checker, Hold};
use super::fault::{Fault, Faults};
use super::link::Node;

/// The nodes, the counter that the lock protects, and the record of what happens.
#[derive(Debug)]
pub(crate) struct World {
    started_at: Instant,
    ends_at: Cell<Instant>,
    nodes: Vec<Place>,
    counter: Cell<u64>,
    /// How many times the counter was written.
    writes: Cell<u64>,
    checker: RefCell<Checker>,
    faults: RefCell<Faults>,
    violations: Cell<usize>,
    quiet_until: Cell<Instant>,
}

#[derive(Debug)]
struct Place {
    node: Rc<Node>,
    fault: Cell<Option<Fault>>,
}

impl World {
    /// The least time between two lines about ordinary holders.
    const QUIET: Duration = Duration::from_millis(200);

    /// How long the demo continues after a violation, to show the effects.
    const AFTERMATH: Duration = Duration::from_millis(500);

    /// How many violations are printed.
    const TOLD: usize = 5;

    pub(crate) fn new(nodes: usize, time: Duration) -> Self {
        let now = SystemClock.now();
        let place = |number| Place {
            node: Rc::new(Node::new(number, SystemClock)),
            fault: Cell::new(None),
        };
        Self {
            started_at: now,
            ends_at: Cell::new(now.saturating_add(time)),
            nodes: (1..=nodes).map(place).collect(),
            counter: Cell::new(0),
            writes: Cell::new(0),
            checker: RefCell::default(),
            faults: RefCell::default(),
            violations: Cell::new(0),
            quiet_until: Cell::new(now),
        }
    }

    pub(crate) fn nodes(&self) -> impl Iterator<Item = Rc<Node>> {
        self.nodes.iter().map(|place| Rc::clone(&place.node))
    }

    pub(crate) fn is_over(&self) -> bool {
        SystemClock.now() >= self.ends_at.get()
    }

    /// The numbers of the nodes that run and carry `token` now.
    pub(crate) fn carriers(&self, token: &Token) -> String {
        let mut carriers = String::new();
        for (number, place) in (1..).zip(&self.nodes) {
            let runs = !place.fault.get().is_some_and(Fault::is_death);
            if runs && place.node.token(KEY).as_ref() == Some(token) {
                carriers.push_str(&format!(" {number}"));
            }
        }
        carriers
    }

    pub(crate) const fn count(&self) -> u64 {
        self.counter.get()
    }

    pub(crate) const fn writes(&self) -> u64 {
        self.writes.get()
    }

    /// Writes the value that `worker` computed from its read.
    pub(crate) fn write(&self, worker: usize, count: u64) {
        let before = self.counter.replace(count);
        self.writes.set(self.writes.get() + 1);
        if count != before + 1 {
            self.violation(format_args!(
                "a count is lost: worker {worker} wrote {count}, but the counter was already {before}"
            ));
        }
    }

    pub(crate) fn record(&self, hold: Hold) {
        let earlier = self.checker.borrow_mut().record(hold);
        if let Some(earlier) = earlier {
            self.violation(format_args!(
                "two workers held the lock at once: worker {} from {} to {}, worker {} from {} to {}",
                earlier.worker,
                self.time(earlier.from),
                self.time(earlier.until),
                hold.worker,
                self.time(hold.from),
                self.time(hold.until),
            ));
        }
    }

    pub(crate) fn overlaps(&self) -> usize {
        self.checker.borrow().overlaps()
    }

    /// The numbers of the nodes without a fault.
    pub(crate) fn healthy(&self) -> impl Iterator<Item = usize> {
        (1..)
            .zip(&self.nodes)
            .filter(|(_, place)| place.fault.get().is_none())
            .map(|(number, _)| number)
    }

    /// How many nodes may fail while the others are still a quorum.
    pub(crate) const fn minority(&self) -> usize {
        (self.nodes.len() - 1) / 2
    }

    /// Marks the node as failing, and returns it.
    pub(crate) fn break_down(&self, number: usize, fault: Fault) -> Option<Rc<Node>> {
        let place = self.nodes.get(number.checked_sub(1)?)?;
        place.fault.set(Some(fault));
        self.faults.borrow_mut().count(fault);
        Some(Rc::clone(&place.node))
    }

    pub(crate) fn recover(&self, number: usize) {
        if let Some(place) = number
            .checked_sub(1)
            .and_then(|index| self.nodes.get(index))
        {
            place.fault.set(None);
        }
    }

    pub(crate) fn faults(&self) -> Faults {
        *self.faults.borrow()
    }

    /// Prints a line with the time.
    pub(crate) fn say(&self, line: fmt::Arguments<'_>) {
        self.say_plain(format_args!(
            "{:>10}  {line}",
            self.time(SystemClock.now()).to_string()
        ));
    }

    /// Prints a line, unless a line of this kind was printed recently.
    pub(crate) fn say_sometimes(&self, line: impl FnOnce() -> String) {
        let now = SystemClock.now();
        if now >= self.quiet_until.get() {
            self.quiet_until.set(now.saturating_add(Self::QUIET));
            self.say(format_args!("{}", line()));
        }
    }

    /// Prints a line as it is. A failed write is ignored: the exit code is the result, and `| head` is no error.
    pub(crate) fn say_plain(&self, line: fmt::Arguments<'_>) {
        let _unread = writeln!(std::io::stdout(), "{line}");
    }

    fn violation(&self, line: fmt::Arguments<'_>) {
        let count = self.violations.get();
        self.violations.set(count + 1);
        if count < Self::TOLD {
            self.say(format_args!("VIOLATION: {line}"));
        }
        let end = SystemClock.now().saturating_add(Self::AFTERMATH);
        self.ends_at.set(self.ends_at.get().min(end));
    }

    fn time(&self, instant: Instant) -> Time {
        Time(instant.saturating_duration_since(self.started_at))
    }
}

/// Seconds since the beginning.
struct Time(Duration);

impl fmt::Display for Time {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}.{:03} s", self.0.as_secs(), self.0.subsec_millis())
    }
}
