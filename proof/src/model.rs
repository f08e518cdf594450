//! Every order of events in a small world, searched without a gap: the shipping code is what takes the steps.
//!
//! A world is a few nodes, a few clients and what is on its way between them. [`stateright`] goes through all that can
//! happen in it: a command arrives, a client runs or stands still, a key expires, time passes. It needs states that can
//! be copied and compared, which the futures of the lock cannot. So a client is a row in a table (`automaton`), and
//! the table is filled by running the shipping code on what that client was given so far (`client`).
//!
//! Where locks are fenced, a node is a row in a table as well (`nodes`): the node of the simulation, which is compared
//! with the scripts, fills that one.
//!
//! What needs no step of its own: a message that is lost is one that never arrives, and a client that crashes is one
//! that never runs again. Both are among the orders of events.

#![expect(
    clippy::print_stdout,
    clippy::print_stderr,
    reason = "this is what the command prints"
)]
#![expect(
    clippy::expect_used,
    reason = "a search that is set up wrongly has to stop"
)]

mod automaton;
mod client;
mod explore;
mod flaw;
mod lean;
mod line;
mod nodes;
mod numbered;
mod promise;
mod scene;
mod search;
mod short;
mod side_by_side;
mod stamp;
mod trace;
mod world;

use std::process::ExitCode;
use std::thread;
use std::time::{Duration, Instant};

use clap::ValueEnum;
use explore::explore;
use stateright::{Checker, HasDiscoveries, Model};

pub use flaw::Flaw;
use line::{Line, Slip};
pub use scene::Scene;
use search::Search;
use side_by_side::{Task, run_all};

/// Searches small worlds for a broken promise, order by order.
#[derive(Debug, clap::Args)]
pub struct Arguments {
    /// Only the scene of this name.
    #[arg(long, value_name = "NAME")]
    scene: Option<String>,
    /// Only the rule for fences.
    #[arg(long, conflicts_with = "scene")]
    fences: bool,
    /// Only the lines of waiting clients.
    #[arg(long, conflicts_with_all = ["scene", "fences"])]
    lines: bool,
    /// Leaves out what is wrong on purpose: it takes as long as the rest, and the tests find most of it.
    #[arg(long)]
    skip_flaws: bool,
    /// Lets each scene go on for longer, by this many units of time; a unit takes about five times as long.
    #[arg(long, default_value_t = 0, value_name = "UNITS")]
    further: u8,
    /// Instead shows what goes wrong when this is wrong, by the shortest way.
    #[arg(long, value_name = "FLAW")]
    flaw: Option<Flaw>,
}

/// Does what the command line says. Fails when a promise was broken, or when a flaw was not found.
#[must_use]
pub fn run(arguments: &Arguments) -> ExitCode {
    let is_right = match arguments.flaw {
        None if arguments.fences => report_all(&lean_tasks()),
        None if arguments.lines => report_all(&line_tasks()),
        Some(flaw) => {
            println!("{}; by true time, in units:", flaw.about());
            show(Scene::with(flaw), flaw.breaks())
        }
        None => search_all(arguments),
    };
    if is_right {
        ExitCode::SUCCESS
    } else {
        ExitCode::FAILURE
    }
}

