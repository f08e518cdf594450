//! What goes wrong in a world.

use core::fmt;

use super::clock::{Moment, NEVER};
use super::history::{Seconds, What};
use super::scenario::Assumption;
use super::world::{Event, State};

/// Something that goes wrong at some moment.
#[derive(Debug, Clone, Copy)]
pub(crate) enum Fault {
    /// The connection breaks; what is on its way is lost or late.
    Break { client: usize, node: usize },
    /// Nothing gets from the client to the node.
    CutRequests {
        client: usize,
        node: usize,
        until: Moment,
    },
    /// Nothing gets from the node to the client.
    CutReplies {
        client: usize,
        node: usize,
        until: Moment,
    },
    /// Everything takes longer by `delay`, either way.
    Spike {
        client: usize,
        node: usize,
        delay: u64,
        until: Moment,
    },
    /// The node stands still, with its connections open.
    Hang { node: usize, until: Moment },
    /// The node dies, and comes back with its data or without.
    Crash {
        node: usize,
        until: Moment,
        forgets: bool,
    },
    /// The clock of the node is set back.
    SetBack { node: usize, by: u64 },
    /// The clock of the node is set forward.
    SetForward { node: usize, by: u64 },
    /// The process is not run for some time.
    Pause { client: usize, length: u64 },
}

/// The kinds of what goes wrong, as they are counted.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Kind {
    DriftAtTheLimit,
    TickyClock,
    Pause,
    Stall,
    BrokenConnection,
    LostCommand,
    LostReply,
    LateCommand,
    OvertakenCommand,
    ResentRelease,
    CutRequests,
    CutReplies,
    Spike,
    Hang,
    Crash,
    CrashWithLoss,
    DeadForGood,
    ClockSetBack,
    NeverPolled,
    DroppedFuture,
    ForgottenLease,
    /// The assumption that is broken on purpose.
    BrokenAssumption,
}

impl Kind {
    pub(crate) const ALL: [Self; 22] = [
        Self::DriftAtTheLimit,
        Self::TickyClock,
        Self::Pause,
        Self::Stall,
        Self::BrokenConnection,
        Self::LostCommand,
        Self::LostReply,
        Self::LateCommand,
        Self::OvertakenCommand,
        Self::ResentRelease,
        Self::CutRequests,
        Self::CutReplies,
        Self::Spike,
        Self::Hang,
        Self::Crash,
        Self::CrashWithLoss,
        Self::DeadForGood,
        Self::ClockSetBack,
        Self::NeverPolled,
        Self::DroppedFuture,
        Self::ForgottenLease,
        Self::BrokenAssumption,
    ];

    pub(crate) const fn name(self) -> &'static str {
        match self {
            Self::DriftAtTheLimit => "clocks that differ by all that the options allow",
            Self::TickyClock => "clients with a coarse clock",
            Self::Pause => "processes paused",
            Self::Stall => "processes stalled in the middle of a poll",
            Self::BrokenConnection => "connections broken",
            Self::LostCommand => "commands lost",
            Self::LostReply => "replies lost",
            Self::LateCommand => "commands that outlived their connection",
            Self::OvertakenCommand => "of them, behind a later connection",
            Self::ResentRelease => "releases sent again",
            Self::CutRequests => "links cut towards the node",
            Self::CutReplies => "links cut towards the client",
            Self::Spike => "spikes of delay",
            Self::Hang => "nodes hung",
            Self::Crash => "nodes crashed, data kept",
            Self::CrashWithLoss => "nodes crashed and away for the longest TTL, data lost",
            Self::DeadForGood => "nodes dead for good",
            Self::ClockSetBack => "node clocks set back",
            Self::NeverPolled => "futures dropped before their first poll",
            Self::DroppedFuture => "futures dropped at an await",
            Self::ForgottenLease => "leases dropped and not released",
            Self::BrokenAssumption => "assumptions broken",
        }
    }
}

