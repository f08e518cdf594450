//! Processes that end with this one, also when it is killed.

#![expect(
    clippy::expect_used,
    reason = "the thread that starts them lives as long as the process"
)]

use std::ffi::OsStr;
use std::io;
use std::process::{Child, Command, Output, Stdio};
use std::sync::{LazyLock, mpsc};

/// Checks that each of `programs` can be run.
///
/// # Errors
///
/// Which one cannot, and why.
pub fn expect_programs(programs: &[&str]) -> Result<(), String> {
    for program in programs {
        let status = Command::new(program)
            .arg("--version")
            .stdout(Stdio::null())
            .status();
        status.map_err(|error| format!("{program}: {error}; ./test.sh installs it"))?;
    }
    Ok(())
}

/// A command that runs `program`; [`spawn`] starts it.
#[must_use]
pub fn bound(program: impl AsRef<OsStr>) -> Command {
    // No signal comes to who asks for it when the parent is dead already.
    const UNLESS_ORPHANED: &str = r#"[ "$PPID" = "$0" ] && exec "$@""#;

    let mut command = Command::new("setpriv");
    command.args(["--pdeathsig", "KILL", "--", "sh", "-c", UNLESS_ORPHANED]);
    command.arg(std::process::id().to_string()).arg(program);
    command
}

/// Starts the process from a thread that lives as long as this process: the signal that ends a process
/// with its parent comes when the *thread* ends that started it.
///
/// # Errors
///
/// If it cannot be started.
///
/// # Panics
///
/// If that thread has ended, which it does not.
pub fn spawn(command: Command) -> io::Result<Child> {
    type Job = (Command, mpsc::Sender<io::Result<Child>>);
    static SPAWNER: LazyLock<mpsc::Sender<Job>> = LazyLock::new(|| {
        let (sender, jobs) = mpsc::channel::<Job>();
        std::thread::spawn(move || {
            for (mut command, reply) in jobs {
                drop(reply.send(command.spawn()));
            }
        });
        sender
    });

    let (sender, child) = mpsc::channel();
    SPAWNER
        .send((command, sender))
        .expect("the spawner lives as long as the process");
    child.recv().expect("the spawner answers")
}

/// Ends a process and waits for its end.
pub fn end(child: &mut Child) {
    // It may be dead already; what counts is that it is afterwards.
    drop(child.kill());
    drop(child.wait());
}

/// What a process has printed, on stdout and then on stderr.
#[must_use]
pub fn words(output: &Output) -> String {
    let [words, errors] =
        [&output.stdout, &output.stderr].map(|bytes| String::from_utf8_lossy(bytes));
    format!("{words}{errors}")
}

/// Checks that `words` contain each of `wanted`.
///
/// # Panics
///
/// When they do not.
#[track_caller]
pub fn expect_words(words: &str, wanted: &[&str]) {
    for wanted in wanted {
        assert!(words.contains(wanted), "no {wanted} in {words}");
    }
}
