//! The meaning of a node's answer.

use crate::denial::Denial;
use crate::fence::{Fence, Proposal, Reading};
use crate::line::{Place, Position, Refusal, Waiters};

/// The meaning of a node's answer.
///
/// If a transport returns the reply to another kind of command, the round counts it as no answer.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
#[cfg_attr(feature = "defmt", derive(defmt::Format))]
#[non_exhaustive]
pub enum Reply {
    /// To acquire: the key now carries the token, and the node has accepted the proposed fence.
    Acquired(Option<Reading>),
    /// To acquire: the key exists already, or the lease of another attempt on it has not ended.
    Held(Option<Reading>),
    /// To acquire, from a client that stands in the line of the lock: the node refuses.
    Waiting(Position, Option<Reading>),
    /// To extend: the key is extended.
    Extended(Option<Reading>),
    /// To release: the key is deleted.
    Released,
    /// To release: the key is deleted, and other clients wait for the lock.
    ReleasedWithWaiters(Waiters),
    /// To extend or release: the key is gone or carries another token. Or, to a fenced extend: the guard record has other
    /// rules.
    NotMine,
}

/// Parses the answer to a fenced acquire or extend. Its four numbers are:
///
/// 1. a code of `scripts/codes.lua`
/// 2. the node's time, in microseconds
/// 3. the highest fence that the node has accepted for the key
/// 4. for an acquire: with `REFUSED` and `QUARANTINED`, a remaining time in milliseconds; with `UNGUARDED`, 1 if there is a
///    record, else 0
///
/// `None` if the numbers are no such answer.
// `inline(never)`: inlined, its values would be copied together with those of the caller.
#[inline(never)]
pub(crate) fn fenced_reply(
    proposal: &Proposal,
    is_extend: bool,
    numbers: &[i64; 4],
) -> Option<Result<Reply, Denial>> {
    let [code, time, fence, ms] = *numbers;
    // -1 means that the key has no TTL: it is no lock, and never expires.
    let left_ms = u32::try_from(ms).unwrap_or(u32::MAX);
    let time = u64::try_from(time).ok()?;
    let fence = Fence::from_u64(u64::try_from(fence).ok()?);
    let held_ms = if code == code::REFUSED { left_ms } else { 0 };
    let reading = Reading::of(proposal, time, fence, held_ms);
    Some(match code {
        code::GRANTED if is_extend => Ok(Reply::Extended(Some(reading))),
        code::REFUSED if is_extend => Ok(Reply::NotMine),
        code::GRANTED => Ok(Reply::Acquired(Some(reading))),
        code::REFUSED => Ok(Reply::Held(Some(reading))),
        code::STALE => Err(Denial::Stale(reading)),
        code::TOO_OLD => Err(Denial::TooOld(reading)),
        code::TOO_NEW => Err(Denial::TooNew(reading)),
        code::QUARANTINED => Err(Denial::Quarantined { left_ms, reading }),
        code::OTHER_RULES => Err(Denial::FencingMismatch(reading)),
        code::UNGUARDED => Err(Denial::Unguarded {
            has_record: left_ms > 0,
            reading,
        }),
        _ => return None,
    })
}

/// Parses the answer to an acquire of a client in the line. Its numbers are those of [`fenced_reply`]. With `REFUSED`, `WAITING`
/// and `FULL`, the last one is `1024 * ms + ahead`: the `left_ms` and the `ahead` of a [`Position`]. The third one is zero if the
/// lock is plain.
///
/// `None` if the numbers are no such answer.
#[inline(never)]
pub(crate) fn queued_reply(
    place: &Place,
    proposal: Option<&Proposal>,
    numbers: &[i64; 4],
) -> Option<Result<Reply, Denial>> {
    let [code, time, fence, ms] = *numbers;
    let refusal = match code {
        code::REFUSED => Refusal::Held,
        code::WAITING => Refusal::Ahead,
        code::FULL => Refusal::Full,
        code::GRANTED if proposal.is_none() => return Some(Ok(Reply::Acquired(None))),
        _ => return fenced_reply(proposal?, false, numbers),
    };
    let time = u64::try_from(time).ok()?;
    let fence = Fence::from_u64(u64::try_from(fence).ok()?);
    // Negative if the key has no TTL: it is no lock, and never expires.
    let left_ms = u32::try_from(ms >> 10).unwrap_or(u32::MAX);
    let ahead = u32::try_from(ms & 1_023).unwrap_or_default();
    let position = place.position(refusal, time, left_ms, ahead);
    let reading = proposal.map(|proposal| Reading::of(proposal, time, fence, left_ms));
    Some(Ok(Reply::Waiting(position, reading)))
}

/// The codes of `scripts/codes.lua`, which explains them.
mod code {
    pub(super) const GRANTED: i64 = 0;
    pub(super) const REFUSED: i64 = 1;
    pub(super) const STALE: i64 = 2;
    pub(super) const TOO_OLD: i64 = 3;
    pub(super) const TOO_NEW: i64 = 4;
    pub(super) const QUARANTINED: i64 = 5;
    pub(super) const OTHER_RULES: i64 = 6;
    pub(super) const UNGUARDED: i64 = 7;
    pub(super) const WAITING: i64 = 8;
    pub(super) const FULL: i64 = 9;
}

#[cfg(test)]
mod tests {
    use super::code;

    #[test]
    fn the_codes_are_those_of_the_scripts() {
        let lines = include_str!("scripts/codes.lua").lines();
        let codes = lines.filter_map(|line| line.strip_prefix("local ")?.split_once(" --"));
        let wanted = [
            ("GRANTED", code::GRANTED),
            ("REFUSED", code::REFUSED),
            ("STALE", code::STALE),
            ("TOO_OLD", code::TOO_OLD),
            ("TOO_NEW", code::TOO_NEW),
            ("QUARANTINED", code::QUARANTINED),
            ("OTHER_RULES", code::OTHER_RULES),
            ("UNGUARDED", code::UNGUARDED),
            ("WAITING", code::WAITING),
            ("FULL", code::FULL),
        ];
        assert!(
            codes.map(|(code, _)| code).eq(wanted
                .iter()
                .map(|(name, number)| std::format!("{name} = {number}")))
        );
    }
}