impl State {
    /// Lets `fault` happen now.
    pub(super) fn inject(&mut self, fault: Fault) {
        self.tell(What::Fault(fault));
        match fault {
            Fault::Break { client, node } => self.break_connection(client, node),
            Fault::CutRequests {
                client,
                node,
                until,
            } => {
                self.count(Kind::CutRequests);
                self.link(client, node).requests_cut_until = until;
            }
            Fault::CutReplies {
                client,
                node,
                until,
            } => {
                self.count(Kind::CutReplies);
                self.link(client, node).replies_cut_until = until;
            }
            Fault::Spike {
                client,
                node,
                delay,
                until,
            } => {
                self.count(Kind::Spike);
                self.link(client, node).spike = (delay, until);
            }
            Fault::Hang { node, until } => {
                self.count(if until == NEVER {
                    Kind::DeadForGood
                } else {
                    Kind::Hang
                });
                let machine = &mut self.machines[node];
                machine.hung_until = machine.hung_until.max(until);
            }
            Fault::Crash {
                node,
                until,
                forgets,
            } => self.crash(node, until, forgets),
            Fault::SetBack { node, by } => {
                self.count(Kind::ClockSetBack);
                let reading = self.machines[node].dial.reads(self.now);
                self.set_clock(node, reading.saturating_sub(by));
            }
            Fault::SetForward { node, by } => {
                self.count(Kind::BrokenAssumption);
                let reading = self.machines[node].dial.reads(self.now);
                self.set_clock(node, reading + by);
            }
            Fault::Pause { client, length } => {
                self.count(Kind::Pause);
                self.pause(client, length);
            }
        }
    }

    pub(super) fn count(&mut self, kind: Kind) {
        self.count_many(kind, 1);
    }

    pub(super) fn count_many(&mut self, kind: Kind, times: usize) {
        self.faults[kind as usize] += times as u64;
    }

    fn crash(&mut self, node: usize, until: Moment, forgets: bool) {
        if self.machines[node].is_down {
            return;
        }
        self.count(match forgets {
            _ if until == NEVER => Kind::DeadForGood,
            true if self.fails(Assumption::Forget) => Kind::BrokenAssumption,
            true => Kind::CrashWithLoss,
            false => Kind::Crash,
        });
        let machine = &mut self.machines[node];
        machine.is_down = true;
        machine.life += 1;
        for client in 0..self.processes.len() {
            self.lose_connection(client, node);
        }
        self.agenda.add(until, Event::Restart { node, forgets });
    }
}

impl fmt::Display for Fault {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match *self {
            Self::Break { client, node } => {
                write!(f, "the connection of client {client} to node {node} breaks")
            }
            Self::CutRequests {
                client,
                node,
                until,
            } => {
                write!(
                    f,
                    "nothing gets from client {client} to node {node} until {}",
                    Seconds(until)
                )
            }
            Self::CutReplies {
                client,
                node,
                until,
            } => {
                write!(
                    f,
                    "nothing gets from node {node} to client {client} until {}",
                    Seconds(until)
                )
            }
            Self::Spike {
                client,
                node,
                delay,
                until,
            } => write!(
                f,
                "everything between client {client} and node {node} takes {delay} us longer until {}",
                Seconds(until)
            ),
            Self::Hang { node, until } => write!(f, "node {node} hangs until {}", Seconds(until)),
            Self::Crash {
                node,
                until,
                forgets,
            } => {
                let data = if forgets { "without" } else { "with" };
                write!(
                    f,
                    "node {node} is down until {}, and comes back {data} its data",
                    Seconds(until)
                )
            }
            Self::SetBack { node, by } => {
                write!(f, "the clock of node {node} is set back by {by} us")
            }
            Self::SetForward { node, by } => {
                write!(f, "the clock of node {node} is set forward by {by} us")
            }
            Self::Pause { client, length } => {
                write!(f, "client {client} is not run for {length} us")
            }
        }
    }
}
