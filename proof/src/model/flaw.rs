//! What can be made wrong from outside.

use redlock_core::mock::ServerFlaw;

use super::promise;

/// One thing that is wrong. None of these can be switched on in the library: they are made from outside,
/// in what surrounds it here.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, clap::ValueEnum)]
pub enum Flaw {
    /// The validity is counted from when the round is over.
    ValidityFromTheEnd,
    /// The clock is not read any more after a round has begun.
    ClockNotReadAgain,
    /// The tick of a coarse clock is not taken off the validity.
    TickNotTakenOff,
    /// A minority of nodes is enough for an extension.
    MinorityExtends,
    /// A client uses its token again for its next attempt.
    SameToken,
    /// The reply to a call that was given up counts for the next one.
    LateRepliesCount,
    /// Half of the nodes are a quorum.
    HalfIsAQuorum,
    /// A node deletes the key for any client that asks.
    ReleaseWithoutCompare,
    /// No release is sent.
    NothingIsReleased,
    /// The clock of a client falls behind by more than the options allow for.
    DriftBeyond,
    /// The quarantine of a node that has forgotten everything is one unit too short.
    QuarantineTooShort,
    /// Nodes count their grants, and the highest count that a client is told is its fence.
    Count,
    /// A client asks for the highest fence, and writes one more back, which nodes accept in any case.
    WriteBack,
    /// Nodes accept the same fence again.
    Strict,
    /// Nodes accept a fence however old, and forget fences when their TTL is over.
    Floor,
    /// Nodes accept a fence however new.
    Ceiling,
    /// Nodes that forgot come back before the last fence that they may have forgotten is too old.
    Quarantine,
    /// Nodes accept a fence that was released.
    Burn,
    /// Nodes make a key again for an extend although they have accepted another fence since.
    Heal,
    /// The margin for clocks that jump is not taken off the validity.
    Margin,
    /// The clocks of a majority of nodes jump together.
    JumpTogether,
    /// Nodes forget until when a key was held when a clock that is ahead takes it away.
    HeldUntil,
    /// The clock of a node is set back by more than is agreed.
    StepBack,
    /// Nodes take an attempt that proposes the fence of another for the other.
    EqualFences,
    /// A node without a guard record takes the rules of the first client that asks.
    AnyRules,
    /// A node that comes back with earlier data, guard record included, has a vote at once.
    Failback,
    /// Clients count the votes of nodes that may evict keys.
    Eviction,
    /// An operator who runs `redlock init` ends the quarantine of a node.
    InitAnyway,
    /// An operator runs `redlock init` when all nodes have lost their data while a lease is out.
    TotalLoss,
    /// The quarantine is not long enough for a clock that is set back after `FLUSHALL`.
    FlushStepBack,
    /// A plain client does not obey the longest TTL of the fleet.
    LongPlain,
    /// A plain client with a shorter TTL has seen no guard record, and does not say how long other leases are.
    ShortPlain,
    /// A process that is named twice extends a lease twice.
    TwiceExtended,
    /// An extension is believed for as long as the options of now say.
    OptionsOfNow,
    /// A client writes guard records although no node has confirmed its rules.
    VouchesAlways,
    /// A client writes guard records if a quorum has answered and none of it has other rules.
    VouchesUnopposed,
    /// A client writes guard records only if a quorum has its rules.
    VouchesByQuorum,
    /// A client writes guard records only if it has just heard from a node that lacks one.
    VouchesForHeard,
}

