//! The steps that a world can take next, and what must be true of each world: the model for `stateright`.

mod actions;
mod property;
mod reduction;

use std::sync::Arc;

use stateright::{Model, Property};

use super::automaton::Automaton;
use super::client::{Answer, Cause, Effect, Few, Input, Meeting, Operation, Order};
use super::flaw::Flaw;
use super::nodes::{Event, Nodes};
use super::numbered::Numbered;
use super::scene::{Scene, Start};
use super::world::{Link, Sent, World, small};

/// One step: nothing happens at the same time as another thing.
#[derive(Debug, Clone, PartialEq, Eq, Hash)]
pub(super) enum Action {
    /// A client begins an operation.
    Begin(usize, Operation),
    /// A client runs: it gets the replies of these nodes, if any, and looks at its clock.
    Run(usize, Few<usize>),
    /// The future of a client's operation is dropped.
    Drop(usize),
    /// The next command of a client arrives at a node, and is executed.
    Execute(usize, usize),
    /// A command arrives although its connection broke.
    Stray(usize, usize, Order),
    /// The connection of a client to a node breaks.
    Break(usize, usize, Reply),
    /// A key expires early, by the clock of its node.
    ExpireEarly(usize),
    /// A node forgets everything and is back at once. Every client notices and meets it again. Where locks are
    /// fenced no client notices, and connections live on, unless the scene says that it is a restart.
    Crash(usize),
    /// A node may evict keys, as all clients are told. Before anything else has happened.
    Evicting(usize),
    /// Something else befalls the data of a node.
    Upset(usize, Event),
    /// An operator runs `redlock init`, which requires that all nodes are new, and looks at one.
    Look(usize),
    /// The clocks of these nodes jump, by so much.
    Jump(Few<usize>, i8),
    /// One unit of time passes; the clocks of the first ones stand still, those of the others go two units. Before,
    /// clients read these replies and do nothing on them: by client and node.
    Tick(Few<usize>, Few<usize>, Few<(usize, usize)>),
}

/// Where a reply that has come is when the connection breaks.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub(super) enum Reply {
    /// Lost with it.
    Lost,
    /// The client has it already, and has done nothing on it so far.
    Read,
}

/// A scene, and its clients.
#[derive(Debug)]
pub(super) struct Search {
    pub(super) scene: Scene,
    pub(super) automaton: Automaton,
    pub(super) nodes: Nodes,
    links: Numbered<Link>,
    /// Of worlds that differ by the numbers of nodes and clients only, one is enough; a trace through these would
    /// not be one to read.
    is_reduced: bool,
}

impl Search {
    pub(super) fn new(scene: Scene, is_reduced: bool) -> Self {
        let has_twin = scene.upsets.has_twin;
        let links = Numbered::default();
        assert_eq!(links.number(Link::default()), Link::UNUSED);
        Self {
            automaton: Automaton::new(&scene),
            nodes: Nodes::new(&scene),
            links,
            scene,
            // Of two nodes that are one process, the second is not like the others.
            is_reduced: is_reduced && !has_twin,
        }
    }

    /// Lets a client run, and takes from it what it hands to its transports. Says what it did.
    fn run(&self, world: &mut World, client: usize, cause: Cause) -> Arc<[Effect]> {
        let input = Input {
            reading: world.reading(&self.scene, client),
            cause,
        };
        let step = self.automaton.step(world.clients[client].row, &input);
        let reported = world.fences.last().copied().unwrap_or_default();
        world.clients[client].row = step.to;
        // What it sends once it has been granted a lease, to restore a record, is no new request.
        let above = world.clients[client].above;
        for effect in &*step.effects {
            match *effect {
                Effect::Sent(node, order) => {
                    if matches!(order, Order::Acquire(..)) {
                        world.clients[client].above = reported;
                    }
                    self.change_link(world, client, node, |link| {
                        link.awaited = Some(order);
                        link.sent.push(Sent {
                            order,
                            is_awaited: true,
                        });
                    });
                }
                Effect::GivenUp(node) => {
                    self.change_link(world, client, node, |link| {
                        link.awaited = None;
                        if self.scene.flaw != Some(Flaw::LateRepliesCount) {
                            link.answers.clear();
                            link.sent
                                .iter_mut()
                                .for_each(|sent| sent.is_awaited = false);
                        }
                    });
                }
                Effect::Acquired => {
                    world.acting = Some(small(client));
                    let claim = self.automaton.view(step.to).claim;
                    if let Some(fence) = claim.and_then(|claim| claim.fence) {
                        let fence = self.scene.stamp(fence.as_u64());
                        world.is_out_of_order |= fence <= above;
                        world.fences.push(fence);
                        world.fences.sort_unstable();
                    }
                }
                _ => {}
            }
        }
        step.effects
    }

    pub(super) fn does_something(&self, world: &World, client: usize, nodes: &[usize]) -> bool {
        let replies = nodes
            .iter()
            .map(|node| (*node, self.link(world, client, *node).answers[0]));
        let input = Input {
            reading: world.reading(&self.scene, client),
            cause: Cause::Wake(replies.collect()),
        };
        let row = world.clients[client].row;
        !self.automaton.step(row, &input).effects.is_empty()
    }

