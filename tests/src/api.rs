//! The public API of the libraries, as listings in `docs/api`. A change of the API is a change of a listing, so it is seen.

#![expect(
    clippy::print_stdout,
    clippy::print_stderr,
    reason = "this is what the command prints"
)]

use std::collections::BTreeSet;
use std::error::Error;
use std::fs;
use std::path::{Path, PathBuf};
use std::process::ExitCode;

/// The libraries with a listing.
const PACKAGES: [&str; 4] = [
    "redlock-core",
    "redlock-std",
    "redlock-embassy",
    "redlock-embassy-tls",
];

/// The compiler whose `rustdoc` describes them. `public-api` reads the format of this one; `./test.sh` installs it.
const TOOLCHAIN: &str = "nightly-2026-05-20";

/// Auto traits that no user names. `Send` and `Sync` stay.
const UNNAMED_TRAITS: [&str; 6] = [
    "core::marker::Freeze for",
    "core::marker::Unpin for",
    "core::marker::UnsafeUnpin for",
    "core::panic::unwind_safe::RefUnwindSafe for",
    "core::panic::unwind_safe::UnwindSafe for",
    "core::marker::StructuralPartialEq for",
];

/// Writes the public API of the libraries, with all features, into `docs/api`.
#[derive(Debug, clap::Args)]
pub struct Arguments {
    /// Write nothing, and fail if a listing is not that of the code.
    #[arg(long)]
    check: bool,
}

/// Does what the command line says.
#[must_use]
pub fn run(arguments: &Arguments) -> ExitCode {
    let mut is_listed = true;
    for package in PACKAGES {
        let done = listing(package).and_then(|listing| match arguments.check {
            true => compare(package, &listing),
            false => write(package, &listing),
        });
        match done {
            Ok(is_same) => is_listed &= is_same,
            Err(error) => {
                eprintln!("cannot list the API of {package}: {error}");
                return ExitCode::FAILURE;
            }
        }
    }
    if is_listed {
        return ExitCode::SUCCESS;
    }
    eprintln!(
        "the public API is not what docs/api lists; if it is meant to change, run `cargo run -p redlock-tests -- api`, \
         commit docs/api and add a line to CHANGELOG.md"
    );
    ExitCode::FAILURE
}

/// The public items of `package`, one a line.
fn listing(package: &str) -> Result<String, Box<dyn Error>> {
    let json = rustdoc_json::Builder::default()
        .toolchain(TOOLCHAIN)
        .manifest_path(root().join(package).join("Cargo.toml"))
        // What another compiler has built stays.
        .target_dir(target().join("api"))
        .all_features(true)
        .cap_lints(Some("allow"))
        .quiet(true)
        .build()?;
    let api = public_api::Builder::from_rustdoc_json(json)
        .omit_blanket_impls(true)
        .build()?;
    let lines = api.items().map(ToString::to_string);
    let is_named = |line: &String| !UNNAMED_TRAITS.iter().any(|name| line.contains(name));
    Ok(lines.filter(is_named).map(|line| line + "\n").collect())
}

fn write(package: &str, listing: &str) -> Result<bool, Box<dyn Error>> {
    fs::create_dir_all(folder())?;
    fs::write(file(package), listing)?;
    println!("{:>5} lines  {package}", listing.lines().count());
    Ok(true)
}

/// Whether the committed listing is this one. Prints the lines that are not.
fn compare(package: &str, listing: &str) -> Result<bool, Box<dyn Error>> {
    let committed = fs::read_to_string(file(package)).unwrap_or_default();
    let lines = |text| BTreeSet::<&str>::from_iter(str::lines(text));
    let (before, now) = (lines(&committed), lines(listing));
    before.difference(&now).for_each(|line| println!("-{line}"));
    now.difference(&before).for_each(|line| println!("+{line}"));
    Ok(before == now)
}

fn file(package: &str) -> PathBuf {
    folder().join(package).with_extension("txt")
}

fn folder() -> PathBuf {
    root().join("docs/api")
}

fn root() -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("..")
}

fn target() -> PathBuf {
    std::env::var_os("CARGO_TARGET_DIR").map_or_else(|| root().join("target"), PathBuf::from)
}
