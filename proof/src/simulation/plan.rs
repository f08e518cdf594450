//! What is to go wrong in a world, and when.

use super::assumption::Assumption;
use super::chance::Chance;
use super::clock::{Moment, NEVER};
use super::fault::Fault;
use super::fencing::{Fencing, Jumps};
use super::place::Route;
use super::scenario::{Client, Hazards, Scenario};

/// The faults of a world, up to the moment at which it is calm.
pub(crate) fn draw(
    chance: &mut Chance,
    scenario: &Scenario,
    longest_ttl: u64,
) -> Vec<(Moment, Fault)> {
    let mut plan = Vec::new();
    if let Some(fencing) = scenario.fencing {
        plan.extend(draw_fenced(chance, scenario, fencing));
        plan.extend(draw_operator(chance, scenario));
    }
    plan.extend(draw_hazards(chance, scenario));
    if scenario.hands_over && scenario.broken.is_none() && chance.one_in(2) {
        let at = chance.below(scenario.calm_at);
        let client = 1 + chance.index(scenario.clients.len() - 1);
        plan.push((at, Fault::Die(client)));
        if scenario.hazards.restore && chance.one_in(2) {
            let length = chance.pick(&scenario.lengths);
            let restored_at = at + chance.about(length);
            plan.extend(draw_return_of_most(chance, scenario, at, restored_at));
        }
    }
    if scenario.has_lines {
        plan.extend(draw_lines(chance, scenario));
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
        let times = match assumption {
            // Another loss would begin the quarantine again.
            Assumption::OldConfirmation | Assumption::OldRecords => 1,
            _ => chance.between(2, 8),
        };
        for _ in 0..times {
            let at = chance.below(scenario.calm_at);
            let fault = draw_breach(chance, scenario, assumption, at, longest_ttl);
            plan.extend(fault);
        }
    }
    let has_device = |client: &Client| client.hardware.is_some();
    if scenario.fencing.is_some() && scenario.clients.iter().any(has_device) {
        for _ in 0..chance.below(6) {
            let at = chance.below(scenario.calm_at);
            let node = chance.index(scenario.nodes.len());
            plan.push((at, Fault::FlushScripts(node)));
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

/// What happens to clients and lines while all clients want one lock, when nothing else goes wrong any more.
pub(crate) fn draw_rush(chance: &mut Chance, scenario: &Scenario) -> Vec<(Moment, Fault)> {
    let mut plan = Vec::new();
    let mut count = chance.pick(&[0, 0, 2, 5]);
    while count > 0 {
        count -= 1;
        let at = scenario.clear_at + chance.below(RUSH);
        // The first client is always there.
        let client = 1 + chance.index(scenario.clients.len() - 1);
        let node = chance.index(scenario.nodes.len());
        let key = chance.index(scenario.keys);
        let length = chance.pick(&[1_000, 50_000, 300_000, 3_000_000]);
        plan.push((
            at,
            match chance.below(4) {
                _ if scenario.broken == Some(Assumption::DeadMembers) => Fault::Die(client),
                0 => Fault::Die(client),
                1 => Fault::Pause(client, chance.about(length)),
                2 => Fault::Break(Route { client, node }),
                _ => Fault::ForgetLine(node, key),
            },
        ));
    }
    plan
}

/// About as long as the rush lasts.
const RUSH: u64 = 1_500_000;

/// What befalls lines before.
fn draw_lines(chance: &mut Chance, scenario: &Scenario) -> Vec<(Moment, Fault)> {
    let mut plan = Vec::new();
    for _ in 0..chance.below(3) {
        let at = chance.below(scenario.calm_at);
        let node = chance.index(scenario.nodes.len());
        plan.push((at, Fault::ForgetLine(node, chance.index(scenario.keys))));
    }
    if chance.one_in(4) {
        let at = chance.below(scenario.calm_at);
        let client = 1 + chance.index(scenario.clients.len() - 1);
        plan.push((at, Fault::Die(client)));
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
        13 if scenario.hazards.flush => Fault::Flush(node),
        15 if scenario.hazards.restore => Fault::Restore(node, at + chance.pick(&[0, 1, length])),
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
        fencing.set_back_over_a_crash(),
        60_000_000,
        // Longer than the age of any ticket.
        100_000_000_000,
    ];
    let jumping = match fencing.jumps {
        Jumps::None => 0,
        Jumps::Minority if scenario.broken == Some(Assumption::OneClock) => 1,
        Jumps::Minority => chance
            .between(1, 3)
            .try_into()
            .unwrap_or(1)
            .min((nodes - 1) / 2),
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
            if node < jumping && chance.one_in(8) {
                // Also while the node is down, by as much as it may.
                let crashed_at = at.saturating_sub(1_000);
                plan.push((crashed_at, Fault::Crash(node, at + 1_000)));
            }
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

/// What nodes lose while they live, or get back that was over.
fn draw_hazards(chance: &mut Chance, scenario: &Scenario) -> Vec<(Moment, Fault)> {
    let mut plan = Vec::new();
    let Hazards {
        evict,
        restore,
        fail_back,
        ..
    } = scenario.hazards;
    let nodes = scenario.nodes.len();
    let calm_at = scenario.calm_at;
    if restore || fail_back {
        for _ in 0..chance.between(1, 6) {
            plan.push((chance.below(calm_at), Fault::Save(chance.index(nodes))));
        }
    }
    if fail_back {
        for _ in 0..chance.between(1, 4) {
            let node = chance.index(nodes);
            let at = chance.below(calm_at);
            let length = chance.pick(&scenario.lengths);
            let until = at + chance.pick(&[0, 1_000]) + chance.about(length);
            // What its replica had not got when it took over.
            let saved_at = at.saturating_sub(chance.below(scenario.lengths[1]));
            plan.push((saved_at, Fault::Save(node)));
            plan.push((at, Fault::Demote(node)));
            plan.push((until.min(calm_at), Fault::Promote(node)));
        }
    }
    if evict {
        // Fenced clients do without such nodes. Where all may be had again at the end, no more than a minority.
        let evicting = match scenario.broken {
            Some(_) => nodes,
            None => (nodes - 1) / 2,
        };
        // Clocks jump from the first node on: also while it does not evict, and another node does.
        let first = usize::from(evicting > 1 && chance.one_in(2));
        for node in first..evicting {
            let since = chance.below(calm_at);
            plan.push((since, Fault::Policy(node, true)));
            // What goes before clients have looked again is lost to them: half of the longest TTL, by a clock that
            // may be slow, and what they have sent before.
            let longest = scenario.fencing.map_or(0, |fencing| fencing.max_ttl);
            let longest = longest.max(2 * scenario.lengths[3]);
            let seen_at = since + longest * 5 / 8 + scenario.lengths[3];
            if seen_at < calm_at {
                let mut last = seen_at;
                for _ in 0..chance.below(6) {
                    let at = chance.between(seen_at, calm_at - 1);
                    plan.push((at, Fault::Evict(node, chance.index(scenario.keys))));
                    last = last.max(at);
                }
                // Plain clients that come later do not know what was lost.
                if scenario.fencing.is_some() && scenario.broken.is_none() && chance.one_in(2) {
                    plan.push((last + 1, Fault::Policy(node, false)));
                }
            } else {
                plan.push((chance.between(since, calm_at), Fault::Policy(node, false)));
            }
        }
    }
    plan
}

/// An operator at a shell, at any time.
fn draw_operator(chance: &mut Chance, scenario: &Scenario) -> Vec<(Moment, Fault)> {
    let mut plan = Vec::new();
    if scenario.broken.is_some() {
        return plan;
    }
    if scenario.before.is_some() {
        // The operator runs it again if a node was away.
        for _ in 0..chance.between(1, 3) {
            let part = chance.pick(&[1, 4]);
            let at = chance.below(scenario.calm_at / part);
            plan.push((at, Fault::Change));
            if scenario.loses_data && chance.one_in(2) {
                let lost_at = at + chance.about(scenario.lengths[1]);
                plan.extend(draw_loss_of_most(chance, scenario, lost_at));
            } else if scenario.hazards.restore && chance.one_in(2) {
                let length = chance.pick(&scenario.lengths);
                let restored_at = at + chance.about(length);
                plan.extend(draw_return_of_most(chance, scenario, at, restored_at));
            }
        }
    }
    if !scenario.is_set_up && chance.one_in(2) {
        plan.push((chance.below(scenario.lengths[2]), Fault::Init));
    }
    for _ in 0..chance.below(3) {
        let fault = chance.pick(&[Fault::Init, Fault::Init, Fault::Repair]);
        plan.push((chance.below(scenario.calm_at), fault));
    }
    plan
}

/// Most nodes lose their data, one after the other.
fn draw_loss_of_most(chance: &mut Chance, scenario: &Scenario, at: Moment) -> Vec<(Moment, Fault)> {
    let most = 0..=scenario.nodes.len() / 2;
    let flush = |node| (at + chance.below(1_000), Fault::Flush(node));
    most.map(flush)
        .filter(|(at, _)| *at < scenario.calm_at)
        .collect()
}

/// Most nodes get back the data that they had at `saved_at`, one after the other.
fn draw_return_of_most(
    chance: &mut Chance,
    scenario: &Scenario,
    saved_at: Moment,
    restored_at: Moment,
) -> Vec<(Moment, Fault)> {
    let most = 0..=scenario.nodes.len() / 2;
    let crash = |node| {
        let at = restored_at + chance.below(1_000);
        let until = at + chance.below(1_000);
        [
            (saved_at.saturating_sub(1), Fault::Save(node)),
            (at, Fault::Restore(node, until)),
        ]
    };
    most.flat_map(crash)
        .filter(|(at, _)| *at < scenario.calm_at)
        .collect()
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
) -> Vec<(Moment, Fault)> {
    let node = chance.index(scenario.nodes.len());
    let one = match assumption {
        Assumption::Forget | Assumption::MinHoldGuard => {
            Some(Fault::Forget(node, at + chance.below(1_000)))
        }
        // With the key of a lease that is over.
        Assumption::VotelessAdoption => {
            let restored_at = at + chance.below(scenario.lengths[2]);
            return draw_return_of_most(chance, scenario, at, restored_at);
        }
        // What outlives its connection is what comes late.
        Assumption::Burn | Assumption::MinHoldToken => {
            let client = chance.index(scenario.clients.len());
            Some(Fault::Break(Route { client, node }))
        }
        // A majority, as one.
        Assumption::JumpTogether => {
            let ahead = i64::try_from(chance.about(longest_ttl)).unwrap_or_default();
            return (0..=scenario.nodes.len() / 2)
                .map(|node| (at, Fault::Set(node, ahead)))
                .collect();
        }
        // And back at once.
        Assumption::HeldUntil => {
            let ahead = i64::try_from(chance.about(longest_ttl)).unwrap_or_default();
            return [ahead, 0].map(|ahead| (at, Fault::Set(0, ahead))).to_vec();
        }
        // A grant whose answer is lost, and clocks that jump there and back.
        Assumption::EqualFences => {
            let client = chance.index(scenario.clients.len());
            let ahead = i64::try_from(chance.about(longest_ttl)).unwrap_or_default();
            let length = chance.below(scenario.lengths[2]);
            return vec![
                (
                    at,
                    Fault::CutReplies(Route { client, node: 0 }, at + length),
                ),
                (at + length, Fault::Set(0, ahead)),
                (at + length + 1, Fault::Set(0, 0)),
            ];
        }
        Assumption::AnyRules => {
            let other = (node + 1) % scenario.nodes.len();
            return [node, other].map(|node| (at, Fault::Flush(node))).to_vec();
        }
        // When plain clients have begun to use the longer TTL.
        Assumption::OldConfirmation => {
            let ttl = scenario.lengths[2];
            let at = at / 4;
            let lost_at = at + chance.between(ttl / 2, ttl);
            let lost = draw_loss_of_most(chance, scenario, lost_at);
            return [(at, Fault::Change)].into_iter().chain(lost).collect();
        }
        Assumption::OldRecords => {
            let ttl = scenario.lengths[2];
            let at = at / 4;
            let restored_at = at + chance.between(ttl / 2, ttl);
            let back = draw_return_of_most(chance, scenario, at, restored_at);
            return [(at, Fault::Change)].into_iter().chain(back).collect();
        }
        Assumption::Lost => {
            return (0..=scenario.nodes.len() / 2)
                .map(|node| (at, Fault::Flush(node)))
                .collect();
        }
        Assumption::Ceiling => {
            let nodes = 0..scenario.nodes.len();
            return nodes.map(|node| (at, Fault::Flush(node))).collect();
        }
        // A node whose clock is behind when it grants, and ahead when the lease is to end, makes a quorum with one that
        // has not heard of the lease.
        Assumption::Margin | Assumption::TodaysOptions => {
            let window = scenario.fencing.map_or(0, |fencing| fencing.window);
            let edge = i64::try_from(window.saturating_sub(1_000)).unwrap_or_default();
            let ttl = scenario.lengths[2];
            let ahead_at = at + ttl.saturating_sub(chance.below(2 * window + 1));
            let deaf = (0..scenario.clients.len()).filter(|client| client % 2 == 0);
            let deaf = deaf.map(|client| Route { client, node: 2 });
            let cut = deaf.map(|route| (at, Fault::CutRequests(route, at + ttl / 4)));
            let set = [(at, Fault::Set(0, -edge)), (ahead_at, Fault::Set(0, edge))];
            return cut.chain(set).collect();
        }
        Assumption::Init => {
            let flushed = (0..=scenario.nodes.len() / 2).map(|node| (at, Fault::Flush(node)));
            let init = (at + chance.below(10_000), Fault::Init);
            return flushed.chain([init]).collect();
        }
        Assumption::Eviction => {
            let key = chance.index(scenario.keys);
            return (0..=scenario.nodes.len() / 2)
                .map(|node| (at, Fault::Evict(node, key)))
                .collect();
        }
        // All lose their data, and when they are back their clocks are set back.
        Assumption::StepBackQuarantine => {
            let back = scenario.fencing.map_or(0, |fencing| fencing.step_back);
            let quarantine = scenario.fencing.map_or(0, |fencing| {
                fencing.max_ttl + 4 * fencing.window + 1_000_000
            });
            let back = -i64::try_from(back).unwrap_or_default();
            let back_at = at + quarantine + chance.below(scenario.lengths[2]);
            let nodes = 0..scenario.nodes.len();
            let flushed = nodes.clone().map(|node| (at, Fault::Flush(node)));
            let set = nodes.map(|node| (back_at, Fault::Set(node, back)));
            return flushed.chain(set).collect();
        }
        Assumption::Jump => Some(Fault::SetForward(node, chance.about(longest_ttl))),
        _ => None,
    };
    one.map(|fault| (at, fault)).into_iter().collect()
}

fn draw_death(chance: &mut Chance, node: usize) -> Fault {
    if chance.one_in(2) {
        Fault::Hang(node, NEVER)
    } else {
        Fault::Crash(node, NEVER)
    }
}
