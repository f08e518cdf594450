//! The summary of the demo.

use core::fmt;

use super::fault::Faults;
use super::worker::Record;
use super::world::World;

/// The table at the end, and whether the lock kept its promise.
#[derive(Debug)]
pub(crate) struct Summary {
    records: Vec<Record>,
    faults: Faults,
    expected: u64,
    counted: u64,
    overlaps: usize,
}

impl Summary {
    pub(crate) fn new(world: &World, records: Vec<Record>) -> Self {
        Self {
            records,
            faults: world.faults(),
            expected: world.writes(),
            counted: world.count(),
            overlaps: world.overlaps(),
        }
    }

    pub(crate) fn is_good(&self) -> bool {
        self.overlaps == 0 && self.counted == self.expected && self.expected > 0
    }

    fn sum(&self, of: impl Fn(&Record) -> u64) -> u64 {
        self.records.iter().map(of).sum()
    }
}

impl fmt::Display for Summary {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        writeln!(f, "worker   acquired   extended   longest wait")?;
        for (number, record) in (1..).zip(&self.records) {
            let Record {
                acquired,
                extended,
                longest_wait,
                ..
            } = record;
            writeln!(
                f,
                "{number:>6} {acquired:>10} {extended:>10} {:>11} ms",
                longest_wait.as_millis()
            )?;
        }
        let acquired = self.records.iter().map(|record| record.acquired);
        let (fewest, most) = (
            acquired.clone().min().unwrap_or(0),
            acquired.max().unwrap_or(0),
        );
        writeln!(
            f,
            "\nacquired     {} times, {fewest} to {most} by each worker\n\
             rounds lost  {} held by another, {} no quorum, {} too late\n\
             given up     {} times, the lease had ended before the work was done\n\
             faults       {}\n\
             counter      {} expected, {} counted\n\
             overlaps     {}\n",
            self.sum(|record| record.acquired),
            self.sum(|record| record.refused),
            self.sum(|record| record.unreachable),
            self.sum(|record| record.too_late),
            self.sum(|record| record.given_up),
            self.faults,
            self.expected,
            self.counted,
            self.overlaps,
        )?;
        match (self.overlaps, self.expected.abs_diff(self.counted)) {
            (0, 0) if self.expected == 0 => f.write_str(
                "FAILED: no worker ever held the lock, although a quorum of nodes was always up",
            ),
            (0, 0) => {
                f.write_str("OK: no two workers held the lock at once, and no count was lost")
            }
            (overlaps, lost) => write!(
                f,
                "FAILED: the lock did not keep its promise: {overlaps} times two workers held it at \
                once, {lost} counts were lost"
            ),
        }
    }
}
