//! The operator, who runs the shipping `redlock` while clients are at work.

use std::env;
use std::error::Error;
use std::io::Read;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};
use std::time::Duration;

use super::fault::Kind;
use super::lock::rules;
use redlock_tests::child;

/// A command that runs. It ends with its handle, and with this process.
#[derive(Debug)]
pub(super) struct Operator {
    kind: Kind,
    process: Child,
}

/// A command that has ended.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) struct Operation {
    pub(super) kind: Kind,
    /// None if a signal ended it.
    pub(super) code: Option<i32>,
    /// How many guard records it says that it has written.
    pub(super) written: usize,
}

impl Operator {
    /// The program, built if it is not up to date.
    pub(super) fn program() -> Result<PathBuf, Box<dyn Error>> {
        // This program is in debug/ or release/ of the target directory, a test in deps/ there.
        let this = env::current_exe()?;
        let folder = this
            .ancestors()
            .skip(1)
            .find(|folder| !folder.ends_with("deps"))
            .ok_or("this program is not where cargo puts programs")?;
        let target = folder.parent().ok_or("no target directory")?;
        let is_release = folder.ends_with("release");
        let status = Command::new(env::var_os("CARGO").unwrap_or_else(|| "cargo".into()))
            .args(["build", "--quiet", "--package", "redlock-cli"])
            .args(is_release.then_some("--release"))
            .arg("--target-dir")
            .arg(target)
            .current_dir(concat!(env!("CARGO_MANIFEST_DIR"), "/.."))
            .env_remove("CARGO_BUILD_TARGET")
            .status()
            .map_err(|error| format!("cargo, which builds redlock-cli: {error}"))?;
        if !status.success() {
            return Err("redlock-cli cannot be built".into());
        }
        Ok(folder.join("redlock"))
    }

    /// Runs the command of `kind` for the nodes at `ports`. The settings are those of the fleet; where nothing can
    /// be written by them, they may be left out, as operators do.
    pub(super) fn run(
        program: &Path,
        kind: Kind,
        ports: &[u16],
        ttl: Duration,
        has_settings: bool,
    ) -> Result<Self, Box<dyn Error>> {
        let words: &[&str] = match kind {
            Kind::Init => &["init"],
            Kind::Repair => &["init", "--repair"],
            _ => &["doctor", "--seconds=1"],
        };
        let mut command = child::bound(program);
        command.args(words);
        if kind == Kind::Repair || kind == Kind::Init && has_settings {
            let names = ["max-ttl", "window", "step-back"].into_iter();
            let settings = names.zip(rules(ttl));
            command.args(settings.map(|(name, rule)| format!("--{name}={}ms", rule.as_millis())));
        }
        command
            .args(
                ports
                    .iter()
                    .map(|port| format!("--node=redis://127.0.0.1:{port}")),
            )
            .stdin(Stdio::null())
            .stdout(Stdio::piped())
            .stderr(Stdio::null());
        let process = child::spawn(command)?;
        Ok(Self { kind, process })
    }

    /// What came of it; none while it runs. What it says is less than a pipe holds.
    pub(super) fn end(&mut self) -> Result<Option<Operation>, Box<dyn Error>> {
        let Some(status) = self.process.try_wait()? else {
            return Ok(None);
        };
        let mut said = String::new();
        if let Some(output) = &mut self.process.stdout {
            output.read_to_string(&mut said)?;
        }
        Ok(Some(Operation {
            kind: self.kind,
            code: status.code(),
            written: said.matches("  written: ").count(),
        }))
    }
}

impl Drop for Operator {
    fn drop(&mut self) {
        child::end(&mut self.process);
    }
}
