//! What a node's answer means.

use crate::denial::Denial;
use crate::fence::{Fence, Proposal, Reading};

/// What a node's answer says.
///
/// A reply that does not belong to the command it came for counts as no reply.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
#[cfg_attr(feature = "defmt", derive(defmt::Format))]
#[non_exhaustive]
pub enum Reply {
    /// To acquire: the key carries the token now, and the fence is the one proposed.
    Acquired(Option<Reading>),
    /// To acquire: the key is there already.
    Held(Option<Reading>),
    /// To extend: the key lives on.
    Extended(Option<Reading>),
    /// To release: the key is deleted.
    Released,
    /// To extend and to release: the key is gone or carries another token.
    NotMine,
}

/// Reads what the scripts of a fenced acquire and extend say: a code, the node's time, the highest fence there, and
/// what is left of something, in milliseconds.
// Apart from the rest, whose values would be copied with these.
#[inline(never)]
pub(crate) fn fenced_reply(
    proposal: &Proposal,
    is_extend: bool,
    numbers: &[i64; 4],
) -> Option<Result<Reply, Denial>> {
    let [code, time, fence, ms] = *numbers;
    // A key without a TTL, which is no lock's, has -1: it does not go away.
    let left_ms = u32::try_from(ms).unwrap_or(u32::MAX);
    let time = u64::try_from(time).ok()?;
    let fence = Fence::from_u64(u64::try_from(fence).ok()?);
    let held_ms = if code == 1 { left_ms } else { 0 };
    let reading = Reading::of(proposal, time, fence, held_ms);
    Some(match code {
        0 if is_extend => Ok(Reply::Extended(Some(reading))),
        1 if is_extend => Ok(Reply::NotMine),
        0 => Ok(Reply::Acquired(Some(reading))),
        1 => Ok(Reply::Held(Some(reading))),
        2 => Err(Denial::Stale(reading)),
        3 => Err(Denial::TooOld(reading)),
        4 => Err(Denial::TooNew(reading)),
        5 => Err(Denial::Quarantined { left_ms, reading }),
        6 => Err(Denial::OtherFleet(reading)),
        7 => Err(Denial::Unguarded {
            has_record: left_ms > 0,
            reading,
        }),
        _ => return None,
    })
}
