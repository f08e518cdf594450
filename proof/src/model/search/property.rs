//! What must be true of every world that can be reached, and what must be reached at all.

mod recovery;

use stateright::Property;

use super::{Action, Search};
use crate::model::client::Operation;
use crate::model::promise::{
    ACQUIRED, AGAIN, BURN, CLEAN, EXCLUSION, FENCE, HANDED_ON, QUORUM, RECOVERY, RESTORED,
    REWRITTEN,
};
use crate::model::world::{Client, World};

pub(super) fn all() -> Vec<Property<Search>> {
    vec![
        Property::always(EXCLUSION, exclusion),
        Property::always(QUORUM, quorum),
        Property::always(CLEAN, clean),
        Property::always(AGAIN, again),
        Property::always(RECOVERY, recovery::grants_again),
        Property::always(REWRITTEN, recovery::is_rewritten),
        Property::always(FENCE, fence),
        Property::always(BURN, burn),
        Property::sometimes(ACQUIRED, |_, world: &World| world.acting.is_some()),
        Property::sometimes(HANDED_ON, handed_on),
        Property::sometimes(RESTORED, |search: &Search, world: &World| {
            let mut nodes = world.nodes.iter();
            nodes.any(|node| search.nodes.is_restored(node.row))
        }),
    ]
}

fn exclusion(search: &Search, world: &World) -> bool {
    let is_promised = search.scene.fencing.is_none_or(|it| it.is_exclusive);
    !is_promised || holders(search, world).count() <= 1
}

/// No two are the same, and none is lower than what had been reported when it was asked for.
fn fence(_: &Search, world: &World) -> bool {
    !world.is_out_of_order && world.fences.windows(2).all(|pair| pair[0] < pair[1])
}

fn burn(search: &Search, world: &World) -> bool {
    // A clock that is set meanwhile is not promised anything.
    let has_jumps = search.scene.fencing.is_some_and(|it| it.jumps > 0);
    has_jumps
        || world.nodes.iter().all(|node| {
            let entry = node.entry.as_ref();
            entry.is_none_or(|entry| !node.released.contains(&(entry.client, entry.token)))
        })
}

fn quorum(search: &Search, world: &World) -> bool {
    // A clock that jumps takes keys along.
    let fencing = search.scene.fencing;
    if fencing.is_some_and(|it| !it.is_exclusive || it.jumps > 0) {
        return true;
    }
    let quorum = search.scene.nodes / 2 + 1;
    holders(search, world).all(|client| {
        let view = search.automaton.view(world.clients[client].row);
        let stands_on = world.nodes.iter().filter(|node| {
            // Where it is forgotten, no other client can take the lock.
            let entry = node.entry.as_ref().or(node.forgotten.as_ref());
            entry.is_some_and(|entry| {
                usize::from(entry.client) == client
                    && Some(entry.token) == view.claim.map(|claim| claim.token)
            })
        });
        stands_on.count() >= quorum
    })
}

fn holders<'a>(search: &'a Search, world: &'a World) -> impl Iterator<Item = usize> + 'a {
    (0..world.clients.len()).filter(|client| {
        let view = search.automaton.view(world.clients[*client].row);
        world.holds(&search.scene, *client, view)
    })
}

fn clean(search: &Search, world: &World) -> bool {
    let entries = world.nodes.iter().enumerate();
    let mut entries = entries.filter_map(|(node, it)| Some((node, it.entry.as_ref()?)));
    entries.all(|(node, entry)| {
        let client = &world.clients[usize::from(entry.client)];
        let view = search.automaton.view(client.row);
        // A process with two names got the token under either.
        let mut names = (0..search.scene.nodes).filter(|name| search.scene.process(*name) == node);
        view.is_busy
            || view.claim.is_some_and(|claim| claim.token == entry.token)
            || view.abandoned == Some(entry.token)
            || names.any(|name| {
                let link = search.link(world, usize::from(entry.client), name);
                let mut sent = link.sent.iter();
                sent.any(|sent| sent.order.token() == entry.token)
                    || link.broken_after >= entry.token
            })
    })
}

/// Only where nothing is on its way, no client holds the lock or is at it, and every vote counts; and where what broken
/// connections have left behind leaves a quorum free.
fn again(search: &Search, world: &World) -> bool {
    let free = world.nodes.iter().filter(|node| node.entry.is_none());
    let quorum = search.scene.nodes / 2 + 1;
    // A fence that is in the way may have to grow old first.
    if search.scene.fencing.is_some()
        || !is_quiet(search, world)
        || free.count() < quorum
        || is_waiting(search, world)
    {
        return true;
    }
    let mut world = *world;
    world.clients[0].acquires = 1;
    let nodes = (0..search.scene.nodes).filter(|node| search.scene.process(*node) == *node);
    let mut actions = vec![Action::Begin(0, Operation::Acquire)];
    actions.extend(nodes.clone().map(|node| Action::Execute(0, node)));
    actions.push(Action::Run(0, nodes.collect()));
    for action in actions {
        search.step(&mut world, action);
    }
    world.acting == Some(0)
}

/// Whether nothing is on its way, and no client holds the lock or is at it.
fn is_quiet(search: &Search, world: &World) -> bool {
    world.clients.iter().enumerate().all(|(number, client)| {
        let view = search.automaton.view(client.row);
        let is_idle = |node| search.link(world, number, node).sent.is_empty();
        !view.is_busy
            && view.claim.is_none()
            && view.abandoned.is_none()
            && (0..search.scene.nodes).all(is_idle)
    })
}

/// Whether a vote does not count yet for the first client.
fn is_waiting(search: &Search, world: &World) -> bool {
    let view = search.automaton.view(world.clients[0].row);
    let now = search.scene.instant(world.reading(&search.scene, 0));
    let quarantine = search.scene.unit * u32::from(search.scene.quarantine());
    let mut met = view.met.iter().flatten();
    met.any(|met| now < met.saturating_add(quarantine))
}

fn handed_on(search: &Search, world: &World) -> bool {
    let has_lease = |client: &Client| search.automaton.view(client.row).claim.is_some();
    world.acting.is_some()
        && world
            .clients
            .iter()
            .filter(|client| has_lease(client))
            .count()
            > 1
}
