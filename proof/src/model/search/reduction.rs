//! Fewer worlds: of those that differ by numbers only, one.

use super::Search;
use crate::model::client::Few;
use crate::model::world::{World, small};

impl Search {
    /// Nodes are alike, and so are clients: of the worlds that differ by their numbers only, one is enough. Not each
    /// of those is turned into the same one, which costs states and loses none.
    pub(super) fn representative(&self, mut world: World) -> World {
        let by_number = |client: &usize| {
            let it = &world.clients[*client];
            let clock = (it.behind, it.ahead);
            (it.row, it.acquires, it.extends, clock, &it.links)
        };
        let mut order: Few<_> = (0..self.scene.clients.len()).collect();
        // Nodes of fenced locks know them by their numbers.
        if self.scene.fencing.is_none() {
            order.sort_by(|a, b| by_number(a).cmp(&by_number(b)));
        }
        if !order.is_sorted() {
            let clients = order.iter().map(|client| world.clients[*client]);
            world.clients = clients.collect();
            let number = |client: u8| {
                let place = order.iter().position(|old| *old == usize::from(client));
                small(place.expect("an order of all clients"))
            };
            for entry in world
                .nodes
                .iter_mut()
                .flat_map(|node| [node.entry.as_mut(), node.forgotten.as_mut()])
                .flatten()
            {
                entry.client = number(entry.client);
            }
            world.acting = world.acting.map(number);
        }
        let mut order: Few<_> = (0..self.scene.nodes).collect();
        order.sort_by(|a, b| {
            let key = |node: usize| {
                let links = world.clients.iter().map(move |client| client.links[node]);
                (&world.nodes[node], links)
            };
            let ((node_a, links_a), (node_b, links_b)) = (key(*a), key(*b));
            node_a.cmp(node_b).then_with(|| links_a.cmp(links_b))
        });
        if order.is_sorted() {
            return world;
        }
        let mut numbers = order.clone();
        for (number, &node) in order.iter().enumerate() {
            numbers[node] = number;
        }
        let mut turned = world;
        for (number, &node) in order.iter().enumerate() {
            turned.nodes[number] = world.nodes[node];
            for (to, from) in turned.clients.iter_mut().zip(&world.clients) {
                to.links[number] = from.links[node];
            }
        }
        for client in &mut turned.clients {
            client.row = self.automaton.renumbered(client.row, &numbers);
        }
        turned
    }
}
