//! What is between one client and one node: requests and replies in order, on one connection.

use std::collections::VecDeque;

use redlock_core::Denial;
use redlock_core::transport::{Admission, Call as LineCall, NodeInfo, ReplicationId, Reply};

use super::chance::Chance;
use super::clock::Moment;
use super::history::{Message, Task};
use super::place::Route;
use super::slab::Name;
use super::socket::{Letter, Socket};

/// How a link behaves as long as nothing is wrong with it.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Habits {
    pub(crate) delay: Delay,
    /// Without a connection an acquire or extend waits for one, as a device's does; else it fails at once.
    pub(crate) waits: bool,
    /// A release that has found no end on its connection is sent by the next one, as on a server.
    pub(crate) resends: bool,
    /// Roughly how long it takes to notice that the connection is dead.
    pub(crate) notice: u64,
    /// Roughly how long it takes to make another.
    pub(crate) reconnect: u64,
    /// When the first connection is made; zero when it is there from the beginning.
    pub(crate) begins_at: Moment,
}

/// How long a message takes, one way.
#[derive(Debug, Clone, Copy)]
pub(crate) enum Delay {
    None,
    Between(u64, u64),
    /// Now and then up to the second time, rarely up to the third.
    Tailed(u64, u64, u64),
}

impl Delay {
    /// What a link is like when nothing is wrong in the whole world.
    pub(super) const CALM: Self = Self::Between(20, 200);

    pub(super) fn draw(self, chance: &mut Chance) -> u64 {
        match self {
            Self::None => 0,
            Self::Between(first, last) => chance.between(first, last),
            Self::Tailed(usual, slow, slowest) => match chance.below(64) {
                0 => chance.about(slowest),
                1..=6 => chance.about(slow),
                _ => chance.between(usual / 4, usual),
            },
        }
    }
}

#[derive(Debug)]
pub(crate) struct Link {
    pub(super) habits: Habits,
    /// Of a device, which makes its connections itself. All that concerns calls here is of the other clients.
    pub(super) socket: Option<Box<Socket>>,
    pub(super) line: Line,
    /// What the client knows of the node.
    pub(super) admission: Admission,
    /// How many times the node has said who it is.
    pub(super) node_infos: u32,
    /// Who it was the first time and the last time.
    pub(super) met: Option<(ReplicationId, ReplicationId)>,
    /// The number of the connection.
    pub(super) epoch: u32,
    /// On their way to the node, the first one first.
    pub(super) requests: VecDeque<Parcel>,
    /// On their way back.
    pub(super) replies: VecDeque<(Parcel, Return)>,
    /// Handed over and not answered.
    pub(super) owed: Vec<(Parcel, Message)>,
    /// The numbers of the connections over which the node can call the client, as far as it knows.
    pub(super) subscribed: Vec<u32>,
    /// Places in lines that a command was handed over for, and to which connection.
    pub(super) places: Vec<(Task, usize, u32)>,
    /// Places that a command has taken which had outlived its connection: whoever has left may be back.
    pub(super) late_places: Vec<(Task, usize)>,
    /// Releases for the next connection, and who waits for their replies.
    pub(super) outbox: Vec<(Message, Name)>,
    /// Calls that wait for the next connection.
    pub(super) waiting: Vec<Name>,
    /// Tokens of which an acquire or an adoption was handed over, and to which connection.
    pub(super) handed: Vec<(usize, u32)>,
    pub(super) last_arrival: Moment,
    pub(super) last_answer: Moment,
    pub(super) requests_cut_until: Moment,
    pub(super) replies_cut_until: Moment,
    /// By how much everything takes longer, until when.
    pub(super) spike: (u64, Moment),
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Line {
    Up,
    /// The node has been asked who it is, and nothing else goes over the connection before it has said so. Of a device: the
    /// node has not accepted the connection yet.
    Asking,
    /// It is dead, and the client does not know.
    Dead,
    Down,
}

/// What goes over a connection.
#[derive(Debug, Clone, Copy)]
pub(super) struct Parcel {
    pub(super) number: u64,
    pub(super) content: Content,
    /// How many times the node had said who it is when this was handed over.
    pub(super) node_infos: u32,
    /// Who waits for the reply, if it still waits.
    pub(super) call: Name,
    /// How many bytes it is, if a device has sent it.
    pub(super) len: usize,
}

#[derive(Debug, Clone, Copy)]
pub(super) enum Content {
    Command(Message),
    /// Looks whether a token stands under a key, once everything sent before it has been done; of a node that has
    /// been master and replica so often.
    Probe(usize, usize, u64),
    /// Looks whether a task stands in the line of a key, in the same way.
    LineProbe(Task, usize, u64),
    /// Who the node is.
    Question,
    /// A script that the node is to know.
    Load(usize),
    /// No command.
    Unknown,
    /// A release that is answered and not done, where something is broken on purpose.
    Undone,
}

/// What comes back.
#[derive(Debug)]
pub(super) enum Return {
    Answer(Message, Result<Reply, Denial>),
    NodeInfo(NodeInfo),
    Call(Mail),
    /// To a device, and what they mean.
    Bytes(Vec<u8>, Letter),
}

/// A call for a task that waits for a key.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Mail {
    pub(super) task: Task,
    pub(super) key: usize,
    pub(super) call: LineCall,
}

/// What became of a command that a task wants to hand over.
#[derive(Debug)]
pub(crate) enum Handed {
    Sent,
    /// There is no connection; the call is woken when there is one.
    NotYet,
    /// There is no connection.
    Refused,
    /// The node has no vote.
    Denied(Denial),
}

impl Link {
    pub(crate) const fn new(habits: Habits) -> Self {
        Self {
            habits,
            socket: None,
            line: Line::Down,
            admission: Admission::new(),
            node_infos: 0,
            met: None,
            epoch: 0,
            requests: VecDeque::new(),
            replies: VecDeque::new(),
            owed: Vec::new(),
            subscribed: Vec::new(),
            places: Vec::new(),
            late_places: Vec::new(),
            outbox: Vec::new(),
            waiting: Vec::new(),
            handed: Vec::new(),
            last_arrival: 0,
            last_answer: 0,
            requests_cut_until: 0,
            replies_cut_until: 0,
            spike: (0, 0),
        }
    }

    /// Who the node is by what it has just said.
    pub(super) fn meet(&mut self, node_info: &NodeInfo) {
        let first = self
            .met
            .map_or(node_info.replication_id, |(first, _)| first);
        self.met = Some((first, node_info.replication_id));
    }

    pub(super) fn hand_over_later(&mut self, message: Message, call: Name) -> Handed {
        if message.is_release() && self.habits.resends {
            self.outbox.push((message, call));
            return Handed::Sent;
        }
        if !self.habits.waits {
            return Handed::Refused;
        }
        if !self.waiting.contains(&call) {
            self.waiting.push(call);
        }
        Handed::NotYet
    }

    /// Nothing is expected of what was handed over.
    pub(super) fn forget_handed(&mut self) {
        self.handed.clear();
    }

    /// The connection to which an acquire with `token` was handed, if that one is still good.
    pub(super) fn has_lived_since(&mut self, token: usize) -> bool {
        let place = self.handed.iter().position(|(handed, _)| *handed == token);
        let epoch = place.map(|place| self.handed.swap_remove(place).1);
        epoch == Some(self.epoch) && self.line == Line::Up
    }
}

/// A command that has outlived its connection.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Straggler {
    pub(super) route: Route,
    pub(super) message: Message,
    pub(super) epoch: u32,
    /// Of the node, which takes with it what had not arrived when it died.
    pub(super) life: u32,
}
