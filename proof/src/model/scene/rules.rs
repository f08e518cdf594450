//! Scenes of what befalls the data and the rules of a fleet of nodes.

use super::{EXTENDING, Fencing, Kind, ONCE, Role, Scene, Start, TWICE, Upsets};
use crate::model::promise;

/// A client whose leases are long.
const RIGHT: Role = Role {
    kind: Kind {
        ttls: Some((10, 10)),
        ..Kind::USUAL
    },
    ..ONCE
};

/// A client whose rules are others: it has a short quarantine for what it takes for short leases.
const WRONG: Role = Role {
    kind: Kind {
        ttls: Some((2, 2)),
        ..RIGHT.kind
    },
    ..ONCE
};

/// The vote of a node that has lost its data counts again seven units later.
const SEVEN_LATER: Fencing = Fencing {
    step_back: 0,
    leap: Some((1, 7)),
    ..Fencing::CALM
};

/// A client of plain locks.
const PLAINLY: Role = Role {
    kind: Kind {
        is_plain: true,
        ..Kind::USUAL
    },
    ..ONCE
};

impl Scene {
    pub(in crate::model) const EQUAL: Self = Self {
        name: "equal fences",
        about: "fenced, attempts propose the same fence, a reply to one is lost, a clock jumps there and back",
        clients: &[ONCE, TWICE],
        start: Start::Held,
        breaks: 1,
        fencing: Some(Fencing {
            has_margin: true,
            jumps: 1,
            jump_sizes: &[6],
            returns: true,
            ..Fencing::CALM
        }),
        ..Self::JUMPING
    };

    pub(in crate::model) const RULES: Self = Self {
        name: "two rules",
        about: "fenced, two sets of rules, two nodes lose their data while a lease is out",
        clients: &[
            RIGHT,
            Role {
                acquires: 2,
                ..WRONG
            },
        ],
        start: Start::Held,
        crashes: 2,
        end: 8,
        fencing: Some(SEVEN_LATER.leaping(0, 8)),
        sight: Some(promise::ACQUIRED),
        ..Self::FENCED
    };

    pub(in crate::model) const RULES_WIPED: Self = Self {
        name: "two rules, wiped",
        about: "fenced, two of three nodes have lost their data while a lease is out, a client has other rules",
        clients: &[
            RIGHT,
            Role {
                acquires: 3,
                ..WRONG
            },
        ],
        start: Start::Wiped,
        crashes: 0,
        fencing: Some(SEVEN_LATER.leaping(1, 8)),
        ..Self::RULES
    };

    pub(in crate::model) const LOSS: Self = Self {
        name: "loss",
        about: "fenced, a node loses its data while a lease is out, another client writes its record again",
        clients: &[ONCE, TWICE],
        start: Start::Held,
        crashes: 1,
        end: 7,
        fencing: Some(SEVEN_LATER.leaping(0, 7)),
        ..Self::FENCED
    };

    pub(in crate::model) const RECOVERING: Self = Self {
        name: "recovery",
        about: "fenced, a node loses its data and has its vote again some time, whichever node is down",
        clients: &[TWICE],
        crashes: 1,
        end: 1,
        fencing: Some(Fencing {
            recovers: true,
            ..SEVEN_LATER
        }),
        sight: Some(promise::RESTORED),
        ..Self::FENCED
    };

    pub(in crate::model) const ROLLBACK: Self = Self {
        name: "failback",
        about: "fenced, a node is a replica for a moment and comes back with its first data, guard record included",
        clients: &[ONCE, TWICE],
        end: 0,
        fencing: Some(SEVEN_LATER),
        upsets: Upsets {
            rollbacks: 1,
            ..Upsets::NONE
        },
        ..Self::FENCED
    };

    pub(in crate::model) const ROLLBACK_ALONE: Self = Self {
        name: "failback, alone",
        about: "fenced, the only node comes back with its first data, is quarantined, and has a vote again",
        nodes: 1,
        end: 8,
        ..Self::ROLLBACK
    };

    pub(in crate::model) const EVICTING: Self = Self {
        name: "eviction",
        about: "fenced, a node evicts locks and their fences, as clients know that it may",
        end: 1,
        upsets: Upsets {
            evictions: 2,
            ..Upsets::NONE
        },
        ..Self::FENCED
    };

