//! Real servers, real clients as processes of their own, and a nemesis that breaks what they stand on.
//!
//! What happens is taken down (`record`), and only that is judged (`verdict`) and drawn (`plot`).

mod nemesis;
mod stage;

mod eviction;
mod failback;
mod fault;
mod lock;
mod random;
mod schedule;

mod client;
mod counter;
mod crew;
mod device;
mod gate;
mod network;
mod operator;
mod resource;
mod said;

mod history;
mod order;
mod plot;
mod record;
mod summary;
mod verdict;

use std::error::Error;
use std::fmt;
use std::io::{self, Write};
use std::path::PathBuf;
use std::process::ExitCode;
use std::time::Duration;

use self::fault::Kind;
use self::lock::Lock;
use self::nemesis::Nemesis;
use self::network::Network;
use self::operator::Operator;
use self::record::Record;
use self::schedule::Planned;
use self::stage::{Programs, Stage};
use self::summary::Summary;
use self::verdict::Verdict;
use redlock_tests::{Emulator, child};

/// Breaks real servers under real clients, and looks whether two ever held one lock.
///
/// Five redis-servers; clients as processes of their own, which use the lock in six ways, and the firmware
/// of examples/boards/mps2-an386 in QEMU. Nodes and clients are stopped, killed, cut off and brought back;
/// nodes restart empty, fail over and back, and evict keys. What the lock does not promise to survive is not
/// done: a node that fails back or may evict ends the connections of its clients, and keeps its policy for the
/// longest TTL.
///
/// And at the same time five other redis-servers with clients of a fenced lock. There nodes are flushed too, fail
/// over and back behind open connections, and their clocks are stepped, while an operator runs `redlock init`,
/// `redlock init --repair` and `redlock doctor`. Beside the lock, on the same nodes, others take the highest of the
/// nodes' counters for a fence, which has to be seen to fail.
#[derive(Debug, clap::Args)]
#[command(args_conflicts_with_subcommands = true)]
pub struct Arguments {
    /// For how long things are broken; then all clients must come to their turn once more
    #[arg(long, default_value_t = 60, value_parser = clap::value_parser!(u64).range(1..=86_400))]
    seconds: u64,

    /// Gives the schedule of the faults; another one in each run when it is not given
    #[arg(long)]
    seed: Option<u64>,

    /// How many clients there are besides the firmware
    #[arg(long, default_value_t = 6, value_parser = clap::value_parser!(u8).range(2..=60))]
    clients: u8,

    /// The longest TTL of any lease, in milliseconds
    #[arg(long, value_name = "MS", default_value_t = 3_000, value_parser = clap::value_parser!(u32).range(400..=60_000))]
    ttl_ms: u32,

    /// Draws what happened into this SVG file
    #[arg(long, value_name = "FILE")]
    plot: Option<PathBuf>,

    /// How much of the run is drawn: what is around the first overlap, or else the end
    #[arg(long, value_name = "SECONDS", default_value_t = 60, value_parser = clap::value_parser!(u64).range(1..=600))]
    plot_seconds: u64,

    /// Only the fenced lock
    #[arg(long, conflicts_with_all = ["plain", "broken"])]
    fenced: bool,

    /// Only the plain lock
    #[arg(long)]
    plain: bool,

    /// Leaves the firmware out, which needs qemu-system-arm and the target thumbv7em-none-eabihf
    #[arg(long)]
    no_firmware: bool,

    /// Breaks an assumption instead; then it is a failure if the run does not notice
    #[arg(long = "break", value_name = "ASSUMPTION")]
    broken: Option<Assumption>,

    /// The image of the firmware, built already
    #[arg(long, hide = true)]
    image: Option<PathBuf>,

    /// What the operator runs, built already
    #[arg(long, hide = true)]
    operator: Option<PathBuf>,

    /// This process has a network for itself already
    #[arg(long, hide = true)]
    own_network: bool,

    #[command(subcommand)]
    role: Option<Role>,
}

/// What the lock takes for granted.
#[derive(Debug, Clone, Copy, PartialEq, Eq, clap::ValueEnum)]
enum Assumption {
    /// No node forgets a key that lives: here a majority is flushed, or evicts keys between two looks
    Forget,
}