    /// Lets `node` execute what `client` has sent.
    fn execute(&self, world: &mut World, node: usize, client: usize, order: Order) -> Answer {
        let node = self.scene.process(node);
        if self.scene.fencing.is_none() {
            return world.execute(&self.scene, node, client, order);
        }
        let event = Event::Execute(small(client), order);
        let answer = self.happens(world, node, event);
        let it = &mut world.nodes[node];
        if it.entry.is_some() {
            it.forgotten = None;
        }
        let whose = (small(client), order.token());
        let may_come_back = self.scene.breaks > 0 && matches!(order, Order::Release(..));
        if may_come_back && !it.released.contains(&whose) {
            it.released.push(whose);
            it.released.sort_unstable();
        }
        answer.expect("a command is answered")
    }

    pub(super) fn happens(&self, world: &mut World, node: usize, event: Event) -> Option<Answer> {
        let wall = world.wall(node);
        let it = &mut world.nodes[node];
        let turn = self.nodes.step(it.row, wall, event);
        it.row = turn.to;
        it.entry = turn.entry;
        it.forgotten.take_if(|entry| entry.expires_at <= wall);
        turn.answer
    }

    /// What a client does on it, if it is a client's.
    pub(super) fn step(&self, world: &mut World, action: Action) -> Arc<[Effect]> {
        world.acting = None;
        match action {
            Action::Begin(client, operation) => {
                let it = &mut world.clients[client];
                match operation {
                    Operation::Acquire => it.acquires -= 1,
                    Operation::Extend => it.extends -= 1,
                    Operation::Release | Operation::Tidy | Operation::Learn(_) => {}
                }
                return self.run(world, client, Cause::Begin(operation));
            }
            Action::Run(client, nodes) => {
                let take = |node| {
                    (
                        node,
                        self.change_link(world, client, node, Link::take_reply),
                    )
                };
                let answers = nodes.into_iter().map(take).collect();
                return self.run(world, client, Cause::Wake(answers));
            }
            Action::Drop(client) => {
                world.drops -= 1;
                return self.run(world, client, Cause::Drop);
            }
            Action::Execute(client, node) => {
                let sent = self.link(world, client, node).sent[0].clone();
                let answer = self.execute(world, node, client, sent.order);
                self.change_link(world, client, node, |link| {
                    link.sent.remove(0);
                    if sent.is_awaited {
                        link.answers.push(answer);
                    }
                });
            }
            Action::Stray(client, node, order) => {
                self.change_link(world, client, node, |link| {
                    let mut is_first = true;
                    link.stray
                        .retain(|other| *other != order || !std::mem::take(&mut is_first));
                });
                self.execute(world, node, client, order);
            }
            Action::Break(client, node, reply) => {
                world.breaks -= 1;
                if reply == Reply::Lost {
                    self.change_link(world, client, node, |link| link.answers.clear());
                }
                self.break_down(world, client, node, true);
            }
            Action::ExpireEarly(node) => {
                if self.scene.fencing.is_some() {
                    self.happens(world, node, Event::Expiry);
                }
                world.nodes[node].entry = None;
            }
            Action::Crash(node) => {
                world.crashes -= 1;
                let it = &mut world.nodes[node];
                it.forgotten = it.entry.take().or_else(|| it.forgotten.take());
                if self.scene.upsets.restarts {
                    self.happens(world, node, Event::Restart);
                } else if self.scene.fencing.is_some() {
                    // Connections live on, and no client notices: the node itself has to.
                    self.happens(world, node, Event::Loss);
                    return Arc::new([]);
                }
                // What was on its way to it arrives nowhere.
                for client in 0..self.scene.clients.len() {
                    self.change_link(world, client, node, |link| link.answers.clear());
                    self.break_down(world, client, node, false);
                    self.run(world, client, Cause::Met(node, Meeting::Restarted));
                }
            }
            Action::Evicting(node) => {
                world.nodes[node].may_evict = true;
                for client in 0..self.scene.clients.len() {
                    self.run(world, client, Cause::Met(node, Meeting::MayEvict));
                }
            }
            Action::Upset(node, event) => self.upset(world, node, event),
            Action::Look(node) => {
                let it = &mut world.nodes[node];
                it.is_seen =
                    self.nodes.is_blank(it.row) || self.scene.flaw == Some(Flaw::InitAnyway);
                if !it.is_seen {
                    // It refuses.
                    world.upsets.inits -= 1;
                    world.nodes.iter_mut().for_each(|node| node.is_seen = false);
                }
                world.is_writing = world.nodes.iter().all(|node| node.is_seen);
            }
            Action::Jump(nodes, by) => {
                world.jumps -= 1;
                let returns = self.scene.fencing.is_some_and(|it| it.returns);
                for node in nodes {
                    world.nodes[node].has_jumped = true;
                    for by in [by, -by].into_iter().take(1 + usize::from(returns)) {
                        world.nodes[node].ahead += by;
                        self.happens(world, node, Event::Time);
                    }
                }
            }
            Action::Tick(standing_still, ahead, read) => {
                for client in 0..self.scene.clients.len() {
                    let mine = read.iter().filter(|(whose, _)| *whose == client);
                    let take = |(_, node): &(usize, usize)| {
                        let reply = self.change_link(world, client, *node, Link::take_reply);
                        (*node, reply)
                    };
                    let answers: Few<_> = mine.map(take).collect();
                    if !answers.is_empty() {
                        self.run(world, client, Cause::Read(answers));
                    }
                }
                world.now = self.scene.after(world.now);
                for client in standing_still {
                    world.clients[client].behind += 1;
                }
                for client in ahead {
                    world.clients[client].ahead += 1;
                }
                if self.scene.fencing.is_some() {
                    for node in 0..self.scene.nodes {
                        self.happens(world, node, Event::Time);
                    }
                    return Arc::new([]);
                }
                for node in &mut world.nodes {
                    for entry in [&mut node.entry, &mut node.forgotten] {
                        entry.take_if(|entry| entry.expires_at <= world.now);
                    }
                }
            }
        }
        Arc::new([])
    }

