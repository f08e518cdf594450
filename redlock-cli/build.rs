//! Tells the command the commit from which it is built, if that is known.

use std::process::Command;

fn main() {
    // Another commit is checked out, or a new one is made.
    for file in ["HEAD", "logs/HEAD"] {
        let output = git(&["rev-parse", "--git-path", file]);
        if let Some(path) = output {
            println!("cargo::rerun-if-changed={path}");
        }
    }
    println!("cargo::rerun-if-changed=build.rs");
    let commit = git(&["rev-parse", "--short=12", "HEAD"]);
    let version = env!("CARGO_PKG_VERSION");
    let version = match commit {
        Some(commit) => format!("{version} ({commit})"),
        None => version.to_owned(),
    };
    println!("cargo::rustc-env=REDLOCK_VERSION={version}");
}

/// The output of git. `None` without git, or outside a clone.
fn git(arguments: &[&str]) -> Option<String> {
    let output = Command::new("git").args(arguments).output().ok()?;
    let text = String::from_utf8(output.stdout).ok()?;
    let text = text.trim();
    (output.status.success() && !text.is_empty()).then(|| text.to_owned())
}
