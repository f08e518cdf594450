//! What was done in many worlds, in numbers.

use core::fmt;
use core::ops::AddAssign;

use super::clock::Moment;
use super::fault::Kind;
use super::history::{Call, Claim, End, Fact, What};

/// What was done in one world or in many.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Summary {
    seeds: u64,
    micros: u64,
    commands: u64,
    operations: [u64; Operation::ALL.len()],
    faults: [u64; Kind::ALL.len()],
}

/// What a client did, as it is counted.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Operation {
    Acquired,
    AcquiredWithFence,
    Visited,
    FoundHeld,
    FoundNoQuorum,
    WasTooLate,
    Extended,
    Released,
    Held,
    WasStopped,
    Tidied,
    CameBack,
}

impl Operation {
    const ALL: [Self; 12] = [
        Self::Acquired,
        Self::AcquiredWithFence,
        Self::Visited,
        Self::FoundHeld,
        Self::FoundNoQuorum,
        Self::WasTooLate,
        Self::Extended,
        Self::Released,
        Self::Held,
        Self::WasStopped,
        Self::Tidied,
        Self::CameBack,
    ];

    const fn of(what: &What) -> Option<Self> {
        match what {
            What::Granted(Claim { fence: None, .. }, _)
            | What::Works(Claim { fence: None, .. }, _) => Some(Self::Acquired),
            What::Granted(..) | What::Works(..) => Some(Self::AcquiredWithFence),
            What::Visits(_, true) => Some(Self::Visited),
            What::Extended(..) => Some(Self::Extended),
            What::Ends(_, call, end, _) => Self::of_call(*call, *end),
            _ => None,
        }
    }

    const fn of_call(call: Call, end: End) -> Option<Self> {
        match (call, end) {
            (Call::Release(_), End::Done) => Some(Self::Released),
            (Call::Tidy, End::Done) => Some(Self::Tidied),
            (Call::Hold(_), End::Done) => Some(Self::Held),
            (Call::CalmAcquire(_), End::Done) => Some(Self::CameBack),
            (Call::Hold(_), End::Expired | End::ExtensionsSpent | End::Lost) => {
                Some(Self::WasStopped)
            }
            (Call::Acquire(_) | Call::TryAcquire(_), End::Held) => Some(Self::FoundHeld),
            (Call::Acquire(_) | Call::TryAcquire(_), End::Unreachable) => Some(Self::FoundNoQuorum),
            (Call::Acquire(_) | Call::TryAcquire(_), End::TooLate) => Some(Self::WasTooLate),
            _ => None,
        }
    }

    const fn name(self) -> &'static str {
        match self {
            Self::Acquired => "plain leases acquired",
            Self::AcquiredWithFence => "fenced leases acquired",
            Self::Visited => "visits of what a gate protects",
            Self::FoundHeld => "acquires that found the lock held",
            Self::FoundNoQuorum => "acquires that reached no quorum",
            Self::WasTooLate => "acquires that were granted too late",
            Self::Extended => "extensions by extend and keep",
            Self::Released => "releases",
            Self::Held => "works done under hold",
            Self::WasStopped => "works stopped under hold",
            Self::Tidied => "tidied",
            Self::CameBack => "locks taken once more when all was calm",
        }
    }
}

impl Summary {
    pub(crate) const NONE: Self = Self {
        seeds: 0,
        micros: 0,
        commands: 0,
        operations: [0; Operation::ALL.len()],
        faults: [0; Kind::ALL.len()],
    };

    pub(crate) fn of(
        facts: &[Fact],
        end: Moment,
        commands: u64,
        faults: [u64; Kind::ALL.len()],
    ) -> Self {
        let mut operations = [0; Operation::ALL.len()];
        for operation in facts.iter().filter_map(|fact| Operation::of(&fact.what)) {
            operations[operation as usize] += 1;
        }
        Self {
            seeds: 1,
            micros: end,
            commands,
            operations,
            faults,
        }
    }

    pub(crate) fn count(&mut self, kind: Kind, is_there: bool) {
        self.faults[kind as usize] += u64::from(is_there);
    }

    /// How many seeds were run.
    #[must_use]
    pub const fn seeds(&self) -> u64 {
        self.seeds
    }

    /// What never happened although it should: a check that cannot fail.
    pub fn missing(&self, is_broken: bool) -> impl Iterator<Item = &'static str> {
        let operations = Operation::ALL
            .iter()
            .filter(|operation| self.operations[**operation as usize] == 0);
        let faults = Kind::ALL.iter().filter(move |kind| {
            let is_expected = is_broken || **kind != Kind::BrokenAssumption;
            is_expected && self.faults[**kind as usize] == 0
        });
        operations
            .map(|operation| operation.name())
            .chain(faults.map(|kind| kind.name()))
    }
}

impl AddAssign<&Self> for Summary {
    fn add_assign(&mut self, other: &Self) {
        self.seeds += other.seeds;
        self.micros += other.micros;
        self.commands += other.commands;
        add(&mut self.operations, &other.operations);
        add(&mut self.faults, &other.faults);
    }
}

fn add(to: &mut [u64], from: &[u64]) {
    to.iter_mut().zip(from).for_each(|(to, from)| *to += from);
}

impl fmt::Display for Summary {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let hours = self.micros / 3_600_000_000;
        writeln!(f, "{hours:>12}  hours of virtual time")?;
        writeln!(f, "{:>12}  commands done by nodes", self.commands)?;
        for operation in Operation::ALL {
            writeln!(
                f,
                "{:>12}  {}",
                self.operations[operation as usize],
                operation.name()
            )?;
        }
        writeln!(f, "what went wrong:")?;
        for kind in Kind::ALL {
            let count = self.faults[kind as usize];
            if count > 0 || kind != Kind::BrokenAssumption {
                writeln!(f, "{count:>12}  {}", kind.name())?;
            }
        }
        Ok(())
    }
}