    pub(in crate::model) const OPERATED: Self = Self {
        name: "init",
        about: "fenced, two nodes lose their data, an operator runs redlock init and init --repair at any moment",
        start: Start::Held,
        crashes: 2,
        end: 0,
        fencing: Some(SEVEN_LATER),
        upsets: Upsets {
            inits: 1,
            repairs: 1,
            ..Upsets::NONE
        },
        sight: Some(promise::RESTORED),
        ..Self::FENCED
    };

    pub(in crate::model) const COLD: Self = Self {
        name: "cold start",
        about: "fenced, nodes are new, clients with two sets of rules race, and an operator runs redlock init",
        clients: &[
            Role {
                acquires: 2,
                ..RIGHT
            },
            WRONG,
        ],
        start: Start::Cold,
        crashes: 0,
        upsets: Upsets {
            inits: 1,
            ..Upsets::NONE
        },
        ..Self::OPERATED
    };

    pub(in crate::model) const FLUSHED: Self = Self {
        name: "flush, step back",
        about: "fenced, the only node loses its data and its clock is set back, by as much as is agreed",
        nodes: 1,
        clients: &[ONCE, TWICE],
        crashes: 1,
        end: 11,
        fencing: Some(Fencing {
            step_back: 6,
            guesses: &[0, 1],
            jumps: 1,
            jump_sizes: &[-6],
            leap: Some((0, 11)),
            ..Fencing::CALM
        }),
        ..Self::FENCED
    };

    pub(in crate::model) const MIXED: Self = Self {
        name: "plain, then fenced",
        about: "a plain lease is out, a node restarts, an operator repairs it, a fenced client acquires",
        clients: &[PLAINLY, ONCE],
        start: Start::Held,
        crashes: 1,
        end: 7,
        fencing: Some(SEVEN_LATER.leaping(0, 7)),
        upsets: Upsets {
            restarts: true,
            repairs: 1,
            ..Upsets::NONE
        },
        ..Self::FENCED
    };

    pub(in crate::model) const MIXED_TURNED: Self = Self {
        name: "fenced, then plain",
        about: "a fenced lease is out, a node restarts, a plain client with a shorter TTL acquires",
        clients: &[RIGHT, PLAINLY],
        end: 3,
        sight: Some(promise::ACQUIRED),
        fencing: Some(SEVEN_LATER.leaping(1, 3)),
        upsets: Upsets {
            restarts: true,
            ..Upsets::NONE
        },
        ..Self::MIXED
    };

    pub(in crate::model) const JUMPING_EXTENDED: Self = Self {
        name: "fence, jump, extend",
        about: "fenced, a lease is extended and healed while a clock jumps twice",
        clients: &[EXTENDING, ONCE],
        fencing: Some(Fencing {
            has_margin: true,
            jumps: 2,
            jump_sizes: &[-6, 6],
            ..Fencing::CALM
        }),
        ..Self::JUMPING
    };

    pub(in crate::model) const OPTIONS_CHANGED: Self = Self {
        name: "fence, options",
        about: "fenced, a lease is extended after options were set that know no clocks that jump",
        clients: &[
            Role {
                kind: Kind {
                    changes_options: true,
                    ..Kind::USUAL
                },
                ..EXTENDING
            },
            ONCE,
        ],
        ttl: 14,
        start: Start::Held,
        end: 13,
        fencing: Some(Fencing {
            window: 3,
            has_margin: true,
            jumps: 1,
            jump_sizes: &[2],
            leap: Some((0, 13)),
            ..Fencing::CALM
        }),
        ..Self::FENCED
    };

    pub(in crate::model) const TWIN: Self = Self {
        name: "twin",
        about: "two of three nodes are one process, a lease is extended, node clocks are ahead",
        clients: &[EXTENDING, ONCE],
        node_ahead: 1,
        end: 2,
        upsets: Upsets {
            has_twin: true,
            ..Upsets::NONE
        },
        ..Self::PLAIN
    };

    pub(super) fn all_of_rules() -> Vec<Self> {
        vec![
            Self::EQUAL,
            Self::RULES,
            Self::RULES_WIPED,
            Self::LOSS,
            Self::RECOVERING,
            Self::ROLLBACK,
            Self::ROLLBACK_ALONE,
            Self::EVICTING,
            Self::OPERATED,
            Self::COLD,
            Self::FLUSHED,
            Self::MIXED,
            Self::MIXED_TURNED,
            Self::JUMPING_EXTENDED,
            Self::OPTIONS_CHANGED,
            Self::TWIN,
        ]
    }
}
