//! What a world is like, and what is to go wrong in it.

use core::fmt;
use core::time::Duration;

use redlock_core::Options;
use redlock_core::transport::Mailbox;

use super::assumption::Assumption;
use super::clock::{Dial, Moment, Ticker};
use super::fault::Fault;
use super::fencing::{Fencing, Jumps};
use super::line_limits::{LineClient, LineLimits};
use super::link::Habits;
use super::process::Process;
use super::promise::Promised;
use super::reach::Reach;
use super::socket::Hardware;

/// What a world is like.
#[derive(Debug)]
pub(crate) struct Scenario {
    pub(crate) broken: Option<Assumption>,
    pub(crate) nodes: Vec<Dial>,
    /// A clock that is right.
    pub(crate) right: Dial,
    pub(crate) keys: usize,
    pub(crate) clients: Vec<Client>,
    /// Each client's link to each node, client by client.
    pub(crate) links: Vec<Habits>,
    pub(crate) plan: Vec<(Moment, Fault)>,
    /// When the faults are over.
    pub(crate) calm_at: Moment,
    /// When what the faults have left is over as well.
    pub(crate) clear_at: Moment,
    /// The lengths of time that matter here: a round, a validity, a TTL.
    pub(crate) lengths: [u64; 4],
    pub(crate) is_at_the_limit: bool,
    /// Nodes come back without their data.
    pub(crate) loses_data: bool,
    pub(crate) hazards: Hazards,
    /// Some clients wait in lines.
    pub(crate) has_lines: bool,
    /// Processes take over the leases of others.
    pub(crate) hands_over: bool,
    /// Nodes have been told the rules of their fleet; else clients do so, or an operator.
    pub(crate) is_set_up: bool,
    /// Some clients follow other rules than those of the nodes' fleet.
    pub(crate) has_other_rules: bool,
    /// Of a grant that its client never hears of: one in so many.
    pub(crate) lost_grant_odds: u64,
    /// None in a world of plain locks.
    pub(crate) fencing: Option<Fencing>,
    /// The rules of the fleet until an operator changes them to those of `fencing`. None where no operator does.
    pub(crate) before: Option<Fencing>,
}

/// In what other ways nodes lose what they knew. Plain clients notice some of them only.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Hazards {
    /// FLUSHALL.
    pub(crate) flush: bool,
    /// Keys go for want of memory, or a policy is about by which they might.
    pub(crate) evict: bool,
    /// A restart with older data.
    pub(crate) restore: bool,
    /// A replica for some time, with its connections open, and a master with older data after that.
    pub(crate) fail_back: bool,
}

/// What a client is like.
#[derive(Debug)]
pub(crate) struct Client {
    pub(super) clock: Ticker,
    pub(super) pause_odds: u64,
    pub(super) stall_odds: u64,
    /// It takes one of them for each call.
    pub(crate) options: Vec<Options>,
    /// The machine behind each name that it has for a node.
    pub(crate) names: Vec<usize>,
    pub(crate) names_twice: bool,
    /// The options with which it comes back when all is calm, if it does.
    pub(crate) calm: Options,
    pub(crate) comes_back: bool,
    pub(crate) tasks: usize,
    /// Of a device, whose transport is the shipping one. None of the others.
    pub(crate) hardware: Option<Hardware>,
    /// The mailbox of each task, and how each node calls the client. Empty if it stands in no line.
    pub(crate) mailboxes: Vec<Mailbox>,
    pub(crate) reach: Vec<Reach>,
    /// How many things each task does.
    pub(crate) steps: u64,
}

impl Client {
    pub(crate) const fn process(&self) -> Process {
        Process {
            clock: self.clock,
            free_at: 0,
            pause_odds: self.pause_odds,
            stall_odds: self.stall_odds,
        }
    }

    /// The longest that it waits for a node, in microseconds.
    pub(crate) fn node_timeout(&self) -> u64 {
        let options = self.options.iter().chain([&self.calm]);
        let longest = options.map(Options::round_time).max().unwrap_or_default();
        u64::try_from(longest.as_micros()).unwrap_or(u64::MAX)
    }

    pub(crate) const fn has_coarse_clock(&self) -> bool {
        self.clock.hertz() < 1_000_000
    }
}

