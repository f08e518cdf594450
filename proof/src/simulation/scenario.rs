//! What a world is like, and what is to go wrong in it: drawn from the seed before anything happens.

use core::fmt;
use core::time::Duration;

use redlock_core::mock::ServerFlaw;
use redlock_core::{Options, OptionsError};

use super::chance::Chance;
use super::clock::{Dial, Moment, Ticker};
use super::drift::Rates;
use super::fault::Fault;
use super::fencing::{Fencing, Jumps};
use super::history::KEYS;
use super::judge::{Promise, Promised};
use super::link::{Delay, Habits};
use super::plan;
use super::process::Process;

/// Something that the lock may rely on, broken on purpose.
#[derive(Debug, Clone, Copy, PartialEq, Eq, clap::ValueEnum)]
pub enum Assumption {
    /// Clocks differ in rate by more than the options allow.
    Drift,
    /// Nodes come back without their data, and the restart guard is off.
    Forget,
    /// Clocks of nodes are set forward.
    Jump,
    /// Clocks of clients say that they have no tick.
    Resolution,
    /// Commands overtake each other on one connection.
    Order,
    /// Nodes delete a key whosever it is.
    Compare,
    /// Timers forget to wake.
    Wake,
    /// Clients draw the same tokens.
    Entropy,
    /// The clocks of a majority of nodes jump together.
    JumpTogether,
    /// The margin for clocks that jump is not taken off the validity.
    Margin,
    /// Nodes forget until when a key was held when a clock that is ahead takes it away.
    HeldUntil,
    /// Nodes count their grants, and the highest count that a client is told is its fence.
    Count,
    /// A client asks for the highest fence, and writes one more back, which nodes accept in any case.
    WriteBack,
    /// Nodes accept the same fence again.
    Strict,
    /// Nodes accept a fence however old, and forget fences when their TTL is over.
    Floor,
    /// Nodes accept a fence however new.
    Ceiling,
    /// Nodes that forgot come back before the last fence that they may have forgotten is too old.
    Quarantine,
    /// Nodes accept a fence that was released.
    Burn,
    /// Clocks of nodes are set back by more than is agreed.
    StepBack,
    /// Nodes take an attempt that proposes the fence of another for the other.
    EqualFences,
    /// Nodes without a guard record take the rules of the first client that asks.
    AnyRules,
    /// Nodes know their guard record by the process alone, also when they have been replicas meanwhile.
    Failback,
    /// Nodes that evict keys say that they do not.
    Eviction,
    /// Operators tell nodes that have lost their data that they are new.
    Init,
    /// The quarantine is long enough for leases, and not for clocks that are set back.
    StepBackQuarantine,
    /// Holders who are told that their lease is lost go by what it said before.
    Lost,
    /// Servers that are named twice are not known to be one.
    Duplicates,
    /// Holders count an extended lease by the options of today.
    TodaysOptions,
    /// Clients follow the clock of one node.
    OneClock,
    /// Replicas take writes, and say that they are masters.
    Replica,
    /// A release by a client with other rules shortens the life of the fence.
    ShorterFences,
}

impl Assumption {
    /// Whether the algorithm itself rests on it: without it, two hold one lock.
    #[must_use]
    pub const fn is_of_the_algorithm(self) -> bool {
        self.breaks().is_some()
    }

    /// The promise that rests on it alone; none where any may break first.
    #[must_use]
    pub const fn breaks(self) -> Option<Promise> {
        match self {
            Self::EqualFences
            | Self::AnyRules
            | Self::Failback
            | Self::Eviction
            | Self::Init
            | Self::TodaysOptions
            | Self::Drift
            | Self::Forget
            | Self::Jump
            | Self::JumpTogether
            | Self::Margin
            | Self::HeldUntil => Some(Promise::Exclusion),
            Self::Count
            | Self::WriteBack
            | Self::Strict
            | Self::Floor
            | Self::Ceiling
            | Self::Quarantine
            | Self::StepBackQuarantine
            | Self::ShorterFences
            | Self::StepBack => Some(Promise::Fence),
            Self::Burn => Some(Promise::Burn),
            Self::Lost => Some(Promise::Over),
            Self::Duplicates => Some(Promise::Votes),
            Self::OneClock => Some(Promise::NodesTime),
            Self::Replica => Some(Promise::Replica),
            Self::Resolution | Self::Order | Self::Compare | Self::Wake | Self::Entropy => None,
        }
    }

