//! A world of made-up clocks, links and nodes, and the shipping lock in it: the same seed, the same run.
//!
//! [`Run`] is one seed: a scenario is drawn, its world is run to the end in virtual time, and the judge is told
//! what happened. [`Campaign`] is many of them.

mod adoption;
mod assumption;
mod calls;
mod campaign;
mod chance;
mod change;
mod clock;
mod connection;
mod crew;
mod cut;
mod debt;
mod delivery;
mod device;
mod draw;
mod drift;
mod executor;
mod fault;
mod fencing;
mod handover;
mod history;
mod injection;
mod judge;
mod line_limits;
mod lines;
mod link;
mod machine;
mod mailboxes;
mod network;
mod new_rules;
mod nodes;
mod operator;
mod pauses;
mod place;
mod plan;
mod process;
mod promise;
mod queue;
mod reach;
mod resp;
mod run;
mod scenario;
mod session;
mod slab;
mod socket;
mod state;
mod stream;
mod summary;
mod trace;
mod transport;
mod user;
mod world;

use std::io::{self, Write};
use std::num::NonZero;
use std::process::ExitCode;
use std::thread;
use std::time::Instant;

use clap::ValueEnum as _;

pub use assumption::Assumption;
pub use campaign::Campaign;
pub use promise::Promise;
pub use run::Run;

pub use summary::Summary;

/// Runs the lock in made-up worlds, a seed each.
///
/// Ends with exit code 1 when a promise was broken, with the command that runs that world again, or when a
/// fault that is to be injected never was. With --break it is the other way round: then it ends with 1 when
/// nothing was found.
#[derive(Debug, clap::Args)]
pub struct Arguments {
    /// How many worlds
    #[arg(long, value_name = "N", default_value_t = 1_000)]
    seeds: u64,

    /// The first of them
    #[arg(long, value_name = "S", default_value_t = 0)]
    from: u64,

    /// Run this world only, and print everything that happens in it
    #[arg(long, value_name = "S", conflicts_with_all = ["seeds", "from", "threads"])]
    seed: Option<u64>,

    /// On how many threads [default: as many as the machine runs at once]
    #[arg(long, value_name = "N")]
    threads: Option<NonZero<usize>>,

    /// Break something that the lock relies on
    #[arg(long = "break", value_name = "WHAT")]
    broken: Option<Assumption>,

    /// Break one thing after the other, and print the seed at which each is found
    #[arg(long, conflicts_with_all = ["seeds", "from", "seed", "broken"])]
    breaks: bool,
}

/// Does what the command line says. Fails when a promise was broken.
#[must_use]
pub fn run(arguments: &Arguments) -> ExitCode {
    let mut out = io::stdout().lock();
    let is_good = match arguments.seed {
        Some(seed) => replay(seed, arguments.broken, &mut out),
        None if arguments.breaks => breaks(arguments.threads(), &mut out),
        None => many(arguments, &mut out),
    };
    // Whoever has closed the output does not want to read it.
    if is_good.unwrap_or(false) {
        ExitCode::SUCCESS
    } else {
        ExitCode::FAILURE
    }
}

impl Arguments {
    fn threads(&self) -> NonZero<usize> {
        let threads = self
            .threads
            .or_else(|| thread::available_parallelism().ok());
        threads.unwrap_or(NonZero::<usize>::MIN)
    }
}

/// Whether each thing that is broken on purpose is found, within as many seeds as are stated for it.
fn breaks(threads: NonZero<usize>, out: &mut impl Write) -> io::Result<bool> {
    let mut is_good = true;
    for assumption in Assumption::value_variants() {
        let within = assumption.found_within();
        let campaign = Campaign::run(0..within, Some(*assumption), threads);
        let name = name_of(*assumption);
        match campaign.found {
            Some((seed, promise)) => {
                writeln!(out, "{name:<22} {promise:?} at seed {seed}, of {within}")?;
            }
            None => writeln!(out, "{name:<22} NOT FOUND in {within} seeds")?,
        }
        is_good &= campaign.found.is_some();
    }
    Ok(is_good)
}

fn name_of(assumption: Assumption) -> String {
    let value = assumption.to_possible_value();
    value.map_or_else(String::new, |value| value.get_name().to_owned())
}

fn replay(seed: u64, broken: Option<Assumption>, out: &mut impl Write) -> io::Result<bool> {
    let run = Run::of(seed, broken);
    write!(out, "{run}{}", run.summary())?;
    Ok(run.broken_promises().next().is_none() == broken.is_none())
}

fn many(arguments: &Arguments, out: &mut impl Write) -> io::Result<bool> {
    let Arguments {
        from,
        seeds,
        broken,
        ..
    } = *arguments;
    let started_at = Instant::now();
    let campaign = Campaign::run(
        from..from.saturating_add(seeds),
        broken,
        arguments.threads(),
    );
    let millis = started_at.elapsed().as_millis().max(1);

    let run = campaign.summary.seeds();
    let a_second = u128::from(run) * 1_000 / millis;
    writeln!(
        out,
        "{run} seeds in {}.{:03} s, {a_second} seeds/s",
        millis / 1_000,
        millis % 1_000
    )?;
    write!(out, "{}", campaign.summary)?;
    if let Some((seed, promise)) = campaign.found {
        write_found(seed, promise, broken, out)?;
    }
    match (broken, campaign.found) {
        (None, Some(_)) => Ok(false),
        (None, None) => {
            let missing: Vec<_> = campaign.summary.missing(false).collect();
            if missing.is_empty() {
                writeln!(out, "no promise was broken")?;
            } else {
                writeln!(
                    out,
                    "never happened: {}; run more seeds",
                    missing.join(", ")
                )?;
            }
            Ok(missing.is_empty())
        }
        (Some(_), Some(_)) => {
            writeln!(out, "found, as it should be")?;
            Ok(true)
        }
        (Some(_), None) => {
            writeln!(
                out,
                "nothing was found, although something was broken on purpose"
            )?;
            Ok(false)
        }
    }
}

fn write_found(
    seed: u64,
    promise: Promise,
    broken: Option<Assumption>,
    out: &mut impl Write,
) -> io::Result<()> {
    let run = Run::of(seed, broken);
    if let Some(excerpt) = run.excerpt(promise) {
        writeln!(out, "\nseed {seed}:\n{excerpt}")?;
    }
    let with = broken.map_or_else(String::new, |assumption| {
        format!(" --break {}", name_of(assumption))
    });
    writeln!(
        out,
        "to see it again: cargo run -p redlock-proof --release -- simulate --seed {seed}{with}"
    )
}
