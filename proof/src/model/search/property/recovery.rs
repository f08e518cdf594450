//! A fleet that has lost the data of one node comes back to full strength by its clients alone.
//!
//! Both promises are looked at by one way to go on from a world in which nothing is going on: they say what can be
//! reached, not what always is.

use super::super::{Action, Search};
use super::is_quiet;
use crate::model::client::{Effect, Few, Operation};
use crate::model::nodes::Event;
use crate::model::short::Short;
use crate::model::world::World;

/// The first client follows the rules of the fleet.
const CLIENT: usize = 0;

/// While one node is down, any of them, the client acquires the lock after no more than three attempts: one that
/// learns, one that writes the guard record, and one after the quarantine.
pub(super) fn grants_again(search: &Search, world: &World) -> bool {
    if !is_asked(search, world) {
        return true;
    }
    (0..search.scene.nodes).all(|down| {
        let mut world = *world;
        let up: Vec<_> = (0..search.scene.nodes)
            .filter(|node| *node != down)
            .collect();
        (0..3).any(|_| {
            let is_acquired = perform(search, &mut world, Operation::Acquire, &up, None);
            pass_quarantine(search, &mut world);
            is_acquired
        })
    })
}

/// While all nodes are up, and rounds are won before one of them has answered, any of them, that node has a guard
/// record when the lock has been acquired three times.
pub(super) fn is_rewritten(search: &Search, world: &World) -> bool {
    if !is_asked(search, world) {
        return true;
    }
    (0..search.scene.nodes).all(|late| {
        let mut world = *world;
        // What is left of earlier leases is over.
        pass_quarantine(search, &mut world);
        let others: Vec<_> = (0..search.scene.nodes)
            .filter(|node| *node != late)
            .collect();
        for _ in 0..3 {
            for operation in [Operation::Acquire, Operation::Release] {
                perform(search, &mut world, operation, &others, Some(late));
            }
        }
        let mut nodes = world.nodes.iter();
        nodes.all(|node| search.nodes.is_guarded(node.row))
    })
}

fn is_asked(search: &Search, world: &World) -> bool {
    search.scene.fencing.is_some_and(|fencing| fencing.recovers) && is_quiet(search, world)
}

/// Lets the client perform an operation with those nodes that are up; a late one gets its commands, and answers when
/// the operation is over. Whether the client has the lock then.
fn perform(
    search: &Search,
    world: &mut World,
    operation: Operation,
    up: &[usize],
    late: Option<usize>,
) -> bool {
    world.clients[CLIENT].acquires = 1;
    world.fences = Short::new();
    let mut effects = search.step(world, Action::Begin(CLIENT, operation));
    while search.automaton.view(world.clients[CLIENT].row).is_busy {
        for &node in up {
            arrive(search, world, node);
        }
        let ready = up.iter().copied();
        let ready = ready.filter(|node| search.link(world, CLIENT, *node).has_reply());
        let ready: Few<_> = ready.collect();
        let action = if search.does_something(world, CLIENT, &ready) {
            Action::Run(CLIENT, ready)
        } else {
            let read = ready.into_iter().map(|node| (CLIENT, node));
            Action::Tick(Few::new(), Few::new(), read.collect())
        };
        effects = search.step(world, action);
    }
    let mut done = effects.iter();
    let is_acquired = done.any(|effect| *effect == Effect::Acquired);
    if let Some(late) = late {
        arrive(search, world, late);
    }
    // What is sent to a node that is down is lost.
    for node in 0..search.scene.nodes {
        search.change_link(world, CLIENT, node, |link| link.sent.clear());
    }
    is_acquired
}

fn arrive(search: &Search, world: &mut World, node: usize) {
    while !search.link(world, CLIENT, node).sent.is_empty() {
        search.step(world, Action::Execute(CLIENT, node));
    }
}

fn pass_quarantine(search: &Search, world: &mut World) {
    let options = search.scene.options(search.scene.clients[CLIENT].kind);
    let fencing = options.fencing().expect("the first client has fences");
    let units = fencing
        .quarantine()
        .as_micros()
        .div_ceil(search.scene.unit.as_micros());
    pass(
        search,
        world,
        u8::try_from(units).expect("a scene is short"),
    );
}

fn pass(search: &Search, world: &mut World, units: u8) {
    world.now += units;
    for node in 0..search.scene.nodes {
        search.happens(world, node, Event::Time);
    }
}
