//! `redlock demo`: workers compete for one key while nodes fail, all in this process.

mod chaos;
mod checker;
mod fault;
mod link;
mod random;
mod summary;
mod worker;
mod world;

use core::time::Duration;
use std::process::ExitCode;
use std::rc::Rc;

use redlock_core::{Entropy, Options, OptionsError, Redlock};
use redlock_std::{MAX_NODES, SystemClock, SystemEntropy};
use tokio::task::{LocalSet, spawn_local};

use crate::exit;
use chaos::chaos;
use link::Link;
use random::Random;
use summary::Summary;
use worker::Worker;
use world::World;

/// Watch the lock at work: workers compete for one key while nodes hang, crash and restart
///
/// Needs no server: the nodes are in the memory of this process. The lock and the time are real. Each
/// worker that holds the lock increments a counter that nothing else protects: it reads the counter, works
/// for a moment, and writes the new value. If two workers held the lock at once, an increment would be lost.
///
/// Exit codes: 0 no two workers held the lock at once, and no increment was lost; 1 otherwise, or if no
/// worker ever held the lock; 64 usage; 70 internal error.
#[derive(Debug, clap::Args)]
pub(crate) struct Arguments {
    /// Repeat the faults and delays of the run with this seed; the delays of the machine differ [default: random]
    #[arg(long, value_name = "N")]
    seed: Option<u64>,

    /// How many workers compete for the key
    #[arg(long, value_name = "N", default_value_t = 4, value_parser = clap::value_parser!(u8).range(1..=Link::MOST as i64))]
    workers: u8,

    /// For how many seconds it runs
    #[arg(long, value_name = "N", default_value_t = 10, value_parser = clap::value_parser!(u32).range(1..))]
    seconds: u32,

    /// How many nodes there are; at any time, at most a minority of them is faulty
    #[arg(long, value_name = "N", default_value_t = 5, value_parser = clap::value_parser!(u8).range(3..=MAX_NODES as i64))]
    nodes: u8,
}

/// The name of the lock.
const KEY: &str = "counter";

/// Short, so that keys often expire during the demo.
const TTL: Duration = Duration::from_millis(500);

/// Much longer than the few milliseconds of a link, so that nodes do not time out on a busy machine.
const NODE_TIMEOUT: Duration = Duration::from_millis(50);

pub(crate) fn demo(arguments: &Arguments) -> ExitCode {
    let runtime = match tokio::runtime::Builder::new_current_thread()
        .enable_time()
        .build()
    {
        Ok(runtime) => runtime,
        Err(error) => return exit::internal(&format!("no runtime: {error}")),
    };
    match LocalSet::new().block_on(&runtime, play(arguments)) {
        Ok(summary) if summary.is_good() => ExitCode::SUCCESS,
        Ok(_) => ExitCode::FAILURE,
        Err(error) => exit::internal(&error),
    }
}

async fn play(arguments: &Arguments) -> Result<Summary, String> {
    let seed = arguments.seed.unwrap_or_else(random_seed);
    let options = options().map_err(|error| error.to_string())?;
    let mut random = Random::new(seed);
    let time = Duration::from_secs(arguments.seconds.into());
    let world = Rc::new(World::new(arguments.nodes.into(), time));
    world.say(format_args!(
        "{} nodes in memory, {} workers, one key, TTL {} ms, {} s, --seed {seed}",
        arguments.nodes,
        arguments.workers,
        TTL.as_millis(),
        time.as_secs(),
    ));
    let mut workers = Vec::new();
    for number in 1..=arguments.workers.into() {
        let links: Vec<_> = world
            .nodes()
            .map(|node| Link::new(node, arguments.workers.into(), random.fork()))
            .collect();
        let redlock = Redlock::new(links, SystemClock, random.entropy(), options)
            .map_err(|error| error.to_string())?;
        let worker = Worker::new(number, redlock, random.fork());
        workers.push(spawn_local(worker.run(Rc::clone(&world))));
    }
    let chaos = spawn_local(chaos(Rc::clone(&world), random));
    let mut records = Vec::new();
    for worker in workers {
        records.push(worker.await.map_err(|error| error.to_string())?);
    }
    chaos.abort();
    let summary = Summary::new(&world, records);
    world.say_plain(format_args!("\n{summary}"));
    Ok(summary)
}

fn options() -> Result<Options, OptionsError> {
    Options::new(TTL)?.node_timeout(NODE_TIMEOUT)
}

fn random_seed() -> u64 {
    let mut bytes = [0; 4];
    SystemEntropy.fill(&mut bytes);
    // Four bytes, so that it is easy to type.
    u32::from_le_bytes(bytes).into()
}