#[derive(Debug, clap::Subcommand)]
enum Role {
    #[command(hide = true)]
    Client(client::Arguments),
}

/// Does what the command line says. Fails when a promise was broken.
#[must_use]
pub fn run(arguments: &Arguments) -> ExitCode {
    if let Some(Role::Client(arguments)) = &arguments.role {
        return client::run(arguments);
    }
    match perform(arguments) {
        Ok(true) => ExitCode::SUCCESS,
        Ok(false) => ExitCode::FAILURE,
        Err(error) => {
            drop(writeln!(io::stderr(), "chaos: {error}"));
            ExitCode::FAILURE
        }
    }
}

fn perform(arguments: &Arguments) -> Result<bool, Box<dyn Error>> {
    child::expect_programs(&["redis-server", "setpriv"])?;
    if !arguments.own_network {
        // Cargo would not reach its registry from in there.
        let programs = arguments.programs()?;
        let mut more = vec!["--own-network".to_owned()];
        for (name, program) in [
            ("--image", &programs.firmware),
            ("--operator", &programs.redlock),
        ] {
            if let Some(program) = program {
                more.extend([name.to_owned(), program.display().to_string()]);
            }
        }
        let refusal = network::enter(&more);
        tell(&format!(
            "!! NO NETWORK IS CUT in this run: there can be no network namespace with rules ({refusal})\n"
        ))?;
        return arguments.perform_in(None, &programs);
    }
    let programs = Programs {
        firmware: arguments.image.clone(),
        redlock: arguments.operator.clone(),
    };
    arguments.perform_in(Some(Network::prepare()?), &programs)
}

impl Arguments {
    fn perform_in(
        &self,
        network: Option<Network>,
        programs: &Programs,
    ) -> Result<bool, Box<dyn Error>> {
        let mut runs = Vec::new();
        for lock in self.locks() {
            let run = self.plan(*lock, network, programs)?;
            tell(&run.to_string())?;
            runs.push(run);
        }
        // Side by side: they share the machine and nothing else.
        let records: Vec<_> = std::thread::scope(|scope| {
            let threads: Vec<_> = runs
                .iter()
                .map(|run| scope.spawn(|| run.perform().map_err(|error| error.to_string())))
                .collect();
            let results = threads.into_iter().map(|thread| thread.join());
            results
                .map(|result| result.unwrap_or_else(|_| Err("a run has panicked".into())))
                .collect()
        });
        // What one has come to is told also when the other has failed.
        let mut outcome = Ok(true);
        for record in records {
            match record {
                Ok(record) => {
                    let is_good = self.report(&record)?;
                    outcome = outcome.map(|so_far| so_far && is_good);
                }
                Err(why) => outcome = Err(why.into()),
            }
        }
        outcome
    }