impl Flaw {
    /// What is wrong, in words.
    #[must_use]
    pub const fn about(self) -> &'static str {
        match self {
            Self::ValidityFromTheEnd => "the validity is counted from the end of the round",
            Self::ClockNotReadAgain => "the clock is not read after the last vote",
            Self::TickNotTakenOff => "the margin is one tick too small",
            Self::MinorityExtends => "a minority is enough for an extension",
            Self::SameToken => "the same token for the next attempt",
            Self::LateRepliesCount => "a late reply to an earlier attempt counts",
            Self::HalfIsAQuorum => "half of the nodes are a quorum",
            Self::ReleaseWithoutCompare => "a release deletes whatever key is there",
            Self::NothingIsReleased => "no release is sent",
            Self::DriftBeyond => "a clock drifts by more than the options allow for",
            Self::QuarantineTooShort => {
                "the quarantine of a node that forgot is one unit too short"
            }
            Self::Count => "nodes count, and the highest count is the fence",
            Self::WriteBack => "the highest fence and one is written back, and nodes accept any",
            Self::Strict => "a node accepts one fence twice",
            Self::Floor => "a node accepts a fence that is too old, and forgets fences early",
            Self::Ceiling => "a node accepts a fence that is too new",
            Self::Quarantine => "the quarantine for fences is one unit too short",
            Self::Burn => "a release leaves its fence acceptable",
            Self::Heal => "an extend makes a key again where another fence was accepted since",
            Self::Margin => "no margin for clocks that jump",
            Self::JumpTogether => "the clocks of a majority jump together",
            Self::HeldUntil => "what a clock that jumps takes away is free when it is right again",
            Self::StepBack => "a clock is set back by more than is agreed",
            Self::EqualFences => {
                "a node takes one attempt for another that proposed the same fence"
            }
            Self::AnyRules => "a node without a record takes the rules of the first client",
            Self::Failback => "a node with earlier data has a vote at once",
            Self::Eviction => "nodes that evict keys have a vote",
            Self::InitAnyway => "redlock init ends a quarantine",
            Self::TotalLoss => "redlock init when all nodes have lost their data",
            Self::FlushStepBack => "the quarantine forgets that a clock may be set back",
            Self::LongPlain => "a plain client has a longer TTL than the fleet",
            Self::ShortPlain => "a plain client does not know how long fenced leases are",
            Self::TwiceExtended => "one process that is named twice extends twice",
            Self::OptionsOfNow => "an extension follows the options of now",
            Self::VouchesAlways => {
                "a client writes records with rules that no quorum has confirmed"
            }
            Self::VouchesUnopposed => "a client writes records if none of a quorum has other rules",
            Self::VouchesByQuorum => "a client writes records only if a quorum has its rules",
            Self::VouchesForHeard => {
                "a client writes records only if it has heard that one is gone"
            }
        }
    }

    /// The promise that it breaks.
    #[must_use]
    pub const fn breaks(self) -> &'static str {
        match self {
            Self::NothingIsReleased => promise::CLEAN,
            Self::Count
            | Self::WriteBack
            | Self::Strict
            | Self::Floor
            | Self::Ceiling
            | Self::Quarantine
            | Self::StepBack
            | Self::FlushStepBack => promise::FENCE,
            Self::TwiceExtended => promise::QUORUM,
            Self::VouchesByQuorum => promise::RECOVERY,
            Self::VouchesForHeard => promise::REWRITTEN,
            Self::Burn | Self::Heal => promise::BURN,
            _ => promise::EXCLUSION,
        }
    }

    /// What nodes do wrong.
    pub(super) const fn server_flaw(self) -> Option<ServerFlaw> {
        match self {
            Self::Count => Some(ServerFlaw::CountsGrants),
            Self::WriteBack => Some(ServerFlaw::AcceptsAnyFence),
            Self::Strict => Some(ServerFlaw::AcceptsFenceAgain),
            Self::Floor => Some(ServerFlaw::AcceptsOldFence),
            Self::Ceiling => Some(ServerFlaw::AcceptsNewFence),
            Self::Quarantine => Some(ServerFlaw::QuarantineTooShort),
            Self::Burn => Some(ServerFlaw::BurnsNoFence),
            Self::Heal => Some(ServerFlaw::RestoresAnyKey),
            Self::HeldUntil => Some(ServerFlaw::ForgetsHeldUntil),
            Self::EqualFences => Some(ServerFlaw::ConfusesEqualFences),
            Self::AnyRules => Some(ServerFlaw::TakesAnyRules),
            Self::Failback => Some(ServerFlaw::MissesFailback),
            Self::FlushStepBack => Some(ServerFlaw::QuarantineWithoutStepBack),
            _ => None,
        }
    }
}
