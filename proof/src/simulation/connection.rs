//! How a connection ends, what outlives it, and how the next one begins.

use redlock_core::transport::NodeInfo;

use super::fault::Kind;
use super::history::What;
use super::link::{Content, Line, Straggler};
use super::place::Route;
use super::slab::Name;
use super::state::{Event, State};

impl State {
    /// Breaks the connection: the first commands under way arrive in spite of it, but late, the others never.
    pub(super) fn break_connection(&mut self, route: Route) {
        let link = self.link(route);
        if !matches!(link.line, Line::Up | Line::Asking) {
            return;
        }
        self.count(Kind::BrokenConnection);
        self.scatter(route);
        self.lose_connection(route);
    }

    /// Lets the first commands under way arrive in spite of the end of their connection, but late.
    pub(super) fn scatter(&mut self, route: Route) {
        let link = self.link(route);
        let (epoch, under_way, mut at) = (link.epoch, link.requests.len(), link.last_arrival);
        let life = self.machines[self.machine_of(route)].life;
        let survivors = self.chance.index(under_way + 1);
        let survivors: Vec<_> = self.link(route).requests.drain(..survivors).collect();
        for parcel in survivors {
            let Content::Command(message) = parcel.content else {
                continue;
            };
            if let Some(socket) = &mut self.link(route).socket {
                socket.debt.is_late(message.token);
            }
            at = at.max(self.now) + self.lateness();
            let straggler = self.stragglers.insert(Straggler {
                route,
                message,
                epoch,
                life,
            });
            self.queue.add(at, Event::Straggler(straggler));
            self.count(Kind::LateCommand);
        }
    }

    /// The connection is dead, with all that is under way to the node and perhaps what is under way back.
    pub(super) fn lose_connection(&mut self, route: Route) {
        if !matches!(self.link(route).line, Line::Up | Line::Asking) {
            return;
        }
        // A client that has not met the node gets no further.
        let keeps_replies = self.chance.one_in(2) && self.link(route).line == Line::Up;
        let link = self.link(route);
        link.line = Line::Dead;
        let (epoch, notice) = (link.epoch, link.habits.notice);
        let lost = link.requests.drain(..).count();
        let replies = if keeps_replies { 0 } else { link.replies.len() };
        let lost_replies = link.replies.drain(..replies).count();
        self.count_many(Kind::LostCommand, lost);
        self.count_many(Kind::LostReply, lost_replies);
        let at = self.now + self.chance.about(notice);
        self.queue.add(at, Event::Notice(route, epoch));
        self.hang_up_later(route, epoch);
    }

    /// A command that has outlived its connection arrives.
    pub(super) fn arrive_late(&mut self, name: Name) {
        let Some(Straggler {
            route,
            message,
            epoch,
            life,
        }) = self.stragglers.get_mut(name).copied()
        else {
            return;
        };
        let machine = &self.machines[self.machine_of(route)];
        if machine.hung_until > self.now {
            self.queue.add(machine.hung_until, Event::Straggler(name));
            return;
        }
        self.stragglers.remove(name);
        if machine.life == life {
            let is_overtaken = self.link(route).epoch != epoch;
            self.count_many(Kind::OvertakenCommand, is_overtaken.into());
            self.is_late(route, message);
            let _unheard = self.execute(route, message);
        }
    }

    /// The client learns that the connection is dead.
    pub(super) fn notice(&mut self, route: Route, epoch: u32) {
        let link = self.link(route);
        if link.epoch != epoch || link.line != Line::Dead {
            return;
        }
        link.line = Line::Down;
        let lost_replies = link.replies.drain(..).count();
        let owed = core::mem::take(&mut link.owed);
        let habits = link.habits;
        self.count_many(Kind::LostReply, lost_replies);
        self.tell(What::Connected(route, false));
        if self.link(route).socket.is_some() {
            self.notice_by_device(route);
            return;
        }
        for (parcel, message) in owed {
            if habits.resends && message.is_release() {
                self.count(Kind::ResentRelease);
                self.link(route).outbox.push((message, parcel.call));
            } else {
                self.finish_call(parcel.call, Err(()));
            }
        }
        let at = self.now + self.chance.about(habits.reconnect);
        self.queue.add(at, Event::Reconnect(route));
    }

    /// In the beginning most clients are connected. Devices connect when they first need it.
    pub(super) fn connect_all(&mut self) {
        for client in 0..self.processes.len() {
            for node in 0..self.machines.len() {
                let route = Route { client, node };
                let begins_at = self.link(route).habits.begins_at;
                if self.link(route).socket.is_some() {
                    continue;
                }
                if begins_at > 0 {
                    self.queue.add(begins_at, Event::Reconnect(route));
                } else {
                    let machine = self.machine_of(route);
                    let node_info = self.machines[machine].node_info(0);
                    self.note_question(route);
                    self.record(route, node_info);
                }
            }
        }
    }

    pub(super) fn reconnect(&mut self, route: Route) {
        let now = self.now;
        if self.link(route).socket.is_some() {
            self.accept(route);
            return;
        }
        if self.link(route).line != Line::Down {
            return;
        }
        let number = self.machine_of(route);
        let machine = &mut self.machines[number];
        if machine.is_down {
            // Asked again when the node is back.
            machine.callers.push(route);
            return;
        }
        let link = self.link(route);
        let cut_until = link.requests_cut_until.max(link.replies_cut_until);
        if cut_until > now {
            self.queue.add(cut_until, Event::Reconnect(route));
            return;
        }
        link.line = Line::Asking;
        link.epoch += 1;
        link.last_arrival = now;
        link.last_answer = now;
        self.note_question(route);
        let parcel = self.parcel(route, Content::Question, self.no_call);
        let arrival = now + self.delay(route, now);
        self.depart(route, parcel, arrival);
    }

    /// The client asks the node who it is.
    pub(super) fn note_question(&mut self, route: Route) {
        let local = self.reading(route.client, self.moment_of(route.client));
        self.link(route).admission.ask(local);
    }

    /// The node has said who it is, and commands may follow.
    pub(super) fn record(&mut self, route: Route, node_info: NodeInfo) {
        let now = self.now;
        let local = self.reading(route.client, self.moment_of(route.client));
        let tick = self.processes[route.client].clock.resolution();
        let link = self.link(route);
        // Else it was asked again, on a connection that may be dead by now.
        let is_new = matches!(link.line, Line::Down | Line::Asking);
        if is_new {
            link.line = Line::Up;
        }
        link.node_infos += 1;
        link.meet(&node_info);
        self.tell_max_ttl(route, &node_info);
        let link = self.link(route);
        let is_another = link
            .admission
            .run_id()
            .is_some_and(|known| known != node_info.run_id);
        link.admission
            .record(Some(node_info), local.saturating_add(tick));
        self.count_many(Kind::MetAgain, is_another.into());
        if !is_new {
            return;
        }
        self.subscribe(route);
        let link = self.link(route);
        let outbox = core::mem::take(&mut link.outbox);
        let waiting = core::mem::take(&mut link.waiting);
        self.tell(What::Connected(route, true));
        for (message, call) in outbox {
            self.send(route, message, call, now);
        }
        for call in waiting {
            self.wake_call(call);
        }
    }
}