    fn locks(&self) -> &'static [Lock] {
        if self.fenced {
            &[Lock::Fenced]
        } else if self.plain || self.broken.is_some() {
            &[Lock::Plain]
        } else {
            &[Lock::Plain, Lock::Fenced]
        }
    }

    fn plan(
        &self,
        lock: Lock,
        network: Option<Network>,
        programs: &Programs,
    ) -> Result<Run, Box<dyn Error>> {
        let seed = self.seed.unwrap_or_else(|| {
            let now = std::time::SystemTime::UNIX_EPOCH.elapsed();
            u64::from(now.map_or(1, |now| now.subsec_nanos()))
        });
        let ttl = Duration::from_millis(self.ttl_ms.into());
        let mut programs = programs.clone();
        if lock.is_fenced() {
            programs.firmware = None;
        }
        let kinds = self.kinds(lock, network.is_some(), programs.firmware.is_some());
        let planned = schedule::plan(seed, Duration::from_secs(self.seconds), ttl, &kinds);
        if let Some(kind) = kinds.iter().find(|kind| {
            let mut planned = planned.iter();
            !planned.any(|planned| planned.kind == **kind)
        }) {
            let why = format!(
                "{} s are too short for leases of {ttl:?}: there would be no '{}'",
                self.seconds,
                kind.name()
            );
            return Err(why.into());
        }
        Ok(Run {
            lock,
            network,
            programs,
            seconds: self.seconds,
            seed,
            clients: self.clients.into(),
            ttl,
            kinds,
            planned,
        })
    }

    /// Says what happened. True when it is what should have happened.
    fn report(&self, record: &Record) -> Result<bool, Box<dyn Error>> {
        let verdict = Verdict::on(record);
        let name = record.lock.name();
        tell(&format!("\n== {name}\n\n{}", Summary::of(record, &verdict)))?;
        if let Some(path) = &self.plot {
            let length = Duration::from_secs(self.plot_seconds);
            let path = &if self.locks().len() > 1 && record.lock.is_fenced() {
                path.with_extension(format!("{name}.svg"))
            } else {
                path.clone()
            };
            plot::draw(record, &verdict, length, path)?;
            tell(&format!("plot         {}\n", path.display()))?;
        }
        let complaints = verdict.complaints();
        tell("\n")?;
        for complaint in &complaints {
            tell(&match self.broken {
                None => format!("FAILED: {complaint}\n"),
                Some(Assumption::Forget) => format!("noticed: {complaint}\n"),
            })?;
        }
        let (is_good, words) = match self.broken {
            None => (
                complaints.is_empty(),
                match record.lock {
                    Lock::Plain => "the lock kept its promises",
                    Lock::Fenced => "the fenced lock kept its promises",
                },
            ),
            Some(Assumption::Forget) => (
                verdict.is_exclusion_broken(),
                "as expected: nodes forgot, and two held the lock at once",
            ),
        };
        if is_good {
            tell(&format!("{words}\n"))?;
        } else if self.broken.is_some() {
            tell("FAILED: nodes forgot what they had granted, and the run did not notice\n")?;
        }
        Ok(is_good)
    }

    fn kinds(&self, lock: Lock, is_cuttable: bool, has_device: bool) -> Vec<Kind> {
        if let Some(Assumption::Forget) = self.broken {
            return Kind::FORGETTING.to_vec();
        }
        let mut kinds = lock.faults().to_vec();
        kinds.retain(|kind| match kind {
            Kind::ResetDevice => has_device,
            kind if kind.is_cut() => is_cuttable,
            _ => true,
        });
        kinds
    }

    /// What takes part besides servers and clients.
    fn programs(&self) -> Result<Programs, Box<dyn Error>> {
        let firmware = self.image()?;
        let is_operated = self.locks().contains(&Lock::Fenced);
        let redlock = is_operated.then(Operator::program).transpose()?;
        Ok(Programs { firmware, redlock })
    }

    /// The image of the firmware, if it takes part.
    fn image(&self) -> Result<Option<PathBuf>, Box<dyn Error>> {
        if self.no_firmware || self.fenced {
            return Ok(None);
        }
        if !Emulator::is_installed()? {
            tell(
                "!! THE FIRMWARE TAKES NO PART: qemu-system-arm is missing; ./test.sh installs it\n",
            )?;
            return Ok(None);
        }
        Emulator::image().map(Some)
    }
}

/// One lock, its nodes and its clients, and what is done to them.
struct Run {
    lock: Lock,
    network: Option<Network>,
    programs: Programs,
    seconds: u64,
    seed: u64,
    clients: usize,
    ttl: Duration,
    kinds: Vec<Kind>,
    planned: Vec<Planned>,
}

impl Run {
    fn perform(&self) -> Result<Record, Box<dyn Error>> {
        let mut stage = Stage::set(
            self.lock,
            self.network,
            self.clients,
            &self.programs,
            self.ttl,
            self.seed,
        )?;
        stage
            .recorder
            .note(|record| record.kinds.clone_from(&self.kinds));
        Nemesis::new(&mut stage, self.ttl, self.seed).work_off(self.planned.clone())?;
        stage.clear()?;
        Ok(stage.recorder.record())
    }
}

impl fmt::Display for Run {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        writeln!(
            f,
            "{} s, seed {}, {} lock: {} faults on {} nodes and {} clients{}, leases of up to {:?}",
            self.seconds,
            self.seed,
            self.lock.name(),
            self.planned.len(),
            fault::NODES,
            self.clients,
            if self.programs.firmware.is_some() {
                " and the firmware"
            } else {
                ""
            },
            self.ttl,
        )
    }
}

fn tell(words: &str) -> io::Result<()> {
    io::stdout().write_all(words.as_bytes())
}
