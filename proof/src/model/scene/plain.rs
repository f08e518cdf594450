//! Scenes of plain locks.

use core::time::Duration;

use super::{EXTENDING, ONCE, Scene, Start, TWICE, Upsets};

impl Scene {
    pub(in crate::model) const PLAIN: Self = Self {
        name: "contend",
        about: "two clients, messages in any order and as late as can be",
        // The drift that every lease loses, 2 ms, is one of them.
        unit: Duration::from_millis(2),
        nodes: 3,
        clients: &[ONCE, ONCE],
        ttl: 3,
        tick: 0,
        node_timeout: 1,
        wait: 0,
        start: Start::New,
        end: 3,
        drops: 0,
        breaks: 0,
        crashes: 0,
        node_ahead: 0,
        client_behind: 0,
        client_ahead: 0,
        fencing: None,
        upsets: Upsets::NONE,
        sight: None,
        flaw: None,
    };

    pub(super) fn all_plain() -> Vec<Self> {
        vec![
            Self::PLAIN,
            Self {
                name: "node ahead",
                about: "node clocks are ahead, by as much as the options allow",
                node_ahead: 1,
                end: 2,
                ..Self::PLAIN
            },
            Self {
                name: "client behind",
                about: "client clocks fall behind, by as much as the options allow",
                nodes: 2,
                client_behind: 1,
                end: 4,
                ..Self::PLAIN
            },
            Self {
                name: "tick",
                about: "client clocks are coarse, node clocks ahead",
                nodes: 2,
                ttl: 4,
                tick: 2,
                node_ahead: 1,
                end: 4,
                ..Self::PLAIN
            },
            Self {
                name: "extend",
                about: "a lease is extended, node clocks are ahead",
                nodes: 2,
                clients: &[EXTENDING, ONCE],
                node_ahead: 1,
                end: 4,
                ..Self::PLAIN
            },
            Self {
                name: "retry",
                about: "clients wait, and try again with another token",
                nodes: 2,
                wait: 2,
                end: 2,
                ..Self::PLAIN
            },
            Self {
                name: "drop",
                about: "a future is dropped, at any of its steps",
                nodes: 2,
                clients: &[TWICE, ONCE],
                drops: 1,
                end: 2,
                ..Self::PLAIN
            },
            Self {
                name: "break",
                about: "a connection breaks, releases are sent again, the rest comes late or never",
                nodes: 2,
                clients: &[TWICE, ONCE],
                breaks: 1,
                end: 2,
                ..Self::PLAIN
            },
            Self {
                name: "crash",
                about: "a node forgets everything and is back at once; clients do not count its vote",
                crashes: 1,
                end: 2,
                ..Self::PLAIN
            },
            Self {
                name: "quarantine",
                about: "the only node forgets, its vote counts again while clocks differ by all that they may",
                nodes: 1,
                clients: &[ONCE, TWICE],
                client_behind: 1,
                client_ahead: 1,
                crashes: 1,
                end: 5,
                ..Self::PLAIN
            },
            Self {
                name: "four nodes",
                about: "an even number of nodes",
                nodes: 4,
                end: 1,
                ..Self::PLAIN
            },
            Self {
                name: "three clients",
                about: "one more client",
                nodes: 2,
                clients: &[ONCE, ONCE, ONCE],
                end: 2,
                ..Self::PLAIN
            },
        ]
    }
}
