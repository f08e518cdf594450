//! Draws a scenario from the seed, before anything happens.

use core::time::Duration;

use redlock_core::transport::Mailbox;
use redlock_core::{Options, OptionsError};

use super::assumption::Assumption;
use super::chance::Chance;
use super::clock::{Dial, Ticker};
use super::drift::Rates;
use super::fencing::Fencing;
use super::link::{Delay, Habits};
use super::place::KEYS;
use super::plan;
use super::reach::Reach;
use super::scenario::{Client, Hazards, Scenario};
use super::socket::Hardware;

impl Scenario {
    pub(crate) fn draw(chance: &mut Chance, broken: Option<Assumption>) -> Self {
        let measure = Measure::draw(chance, broken);
        let fencing = measure.fencing;
        let ttl = measure.ttl_ms * 1_000;
        let count = match broken {
            // A minority that forgets must be enough for two quorums.
            Some(Assumption::Forget | Assumption::Jump | Assumption::MinHoldGuard) => {
                chance.pick(&[1, 2, 3])
            }
            Some(Assumption::VotelessAdoption) => chance.pick(&[1, 3]),
            _ if measure.is_tight => chance.pick(&[1, 1, 2, 3]),
            Some(Assumption::OneClock) => 5,
            Some(Assumption::OldConfirmation | Assumption::OldRecords) => 3,
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
        // Who is first in a line depends on the clocks of the nodes.
        let apart = match measure.has_lines {
            true => chance.pick(&[1, 1_000, 1_000_000]),
            false => 1_000_000,
        };
        let nodes = (0..count)
            .map(|_| match fencing {
                None => Dial::new(1_000_000_000 + chance.below(apart), rates.node(chance)),
                Some(fencing) => fencing.dial(chance),
            })
            .collect();
        let clients: Vec<_> = (0..clients)
            .map(|number| Client::draw(chance, measure, &rates, number, count, broken))
            .collect();
        let options = clients.iter().flat_map(|client| &client.options);
        let micros = |duration: Duration| u64::try_from(duration.as_micros()).unwrap_or(u64::MAX);
        let longest = |options: &Options| {
            let min_hold_ms = options.vote_conditions().min_hold_ms;
            micros(options.ttl()).max(u64::from(min_hold_ms) * 1_000)
        };
        let longest_ttl = options.clone().map(longest).max();
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
            has_lines: measure.has_lines,
            hands_over: measure.hands_over,
            is_set_up: measure.has_other_rules || broken.is_some() || !chance.one_in(4),
            has_other_rules: measure.has_other_rules,
            before: measure.before,
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
        if scenario.has_lines {
            let rush = plan::draw_rush(chance, &scenario);
            scenario.plan.extend(rush);
        }
        scenario
    }
}

/// Which kinds of locks there are in a world.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Mix {
    Plain,
    Fenced,
    Both,
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
    /// The rules of the fleet until an operator changes them. Clients with other rules have these.
    before: Option<Fencing>,
    /// Some plain clients have a TTL above the `max_ttl` of the fleet.
    has_long_leases: bool,
    /// Some clients name a server twice.
    names_twice: bool,
    fencing: Option<Fencing>,
    /// Some clients are devices.
    has_devices: bool,
    /// Some clients wait in lines.
    has_lines: bool,
    /// Processes take over the leases of others.
    hands_over: bool,
    /// Zero if no client has one.
    min_hold_ms: u64,
}

