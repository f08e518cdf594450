//! One way through a world, for people.

use core::fmt::Write;

use super::client::{Answer, Effect, Operation, Order};
use super::nodes::Event;
use super::search::{Action, Reply, Search};
use super::world::World;

/// The steps of a search, a line each: true time, what happened, what came of it.
pub(super) fn trace(search: &Search, path: &[(World, Option<Action>)]) -> String {
    let mut text = String::new();
    for (world, action) in path {
        let Some(action) = action else { continue };
        let mut next = *world;
        let effects = search.step(&mut next, action.clone());
        let effects: Vec<_> = effects.iter().filter_map(outcome).collect();
        let arrow = if effects.is_empty() { "" } else { " -> " };
        let now = world.now;
        // Writing to a string does not fail.
        let _ = writeln!(
            text,
            "  {now:>2}  {}{arrow}{}",
            words(search, action, world),
            effects.join(", ")
        );
    }
    text
}

fn words(search: &Search, action: &Action, world: &World) -> String {
    let client = |number: &usize| ["client A", "client B", "client C"][*number];
    let node = |number: &usize| format!("node {}", number + 1);
    match action {
        Action::Begin(who, operation) => {
            let what = match operation {
                Operation::Acquire => "begins to acquire the lock",
                Operation::Extend => "begins to extend its lease",
                Operation::Release => "begins to release its lease",
                Operation::Tidy => "begins to tidy",
                Operation::Learn(_) => "learns the time of the nodes",
            };
            format!("{} {what}", client(who))
        }
        Action::Run(who, nodes) if nodes.is_empty() => {
            format!("{} looks at its clock", client(who))
        }
        Action::Run(who, nodes) => {
            let replies: Vec<_> = nodes
                .iter()
                .map(|from| {
                    let answer = search.link(world, *who, *from).answers[0];
                    format!("{} from {}", reply(answer), node(from))
                })
                .collect();
            format!("{} gets {}", client(who), replies.join(", "))
        }
        Action::Drop(who) => format!("{} drops its future", client(who)),
        Action::Execute(who, at) => {
            let sent = &search.link(world, *who, *at).sent[0];
            format!(
                "{} executes {} of {}",
                node(at),
                order(sent.order),
                client(who)
            )
        }
        Action::Stray(who, at, stray) => format!(
            "{} executes {} of {}, from a broken connection",
            node(at),
            order(*stray),
            client(who)
        ),
        Action::Break(who, to, reply) => {
            let reply = match reply {
                Reply::Lost => "",
                Reply::Read => ", its last reply is read",
            };
            format!(
                "the connection of {} to {} breaks{reply}",
                client(who),
                node(to)
            )
        }
        Action::ExpireEarly(at) => format!("the key on {} expires, early by true time", node(at)),
        Action::Evicting(it) => format!("{} may evict keys", node(it)),
        Action::Upset(it, event) => {
            let what = match event {
                Event::Rollback => "is back with the data that it had first",
                Event::Eviction => "evicts the lock and its fence",
                Event::Init => "is written a guard record by redlock init",
                Event::Repair => "is written a guard record by redlock init --repair",
                _ => "is upset",
            };
            format!("{} {what}", node(it))
        }
        Action::Look(it) => format!("redlock init looks at {}", node(it)),
        Action::Crash(it) if search.scene.fencing.is_some() && !search.scene.upsets.restarts => {
            format!("{} forgets everything", node(it))
        }
        Action::Crash(it) => format!("{} crashes, forgets everything and is back", node(it)),
        Action::Jump(nodes, by) => {
            let nodes: Vec<_> = nodes.iter().map(node).collect();
            let nodes = nodes.join(" and ");
            let returns = search.scene.fencing.is_some_and(|it| it.returns);
            let back = if returns { " and back" } else { "" };
            format!("the clock of {nodes} jumps by {by} units{back}")
        }
        Action::Tick(still, ahead, read) => {
            let mut words = match search.scene.after(world.now) - world.now {
                1 => String::from("a unit of time passes"),
                units => format!("{units} units of time pass"),
            };
            for (clients, how) in [(still, "not for"), (ahead, "two for")] {
                let clients: Vec<_> = clients.iter().map(client).collect();
                if !clients.is_empty() {
                    let _ = write!(words, ", {how} {}", clients.join(" and "));
                }
            }
            for (who, from) in read {
                let _ = write!(words, "; {} has heard from {}", client(who), node(from));
            }
            words
        }
    }
}

fn reply(answer: Answer) -> String {
    match answer {
        Answer::Fenced(saying, told) => format!("{saying:?} ({told})"),
        answer => format!("{answer:?}"),
    }
}

fn order(order: Order) -> String {
    let (what, offer) = match order {
        Order::Acquire(_, offer) => ("acquire", offer),
        Order::Extend(_, offer) => ("extend", offer),
        Order::Release(_, offer) => ("release", offer),
    };
    let fence = offer.map_or_else(String::new, |offer| {
        let vouches = if offer.vouches { ", vouching" } else { "" };
        format!(", fence {}{vouches}", offer.fence)
    });
    format!("{what} (token {}{fence})", order.token())
}

fn outcome(effect: &Effect) -> Option<&'static str> {
    match effect {
        Effect::Sent(..) | Effect::GivenUp(_) => None,
        Effect::Acquired => Some("it has the lock"),
        Effect::NotAcquired => Some("it does not have the lock"),
        Effect::Extended => Some("it has the lock for longer"),
        Effect::NotExtended => Some("its lease is as it was"),
        Effect::Lost => Some("its lease is lost"),
        Effect::Released => Some("released"),
        Effect::Tidied => Some("tidied"),
        Effect::Dropped => Some("dropped"),
    }
}