    /// How many seeds it takes at the most to find it. A few need several things to come together.
    #[must_use]
    pub const fn found_within(self) -> u64 {
        match self {
            Self::TodaysOptions => 60_000,
            Self::AnyRules | Self::Burn => 20_000,
            Self::EqualFences | Self::ShorterFences => 40_000,
            _ => 2_000,
        }
    }

    /// Whether there are fences in its worlds; none where it makes no difference.
    const fn needs_fences(self) -> bool {
        let is_of_plain_locks = matches!(self, Self::Compare | Self::Replica);
        self.server_flaw().is_some() && !is_of_plain_locks
            || matches!(
                self,
                Self::JumpTogether
                    | Self::Margin
                    | Self::StepBack
                    | Self::Eviction
                    | Self::Init
                    | Self::TodaysOptions
                    | Self::OneClock
            )
    }

    /// What nodes do wrong.
    pub(crate) const fn server_flaw(self) -> Option<ServerFlaw> {
        match self {
            Self::Compare => Some(ServerFlaw::ReleasesAnyToken),
            Self::Eviction | Self::Replica => Some(ServerFlaw::HidesItsRole),
            Self::Count => Some(ServerFlaw::CountsGrants),
            Self::WriteBack => Some(ServerFlaw::AcceptsAnyFence),
            Self::Strict => Some(ServerFlaw::AcceptsFenceAgain),
            Self::Floor => Some(ServerFlaw::AcceptsOldFence),
            Self::Ceiling => Some(ServerFlaw::AcceptsNewFence),
            Self::Quarantine => Some(ServerFlaw::QuarantineTooShort),
            Self::Burn => Some(ServerFlaw::BurnsNoFence),
            Self::HeldUntil => Some(ServerFlaw::ForgetsHeldUntil),
            Self::EqualFences => Some(ServerFlaw::ConfusesEqualFences),
            Self::AnyRules => Some(ServerFlaw::TakesAnyRules),
            Self::Failback => Some(ServerFlaw::MissesFailback),
            Self::StepBackQuarantine => Some(ServerFlaw::QuarantineWithoutStepBack),
            Self::ShorterFences => Some(ServerFlaw::ShortensFenceRecord),
            _ => None,
        }
    }
}

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
    /// Nodes have been told the rules of their fleet; else clients do so, or an operator.
    pub(crate) is_set_up: bool,
    /// Some clients follow other rules than those of the nodes' fleet.
    pub(crate) has_other_rules: bool,
    /// Of a grant that its client never hears of: one in so many.
    pub(crate) lost_grant_odds: u64,
    /// None in a world of plain locks.
    pub(crate) fencing: Option<Fencing>,
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

/// Which kinds of locks there are in a world.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Mix {
    Plain,
    Fenced,
    Both,
}

/// What a client is like.
#[derive(Debug)]
pub(crate) struct Client {
    clock: Ticker,
    pause_odds: u64,
    stall_odds: u64,
    /// It takes one of them for each call.
    pub(crate) options: Vec<Options>,
    /// The machine behind each name that it has for a node.
    pub(crate) names: Vec<usize>,
    pub(crate) names_twice: bool,
    /// The options with which it comes back when all is calm, if it does.
    pub(crate) calm: Options,
    pub(crate) comes_back: bool,
    pub(crate) tasks: usize,
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
}

/// What everything in a world is measured by.
#[derive(Debug, Clone, Copy)]
struct Measure {
    ttl_ms: u64,
    drift_ppm: u32,
    /// Every lease has the same TTL and every message takes no time, so that a microsecond counts.
    is_tight: bool,
    /// Nodes come back without their data.
    loses_data: bool,
    restart_guard: bool,
    mix: Mix,
    hazards: Hazards,
    has_other_rules: bool,
    /// Some clients name a server twice.
    names_twice: bool,
    fencing: Option<Fencing>,
}

