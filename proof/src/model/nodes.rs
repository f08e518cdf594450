//! All that a node of fenced locks can be, as a table: it is filled by running the server of the test kit, which does
//! what the scripts do.

use std::collections::HashMap;
use std::sync::RwLock;

use foldhash::fast::RandomState;
use redlock_core::mock::Server;
use redlock_core::transport::{Command, Proposal, ReplicationId, Reply, RunId, VoteConditions};
use redlock_core::{Denial, Failure, Fence, Fencing, Instant, Token};

use super::client::{Answer, KEY, Offer, Order};
use super::numbered::Numbered;
use super::scene::Scene;

/// A node: with one lock, and to the microsecond as the units of a scene are.
type Node = Server<1>;

/// The nodes of a scene; they are all alike. What a node is, is a row of the table; what happens to it leads to
/// another row.
#[derive(Debug)]
pub(super) struct Nodes {
    scene: Scene,
    /// To which nothing has happened yet.
    first: Node,
    rows: Numbered<Node>,
    next: RwLock<HashMap<(u32, u8, Event), Turn, RandomState>>,
}

/// What happens to a node.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub(super) enum Event {
    /// A command of this client arrives.
    Execute(u8, Order),
    /// Its clock is another time.
    Time,
    /// The key expires before its time.
    Expiry,
    /// It forgets everything.
    Loss,
    /// It forgets everything, and is another process.
    Restart,
    /// It is the same process, with its first data.
    Rollback,
    /// It forgets the lock and its fence, and nothing else.
    Eviction,
    /// An operator writes a guard record, without a quarantine and with one.
    Init,
    Repair,
}

/// The key of the lock, on one node.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub(super) struct Entry {
    pub(super) client: u8,
    pub(super) token: u8,
    /// By true time, or by the clock of the node where locks are fenced.
    pub(super) expires_at: u8,
}

/// Where an event leads.
#[derive(Debug, Clone)]
pub(super) struct Turn {
    pub(super) to: u32,
    /// What stands under the key then.
    pub(super) entry: Option<Entry>,
    /// To a command.
    pub(super) answer: Option<Answer>,
}

impl Nodes {
    /// The row of a node to which nothing has happened yet.
    pub(super) const START: u32 = 0;

    pub(super) fn new(scene: &Scene) -> Self {
        let flaw = scene.flaw.and_then(super::flaw::Flaw::server_flaw);
        let node = Node::new(RunId::new(1)).exact();
        let node = node.set_up_for(scene.rules()).with_flaw(flaw);
        let rows = Numbered::default();
        assert_eq!(rows.number(node.clone()), Self::START);
        Self {
            scene: scene.clone(),
            first: node,
            rows,
            next: RwLock::default(),
        }
    }

    /// Whether it has forgotten everything, and nothing has happened since.
    pub(super) fn is_blank(&self, row: u32) -> bool {
        self.look(row, |node| node.rules().is_none() && node.is_empty())
    }

    /// Whether its guard record is of this process with this data.
    pub(super) fn is_guarded(&self, row: u32) -> bool {
        self.look(row, |node| node.is_vouched(Instant::MAX))
    }

    /// Whether its guard record was written by a client or an operator, with a quarantine.
    pub(super) fn is_restored(&self, row: u32) -> bool {
        let start = Instant::from_micros(0);
        self.look(row, |node| {
            node.is_vouched(Instant::MAX) && !node.is_vouched(start)
        })
    }

    fn look<T>(&self, row: u32, at: impl FnOnce(&Node) -> T) -> T {
        at(self.rows.get(row))
    }

    fn rules(&self) -> Fencing {
        self.scene.rules().expect("an operator of fenced locks")
    }

    /// Lets `event` happen to a node whose clock reads `wall`, in units.
    pub(super) fn step(&self, row: u32, wall: u8, event: Event) -> Turn {
        let question = (row, wall, event);
        let known = self.next.read().expect("no thread has panicked");
        if let Some(turn) = known.get(&question) {
            return turn.clone();
        }
        drop(known);
        let mut node = self.rows.get(row).clone();
        let now = self.scene.instant(wall);
        let mut answer = None;
        match event {
            Event::Execute(client, order) => {
                let reply = execute(&mut node, &self.scene, (client, order), now);
                let known = Answer::new(&self.scene, &reply);
                answer = Some(known.expect("a node of fenced locks says so"));
            }
            Event::Time => node.expire(now),
            Event::Expiry => node.expire_early(KEY.as_bytes()),
            Event::Loss => node.clear(),
            Event::Restart => {
                node.clear();
                node.restart(RunId::new(2));
            }
            Event::Rollback => {
                let [first, other] = [1, 2].map(ReplicationId::new);
                let is_first = node.replication_id() == first;
                let replication_id = if is_first { other } else { first };
                node.restore(self.first.data());
                node.begin_history(replication_id);
            }
            Event::Eviction => node.evict(KEY.as_bytes()),
            Event::Init => {
                node.init(self.rules(), now, false);
            }
            Event::Repair => node.repair(self.rules(), now),
        }
        let entry = node.entry(KEY.as_bytes(), now).map(|entry| {
            let [client, token, ..] = *entry.token.as_bytes();
            Entry {
                client,
                token,
                expires_at: self.scene.reading(entry.expires_at),
            }
        });
        let turn = Turn {
            to: self.rows.number(node),
            entry,
            answer,
        };
        let mut known = self.next.write().expect("no thread has panicked");
        known.insert(question, turn.clone());
        turn
    }
}

fn execute(
    node: &mut Node,
    scene: &Scene,
    (client, order): (u8, Order),
    now: Instant,
) -> Result<Reply, Denial> {
    let options = scene.options(scene.clients[usize::from(client)].kind);
    let ttl_ms = u32::try_from(options.ttl().as_millis()).expect("a scene is short");
    let mut bytes = [0; Token::LEN];
    (bytes[0], bytes[1]) = (client, order.token());
    let token = &Token::from_bytes(bytes);
    let key = KEY.as_bytes();
    let proposal = |offer: Option<Offer>| {
        let (offer, fencing) = offer.zip(options.fencing())?;
        let fence = Fence::from_u64(scene.micros(offer.fence));
        let time = scene.micros(offer.time);
        Some(Proposal::new(fence, fencing, time, offer.vouches))
    };
    let command = match order {
        Order::Acquire(_, offer) => Command::acquire(key, token, ttl_ms, VoteConditions::NONE)
            .with_proposal(proposal(offer)),
        Order::Extend(_, offer) => {
            Command::extend(key, token, ttl_ms).with_proposal(proposal(offer))
        }
        Order::Release(_, offer) => Command::release(key, token).with_proposal(proposal(offer)),
    };
    node.execute(&command, now).map_err(|error| match error {
        Failure::Denied(denial) => denial,
        other => unreachable!("a server has room for its lock: {other}"),
    })
}
