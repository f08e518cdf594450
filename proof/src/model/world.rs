//! Everything at one instant: time, nodes, clients, and what is on its way between them.

use core::hash::{Hash, Hasher};

use arrayvec::ArrayVec;

use super::automaton::Automaton;
use super::client::{Answer, Order, View};
use super::flaw::Flaw;
use super::nodes::{Entry, Nodes};
use super::scene::{BASE, Role, Scene, Upsets};
use super::short::Short;
use super::stamp::Stamp;

/// As much as the largest scene needs; a search that needs more panics.
pub(super) const MAX_NODES: usize = 4;
const MAX_CLIENTS: usize = 3;
const MAX_ON_THE_WAY: usize = 8;
const MAX_ANSWERS: usize = 4;
const MAX_TOKENS: usize = 4;

/// A state of the search. Plain data: two worlds that are equal have equal futures.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub(super) struct World {
    /// True time, in units; no client and no node can read it.
    pub(super) now: u8,
    pub(super) nodes: Short<Node, MAX_NODES>,
    pub(super) clients: Short<Client, MAX_CLIENTS>,
    /// Who has acquired the lock in the last step, and acts on it without another look at a clock.
    pub(super) acting: Option<u8>,
    /// How many connections may still break, and how many nodes crash, and how many futures be dropped.
    pub(super) breaks: u8,
    pub(super) crashes: u8,
    pub(super) drops: u8,
    /// How many times clocks of nodes may still jump.
    pub(super) jumps: u8,
    /// What else may still befall nodes.
    pub(super) upsets: Upsets,
    /// An operator has seen that all nodes are new, and is writing their records.
    pub(super) is_writing: bool,
    /// The fences of all leases so far, in order.
    pub(super) fences: Short<Stamp, MAX_TOKENS>,
    /// One of them was not higher than another that had been reported when it was asked for.
    pub(super) is_out_of_order: bool,
}

#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, PartialOrd, Ord)]
pub(super) struct Node {
    pub(super) entry: Option<Entry>,
    /// What it had when it crashed, as long as no other client may have the lock there.
    pub(super) forgotten: Option<Entry>,
    /// What it is where locks are fenced, see [`Nodes`]; the entry is a part of that.
    pub(super) row: u32,
    /// By how much its clock is ahead.
    pub(super) ahead: i8,
    pub(super) has_jumped: bool,
    pub(super) may_evict: bool,
    /// An operator has looked at it and found neither a guard record nor a lock.
    pub(super) is_seen: bool,
    /// Whose releases it has executed, where that matters: the client and the token.
    pub(super) released: Short<(u8, u8), MAX_TOKENS>,
}

#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub(super) struct Client {
    /// What it is, see [`Automaton`].
    pub(super) row: u32,
    /// By how much its clock is behind.
    pub(super) behind: u8,
    /// By how much it is ahead.
    pub(super) ahead: u8,
    /// How many times it may still try to acquire the lock, and extend a lease.
    pub(super) acquires: u8,
    pub(super) extends: u8,
    /// The highest fence that had been reported when its last round began.
    pub(super) above: Stamp,
    /// Its connections, one to each node: the number of each [`Link`].
    pub(super) links: Short<u32, MAX_NODES>,
}

/// The connection of a client to a node, and what is left of those before it.
#[derive(Debug, Clone, Default, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub(super) struct Link {
    /// What the node has not executed yet, in order.
    pub(super) sent: ArrayVec<Sent, MAX_ON_THE_WAY>,
    /// The command to which the client waits for the reply.
    pub(super) awaited: Option<Order>,
    /// Replies that have not been given to the client yet.
    pub(super) answers: ArrayVec<Answer, MAX_ANSWERS>,
    /// What was on its way when a connection broke: each arrives some time, or never.
    pub(super) stray: ArrayVec<Order, MAX_ON_THE_WAY>,
    /// Tokens up to this one were on their way when a connection broke.
    pub(super) broken_after: u8,
}

#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub(super) struct Sent {
    pub(super) order: Order,
    pub(super) is_awaited: bool,
}

// In as few words as there are: each step hashes a world.
impl Hash for Node {
    fn hash<H: Hasher>(&self, state: &mut H) {
        let [entry, forgotten] = [self.entry, self.forgotten].map(|entry| {
            entry.map_or(0, |entry| {
                u64::from(u32::from_be_bytes([
                    1,
                    entry.client,
                    entry.token,
                    entry.expires_at,
                ]))
            })
        });
        state.write_u64(entry << 32 | forgotten);
        let flags = [self.has_jumped, self.may_evict, self.is_seen];
        let flags = flags
            .into_iter()
            .fold(0, |flags, flag| flags << 1 | u64::from(flag));
        let ahead = u64::from(self.ahead.cast_unsigned());
        let released = self.released.len() as u64;
        state.write_u64(u64::from(self.row) << 32 | ahead << 16 | released << 8 | flags);
        for (client, token) in &self.released {
            state.write_u16(u16::from(*client) << 8 | u16::from(*token));
        }
    }
}

impl Hash for Client {
    fn hash<H: Hasher>(&self, state: &mut H) {
        let Self {
            row,
            behind,
            ahead,
            acquires,
            extends,
            above,
            links,
        } = self;
        let left = u32::from_be_bytes([*behind, *ahead, *acquires, *extends]);
        state.write_u64(u64::from(*row) << 32 | u64::from(left));
        above.hash(state);
        links.iter().for_each(|link| state.write_u32(*link));
    }
}

