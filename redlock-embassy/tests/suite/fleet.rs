//! Several nodes, and the whole lock over them.

use core::array;
use core::time::Duration;

use redlock_core::Redlock;
use redlock_core::mock::{MockClock, SeededEntropy};
use redlock_embassy::{Options, TcpNode};

use crate::wire::{Server, Who, Wire};
use crate::world::{World, ms};

pub(crate) type Lock<'w, const N: usize> =
    Redlock<TcpNode<'w, Wire<'w>, &'w MockClock>, &'w MockClock, SeededEntropy, N>;

/// Servers with the identity `who`, but for the run ID: they are different processes.
pub(crate) fn fleet<const N: usize>(world: &World, who: Who) -> [Server<'_>; N] {
    array::from_fn(|number| {
        let server = Server::new(world);
        server.introduce(Who {
            run_id: 10 + number as u64,
            ..who
        });
        server
    })
}

/// A separate client, with tokens that no other seed gives.
pub(crate) fn lock<'w, const N: usize>(
    servers: [&'w Server<'w>; N],
    seed: u64,
    options: Options,
) -> Lock<'w, N> {
    let clock = &servers[0].world.clock;
    let nodes = servers.map(|server| TcpNode::new(server.wire(), clock));
    Redlock::new(nodes, clock, SeededEntropy::new(seed), options).unwrap()
}

/// A lease of ten seconds, one round, 50 ms for it.
pub(crate) fn one_round() -> Options {
    let options = Options::new(ms(10_000)).unwrap().wait(Duration::ZERO);
    options.node_timeout(ms(50)).unwrap()
}