impl Scenario {
    /// What the judge may hold against the lock: what the README promises under the conditions of this world.
    pub(crate) fn promised(&self) -> Promised {
        let options = self.clients.iter().flat_map(|client| &client.options);
        let mut plain = options.filter(|options| options.fencing().is_none());
        let Hazards {
            flush,
            evict,
            fail_back,
            ..
        } = self.hazards;
        let is_unnoticed = plain.next().is_some() && (flush || evict || fail_back);
        let jumps = self.fencing.map_or(Jumps::None, |fencing| {
            let is_told = self.broken == Some(Assumption::JumpTogether);
            // Clocks that are right may step within their skew, for which leases pay only with the margin.
            match fencing.jumps {
                Jumps::None if fencing.skew > 0 && !is_told => Jumps::All,
                jumps => jumps,
            }
        });
        Promised {
            quorum: jumps == Jumps::None && !is_unnoticed,
            plain: jumps == Jumps::None,
            fenced: jumps != Jumps::All,
        }
    }

    /// None where no client waits in a line, and where the clocks of nodes differ by so much that one of them refuses most fences:
    /// then clients miss their turns.
    pub(crate) fn line_limits(&self, spread: u64) -> Option<LineLimits> {
        let do_clocks_agree = self.fencing.is_none_or(|fencing| spread < fencing.window);
        if !self.has_lines || !do_clocks_agree {
            return None;
        }
        let calm = self.clients.iter().map(|client| &client.calm);
        let micros = |duration: Duration| u64::try_from(duration.as_micros()).unwrap_or(u64::MAX);
        let timeout = calm.clone().map(Options::round_time).max();
        let timeout = micros(timeout.unwrap_or_default());
        let ttl = calm.map(Options::ttl).max().unwrap_or_default();
        // Clocks run fast or slow, and have ticks.
        let at_most = |length: u64| length * 5 / 4 + 30_000;
        let client = |client: &Client| LineClient {
            is_judged: !client.names_twice
                && !client.reach.is_empty()
                && client.reach.iter().all(|reach| *reach != Reach::NoLine),
            is_callable: !client.reach.is_empty()
                && client.reach.iter().all(|reach| *reach == Reach::Callable),
            mailboxes: client.mailboxes.clone(),
        };
        Some(LineLimits {
            nodes: self.nodes.len(),
            from: self.clear_at,
            turn: at_most((25_000 + 2 * timeout).min(10_000_000)),
            timer: at_most((micros(ttl) / 4).min(1_250_000)),
            round: at_most(timeout),
            quick: 40_000,
            spread: spread * 5 / 4,
            slack: 30_000,
            clients: self.clients.iter().map(client).collect(),
        })
    }

    /// The rules that the fleet begins with.
    pub(crate) fn first_rules(&self) -> Option<redlock_core::Fencing> {
        self.before.or(self.fencing)?.rules().ok()
    }

    /// When an operator restores what clients cannot, and then the clients what they can.
    pub(crate) fn restored_at(&self) -> Moment {
        self.calm_at + 4 * self.lengths[3]
    }

    /// How long it takes until the last thing that a task has begun is done, and the last key has expired.
    pub(super) fn aftermath(&self, longest_ttl: u64) -> u64 {
        let set_back = self.plan.iter().map(|(_, fault)| match fault {
            Fault::SetBack(_, by) => *by,
            _ => 0,
        });
        let fenced = self.fencing.map_or(0, |fencing| 2 * fencing.quarantine());
        30 * longest_ttl + 2 * set_back.sum::<u64>() + fenced
    }
}

impl fmt::Display for Scenario {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        for (number, node) in self.nodes.iter().enumerate() {
            writeln!(
                f,
                "node {number}: runs at {} billionths of true time",
                node.rate()
            )?;
        }
        for (number, client) in self.clients.iter().enumerate() {
            let (dial, hertz) = (client.clock.dial(), client.clock.hertz());
            write!(
                f,
                "client {number}: runs at {} billionths of true time, {hertz} ticks a second",
                dial.rate()
            )?;
            writeln!(f, ", {} tasks", client.tasks)?;
            if let Some(hardware) = client.hardware {
                writeln!(f, "    a device: {hardware:?}")?;
            }
            for options in &client.options {
                writeln!(f, "    {options:?}")?;
            }
        }
        Ok(())
    }
}
