//! A world: true time, and everything that the clients of the lock stand on.

use std::cell::{RefCell, RefMut};

use super::chance::Chance;
use super::fault::Fault;
use super::fencing::Jumps;
use super::history::What;
use super::place::Route;
use super::scenario::Scenario;
use super::state::{Event, State};

/// What the tasks share. Each of them looks at it for a moment at a time.
#[derive(Debug)]
pub(crate) struct World(RefCell<State>);

impl World {
    pub(crate) fn new(scenario: &Scenario, chance: &mut Chance) -> Self {
        Self(RefCell::new(State::new(scenario, chance)))
    }

    /// Not across an await, and not while a task is polled.
    pub(crate) fn look(&self) -> RefMut<'_, State> {
        self.0.borrow_mut()
    }
}

impl State {
    /// Lets the next event happen. There is none at the end.
    pub(crate) fn step(&mut self) -> bool {
        if self.is_endless() {
            self.tell(What::Endless);
            return false;
        }
        let Some((at, event)) = self.queue.next() else {
            return false;
        };
        self.now = at;
        match event {
            Event::Free => (),
            Event::Timer(timer) => self.ring(timer),
            Event::Arrival(route, epoch) => self.arrive(route, epoch),
            Event::Answer(route, epoch) => self.answer(route, epoch),
            Event::Straggler(straggler) => self.arrive_late(straggler),
            // A process that is not run does nothing about its connections either.
            Event::Notice(Route { client, .. }, _) | Event::Reconnect(Route { client, .. })
                if self.moment_of(client) > at =>
            {
                self.queue.add(self.moment_of(client), event);
            }
            Event::Notice(route, epoch) => self.notice(route, epoch),
            Event::Die(client) => self.inject(Fault::Die(client)),
            Event::HangUp(route, epoch) => self.notice_hang_up(route, epoch),
            Event::Mail(route, epoch, mail) => self.arrive_apart(route, epoch, mail),
            Event::Reconnect(route) => self.reconnect(route),
            Event::Restart(node, left) => self.restart(node, left),
            Event::Init(node) => self.write_init(node),
            Event::Change(node) => self.write_change(node),
            Event::Visit(claim) => self.admit(claim),
            Event::Fault(number) => self.inject(self.plan[number]),
            Event::Calm => {
                (0..self.machines.len()).for_each(|node| self.promote(node));
                if self.jumps == Some(Jumps::All) {
                    self.set_all_clocks();
                }
                self.tell(What::Calm);
            }
            Event::Repair => {
                self.finish_change();
                self.repair_if_stuck();
            }
        }
        true
    }
}
