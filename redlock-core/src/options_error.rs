//! Why options are invalid.

use crate::text;

/// Why [`Options`](crate::Options) or a [`Fencing`](crate::Fencing) are invalid.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
#[non_exhaustive]
pub enum OptionsError {
    /// The TTL is no longer than the drift and, for a fenced lock, the margin of `tolerate_clock_jumps`.
    TtlTooShort,
    /// The TTL, `max_ttl` or `min_hold` is longer than [`Options::MAX_TTL`](crate::Options::MAX_TTL).
    TtlTooLong,
    /// The node timeout is zero, or not shorter than the validity.
    NodeTimeout,
    /// The shortest retry delay is longer than the longest.
    RetryDelay,
    /// The window is shorter than a millisecond or longer than an hour.
    Window,
    /// The TTL is longer than `max_ttl`, which is one minute by default for a fenced lock.
    MaxTtl,
    /// `min_hold` of a fenced lock is longer than its `max_ttl`.
    #[cfg(feature = "min-hold")]
    MinHold,
    /// `step_back` is longer than [`Options::MAX_TTL`](crate::Options::MAX_TTL).
    StepBack,
    /// The [quarantine](crate::Fencing::quarantine) is longer than [`Options::MAX_TTL`](crate::Options::MAX_TTL).
    Quarantine,
}

text! {
    impl [] for OptionsError [] {
        Self::TtlTooShort =>
            "the TTL is too short: clock drift, 2 ms and, with tolerate_clock_jumps, 4 windows and clock_skew leave nothing of it; \
             use a longer one";
        Self::TtlTooLong => "the time is too long: at most 4294967295 ms, about 49 days";
        Self::NodeTimeout =>
            "the node timeout must be longer than zero and shorter than the validity (the TTL minus clock drift, 2 ms and, with \
             tolerate_clock_jumps, 4 windows and clock_skew)";
        Self::RetryDelay => "the shortest retry delay is longer than the longest";
        Self::Window => "the window must be from a millisecond to an hour";
        Self::MaxTtl =>
            "the TTL is longer than max_ttl, which is a minute by default for a fenced lock; use a shorter TTL, \
             or a longer max_ttl, with the same value for all clients";
        #[cfg(feature = "min-hold")]
        Self::MinHold =>
            "min_hold is longer than max_ttl, which is a minute by default for a fenced lock; use a shorter min_hold, or a \
             longer max_ttl, with the same value for all clients";
        Self::StepBack => "step_back is too long: at most 4294967295 ms, about 49 days";
        Self::Quarantine =>
            "the quarantine, max(max_ttl, step_back) + 4 window + 1 s, is too long: at most 4294967295 ms, about 49 days; \
             use a shorter max_ttl or step_back";
    }
}

impl core::error::Error for OptionsError {}
