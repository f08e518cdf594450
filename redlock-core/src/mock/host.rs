//! A server on its host.

use core::time::Duration;

use crate::admission::Admission;
use crate::command::Command;
use crate::failure::Failure;
use crate::key::KeyName;
use crate::mock::data::Data;
use crate::mock::error::{MockError, MockFailure};
use crate::mock::server::Server;
use crate::node_info::{ReplicationId, RunId};
use crate::owned::OwnedCommand;
use crate::reply::Reply;
use crate::time::Instant;

/// A server on its host: with a wall clock, and with what its clients know about it.
#[derive(Debug)]
pub(super) struct Host {
    pub(super) server: Server<MAX_KEYS>,
    /// The data at the last [`save`](Self::save).
    saved: Data<MAX_KEYS>,
    /// One admission for all clients, as if all of them were connected at every restart.
    admission: Admission,
    /// How far its wall clock was stepped ahead, in microseconds.
    clock_step: i64,
}

const MAX_KEYS: usize = 64;

/// The wall clock of every node at the origin of the clock: a realistic date.
const ORIGIN: u64 = 1_700_000_000_000_000;

/// The uptime of nodes when a test begins: long enough for every guard.
const FIRST_UPTIME: Duration = Duration::from_secs(365 * 86_400);

impl Host {
    pub(super) const fn new(number: usize) -> Self {
        Self {
            server: Server::new(RunId((number as u64) << 32)),
            saved: Data::EMPTY,
            admission: Admission::new(),
            clock_step: 0,
        }
    }

    pub(super) const fn wall(&self, now: Instant) -> Instant {
        let wall = now.as_micros().saturating_add(ORIGIN);
        Instant::from_micros(wall.saturating_add_signed(self.clock_step))
    }

    pub(super) fn set_clock_step(&mut self, micros: i64, now: Instant) {
        self.clock_step = micros;
        self.expire(now);
    }

    pub(super) fn expire(&mut self, now: Instant) {
        self.server.expire(self.wall(now));
    }

    pub(super) fn restart(&mut self, now: Instant) {
        self.change(now, |server| {
            let RunId(run_id) = server.run_id();
            server.restart(RunId(run_id.wrapping_add(1)));
            server.set_master(true);
            begin_history(server);
        });
    }

    pub(super) fn set_master(&mut self, is_master: bool, now: Instant) {
        self.change(now, |server| {
            server.set_master(is_master);
            begin_history(server);
        });
    }

    pub(super) fn set_may_evict(&mut self, may_evict: bool, now: Instant) {
        self.change(now, |server| server.set_may_evict(may_evict));
    }

    pub(super) fn save(&mut self) {
        self.saved = self.server.data();
    }

    pub(super) fn fail_back(&mut self) {
        self.server.restore(self.saved.clone());
        begin_history(&mut self.server);
    }

    /// Makes a change that every client notices.
    fn change(&mut self, now: Instant, change: impl FnOnce(&mut Server<MAX_KEYS>)) {
        self.meet(Instant::from_micros(0), now);
        change(&mut self.server);
        self.meet(now, now);
    }

    pub(super) fn execute(
        &mut self,
        command: &OwnedCommand<KeyName>,
        now: Instant,
    ) -> Result<Reply, MockFailure> {
        self.meet(Instant::from_micros(0), now);
        let admitted = self.admission.check(command.verb, now);
        admitted.map_err(Failure::Denied)?;
        let command = Command {
            key: command
                .key
                .whole()
                .ok_or(Failure::Transport(MockError::KeyTooLong))?,
            token: &command.token,
            proposal: command.proposal,
            place: command.place,
            verb: command.verb,
        };
        self.server.execute(&command, self.wall(now))
    }

    /// Records what a client learns on a new connection at `met_at`. Plain clients learn the rules of the guard record, too, as soon as
    /// a fenced acquire has set them.
    fn meet(&mut self, met_at: Instant, now: Instant) {
        let node_info = self.server.node_info(FIRST_UPTIME, self.wall(now));
        self.admission.ask(met_at);
        self.admission.record(Some(node_info), met_at);
    }
}

const fn begin_history(server: &mut Server<MAX_KEYS>) {
    let ReplicationId(history) = server.replication_id();
    server.begin_history(ReplicationId(history.wrapping_add(1)));
}
