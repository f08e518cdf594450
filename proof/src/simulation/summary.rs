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
    clients: u64,
    devices: u64,
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
    Kept,
    HandedOver,
    Adopted,
    FoundLost,
    Held,
    WasStopped,
    Tidied,
    CameBack,
    DeviceConnected,
    DeviceAcquired,
    DeviceReleased,
    DeviceLookedAt,
}

impl Operation {
    const ALL: [Self; 20] = [
        Self::Acquired,
        Self::AcquiredWithFence,
        Self::Visited,
        Self::FoundHeld,
        Self::FoundNoQuorum,
        Self::WasTooLate,
        Self::Extended,
        Self::Released,
        Self::Kept,
        Self::HandedOver,
        Self::Adopted,
        Self::FoundLost,
        Self::Held,
        Self::WasStopped,
        Self::Tidied,
        Self::CameBack,
        Self::DeviceConnected,
        Self::DeviceAcquired,
        Self::DeviceReleased,
        Self::DeviceLookedAt,
    ];

    const fn of(what: &What) -> Option<Self> {
        match what {
            What::Granted(Claim { fence: None, .. }, _)
            | What::Works(Claim { fence: None, .. }, _) => Some(Self::Acquired),
            What::Granted(..) | What::Works(..) => Some(Self::AcquiredWithFence),
            What::Visits(_, true) => Some(Self::Visited),
            What::Extended(..) => Some(Self::Extended),
            What::Kept(..) => Some(Self::Kept),
            What::HandedOver(_) => Some(Self::HandedOver),
            What::Adopted(..) => Some(Self::Adopted),
            What::Ends(_, call, end, _) => Self::of_call(*call, *end),
            _ => None,
        }
    }

    /// What the shipping transport of a device did, beside the rest.
    const fn of_device(what: &What) -> Option<(usize, Self)> {
        Some(match what {
            What::Connected(route, true) => (route.client, Self::DeviceConnected),
            What::Granted(claim, _) | What::Works(claim, _) => {
                (claim.task.client, Self::DeviceAcquired)
            }
            What::Ends(task, Call::Release(_), End::Done, _) => (task.client, Self::DeviceReleased),
            What::Probed(route, ..) => (route.client, Self::DeviceLookedAt),
            _ => return None,
        })
    }

    const fn of_call(call: Call, end: End) -> Option<Self> {
        match (call, end) {
            (Call::Release(_), End::Done) => Some(Self::Released),
            (Call::Adopt(_), End::Lost) => Some(Self::FoundLost),
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
            Self::Kept => "releases before the min_hold was over",
            Self::HandedOver => "leases left to another process",
            Self::Adopted => "leases taken over from another process",
            Self::FoundLost => "leases that were lost when another process came",
            Self::Held => "works done under hold",
            Self::WasStopped => "works stopped under hold",
            Self::Tidied => "tidied",
            Self::CameBack => "locks taken once more when all was calm",
            Self::DeviceConnected => "connections of devices",
            Self::DeviceAcquired => "leases acquired by devices",
            Self::DeviceReleased => "releases by devices",
            Self::DeviceLookedAt => "keys looked for behind a release that a device owed",
        }
    }
}

impl Summary {
    pub(crate) const NONE: Self = Self {
        seeds: 0,
        clients: 0,
        devices: 0,
        micros: 0,
        commands: 0,
        operations: [0; Operation::ALL.len()],
        faults: [0; Kind::ALL.len()],
    };

    pub(crate) fn of(
        facts: &[Fact],
        is_device: impl Fn(usize) -> bool,
        end: Moment,
        commands: u64,
        faults: [u64; Kind::ALL.len()],
    ) -> Self {
        let mut operations = [0; Operation::ALL.len()];
        for Fact { what, .. } in facts {
            let of_device = Operation::of_device(what).filter(|(client, _)| is_device(*client));
            let of_device = of_device.map(|(_, operation)| operation);
            for operation in Operation::of(what).into_iter().chain(of_device) {
                operations[operation as usize] += 1;
            }
        }
        Self {
            seeds: 1,
            clients: 0,
            devices: 0,
            micros: end,
            commands,
            operations,
            faults,
        }
    }

    pub(crate) fn count_client(&mut self, is_device: bool) {
        self.clients += 1;
        self.devices += u64::from(is_device);
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
        self.clients += other.clients;
        self.devices += other.devices;
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
        let Self {
            clients, devices, ..
        } = self;
        writeln!(f, "{clients:>12}  clients")?;
        writeln!(f, "{devices:>12}  of them, devices: TcpNode over a stream")?;
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