/// What a search has come to.
#[derive(Debug)]
pub struct Outcome {
    /// How many worlds there are.
    pub states: usize,
    /// How many steps the longest of the shortest ways to a world has.
    pub depth: usize,
    /// How many different clients there are, each made by running the shipping code.
    pub clients: usize,
    /// How long it took.
    pub took: Duration,
    /// The promise that was broken, and by how many steps.
    pub broken: Option<(&'static str, usize)>,
    /// What it should have come across and has not.
    pub unseen: Option<&'static str>,
}

impl Scene {
    /// Searches this scene: all of it, or, with a flaw, until the promise is broken that it breaks.
    #[must_use]
    pub fn search(self) -> Outcome {
        let promise = self.flaw.map(Flaw::breaks);
        let sight = self.sight();
        let start = Instant::now();
        let search = Search::new(self, true);
        let found = explore(&search, |broken| {
            promise.is_none_or(|promise| promise == broken)
        });
        let mut steps = found.steps;
        let unseen = (!steps.contains_key(sight)).then_some(sight);
        steps.retain(|promise, _| !promise::SIGHTS.contains(promise));
        let expected = promise.and_then(|promise| steps.remove_entry(promise));
        let broken = expected.or_else(|| steps.into_iter().next());
        Outcome {
            states: found.states,
            depth: found.depth,
            clients: search.automaton.len(),
            took: start.elapsed(),
            broken,
            unseen,
        }
    }
}

/// What a search says, and whether that is as it should be.
struct Report {
    text: String,
    is_right: bool,
    /// In which scene a promise was broken.
    broken: Option<(Scene, &'static str)>,
}

impl Report {
    const fn new(text: String, is_right: bool) -> Self {
        Self {
            text,
            is_right,
            broken: None,
        }
    }
}

fn search_all(arguments: &Arguments) -> bool {
    let is_asked_for = |scene: &Scene| {
        let name = arguments.scene.as_deref();
        name.is_none_or(|name| name == scene.name)
    };
    let scenes: Vec<_> = Scene::all().into_iter().filter(is_asked_for).collect();
    if scenes.is_empty() {
        let names: Vec<_> = Scene::all().iter().map(|scene| scene.name).collect();
        eprintln!("there is no such scene; there are: {}", names.join(", "));
        return false;
    }
    println!(
        "every order of events; 3 nodes, 2 clients, one attempt each, where nothing else is said"
    );
    println!(
        "{:>10} {:>6} {:>8} {:>6}  ",
        "states", "depth", "clients", "s"
    );
    let further = arguments.further;
    let search = |mut scene: Scene| {
        scene.end += further;
        Task::new(scene.weight(), move || search_scene(&scene))
    };
    let mut tasks: Vec<_> = scenes.into_iter().map(search).collect();
    let mut verdict = "OK: no promise is broken";
    if arguments.scene.is_none() {
        tasks.extend(lean_tasks());
        tasks.extend(line_tasks());
        if !arguments.skip_flaws {
            tasks.push(Task::new(0, || {
                Report::new("with one thing wrong, until it shows".into(), true)
            }));
            let flaws = Flaw::value_variants().iter();
            tasks.extend(flaws.map(|flaw| Task::new(1, || search_flaw(*flaw))));
            verdict = "OK: no promise is broken, and each flaw is found";
        }
    }
    let is_right = report_all(&tasks);
    println!("{}", if is_right { verdict } else { "FAILED" });
    is_right
}

/// Runs all searches, and prints what they say.
fn report_all(tasks: &[Task<Report>]) -> bool {
    let mut are_right = true;
    run_all(tasks, |report| {
        let Report {
            text,
            is_right,
            broken,
        } = report;
        println!("{text}");
        are_right &= is_right;
        if let Some((scene, promise)) = broken {
            show(scene, promise);
        }
    });
    are_right
}

fn search_scene(scene: &Scene) -> Report {
    let (name, about) = (scene.name, scene.about);
    let outcome = scene.clone().search();
    let mut text = format!("{}  {name}: {about}", figures(&outcome));
    if let Some(sight) = outcome.unseen {
        text += &format!("\n  NEVER SEEN: {sight}");
    }
    let is_right = outcome.broken.is_none() && outcome.unseen.is_none();
    Report {
        broken: outcome.broken.map(|(promise, _)| (scene.clone(), promise)),
        ..Report::new(text, is_right)
    }
}

/// The rule for fences alone.
fn lean_tasks() -> Vec<Task<Report>> {
    let rule = Task::new(1, || {
        let (states, is_kept) = lean::Lean(None).search();
        let about = "fences alone: unique and growing, though every node loses its data once";
        let broken = if is_kept { "" } else { "\n  BROKEN" };
        Report::new(format!("{states:>10}  {about}{broken}"), is_kept)
    });
    let slips = lean::Slip::ALL.into_iter().map(|slip| {
        Task::new(0, move || {
            let (states, is_kept) = lean::Lean(Some(slip)).search();
            let found = if is_kept { "NOT FOUND" } else { "found" };
            Report::new(format!("{states:>10}  {}: {found}", slip.about()), !is_kept)
        })
    });
    [rule].into_iter().chain(slips).collect()
}

/// The lines of waiting clients alone.
fn line_tasks() -> Vec<Task<Report>> {
    let scenes = line::SCENES.into_iter().map(|(size, mishaps, about)| {
        Task::new(2, move || {
            let (nodes, clients, _) = size;
            let start = Instant::now();
            let (states, broken) = Line::new(size, mishaps, None).search();
            let seconds = start.elapsed().as_secs();
            let mut text =
                format!("{states:>10} {seconds:>22}  a line of {clients}, nodes: {nodes}; {about}");
            if let Some(promise) = broken {
                text += &format!("\n  BROKEN: {promise}");
            }
            Report::new(text, broken.is_none())
        })
    });
    let slips = Slip::ALL.into_iter().map(|slip| {
        Task::new(1, move || {
            let (size, mishaps) = slip.shows_in();
            let (states, broken) = Line::new(size, mishaps, Some(slip)).search();
            let found = broken.unwrap_or("NOT FOUND");
            let text = format!("{states:>10}  {}: {found}", slip.about());
            Report::new(text, broken.is_some())
        })
    });
    scenes.chain(slips).collect()
}

fn search_flaw(flaw: Flaw) -> Report {
    let outcome = Scene::with(flaw).search();
    let (found, is_right) = match outcome.broken {
        Some((promise, steps)) if promise == flaw.breaks() => {
            (format!("found after {steps} steps"), true)
        }
        _ => ("NOT FOUND".into(), false),
    };
    let text = format!("{}  {}: {found}", figures(&outcome), flaw.about());
    Report::new(text, is_right)
}

fn figures(outcome: &Outcome) -> String {
    let seconds = outcome.took.as_secs();
    let Outcome {
        states,
        depth,
        clients,
        ..
    } = outcome;
    format!("{states:>10} {depth:>6} {clients:>8} {seconds:>6}")
}

/// Finds the shortest way to a broken promise, and shows it.
fn show(scene: Scene, promise: &'static str) -> bool {
    let threads = thread::available_parallelism().map_or(1, usize::from);
    let checker = Search::new(scene, false)
        .checker()
        .threads(threads)
        .finish_when(HasDiscoveries::AnyOf([promise].into()))
        .spawn_bfs()
        .join();
    let Some(path) = checker.discovery(promise) else {
        println!("  NOT FOUND: {promise}");
        return false;
    };
    print!("{}", trace::trace(checker.model(), &path.into_vec()));
    println!("  BROKEN: {promise}");
    true
}
