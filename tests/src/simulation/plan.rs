//! What is to go wrong in a world, and when.

use super::chance::Chance;
use super::clock::{Moment, NEVER};
use super::fault::Fault;
use super::fencing::{Fencing, Jumps};
use super::history::Route;
use super::scenario::{Assumption, Scenario};

/// The faults of a world, up to the moment at which it is calm.
pub(crate) fn draw(
    chance: &mut Chance,
    scenario: &Scenario,
    longest_ttl: u64,
) -> Vec<(Moment, Fault)> {
    let mut plan = Vec::new();
    if let Some(fencing) = scenario.fencing {
        plan.extend(draw_fenced(chance, scenario, fencing));
    }
    let count = match chance.below(4) {
        0 => 0,
        1 => chance.below(4),
        _ => chance.below(20),
    };
    for _ in 0..count {
        let at = chance.below(scenario.calm_at);
        let fault = draw_fault(chance, scenario, at, longest_ttl);
        if chance.one_in(3) {
            plan.extend(everywhere(fault, scenario).map(|fault| (at, fault)));
        }
        plan.push((at, fault));
    }
    if let Some(assumption) = scenario.broken {
        for _ in 0..chance.between(2, 8) {
            let at = chance.below(scenario.calm_at);
            let fault = draw_breach(chance, scenario, assumption, at, longest_ttl);
            plan.extend(fault.into_iter().map(|fault| (at, fault)));
        }
    }
    let minority = (scenario.nodes.len() - 1) / 2;
    if chance.one_in(4) {
        for node in 0..chance.index(minority + 1) {
            let at = chance.below(scenario.calm_at);
            plan.push((at, draw_death(chance, node)));
        }
    }
    plan
}

fn draw_fault(chance: &mut Chance, scenario: &Scenario, at: Moment, longest_ttl: u64) -> Fault {
    let client = chance.index(scenario.clients.len());
    let node = chance.index(scenario.nodes.len());
    let route = Route { client, node };
    let length = chance.pick(&scenario.lengths);
    let length = chance.about(length);
    let until = (at + length).min(scenario.calm_at);
    match chance.below(16) {
        0..=3 => Fault::Break(route),
        4 => Fault::CutRequests(route, until),
        5 => Fault::CutReplies(route, until),
        6 => Fault::Spike(route, chance.about(length), until),
        7..=9 => Fault::Hang(node, until),
        10 | 11 => Fault::Crash(node, until),
        // The specification, "Performance, crash recovery and fsync": nobody delays these restarts; clients
        // do not count the vote.
        // Plain clients do not notice.
        13 if scenario.loses_data && scenario.fencing.is_some() => Fault::Flush(node),
        12 if scenario.loses_data => Fault::Forget(node, at + chance.pick(&[0, 1, length])),
        12 => Fault::Crash(node, until),
        14 if scenario.fencing.is_none() => Fault::SetBack(node, length.min(longest_ttl)),
        _ => Fault::Pause(client, length),
    }
}

/// What happens to clocks that are set, and to nodes all at once.
fn draw_fenced(chance: &mut Chance, scenario: &Scenario, fencing: Fencing) -> Vec<(Moment, Fault)> {
    let mut plan = Vec::new();
    let nodes = scenario.nodes.len();
    let lengths = [
        fencing.window,
        2 * fencing.window,
        4 * fencing.window,
        scenario.lengths[2],
        fencing.step_back,
        3 * fencing.step_back,
        60_000_000,
    ];
    let jumping = match fencing.jumps {
        Jumps::None => 0,
        Jumps::Minority => (nodes - 1) / 2,
        Jumps::All => nodes,
    };
    for node in 0..nodes {
        let times = match node < jumping {
            true => 12,
            false if fencing.skew > 0 => 3,
            false => 0,
        };
        for _ in 0..chance.below(times) {
            let at = chance.below(scenario.calm_at);
            let ahead = if node < jumping && !chance.one_in(4) {
                let length = chance.pick(&lengths);
                let ahead = i64::try_from(chance.about(length)).unwrap_or_default();
                if chance.one_in(2) { -ahead } else { ahead }
            } else {
                // As a machine does that keeps time by others.
                i64::try_from(chance.below(fencing.skew + 1)).unwrap_or_default()
            };
            plan.push((at, Fault::Set(node, ahead)));
            if node < jumping && chance.one_in(3) {
                let right_at = at + chance.below(scenario.lengths[2]);
                plan.push((right_at.min(scenario.calm_at - 1), Fault::Set(node, 0)));
            }
        }
    }
    if scenario.loses_data && chance.one_in(2) {
        let at = chance.below(scenario.calm_at);
        plan.extend((0..nodes).map(|node| (at, Fault::Flush(node))));
    }
    plan
}

/// What is wrong with one link of a client is wrong with all of them: the client is cut off.
fn everywhere(fault: Fault, scenario: &Scenario) -> impl Iterator<Item = Fault> {
    (0..scenario.nodes.len()).filter_map(move |node| match fault {
        Fault::Break(route) => Some(Fault::Break(Route { node, ..route })),
        Fault::CutRequests(route, until) => {
            Some(Fault::CutRequests(Route { node, ..route }, until))
        }
        Fault::CutReplies(route, until) => Some(Fault::CutReplies(Route { node, ..route }, until)),
        _ => None,
    })
}

/// What breaks an assumption, beside what is wrong with the world from the beginning.
fn draw_breach(
    chance: &mut Chance,
    scenario: &Scenario,
    assumption: Assumption,
    at: Moment,
    longest_ttl: u64,
) -> Vec<Fault> {
    let node = chance.index(scenario.nodes.len());
    let one = match assumption {
        Assumption::Forget => Some(Fault::Forget(node, at + chance.below(1_000))),
        // What outlives its connection is what comes late.
        Assumption::Burn => {
            let client = chance.index(scenario.clients.len());
            Some(Fault::Break(Route { client, node }))
        }
        // A majority, as one.
        Assumption::JumpTogether => {
            let ahead = i64::try_from(chance.about(longest_ttl)).unwrap_or_default();
            return (0..=scenario.nodes.len() / 2)
                .map(|node| Fault::Set(node, ahead))
                .collect();
        }
        // And back at once.
        Assumption::HeldUntil => {
            let ahead = i64::try_from(chance.about(longest_ttl)).unwrap_or_default();
            return [ahead, 0].map(|ahead| Fault::Set(0, ahead)).to_vec();
        }
        Assumption::Jump => Some(Fault::SetForward(node, chance.about(longest_ttl))),
        _ => None,
    };
    one.into_iter().collect()
}

fn draw_death(chance: &mut Chance, node: usize) -> Fault {
    if chance.one_in(2) {
        Fault::Hang(node, NEVER)
    } else {
        Fault::Crash(node, NEVER)
    }
}
