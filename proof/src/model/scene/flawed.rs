//! Scenes in which one thing is wrong.

use core::time::Duration;

use super::{EXTENDING, Fencing, Kind, ONCE, Role, Scene, Start, TWICE};
use crate::model::flaw::Flaw;

/// A plain client whose TTL is longer than that of the fleet, and a fenced one.
const LONG_PLAIN: &[Role] = &[
    Role {
        kind: Kind {
            is_plain: true,
            ttls: Some((8, 8)),
            ..Kind::USUAL
        },
        ..ONCE
    },
    ONCE,
];

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