    fn upset(&self, world: &mut World, node: usize, event: Event) {
        let left = &mut world.upsets;
        match event {
            Event::Rollback => left.rollbacks -= 1,
            Event::Eviction => left.evictions -= 1,
            Event::Repair => left.repairs -= 1,
            Event::Init => world.nodes[node].is_seen = false,
            _ => {}
        }
        if world.is_writing && world.nodes.iter().all(|node| !node.is_seen) {
            world.is_writing = false;
            world.upsets.inits -= 1;
        }
        let before = world.nodes[node].entry;
        self.happens(world, node, event);
        let it = &mut world.nodes[node];
        if it.entry.is_none() && before.is_some() {
            it.forgotten = before;
        }
    }

    /// What clients take the time of the nodes for in the beginning, all combinations.
    fn guessed(&self) -> Vec<World> {
        let mut worlds = vec![World::new(&self.scene, &self.automaton)];
        let guesses = self
            .scene
            .fencing
            .map_or(&[][..], |fencing| fencing.guesses);
        if guesses.is_empty() {
            return worlds;
        }
        for client in 0..self.scene.clients.len() {
            let guessed = worlds.iter().flat_map(|world| {
                guesses.iter().map(|guess| {
                    let mut world = *world;
                    let learns = Cause::Begin(Operation::Learn(*guess));
                    self.run(&mut world, client, learns);
                    world
                })
            });
            worlds = guessed.collect();
        }
        worlds
    }

    /// Makes the beginning of the scene.
    fn start(&self, world: &mut World) {
        match self.scene.start {
            Start::New => return,
            Start::Cold => {
                for node in 0..self.scene.nodes {
                    self.happens(world, node, Event::Loss);
                }
                return;
            }
            Start::Held | Start::Wiped => {}
        }
        let nodes = 0..self.scene.nodes - 1;
        self.step(world, Action::Begin(0, Operation::Acquire));
        for node in nodes.clone() {
            self.step(world, Action::Execute(0, node));
        }
        self.step(world, Action::Run(0, nodes.clone().collect()));
        assert!(world.acting == Some(0), "nothing is in its way");
        if self.scene.start == Start::Wiped {
            for node in nodes {
                world.nodes[node].forgotten = world.nodes[node].entry;
                self.happens(world, node, Event::Loss);
            }
        }
    }

    fn break_down(&self, world: &mut World, client: usize, node: usize, leaves_strays: bool) {
        let drawn = self.automaton.view(world.clients[client].row).drawn;
        self.change_link(world, client, node, |link| {
            link.break_down(drawn, leaves_strays);
        });
    }

    /// The connection of `client` to `node`.
    pub(super) fn link(&self, world: &World, client: usize, node: usize) -> &Link {
        self.links.get(world.clients[client].links[node])
    }

    fn change_link<T>(
        &self,
        world: &mut World,
        client: usize,
        node: usize,
        change: impl FnOnce(&mut Link) -> T,
    ) -> T {
        let number = &mut world.clients[client].links[node];
        let mut link = self.links.get(*number).clone();
        let changed = change(&mut link);
        *number = self.links.number(link);
        changed
    }
}

impl Model for Search {
    type State = World;
    type Action = Action;

    fn init_states(&self) -> Vec<World> {
        let mut worlds = self.guessed();
        for world in &mut worlds {
            self.start(world);
        }
        worlds
    }

    fn actions(&self, world: &World, actions: &mut Vec<Action>) {
        self.all_actions(world, actions);
    }

    fn next_state(&self, world: &World, action: Action) -> Option<World> {
        let mut next = *world;
        self.step(&mut next, action);
        Some(if self.is_reduced {
            self.representative(next)
        } else {
            next
        })
    }

    fn properties(&self) -> Vec<Property<Self>> {
        property::all()
    }
}
