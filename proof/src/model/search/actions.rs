//! What can happen next in a world.

use super::{Action, Reply, Search};
use crate::model::client::{Few, Operation};
use crate::model::nodes::{Event, Nodes};
use crate::model::world::{Client, Link, World};

impl Search {
    /// Everything that can happen next.
    pub(super) fn all_actions(&self, world: &World, actions: &mut Vec<Action>) {
        if world.clients.iter().all(|client| self.is_done(client)) {
            actions.extend(self.next_arrival(world));
            if self.scene.fencing.is_some() {
                self.strays(world, actions);
            }
            return;
        }
        for client in 0..self.scene.clients.len() {
            self.client_actions(world, client, actions);
            for node in 0..self.scene.nodes {
                self.link_actions(world, client, node, actions);
            }
        }
        for node in 0..self.scene.nodes {
            self.node_actions(world, node, actions);
            self.upsets(world, node, actions);
        }
        self.jumps(world, actions);
        self.ticks(world, actions);
    }

    /// Everything that can happen to a client or by it.
    fn client_actions(&self, world: &World, client: usize, actions: &mut Vec<Action>) {
        let it = &world.clients[client];
        let view = self.automaton.view(it.row);
        if view.is_busy {
            let ready =
                (0..self.scene.nodes).filter(|node| self.link(world, client, *node).has_reply());
            let ready: Few<_> = ready.collect();
            // A client that does nothing on some replies gets them later, with those on which it does something.
            let all_and_none = subsets(&ready).chain([Few::new()]);
            actions.extend(
                all_and_none
                    .filter(|nodes| self.does_something(world, client, nodes))
                    .map(|nodes| Action::Run(client, nodes)),
            );
            if world.drops > 0 {
                actions.push(Action::Drop(client));
            }
            return;
        }
        let mut begin = |operation| actions.push(Action::Begin(client, operation));
        if view.claim.is_none() && it.acquires > 0 {
            begin(Operation::Acquire);
        }
        if view.claim.is_some() {
            begin(Operation::Release);
        }
        if it.extends > 0 && world.holds(&self.scene, client, view) {
            begin(Operation::Extend);
        }
        if view.abandoned.is_some() {
            begin(Operation::Tidy);
        }
    }

    /// Whether a client will never have the lock again.
    fn is_done(&self, client: &Client) -> bool {
        let view = self.automaton.view(client.row);
        !view.is_busy && view.abandoned.is_none() && view.claim.is_none() && client.acquires == 0
    }

    /// The first of the commands that are still on their way.
    fn next_arrival(&self, world: &World) -> Option<Action> {
        let clients = 0..self.scene.clients.len();
        clients
            .flat_map(|client| (0..self.scene.nodes).map(move |node| (client, node)))
            .find(|(client, node)| !self.link(world, *client, *node).sent.is_empty())
            .map(|(client, node)| Action::Execute(client, node))
    }

    /// Everything that can happen on the way from a client to a node.
    fn link_actions(&self, world: &World, client: usize, node: usize, actions: &mut Vec<Action>) {
        let link = self.link(world, client, node);
        if !link.sent.is_empty() {
            actions.push(Action::Execute(client, node));
        }
        link_strays(link, client, node, actions);
        if world.breaks > 0 && link.is_in_use() {
            actions.push(Action::Break(client, node, Reply::Lost));
            if link.has_reply() {
                actions.push(Action::Break(client, node, Reply::Read));
            }
        }
    }

    fn strays(&self, world: &World, actions: &mut Vec<Action>) {
        for client in 0..self.scene.clients.len() {
            for node in 0..self.scene.nodes {
                link_strays(self.link(world, client, node), client, node, actions);
            }
        }
    }

    fn node_actions(&self, world: &World, node: usize, actions: &mut Vec<Action>) {
        if self.scene.process(node) != node {
            return;
        }
        let it = &world.nodes[node];
        let now = match self.scene.fencing {
            Some(_) => world.wall(node),
            None => world.now,
        };
        let mut entry = it.entry.iter();
        if entry.any(|entry| entry.expires_at - now <= self.scene.node_ahead) {
            actions.push(Action::ExpireEarly(node));
        }
        let has_something = match self.scene.fencing {
            Some(_) => !self.nodes.is_blank(it.row),
            None => it.entry.is_some(),
        };
        if world.crashes > 0 && has_something {
            actions.push(Action::Crash(node));
        }
    }