impl Scenario {
    pub(crate) fn draw(chance: &mut Chance, broken: Option<Assumption>) -> Self {
        let measure = Measure::draw(chance, broken);
        let fencing = measure.fencing;
        let ttl = measure.ttl_ms * 1_000;
        let count = match broken {
            // A minority that forgets must be enough for two quorums.
            Some(Assumption::Forget | Assumption::Jump) => chance.pick(&[1, 2, 3]),
            _ if measure.is_tight => chance.pick(&[1, 1, 2, 3]),
            Some(Assumption::OneClock) => 5,
            Some(Assumption::Duplicates | Assumption::Replica) => 3,
            Some(assumption) if assumption.needs_fences() => match assumption {
                Assumption::Margin
                | Assumption::HeldUntil
                | Assumption::EqualFences
                | Assumption::TodaysOptions => 3,
                _ => chance.pick(&[1, 2, 3, 3]),
            },
            _ => chance.pick(&[1, 2, 3, 3, 3, 3, 4, 5, 5, 5, 6, 7]),
        };
        let clients = chance.pick(&[2, 2, 2, 3, 3, 4, 5, 6]);

        let rates = Rates::draw(
            chance,
            measure.ttl_ms,
            measure.drift_ppm.into(),
            measure.is_tight,
            broken,
        );
        let nodes = (0..count)
            .map(|_| match fencing {
                None => Dial::new(1_000_000_000 + chance.below(1_000_000), rates.node(chance)),
                Some(fencing) => fencing.dial(chance),
            })
            .collect();
        let clients: Vec<_> = (0..clients)
            .map(|number| Client::draw(chance, measure, &rates, number, count, broken))
            .collect();
        let options = clients.iter().flat_map(|client| &client.options);
        let micros = |duration: Duration| u64::try_from(duration.as_micros()).unwrap_or(u64::MAX);
        let longest_ttl = options.clone().map(|options| micros(options.ttl())).max();
        let longest_ttl = longest_ttl.unwrap_or(ttl);
        let longest_ttl = longest_ttl.max(fencing.map_or(0, |_| ttl));
        let validity = options.clone().map(|options| micros(options.validity()));
        let validity = validity.min().unwrap_or(ttl);
        let round = options.map(|options| micros(options.round_time()));
        let round = round.min().unwrap_or(ttl);
        let lengths = [round, validity, ttl, longest_ttl];

        let links = (0..clients.len() * count)
            .map(|_| draw_habits(chance, measure, round, ttl))
            .collect();
        let calm_at = ttl * chance.between(4, 12);
        let mut scenario = Self {
            broken,
            loses_data: measure.loses_data,
            hazards: measure.hazards,
            is_set_up: measure.has_other_rules || broken.is_some() || !chance.one_in(4),
            has_other_rules: measure.has_other_rules,
            lost_grant_odds: chance.pick(&[0, 0, 0, 30, 6]),
            nodes,
            right: Fencing::RIGHT,
            fencing,
            keys: chance.pick(&[1, 1, 1, 2, KEYS.len()]),
            clients,
            links,
            plan: Vec::new(),
            calm_at,
            clear_at: calm_at,
            lengths,
            is_at_the_limit: rates.is_at_the_limit(),
        };
        scenario.plan = plan::draw(chance, &scenario, longest_ttl);
        scenario.clear_at = calm_at + scenario.aftermath(longest_ttl);
        scenario
    }

