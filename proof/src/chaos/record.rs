//! What happened: what each client said and when, and what was done to which node or client. All that is judged or drawn is in it.

use std::collections::BTreeMap;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use redlock_core::Instant;

use super::fault::Kind;
use super::lock::Lock;
use super::operator::Operation;
use super::order::Issued;
use super::said::Said;

#[derive(Debug, Clone, Default)]
pub(super) struct Record {
    pub(super) lock: Lock,
    /// When the first client was started, and when the last one was gone.
    pub(super) time: Option<[Instant; 2]>,
    /// From then on there were no faults.
    pub(super) calm_from: Option<Instant>,
    /// What could be done to nodes and clients.
    pub(super) kinds: Vec<Kind>,
    pub(super) faults: Vec<Fault>,
    /// The names of the clients.
    pub(super) clients: Vec<String>,
    /// For each voice its client. A client that is replaced goes on with another voice.
    pub(super) voices: Vec<usize>,
    /// In the order in which it was heard, which for each voice is that in which it was said.
    pub(super) said: Vec<(usize, Said)>,
    /// The numbers that the clients got who took the highest count of the nodes for a fence.
    pub(super) counted: Vec<Issued>,
    /// How many keys the nodes have evicted.
    pub(super) evicted: u64,
    /// How many commands met a replica.
    pub(super) read_only: u64,
    /// How many clocks of nodes were set back that had just lost everything.
    pub(super) set_back: usize,
    pub(super) operations: Vec<Operation>,
    /// What was still on the nodes when all leases had been given back: how many keys and connections.
    pub(super) left: Left,
    /// By how much the wall clock, on which nodes count, was moved against the clock of the leases at most.
    pub(super) clock_step: Duration,
}

#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) struct Fault {
    pub(super) kind: Kind,
    pub(super) nodes: Vec<usize>,
    pub(super) client: Option<usize>,
    pub(super) from: Instant,
    /// None while it lasts.
    pub(super) until: Option<Instant>,
}

#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub(super) struct Left {
    pub(super) keys: Vec<LeftKey>,
    pub(super) connections: usize,
}

/// The key of the lock, on a node.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) struct LeftKey {
    pub(super) node: usize,
    /// For how long it would live, which tells when it was set. `None` if for ever.
    pub(super) ttl: Option<Duration>,
}

/// Takes down what happens, from several threads.
#[derive(Debug, Clone, Default)]
pub(super) struct Recorder(Arc<Mutex<Notes>>);

#[derive(Debug, Default)]
struct Notes {
    record: Record,
    /// Who holds now, by voice, and until when.
    holding: BTreeMap<usize, Instant>,
    /// When each client acquired last.
    acquired_at: BTreeMap<usize, Instant>,
    idle: Vec<usize>,
    /// Lines that no client should have printed.
    nonsense: Option<String>,
}

impl Recorder {
    /// The number of a new client of this name.
    pub(super) fn add_client(&self, name: String) -> usize {
        let clients = &mut self.notes().record.clients;
        clients.push(name);
        clients.len() - 1
    }

    /// The number under which `client` speaks from now on.
    pub(super) fn add_voice(&self, client: usize) -> usize {
        let voices = &mut self.notes().record.voices;
        voices.push(client);
        voices.len() - 1
    }

    pub(super) fn hear(&self, voice: usize, said: Said) {
        let mut notes = self.notes();
        match said {
            Said::Acquired { at, valid_until } => {
                notes.holding.insert(voice, valid_until);
                if let Some(client) = notes.record.voices.get(voice).copied() {
                    notes.acquired_at.insert(client, at);
                }
            }
            Said::Extended { valid_until } | Said::Used { valid_until, .. } => {
                notes.holding.insert(voice, valid_until);
            }
            Said::LetsGo { .. } => {
                notes.holding.remove(&voice);
            }
            Said::Idle { .. } => notes.idle.push(voice),
            Said::Wants { .. }
            | Said::Refused { .. }
            | Said::Denied { .. }
            | Said::Fenced { .. }
            | Said::TurnedAway { .. }
            | Said::Lost { .. } => {}
        }
        notes.record.said.push((voice, said));
    }

    /// A line that was not understood.
    pub(super) fn hear_nonsense(&self, line: &str) {
        self.notes().nonsense = Some(line.to_owned());
    }

    pub(super) fn nonsense(&self) -> Option<String> {
        self.notes().nonsense.clone()
    }

    /// The client that holds the lock at `now`, and until when.
    pub(super) fn holder(&self, now: Instant) -> Option<(usize, Instant)> {
        let notes = self.notes();
        let (voice, until) = notes.holding.iter().find(|(_, until)| **until > now)?;
        Some((*notes.record.voices.get(*voice)?, *until))
    }

    /// Whether all clients have acquired the lock since `instant`.
    pub(super) fn all_acquired_since(&self, instant: Instant) -> bool {
        let notes = self.notes();
        (0..notes.record.clients.len()).all(|client| {
            let at = notes.acquired_at.get(&client);
            at.is_some_and(|at| *at > instant)
        })
    }

    pub(super) fn is_idle(&self, voice: usize) -> bool {
        self.notes().idle.contains(&voice)
    }

    /// Takes down a fault that begins; its number.
    pub(super) fn begin(&self, fault: Fault) -> usize {
        let faults = &mut self.notes().record.faults;
        faults.push(fault);
        faults.len() - 1
    }

    pub(super) fn end(&self, fault: usize, at: Instant) {
        if let Some(fault) = self.notes().record.faults.get_mut(fault) {
            fault.until = Some(at);
        }
    }

    /// Takes down something else.
    pub(super) fn note(&self, change: impl FnOnce(&mut Record)) {
        change(&mut self.notes().record);
    }

    /// All that was taken down.
    pub(super) fn record(&self) -> Record {
        self.notes().record.clone()
    }

    fn notes(&self) -> MutexGuard<'_, Notes> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }
}