    /// What else befalls a node.
    fn upsets(&self, world: &World, node: usize, actions: &mut Vec<Action>) {
        let it = &world.nodes[node];
        let left = world.upsets;
        let mut upset = |event| actions.push(Action::Upset(node, event));
        if left.rollbacks > 0 && it.row != Nodes::START {
            upset(Event::Rollback);
        }
        if left.evictions > 0 && it.may_evict && it.entry.is_some() {
            upset(Event::Eviction);
        }
        if left.repairs > 0 && !self.nodes.is_guarded(it.row) {
            upset(Event::Repair);
        }
        if world.is_writing && it.is_seen {
            upset(Event::Init);
        }
        if left.inits > 0 && !world.is_writing && !it.is_seen {
            actions.push(Action::Look(node));
        }
        let is_first = world.nodes.iter().all(|node| !node.may_evict);
        if left.evictions > 0 && is_first && world.is_untouched(&self.scene) {
            actions.push(Action::Evicting(node));
        }
    }

    /// The clocks of always the same nodes.
    fn jumps(&self, world: &World, actions: &mut Vec<Action>) {
        let Some(fencing) = self.scene.fencing else {
            return;
        };
        if world.jumps == 0 {
            return;
        }
        let all: Few<_> = (0..self.scene.nodes).collect();
        let has_jumped = world.nodes.iter().any(|node| node.has_jumped);
        for &by in fencing.jump_sizes {
            let can_jump = |node: &usize| world.nodes[*node].has_jumped == has_jumped;
            let jumping = subsets(&all).filter(|nodes| nodes.len() == fencing.jumping);
            let jumping = jumping.filter(|nodes| nodes.iter().all(can_jump));
            actions.extend(jumping.map(|nodes| Action::Jump(nodes, by)));
        }
    }

    fn ticks(&self, world: &World, actions: &mut Vec<Action>) {
        // Before anything has happened it is always the same time.
        if world.now == self.scene.end || world.is_untouched(&self.scene) {
            return;
        }
        let can_stand_still = |client: &usize| {
            let it = &world.clients[*client];
            let view = self.automaton.view(it.row);
            it.behind < self.scene.client_behind && (view.is_busy || view.claim.is_some())
        };
        let clients: Few<_> = (0..self.scene.clients.len())
            .filter(can_stand_still)
            .collect();
        let waits = |client: &usize| {
            let it = &world.clients[*client];
            it.ahead < self.scene.client_ahead && !self.automaton.view(it.row).met.is_empty()
        };
        let ahead: Few<_> = (0..self.scene.clients.len()).filter(waits).collect();
        for still in subsets(&clients).chain([Few::new()]) {
            for ahead in subsets(&ahead).chain([Few::new()]) {
                if ahead.iter().any(|client| still.contains(client)) {
                    continue;
                }
                for read in self.reads(world) {
                    actions.push(Action::Tick(still.clone(), ahead.clone(), read));
                }
            }
        }
    }

    /// Replies that may be read before time passes, on which clients do nothing.
    fn reads(&self, world: &World) -> Vec<Few<(usize, usize)>> {
        let mut all = vec![Few::new()];
        if self.scene.fencing.is_none() {
            return all;
        }
        for client in 0..self.scene.clients.len() {
            let ready: Few<_> = (0..self.scene.nodes)
                .filter(|node| self.link(world, client, *node).has_reply())
                .collect();
            let quiet = subsets(&ready).filter(|nodes| !self.does_something(world, client, nodes));
            let longer: Vec<_> = quiet
                .flat_map(|nodes| {
                    all.iter().map(move |others| {
                        let more = nodes.iter().map(|node| (client, *node));
                        others.iter().copied().chain(more).collect()
                    })
                })
                .collect();
            all.extend(longer);
        }
        all
    }
}

fn link_strays(link: &Link, client: usize, node: usize, actions: &mut Vec<Action>) {
    let stray = link.stray.iter().enumerate();
    let different = stray.filter(|(place, order)| link.stray[..*place].last() != Some(*order));
    actions.extend(different.map(|(_, order)| Action::Stray(client, node, *order)));
}

/// All subsets that are not empty.
fn subsets(of: &[usize]) -> impl Iterator<Item = Few<usize>> {
    (1_u32..1 << of.len()).map(|subset| {
        let members = of.iter().enumerate();
        let members = members.filter(|(place, _)| subset >> place & 1 == 1);
        members.map(|(_, member)| *member).collect()
    })
}
