//! Scenes of fenced locks, whose nodes and clients all follow the same rules.

use core::time::Duration;

use super::{EXTENDING, Fencing, ONCE, Scene, TWICE};

impl Scene {
    /// Units are long: the drift is none of them, and the quarantine only seven.
    pub(in crate::model) const FENCED: Self = Self {
        name: "fence",
        about: "fenced, two clients, messages in any order and as late as can be",
        unit: Duration::from_secs(1),
        ttl: 2,
        end: 1,
        fencing: Some(Fencing::CALM),
        ..Self::PLAIN
    };

    /// Keys expire whenever they like: only the fences are to be relied on.
    pub(in crate::model) const EXPIRING: Self = Self {
        name: "fence, any expiry",
        about: "fenced, keys expire at any moment, and clients differ over the time of the nodes",
        node_ahead: u8::MAX,
        end: 0,
        fencing: Some(Fencing {
            guesses: &[0, 1],
            is_exclusive: false,
            ..Fencing::CALM
        }),
        ..Self::FENCED
    };

    pub(in crate::model) const ASKING: Self = Self {
        name: "fence, time unknown",
        about: "fenced, keys expire at any moment, and clients learn the time of the nodes by a round",
        fencing: Some(Fencing {
            guesses: &[],
            is_exclusive: false,
            ..Fencing::CALM
        }),
        ..Self::EXPIRING
    };

    pub(in crate::model) const JUMPING: Self = Self {
        name: "fence, jump",
        about: "fenced, the clock of one node jumps twice, on or back, within the window or beyond the TTL",
        ttl: 6,
        end: 0,
        fencing: Some(Fencing {
            has_margin: true,
            jumps: 2,
            jump_sizes: &[-6, -1, 1, 6],
            ..Fencing::CALM
        }),
        ..Self::FENCED
    };

    /// No other node remembers.
    pub(in crate::model) const FORGETTING: Self = Self {
        name: "fence, forget",
        about: "fenced, the only node forgets everything twice, is quarantined, and has a vote again",
        nodes: 1,
        clients: &[ONCE, TWICE],
        crashes: 2,
        end: 8,
        fencing: Some(Fencing {
            step_back: 0,
            guesses: &[0, 1],
            leap: Some((1, 7)),
            ..Fencing::CALM
        }),
        ..Self::FENCED
    };

    pub(in crate::model) const FENCED_BREAKING: Self = Self {
        name: "fence, break",
        about: "fenced, a connection breaks, the rest comes late or never; a lease is extended",
        clients: &[EXTENDING, ONCE],
        breaks: 1,
        end: 0,
        ..Self::FENCED
    };

    pub(super) fn all_fenced() -> Vec<Self> {
        vec![
            Self::FENCED,
            Self {
                name: "fence, expiry",
                about: "fenced, two nodes, keys expire when their time is over",
                nodes: 2,
                end: 2,
                ..Self::FENCED
            },
            Self::EXPIRING,
            Self::ASKING,
            Self::JUMPING,
            Self::FORGETTING,
            Self {
                name: "fence, extend",
                about: "fenced, two nodes, a lease is extended, where a key is gone it is made again",
                nodes: 2,
                clients: &[EXTENDING, ONCE],
                end: 2,
                ..Self::FENCED
            },
            Self::FENCED_BREAKING,
        ]
    }
}
