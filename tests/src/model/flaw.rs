//! What can be made wrong from outside, and the world in which it shows.

use core::time::Duration;

use super::promise;
use super::scene::{EXTENDING, Fencing, Kind, ONCE, Role, Scene, Start, TWICE};
use crate::simulation::Lapse;

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
    /// A node deletes the key whoever asks for it.
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

/// A plain client whose TTL is longer than that of the fleet, and a fenced one.
const LONG_PLAIN: &[Role] = &[
    Role {
        kind: Kind {
            is_plain: true,
            ttls: Some((8, 8)),
            changes_options: false,
        },
        ..ONCE
    },
    ONCE,
];

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
            Self::VouchesAlways => "a client writes records with rules that nobody has confirmed",
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
    pub(super) const fn lapse(self) -> Option<Lapse> {
        match self {
            Self::Count => Some(Lapse::Counts),
            Self::WriteBack => Some(Lapse::WritesBack),
            Self::Strict => Some(Lapse::IsNotStrict),
            Self::Floor => Some(Lapse::HasNoFloor),
            Self::Ceiling => Some(Lapse::HasNoCeiling),
            Self::Quarantine => Some(Lapse::IsBackTooEarly),
            Self::Burn => Some(Lapse::BurnsNothing),
            Self::Heal => Some(Lapse::HealsAnyway),
            Self::HeldUntil => Some(Lapse::ForgetsLeases),
            Self::EqualFences => Some(Lapse::MistakesEqualFences),
            Self::AnyRules => Some(Lapse::TakesAnyRules),
            Self::Failback => Some(Lapse::MissesFailback),
            Self::FlushStepBack => Some(Lapse::ForgetsStepBack),
            _ => None,
        }
    }
}

impl Scene {
    /// A scene in which `flaw` shows.
    #[must_use]
    pub fn with(flaw: Flaw) -> Self {
        let of = |scene| Self {
            name: "flaw",
            about: flaw.about(),
            flaw: Some(flaw),
            ..scene
        };
        let scene = of(Self {
            end: 4,
            ..Self::PLAIN
        });
        let fenced = |scene, fencing| {
            of(Self {
                fencing: Some(fencing),
                ..scene
            })
        };
        match flaw {
            Flaw::ClockNotReadAgain | Flaw::HalfIsAQuorum | Flaw::NothingIsReleased => {
                Self { nodes: 2, ..scene }
            }
            Flaw::ValidityFromTheEnd => Self {
                nodes: 2,
                node_ahead: 1,
                ..scene
            },
            Flaw::TickNotTakenOff => Self {
                nodes: 2,
                ttl: 4,
                tick: 2,
                node_ahead: 1,
                ..scene
            },
            Flaw::MinorityExtends => Self {
                clients: &[EXTENDING, ONCE],
                node_ahead: 1,
                end: 2,
                ..scene
            },
            Flaw::SameToken => Self {
                clients: &[TWICE, ONCE],
                breaks: 1,
                end: 1,
                ..scene
            },
            Flaw::LateRepliesCount | Flaw::ReleaseWithoutCompare => Self {
                clients: &[TWICE, ONCE],
                end: 1,
                ..scene
            },
            Flaw::DriftBeyond => Self {
                nodes: 2,
                client_behind: 2,
                ..scene
            },
            Flaw::QuarantineTooShort => Self {
                nodes: 1,
                client_behind: 1,
                client_ahead: 1,
                crashes: 1,
                end: 4,
                ..scene
            },
            Flaw::Count | Flaw::WriteBack => of(Self::ASKING),
            Flaw::Strict => of(Self::EXPIRING),
            Flaw::Floor => of(Self {
                nodes: 1,
                end: 1,
                ..Self::EXPIRING
            }),
            Flaw::Ceiling => fenced(
                Self::FORGETTING,
                Fencing {
                    step_back: 0,
                    guesses: &[0, 20],
                    leap: Some((1, 7)),
                    ..Fencing::CALM
                },
            ),
            Flaw::Quarantine => fenced(
                Self {
                    unit: Duration::from_millis(1),
                    ttl: 4,
                    end: 2,
                    ..Self::FORGETTING
                },
                Fencing {
                    guesses: &[0, 1],
                    ..Fencing::CALM
                },
            ),
            Flaw::StepBack => fenced(
                Self {
                    nodes: 1,
                    end: 4,
                    ..Self::EXPIRING
                },
                Fencing {
                    step_back: 0,
                    jumps: 1,
                    jump_sizes: &[-3],
                    is_exclusive: false,
                    ..Fencing::CALM
                },
            ),
            Flaw::Burn => of(Self::FENCED_BREAKING),
            Flaw::Heal => of(Self {
                nodes: 1,
                clients: &[EXTENDING],
                ..Self::FENCED_BREAKING
            }),
            Flaw::Margin => fenced(
                Self {
                    ttl: 2,
                    ..Self::JUMPING
                },
                Fencing {
                    window: 2,
                    jumps: 1,
                    jump_sizes: &[2],
                    ..Fencing::CALM
                },
            ),
            Flaw::JumpTogether => fenced(
                Self::JUMPING,
                Fencing {
                    has_margin: true,
                    jumps: 1,
                    jump_sizes: &[6],
                    jumping: 2,
                    ..Fencing::CALM
                },
            ),
            Flaw::HeldUntil => fenced(
                Self::JUMPING,
                Fencing {
                    has_margin: true,
                    jumps: 2,
                    jump_sizes: &[-6, 6],
                    ..Fencing::CALM
                },
            ),
            Flaw::EqualFences => of(Self::EQUAL),
            Flaw::AnyRules | Flaw::VouchesAlways => of(Self::RULES),
            Flaw::VouchesUnopposed => of(Self::RULES_WIPED),
            Flaw::VouchesByQuorum | Flaw::VouchesForHeard => of(Self::RECOVERING),
            Flaw::Failback => of(Self::ROLLBACK),
            Flaw::Eviction => of(Self::EVICTING),
            Flaw::InitAnyway => of(Self::OPERATED),
            Flaw::TotalLoss => of(Self {
                crashes: 3,
                start: Start::Held,
                clients: &[ONCE, ONCE],
                ..Self::OPERATED
            }),
            Flaw::FlushStepBack => fenced(
                Self {
                    end: 7,
                    ..Self::FLUSHED
                },
                Fencing {
                    leap: Some((0, 7)),
                    step_back: 6,
                    guesses: &[0, 1],
                    jumps: 1,
                    jump_sizes: &[-6],
                    ..Fencing::CALM
                },
            ),
            Flaw::LongPlain => of(Self {
                clients: LONG_PLAIN,
                ..Self::MIXED
            }),
            Flaw::ShortPlain => of(Self::MIXED_TURNED),
            Flaw::OptionsOfNow => of(Self::OPTIONS_CHANGED),
            Flaw::TwiceExtended => of(Self::TWIN),
        }
    }
}