    /// What the judge may hold against the lock: what the README promises under the conditions of this world.
    pub(crate) fn promised(&self) -> Promised {
        let options = self.clients.iter().flat_map(|client| &client.options);
        let mut plain = options.filter(|options| options.fleet().is_none());
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

    /// When an operator restores what clients cannot, and then the clients what they can.
    pub(crate) fn restored_at(&self) -> Moment {
        self.calm_at + 4 * self.lengths[3]
    }

    /// How long it takes until the last thing that a task has begun is done, and the last key has expired.
    fn aftermath(&self, longest_ttl: u64) -> u64 {
        let set_back = self.plan.iter().map(|(_, fault)| match fault {
            Fault::SetBack(_, by) => *by,
            _ => 0,
        });
        let fenced = self.fencing.map_or(0, |fencing| 2 * fencing.quarantine());
        30 * longest_ttl + 2 * set_back.sum::<u64>() + fenced
    }
}

impl Measure {
    fn draw(chance: &mut Chance, broken: Option<Assumption>) -> Self {
        let mix = match broken {
            Some(Assumption::TodaysOptions) => Mix::Both,
            Some(assumption) if assumption.needs_fences() => Mix::Fenced,
            Some(_) => Mix::Plain,
            None => chance.pick(&[Mix::Plain, Mix::Plain, Mix::Plain, Mix::Fenced, Mix::Both]),
        };
        let is_fenced = mix != Mix::Plain;
        let is_tight = match broken {
            _ if is_fenced => false,
            Some(Assumption::Resolution) => true,
            Some(_) => false,
            None => chance.one_in(8),
        };
        let loses_data = broken == Some(Assumption::Forget) || chance.one_in(2);
        let ttl_ms = match chance.below(8) {
            _ if broken == Some(Assumption::AnyRules) => chance.between(3_000, 4_000),
            _ if is_fenced => chance.between(100, 4_000),
            0 => chance.between(10, 40),
            1 | 2 => chance.between(40, 200),
            3 | 4 => chance.between(200, 1_000),
            5 | 6 => chance.between(1_000, 5_000),
            _ => chance.between(5_000, 30_000),
        };
        let fencing = is_fenced.then(|| Fencing::draw(chance, ttl_ms, broken));
        let hazards = Hazards::draw(chance, is_fenced, is_tight, loses_data, broken);
        let needs_guard = loses_data || hazards.fail_back || hazards.restore;
        let has_other_rules = match broken {
            Some(assumption) => {
                matches!(assumption, Assumption::AnyRules | Assumption::ShorterFences)
            }
            None => is_fenced && chance.one_in(4),
        };
        Self {
            ttl_ms,
            fencing,
            mix,
            hazards,
            has_other_rules,
            names_twice: match broken {
                Some(assumption) => assumption == Assumption::Duplicates,
                None => !is_tight && chance.one_in(6),
            },
            drift_ppm: match chance
                .pick(&[0, 1, 150, 9_999, 10_000, 10_000, 10_001, 50_000, 100_000])
            {
                // A client must not drift out of the window while it waits for a node that hangs.
                drift if is_fenced => drift.min(10_001),
                drift => drift,
            },
            is_tight,
            loses_data,
            restart_guard: broken != Some(Assumption::Forget) && (needs_guard || chance.one_in(2)),
        }
    }
}

impl Hazards {
    fn draw(
        chance: &mut Chance,
        is_fenced: bool,
        is_tight: bool,
        loses_data: bool,
        broken: Option<Assumption>,
    ) -> Self {
        if let Some(assumption) = broken {
            return Self {
                flush: loses_data && is_fenced || assumption == Assumption::AnyRules,
                evict: assumption == Assumption::Eviction,
                restore: false,
                fail_back: matches!(assumption, Assumption::Failback | Assumption::Replica),
            };
        }
        let odds = if is_fenced { 3 } else { 8 };
        let mut one = |is_possible| is_possible && !is_tight && chance.one_in(odds);
        Self {
            flush: loses_data && is_fenced || one(loses_data),
            evict: one(true),
            restore: one(loses_data),
            fail_back: one(true),
        }
    }
}

impl Client {
    fn draw(
        chance: &mut Chance,
        mut measure: Measure,
        rates: &Rates,
        number: usize,
        nodes: usize,
        broken: Option<Assumption>,
    ) -> Self {
        // The first one is always there to find that the locks can be had.
        let is_odd = number > 0 && chance.one_in(2);
        let is_other = is_odd && measure.has_other_rules;
        if is_other {
            measure.mix = Mix::Fenced;
            measure.fencing = measure.fencing.map(|fencing| fencing.other(chance, broken));
            let longest = measure
                .fencing
                .map_or(measure.ttl_ms, |fencing| fencing.max_ttl / 1_000);
            measure.ttl_ms = measure.ttl_ms.min(longest);
        }
        let mut names: Vec<_> = (0..nodes).collect();
        let names_twice = nodes > 1 && number > 0 && measure.names_twice && chance.one_in(2);
        if names_twice {
            let name = chance.index(nodes);
            names[name] = chance.index(nodes - 1);
            names[name] += usize::from(names[name] >= name);
        }
        let wanted = if measure.is_tight {
            1
        } else {
            chance.between(1, 3)
        };
        let mut options = Vec::new();
        while (options.len() as u64) < wanted {
            options.extend(draw_options(chance, measure));
        }
        let shortest = options
            .iter()
            .map(Options::validity)
            .min()
            .unwrap_or_default();
        let hertz: &[u64] = match shortest.as_millis() {
            _ if measure.is_tight => rates.hertz(),
            60.. => &[1_000_000, 1_000_000, 32_768, 1_000, 100],
            10.. => &[1_000_000, 1_000_000, 32_768, 1_000],
            _ => &[1_000_000, 32_768],
        };
        let hertz = chance.pick(hertz);
        let dial = Dial::new(chance.below(2_000_000), rates.client(chance, hertz));
        Self {
            clock: Ticker::new(dial, hertz),
            pause_odds: chance.pick(&[0, 0, 200, 60, 20]),
            stall_odds: chance.pick(&[0, 0, 1_000, 300, 100]),
            calm: calm(chance, measure).unwrap_or(options[0]),
            names,
            names_twice,
            comes_back: !is_other && !names_twice,
            options,
            tasks: chance.pick(&[1, 1, 1, 2]),
            steps: chance.between(2, 6),
        }
    }

