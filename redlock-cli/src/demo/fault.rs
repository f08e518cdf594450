//! The faults of a node.

use core::fmt;
use core::time::Duration;

use super::TTL;
use super::link::Node;

/// A fault of a node.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Fault {
    Hang,
    Slowness,
    Death,
    DataLoss,
}

impl Fault {
    pub(crate) const ALL: [Self; 4] = [Self::Hang, Self::Slowness, Self::Death, Self::DataLoss];

    /// How long a restarted node has no vote: the restart guard of the clients waits until every key that the node may
    /// have lost has expired.
    pub(crate) const WITHOUT_VOTE: Duration = TTL.saturating_add(Duration::from_millis(50));

    pub(crate) const fn is_death(self) -> bool {
        matches!(self, Self::Death | Self::DataLoss)
    }

    pub(crate) fn end(self, node: &Node) {
        match self {
            Self::Hang => node.resume(),
            Self::Slowness => node.set_latency(Duration::ZERO),
            Self::Death => node.restart(),
            Self::DataLoss => node.restart_empty(),
        }
    }

    pub(crate) const fn in_words(self) -> &'static str {
        match self {
            Self::Hang => "hangs",
            Self::Slowness => "is slow",
            Self::Death => "is killed and keeps its data",
            Self::DataLoss => "is killed and loses its data",
        }
    }
}

/// How many faults there were of each kind.
#[derive(Debug, Default, Clone, Copy)]
pub(crate) struct Faults {
    hangs: u32,
    slownesses: u32,
    deaths: u32,
    data_losses: u32,
}

impl Faults {
    pub(crate) const fn count(&mut self, fault: Fault) {
        let count = match fault {
            Fault::Hang => &mut self.hangs,
            Fault::Slowness => &mut self.slownesses,
            Fault::Death => &mut self.deaths,
            Fault::DataLoss => &mut self.data_losses,
        };
        *count += 1;
    }
}

impl fmt::Display for Faults {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Self {
            hangs,
            slownesses,
            deaths,
            data_losses,
        } = self;
        write!(
            f,
            "{hangs} hung, {slownesses} slow, {deaths} killed, {data_losses} killed with loss of data"
        )
    }
}