impl World {
    pub(super) fn new(scene: &Scene, automaton: &Automaton) -> Self {
        let node = Node {
            entry: None,
            forgotten: None,
            row: Nodes::START,
            ahead: 0,
            has_jumped: false,
            may_evict: false,
            is_seen: false,
            released: Short::new(),
        };
        let client = |role: &Role| Client {
            row: automaton.start(role.kind),
            behind: 0,
            ahead: 0,
            acquires: role.acquires,
            extends: role.extends,
            above: Stamp::default(),
            links: std::iter::repeat_n(Link::UNUSED, scene.nodes).collect(),
        };
        Self {
            now: 0,
            nodes: std::iter::repeat_n(node, scene.nodes).collect(),
            clients: scene.clients.iter().map(client).collect(),
            acting: None,
            breaks: scene.breaks,
            crashes: scene.crashes,
            drops: scene.drops,
            jumps: scene.fencing.map_or(0, |fencing| fencing.jumps),
            upsets: scene.upsets,
            is_writing: false,
            fences: Short::new(),
            is_out_of_order: false,
        }
    }

    /// Whether nothing has happened yet.
    pub(super) fn is_untouched(&self, scene: &Scene) -> bool {
        let is_untouched = |(client, role): (&Client, &Role)| client.acquires == role.acquires;
        self.now == 0 && self.clients.iter().zip(scene.clients).all(is_untouched)
    }

    /// What the clock of a client reads: truncated to its tick.
    pub(super) fn reading(&self, scene: &Scene, client: usize) -> u8 {
        let it = &self.clients[client];
        let exact = self.now + it.ahead - it.behind;
        exact - exact % scene.tick.max(1)
    }

    /// Whether a client holds the lock, as it sees it.
    pub(super) fn holds(&self, scene: &Scene, client: usize, view: &View) -> bool {
        let now = scene.instant(self.reading(scene, client));
        view.claim.is_some_and(|claim| {
            self.acting.map(usize::from) == Some(client) || now < claim.believed_until
        })
    }

    /// What the clock of a node reads.
    pub(super) fn wall(&self, node: usize) -> u8 {
        (BASE + self.now)
            .checked_add_signed(self.nodes[node].ahead)
            .expect("no jump is that long")
    }

    /// Lets `node` execute what `client` has sent, where locks are plain.
    pub(super) fn execute(
        &mut self,
        scene: &Scene,
        node: usize,
        client: usize,
        order: Order,
    ) -> Answer {
        let expires_at = self.now + scene.ttl;
        let Node {
            entry, forgotten, ..
        } = &mut self.nodes[node];
        let is_mine = |token| {
            move |entry: &Entry| usize::from(entry.client) == client && entry.token == token
        };
        match order {
            Order::Acquire(..) if entry.is_some() => Answer::Held,
            Order::Acquire(token, _) => {
                *forgotten = None;
                *entry = Some(Entry {
                    client: small(client),
                    token,
                    expires_at,
                });
                Answer::Acquired
            }
            Order::Extend(token, _) => match entry.as_mut().filter(|entry| is_mine(token)(entry)) {
                Some(mine) => {
                    mine.expires_at = expires_at;
                    Answer::Extended
                }
                None => Answer::NotMine,
            },
            Order::Release(token, _) => {
                let compares = scene.flaw != Some(Flaw::ReleaseWithoutCompare);
                let deletes = |entry: &Entry| !compares || is_mine(token)(entry);
                match entry.take_if(|entry| deletes(entry)) {
                    Some(_) => Answer::Released,
                    None => Answer::NotMine,
                }
            }
        }
    }
}

impl Order {
    pub(super) const fn token(self) -> u8 {
        match self {
            Self::Acquire(token, _) | Self::Extend(token, _) | Self::Release(token, _) => token,
        }
    }
}

impl Link {
    /// The number of a link that was never used.
    pub(super) const UNUSED: u32 = 0;

    /// The connection breaks: of what was on its way the client learns nothing. A release is sent again on the
    /// next one, whether it has arrived or not.
    pub(super) fn break_down(&mut self, drawn: u8, leaves_strays: bool) {
        if leaves_strays {
            self.stray.extend(self.sent.iter().map(|sent| sent.order));
            self.stray.sort_unstable();
        }
        self.sent
            .retain(|sent| matches!(sent.order, Order::Release(..)));
        self.broken_after = drawn;
        if self.has_reply() {
            return;
        }
        match self.awaited {
            // It has been executed, and its reply is lost.
            Some(order @ Order::Release(..)) if !self.sent.iter().any(|sent| sent.is_awaited) => {
                self.sent.push(Sent {
                    order,
                    is_awaited: true,
                });
            }
            None | Some(Order::Release(..)) => {}
            Some(_) => self.answers = repeated(Answer::Broken, 1),
        }
    }

    /// Whether a reply has come to the call that the client waits for.
    pub(super) fn has_reply(&self) -> bool {
        self.awaited.is_some() && !self.answers.is_empty()
    }

    pub(super) fn take_reply(&mut self) -> Answer {
        self.awaited = None;
        self.answers.remove(0)
    }

    pub(super) fn is_in_use(&self) -> bool {
        !self.sent.is_empty() || self.awaited.is_some()
    }
}

fn repeated<T: Clone, const MAX: usize>(item: T, count: usize) -> ArrayVec<T, MAX> {
    std::iter::repeat_n(item, count).collect()
}

/// The number of a client or a node, in a byte.
pub(super) fn small(number: usize) -> u8 {
    u8::try_from(number).expect("a scene is small")
}
