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
mod flaw;
mod lean;
mod line;
mod nodes;
mod numbered;
mod promise;
mod scene;
mod search;
mod stamp;
mod trace;
mod world;

use std::process::ExitCode;
use std::thread;
use std::time::{Duration, Instant};

use clap::ValueEnum;
use stateright::{Checker, HasDiscoveries, Model};

pub use flaw::Flaw;
use line::{Line, Slip};
pub use scene::Scene;
use search::Search;

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
        None if arguments.fences => search_lean(),
        None if arguments.lines => search_lines(),
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
        let until = match promise {
            Some(promise) => HasDiscoveries::AnyOf([promise].into()),
            None => HasDiscoveries::AnyFailures,
        };
        let sight = self.sight();
        let start = Instant::now();
        let checker = check(Search::new(self, true), until);
        let mut found = checker.discoveries();
        let unseen = (!found.contains_key(sight)).then_some(sight);
        found.retain(|promise, _| !promise::SIGHTS.contains(promise));
        let expected = promise.and_then(|promise| found.remove_entry(promise));
        let broken = expected.or_else(|| found.into_iter().next());
        Outcome {
            states: checker.unique_state_count(),
            depth: checker.max_depth(),
            clients: checker.model().automaton.len(),
            took: start.elapsed(),
            broken: broken.map(|(promise, path)| (promise, path.into_actions().len())),
            unseen,
        }
    }
}

fn check(search: Search, until: HasDiscoveries) -> impl Checker<Search> {
    search
        .checker()
        .threads(threads())
        .finish_when(until)
        .spawn_bfs()
        .join()
}

fn threads() -> usize {
    thread::available_parallelism().map_or(1, usize::from)
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
    let mut is_right = true;
    for mut scene in scenes {
        scene.end += arguments.further;
        let (name, about) = (scene.name, scene.about);
        let outcome = scene.clone().search();
        println!("{}  {name}: {about}", figures(&outcome));
        is_right &= outcome.broken.is_none() && outcome.unseen.is_none();
        if let Some((promise, _)) = outcome.broken {
            show(scene, promise);
        }
        if let Some(sight) = outcome.unseen {
            println!("  NEVER SEEN: {sight}");
        }
    }
    let mut verdict = "OK: no promise is broken";
    if arguments.scene.is_none() {
        is_right &= search_lean();
        is_right &= search_lines();
        if !arguments.skip_flaws {
            is_right &= search_flaws();
            verdict = "OK: no promise is broken, and each flaw is found";
        }
    }
    println!("{}", if is_right { verdict } else { "FAILED" });
    is_right
}

/// The rule for fences alone.
fn search_lean() -> bool {
    let (states, is_kept) = lean::Lean(None).search();
    println!(
        "{states:>10}  fences alone: unique and growing, though every node loses its data once"
    );
    if !is_kept {
        println!("  BROKEN");
    }
    let mut is_right = is_kept;
    for slip in lean::Slip::ALL {
        let (states, is_kept) = lean::Lean(Some(slip)).search();
        let found = if is_kept { "NOT FOUND" } else { "found" };
        println!("{states:>10}  {}: {found}", slip.about());
        is_right &= !is_kept;
    }
    is_right
}

/// The lines of waiting clients alone.
fn search_lines() -> bool {
    let mut is_right = true;
    for (size @ (nodes, clients, _), mishaps, about) in line::SCENES {
        let start = Instant::now();
        let (states, broken) = Line::new(size, mishaps, None).search();
        let seconds = start.elapsed().as_secs();
        println!("{states:>10} {seconds:>22}  a line of {clients}, nodes: {nodes}; {about}");
        if let Some(promise) = broken {
            println!("  BROKEN: {promise}");
            is_right = false;
        }
    }
    for slip in Slip::ALL {
        let (size, mishaps) = slip.shows_in();
        let (states, broken) = Line::new(size, mishaps, Some(slip)).search();
        let found = broken.unwrap_or("NOT FOUND");
        println!("{states:>10}  {}: {found}", slip.about());
        is_right &= broken.is_some();
    }
    is_right
}

fn search_flaws() -> bool {
    println!("with one thing wrong, until it shows");
    let mut is_right = true;
    for flaw in Flaw::value_variants() {
        let outcome = Scene::with(*flaw).search();
        let found = match outcome.broken {
            Some((promise, steps)) if promise == flaw.breaks() => {
                format!("found after {steps} steps")
            }
            _ => {
                is_right = false;
                "NOT FOUND".into()
            }
        };
        println!("{}  {}: {found}", figures(&outcome), flaw.about());
    }
    is_right
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
    let checker = check(
        Search::new(scene, false),
        HasDiscoveries::AnyOf([promise].into()),
    );
    let Some(path) = checker.discovery(promise) else {
        println!("  NOT FOUND: {promise}");
        return false;
    };
    print!("{}", trace::trace(checker.model(), &path.into_vec()));
    println!("  BROKEN: {promise}");
    true
}
