//! Nodes fail, a minority of them at a time, and come back.

use core::fmt;
use core::time::Duration;
use std::rc::Rc;

use tokio::task::spawn_local;
use tokio::time::sleep;

use super::TTL;
use super::link::Node;
use super::random::Random;
use super::world::World;

/// Breaks nodes until it is dropped.
pub(crate) async fn chaos(world: Rc<World>, mut random: Random) {
    loop {
        sleep(random.between_ms(100, 500)).await;
        let healthy: Vec<_> = world.healthy().collect();
        let failing = world.nodes().count() - healthy.len();
        if failing >= world.minority() {
            continue;
        }
        if let Some(number) = random.pick(healthy)
            && let Some(fault) = random.pick(Fault::ALL)
        {
            spawn_local(fault.strike(number, Rc::clone(&world), random.fork()));
        }
    }
}

/// What can be wrong with a node.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Fault {
    Hang,
    Slowness,
    Death,
    DataLoss,
}

impl Fault {
    const ALL: [Self; 4] = [Self::Hang, Self::Slowness, Self::Death, Self::DataLoss];

    /// How long clients do not count the vote of a node that has restarted: their restart guard waits until
    /// every key that it may have had has expired.
    const WITHOUT_VOTE: Duration = TTL.saturating_add(Duration::from_millis(50));

    pub(crate) const fn is_death(self) -> bool {
        matches!(self, Self::Death | Self::DataLoss)
    }

    async fn strike(self, number: usize, world: Rc<World>, mut random: Random) {
        let Some(node) = world.break_down(number, self) else {
            return;
        };
        let time = random.between_ms(100, 600);
        match self {
            Self::Hang => node.hang(),
            Self::Slowness => node.set_latency(random.between_ms(20, 120)),
            Self::Death | Self::DataLoss => node.stop(),
        }
        world.say(format_args!(
            "node {number} {}, for {} ms",
            self.in_words(),
            time.as_millis()
        ));
        sleep(time).await;
        self.end(&node);
        if self.is_death() {
            world.say(format_args!("node {number} is back, and has no vote yet"));
            sleep(Self::WITHOUT_VOTE).await;
            world.recover(number);
            world.say(format_args!("node {number} votes again"));
        } else {
            world.recover(number);
            world.say(format_args!("node {number} is back"));
        }
    }

    fn end(self, node: &Node) {
        match self {
            Self::Hang => node.resume(),
            Self::Slowness => node.set_latency(Duration::ZERO),
            Self::Death => node.restart(),
            Self::DataLoss => node.restart_empty(),
        }
    }

    const fn in_words(self) -> &'static str {
        match self {
            Self::Hang => "hangs",
            Self::Slowness => "is slow",
            Self::Death => "is killed and keeps its data",
            Self::DataLoss => "is killed and loses its data",
        }
    }
}

/// How many faults there were of each kind.
#[derive(Debug, Default, Clone, Copy)]
pub(crate) struct Faults {
    hangs: u32,
    slownesses: u32,
    deaths: u32,
    data_losses: u32,
}

impl Faults {
    pub(crate) const fn count(&mut self, fault: Fault) {
        let count = match fault {
            Fault::Hang => &mut self.hangs,
            Fault::Slowness => &mut self.slownesses,
            Fault::Death => &mut self.deaths,
            Fault::DataLoss => &mut self.data_losses,
        };
        *count += 1;
    }
}

impl fmt::Display for Faults {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Self {
            hangs,
            slownesses,
            deaths,
            data_losses,
        } = self;
        write!(
            f,
            "{hangs} hung, {slownesses} slow, {deaths} killed, {data_losses} killed with loss of data"
        )
    }
}
