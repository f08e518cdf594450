//! A time of the nodes, or a fence, in few bytes.

use core::fmt;

/// In half units, and by how many microseconds more: a client takes the middle of two readings for the time at which
/// it was told another, and a fence that follows on another is one microsecond later.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub(super) struct Stamp {
    halves: u8,
    more: u8,
}

impl Stamp {
    /// What a node tells that counts and has no time.
    const NONE: Self = Self {
        halves: u8::MAX,
        more: u8::MAX,
    };
    const NO_TIME: u64 = 3 << 62;

    pub(super) fn new(micros: u64, half: u64) -> Self {
        if micros == Self::NO_TIME {
            return Self::NONE;
        }
        let fitting = |number: u64| u8::try_from(number).expect("a scene is short");
        Self {
            halves: fitting(micros / half),
            more: fitting(micros % half),
        }
    }

    pub(super) fn micros(self, half: u64) -> u64 {
        if self == Self::NONE {
            return Self::NO_TIME;
        }
        u64::from(self.halves) * half + u64::from(self.more)
    }
}

impl fmt::Display for Stamp {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let (whole, half) = (self.halves / 2, self.halves % 2 * 5);
        write!(f, "{whole}.{half}")?;
        if self.more > 0 {
            write!(f, "+{}", self.more)?;
        }
        Ok(())
    }
}
