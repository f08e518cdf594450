//! The rule by which nodes accept fences, alone: no locks and no client code. Whatever leases do, and however late
//! or often a message arrives, is among these orders of events.

use stateright::{Model, Property};

use super::explore::explore;
use super::world;

const NODES: usize = 3;
const QUORUM: u32 = 2;
const ATTEMPTS: usize = 3;
/// By how much a fence may differ from a node's clock.
const WINDOW: u8 = 1;
const END: u8 = 4;

/// The rule, or one with something wrong.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) struct Lean(pub(super) Option<Slip>);

/// What is wrong.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Slip {
    /// Nodes count, and the highest count is the fence.
    Counts,
    /// A node accepts the fence that it has accepted before.
    IsNotStrict,
    /// A node accepts a fence that is older than the window.
    HasNoFloor,
    /// A node accepts a fence that is newer than the window.
    HasNoCeiling,
    /// The quarantine is one unit too short.
    QuarantineTooShort,
}

impl Slip {
    pub(super) const ALL: [Self; 5] = [
        Self::Counts,
        Self::IsNotStrict,
        Self::HasNoFloor,
        Self::HasNoCeiling,
        Self::QuarantineTooShort,
    ];

    pub(super) const fn about(self) -> &'static str {
        match self {
            Self::Counts => "nodes count, and the highest count is the fence",
            Self::IsNotStrict => "a node accepts one fence twice",
            Self::HasNoFloor => "a node accepts a fence that is too old",
            Self::HasNoCeiling => "a node accepts a fence that is too new",
            Self::QuarantineTooShort => "the quarantine for fences is one unit too short",
        }
    }
}

#[derive(Debug, Clone, PartialEq, Eq, Hash)]
pub(super) struct World {
    now: u8,
    nodes: [Node; NODES],
    attempts: [Attempt; ATTEMPTS],
}

#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub(super) struct Node {
    fence: u8,
    /// Whose it is.
    owner: u8,
    until: u8,
    has_lost: bool,
}

#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Hash)]
pub(super) struct Attempt {
    /// Zero before it begins.
    fence: u8,
    granted: u8,
    /// Those that had been reported when it began.
    before: u8,
    is_won: bool,
}

#[derive(Debug, Clone, PartialEq, Eq, Hash)]
pub(super) enum Action {
    Begin(usize, u8),
    Execute(usize, usize),
    Lose(usize),
    Tick,
}

impl Lean {
    /// How many worlds there are, and whether fences are unique and grow in all of them.
    pub(super) fn search(self) -> (usize, bool) {
        let found = explore(&self, |_| true);
        (found.states, found.steps.is_empty())
    }

    fn execute(self, world: &mut World, attempt: usize, node: usize) {
        let now = world.now;
        let it = &mut world.attempts[attempt];
        let at = &mut world.nodes[node];
        if self.0 == Some(Slip::Counts) {
            if it.granted & 1 << node == 0 {
                at.fence += 1;
                it.fence = it.fence.max(at.fence);
            }
        } else {
            let is_mine = usize::from(at.owner) == attempt + 1;
            let is_old = it.fence + WINDOW <= now && self.0 != Some(Slip::HasNoFloor);
            let is_new = it.fence > now + WINDOW && self.0 != Some(Slip::HasNoCeiling);
            let is_equal_enough = is_mine || self.0 == Some(Slip::IsNotStrict);
            let is_stale = it.fence < at.fence || it.fence == at.fence && !is_equal_enough;
            if now < at.until || is_old || is_new || is_stale {
                return;
            }
            at.fence = it.fence;
            at.owner = world::small(attempt) + 1;
        }
        it.granted |= 1 << node;
        it.is_won |= it.granted.count_ones() >= QUORUM;
    }
}

impl World {
    /// Nodes are alike: of the worlds that differ by their numbers only, one is enough.
    fn representative(mut self) -> Self {
        let mut order = [0, 1, 2];
        order.sort_by_key(|node| {
            (
                self.nodes[*node],
                self.attempts.map(|it| it.granted >> node & 1),
            )
        });
        self.nodes = order.map(|node| self.nodes[node]);
        for it in &mut self.attempts {
            let granted = it.granted;
            let bits = order.iter().enumerate();
            it.granted = bits
                .map(|(place, node)| (granted >> node & 1) << place)
                .sum();
        }
        self
    }
}

impl Model for Lean {
    type State = World;
    type Action = Action;

    fn init_states(&self) -> Vec<World> {
        vec![World {
            now: 1,
            nodes: [Node::default(); NODES],
            attempts: [Attempt::default(); ATTEMPTS],
        }]
    }

    fn actions(&self, world: &World, actions: &mut Vec<Action>) {
        let begun = |attempt: &&Attempt| {
            attempt.fence > 0 || attempt.granted > 0 || attempt.before & 128 > 0
        };
        let next = world.attempts.iter().filter(begun).count();
        if next < ATTEMPTS {
            let last = if self.0 == Some(Slip::Counts) { 1 } else { END };
            actions.extend((1..=last).map(|fence| Action::Begin(next, fence)));
        }
        for attempt in 0..next {
            // Won is won; its messages may still arrive where they have not.
            actions.extend((0..NODES).map(|node| Action::Execute(attempt, node)));
        }
        actions.extend(
            (0..NODES)
                .filter(|node| !world.nodes[*node].has_lost)
                .map(Action::Lose),
        );
        if world.now < END {
            actions.push(Action::Tick);
        }
    }

    fn next_state(&self, world: &World, action: Action) -> Option<World> {
        let mut next = world.clone();
        match action {
            Action::Begin(attempt, fence) => {
                let mut before = 128;
                for (number, other) in world.attempts.iter().enumerate() {
                    before |= u8::from(other.is_won) << number;
                }
                let fence = if self.0 == Some(Slip::Counts) {
                    0
                } else {
                    fence
                };
                next.attempts[attempt] = Attempt {
                    fence,
                    before,
                    ..Attempt::default()
                };
            }
            Action::Execute(attempt, node) => self.execute(&mut next, attempt, node),
            Action::Lose(node) => {
                if self.0 == Some(Slip::Counts) {
                    return None;
                }
                let short = u8::from(self.0 == Some(Slip::QuarantineTooShort));
                next.nodes[node] = Node {
                    until: world.now + 2 * WINDOW - short,
                    has_lost: true,
                    ..Node::default()
                };
            }
            Action::Tick => {
                next.now += 1;
                // A fence that is too old by now deletes itself.
                for node in &mut next.nodes {
                    if self.0 != Some(Slip::Counts) && node.fence + WINDOW < next.now {
                        (node.fence, node.owner) = (0, 0);
                    }
                }
            }
        }
        (next != *world).then(|| next.representative())
    }

    fn properties(&self) -> Vec<Property<Self>> {
        let grows = |_: &Self, world: &World| {
            let won = || {
                world
                    .attempts
                    .iter()
                    .enumerate()
                    .filter(|(_, it)| it.is_won)
            };
            won().all(|(number, it)| {
                won().all(|(other_number, other)| {
                    let was_before = it.before & 1 << other_number != 0;
                    number == other_number
                        || it.fence != other.fence && (!was_before || other.fence < it.fence)
                })
            })
        };
        vec![Property::always("fences are unique, and grow", grows)]
    }
}