    pub(crate) const fn has_coarse_clock(&self) -> bool {
        self.clock.hertz() < 1_000_000
    }
}

fn draw_options(chance: &mut Chance, measure: Measure) -> Result<Options, OptionsError> {
    let ttl_ms = match chance.below(4) {
        _ if measure.is_tight => measure.ttl_ms,
        0 => chance.between(measure.ttl_ms / 2, measure.ttl_ms),
        1 => chance.between(measure.ttl_ms, measure.ttl_ms * 2),
        _ => measure.ttl_ms,
    };
    let ttl = Duration::from_millis(ttl_ms);
    let mut options = Options::new(ttl)?
        .drift_ppm(measure.drift_ppm)?
        .restart_guard(measure.restart_guard);
    let is_fenced = match measure.mix {
        Mix::Plain => false,
        Mix::Fenced => true,
        Mix::Both => chance.one_in(2),
    };
    if let Some(fencing) = measure.fencing.filter(|_| is_fenced) {
        options = fencing.fence(options)?;
    } else if measure.restart_guard {
        // The guard of a client is right for leases as long as those it knows of.
        options = options
            .max_ttl(Duration::from_millis(2 * measure.ttl_ms))?
            .refuse_eviction(chance.one_in(3));
    }
    let validity = options.validity();
    options = match chance.below(8) {
        0 => options.node_timeout(validity - Duration::from_micros(1))?,
        1 => options.node_timeout(validity / 2)?,
        2 => options.node_timeout(validity / 40)?,
        3..=5 => options.node_timeout(validity / 8)?,
        _ => options,
    };
    let (retry, wait) = match chance.below(8) {
        0 => (Duration::ZERO, ttl.min(Duration::from_millis(50))),
        1 => (ttl / 100, Duration::ZERO),
        2 => (ttl / 20, ttl * 3),
        3 => (ttl / 20, ttl / 4),
        _ => (ttl / 20, ttl),
    };
    options = options.wait(wait).retry_delay(retry / 2, retry * 2)?;
    Ok(match chance.below(6) {
        0 => options.max_extensions(chance.below(3).try_into().unwrap_or_default()),
        1 => options.unlimited_extensions(),
        _ => options.max_extensions(10),
    })
}

fn calm(chance: &mut Chance, measure: Measure) -> Result<Options, OptionsError> {
    let ttl_ms = if measure.is_tight || measure.fencing.is_some() {
        measure.ttl_ms
    } else {
        2_000
    };
    let mut options = Options::new(Duration::from_millis(ttl_ms))?.drift_ppm(measure.drift_ppm)?;
    let is_plain = measure.mix == Mix::Both && chance.one_in(3);
    if let Some(fencing) = measure.fencing.filter(|_| !is_plain) {
        options = fencing.fence(options)?;
    }
    options
        .wait(
            Duration::from_secs(60)
                + Duration::from_micros(measure.fencing.map_or(0, |fencing| fencing.quarantine())),
        )
        .node_timeout(Duration::from_millis(40).min(options.validity() / 2))?
        .retry_delay(Duration::from_millis(5), Duration::from_millis(100))
}

fn draw_habits(chance: &mut Chance, measure: Measure, round: u64, ttl: u64) -> Habits {
    let chance_of_ttl = chance.below(4 * ttl);
    Habits {
        delay: match chance.below(10) {
            _ if measure.is_tight => Delay::None,
            0 => Delay::None,
            1..=3 => Delay::Between(20, 200),
            4 => Delay::Between(200, 2_000),
            // There and back takes about as long as a round waits.
            5 => Delay::Between(round / 4, round / 2),
            6 => Delay::Between((round / 2).saturating_sub(2), round / 2 + 2),
            _ => Delay::Tailed(500, round, ttl),
        },
        waits: chance.one_in(3),
        resends: chance.one_in(2),
        notice: chance.pick(&[0, 1_000, round, ttl]),
        reconnect: chance.pick(&[0, 1_000, round, ttl]),
        begins_at: chance.pick(&[0, 0, 0, chance_of_ttl]),
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
            for options in &client.options {
                writeln!(f, "    {options:?}")?;
            }
        }
        Ok(())
    }
}
