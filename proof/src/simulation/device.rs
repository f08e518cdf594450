//! The transport of a device: the shipping one, over a stream of the world.

use std::rc::Rc;

use redlock_core::transport::{Command, Reply, RunId};
use redlock_core::{Failure, NodeError, NodeErrorOf, Transport};
use redlock_embassy::{TcpNode, TransportError};

use super::assumption::Assumption;
use super::place::Route;
use super::socket::Hardware;
use super::stream::Stream;
use super::transport::LocalClock;
use super::world::World;

/// The way of a device to one node.
#[derive(Debug)]
pub(crate) struct Device {
    node: TcpNode<'static, Stream, LocalClock>,
    world: Rc<World>,
    route: Route,
}

impl Device {
    pub(crate) fn new(world: &Rc<World>, route: Route, hardware: &Hardware) -> Self {
        let clock = LocalClock::new(Rc::clone(world), route.client);
        let node = TcpNode::new(Stream::new(Rc::clone(world), route), clock)
            .connect_timeout(hardware.connect_timeout)
            .patience(hardware.patience);
        Self {
            node,
            world: Rc::clone(world),
            route,
        }
    }
}

impl Transport for Device {
    type Name = usize;
    type Error = TransportError;

    fn name(&self) -> usize {
        self.route.node
    }

    async fn execute(&mut self, command: &Command<'_>) -> Result<Reply, NodeErrorOf<Self>> {
        self.world.look().call_by_device(self.route, command);
        let mut reply = self.node.execute(command).await;
        if let Err(error) = &reply
            && matches!(error.failure(), Failure::NothingToRelease)
            && self.world.look().fails(Assumption::EarlyRelease)
        {
            reply = Ok(Reply::NotMine);
        }
        reply.map_err(|error| {
            let failure = match *error.failure() {
                Failure::Denied(denial) => Failure::Denied(denial),
                Failure::TimedOut(after) => Failure::TimedOut(after),
                Failure::NothingToRelease => Failure::NothingToRelease,
                Failure::Transport(error) => Failure::Transport(error),
                _ => Failure::Transport(TransportError::Unexpected),
            };
            NodeError::new(self.route.node, failure)
        })
    }

    fn run_id(&self) -> Option<RunId> {
        // Without it, the client does not notice that two names are one server.
        let is_unknown = self.world.look().fails(Assumption::Duplicates);
        self.node.run_id().filter(|_| !is_unknown)
    }
}