impl Measure {
    fn draw(chance: &mut Chance, broken: Option<Assumption>) -> Self {
        let mix = match broken {
            Some(
                Assumption::TodaysOptions
                | Assumption::OldConfirmation
                | Assumption::OldRecords
                | Assumption::LongPlain,
            ) => Mix::Both,
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
        let loses_data = matches!(
            broken,
            Some(Assumption::Forget | Assumption::VotelessAdoption | Assumption::MinHoldGuard)
        ) || chance.one_in(2);
        let ttl_ms = match chance.below(8) {
            _ if matches!(
                broken,
                Some(Assumption::AnyRules | Assumption::OldConfirmation | Assumption::OldRecords)
            ) =>
            {
                chance.between(3_000, 4_000)
            }
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
        let changes_rules = match broken {
            Some(assumption) => assumption.changes_rules(),
            None => is_fenced && !has_other_rules && chance.one_in(3),
        };
        let fencing_before = fencing.filter(|_| changes_rules);
        let before = fencing_before.map(|fencing| fencing.before(chance, broken));
        let has_long_leases = match broken {
            Some(assumption) => assumption == Assumption::LongPlain,
            None => mix == Mix::Both && chance.one_in(3),
        };
        Self {
            ttl_ms,
            fencing,
            mix,
            hazards,
            has_other_rules: has_other_rules || changes_rules,
            before,
            has_long_leases,
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
            has_devices: match broken {
                Some(assumption) if assumption.needs_devices() => true,
                Some(assumption) => assumption.suits_devices() && chance.one_in(3),
                None => chance.one_in(3),
            },
            has_lines: match broken {
                Some(assumption) => assumption.needs_lines(),
                None => chance.one_in(2),
            },
            restart_guard: broken != Some(Assumption::Forget) && (needs_guard || chance.one_in(2)),
            hands_over: match broken {
                Some(assumption) => assumption.needs_adoptions(),
                None => chance.one_in(3),
            },
            min_hold_ms: match broken {
                Some(Assumption::MinHoldGuard | Assumption::MinHoldToken) => 4 * ttl_ms,
                Some(_) => 0,
                // No longer than guard records allow.
                None if is_fenced => chance.pick(&[0, 0, ttl_ms / 2, 2 * ttl_ms]),
                None => chance.pick(&[0, 0, ttl_ms / 2, 4 * ttl_ms]),
            },
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
                flush: loses_data && is_fenced
                    || matches!(
                        assumption,
                        Assumption::AnyRules | Assumption::OldConfirmation
                    ),
                evict: assumption == Assumption::Eviction,
                restore: matches!(
                    assumption,
                    Assumption::OldRecords | Assumption::VotelessAdoption
                ),
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
            measure.fencing = match measure.before {
                Some(before) => Some(before),
                None => measure.fencing.map(|fencing| fencing.other(chance, broken)),
            };
            let longest = measure
                .fencing
                .map_or(measure.ttl_ms, |fencing| fencing.max_ttl / 1_000);
            measure.ttl_ms = measure.ttl_ms.min(longest);
        }
        // Fenced clients with the rules of today would restore what is lost.
        if broken.is_some_and(Assumption::changes_rules) && !is_other {
            measure.mix = Mix::Plain;
        }
        let is_long = is_odd && !is_other && measure.has_long_leases;
        if is_long {
            measure.mix = Mix::Plain;
            measure.ttl_ms *= 3;
        }
        let mut names: Vec<_> = (0..nodes).collect();
        // A client with other rules names each server once. Otherwise it would see fewer servers than the fleet has, and could take
        // them for a new fleet.
        let may_name_twice = nodes > 1 && number > 0 && measure.names_twice && !is_other;
        let names_twice = may_name_twice && chance.one_in(2);
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
        let hardware =
            (measure.has_devices && chance.one_in(2)).then(|| draw_hardware(chance, shortest));
        let mut client = Self {
            mailboxes: Vec::new(),
            reach: Vec::new(),
            clock: Ticker::new(dial, hertz),
            pause_odds: chance.pick(&[0, 0, 200, 60, 20]),
            stall_odds: chance.pick(&[0, 0, 1_000, 300, 100]),
            calm: calm(chance, measure).unwrap_or(options[0]),
            names,
            names_twice,
            comes_back: !is_other && !is_long && !names_twice,
            options,
            tasks: if hardware.is_some() {
                1
            } else {
                chance.pick(&[1, 1, 1, 2])
            },
            hardware,
            steps: match measure.before {
                // With a short TTL it is to be there before and after the change.
                Some(_) if is_other => chance.between(10, 60),
                _ => chance.between(2, 6),
            },
        };
        if measure.has_lines && hardware.is_none() {
            let mailboxes = (0..client.tasks).map(|_| Mailbox::new(chance.bits().to_be_bytes()));
            client.mailboxes = mailboxes.collect();
            let is_plain_to_see = matches!(
                broken,
                Some(Assumption::DeadMembers | Assumption::CallFirst)
            );
            client.reach = match is_plain_to_see {
                true => vec![Reach::Callable; nodes],
                false => Reach::draw(chance, nodes),
            };
        }
        client
    }
}

fn draw_options(chance: &mut Chance, measure: Measure) -> Result<Options, OptionsError> {
    let ttl_ms = match chance.below(4) {
        // A lease is taken over with its own TTL.
        _ if measure.is_tight || measure.hands_over => measure.ttl_ms,
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
            .max_ttl(Duration::from_millis(
                measure.min_hold_ms.max(2 * measure.ttl_ms),
            ))?
            .refuse_eviction(chance.one_in(3));
    }
    if measure.min_hold_ms > 0 && !measure.is_tight && chance.one_in(2) {
        options = options.min_hold(Duration::from_millis(measure.min_hold_ms))?;
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
            // A device meets a node that has restarted only now: it connects, and waits for the longest TTL.
            Duration::from_secs(240)
                + Duration::from_micros(measure.fencing.map_or(0, |fencing| fencing.quarantine())),
        )
        .node_timeout(Duration::from_millis(40).min(options.validity() / 2))?
        .retry_delay(Duration::from_millis(5), Duration::from_millis(100))
}

fn draw_hardware(chance: &mut Chance, validity: Duration) -> Hardware {
    // Shorter ones would do where nothing takes long.
    let shortest = Duration::from_millis(20);
    let usual = [Duration::from_secs(3), Duration::from_secs(5)];
    let [connect_timeout, patience] = usual.map(|usual| match chance.below(4) {
        0 => shortest.max(validity / 4),
        // A calm client waits longer than that for a node that was away.
        1 => shortest.max(validity * 2).min(Duration::from_secs(10)),
        _ => usual,
    });
    Hardware {
        room: chance.pick(&[usize::MAX, 2_048, 600, 200]),
        chunk: chance.pick(&[usize::MAX, usize::MAX, 100, 40]),
        sends_at_once: chance.one_in(2),
        connect_timeout,
        patience,
    }
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
