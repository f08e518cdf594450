//! Starts the command through a second `redlock`, which then becomes the command.
//!
//! So the process is known before the system looks at the program, which may take long: a scanner for viruses, or a file system over the
//! network. A command that is killed meanwhile executes nothing. And the second `redlock` can ask the system to end the command when the
//! first one ends, also by SIGKILL.

use std::collections::hash_map::RandomState;
use std::ffi::{CString, OsStr, OsString};
use std::fs::File;
use std::hash::{BuildHasher, Hasher};
use std::io::{self, Read};
use std::os::unix::ffi::OsStrExt;
use std::os::unix::fs::MetadataExt;
use std::os::unix::process::CommandExt;
use std::path::{Path, PathBuf};
use std::process::{Command, ExitCode};

use rustix::fs::{Access, AtFlags, CWD, accessat, getxattr};
use rustix::process::{
    Signal, getegid, geteuid, getgid, getppid, getuid, set_parent_process_death_signal,
};
use rustix::thread::set_name;

use crate::{echo, exit};

/// Become a command
#[derive(Debug, clap::Args)]
pub(crate) struct Arguments {
    /// The process ID of the parent: the command gets SIGKILL when it ends
    #[arg(long)]
    die_with: Option<i32>,

    /// The beginning of the name of this process if it cannot become the command
    mark: String,

    /// The command and its arguments
    #[arg(last = true, required = true, num_args = 1..)]
    command: Vec<OsString>,
}

/// This program, even if an upgrade has replaced its file since.
pub(crate) const PROGRAM: &str = "/proc/self/exe";

/// Starts a command.
#[derive(Debug)]
pub(crate) struct Starter {
    /// The beginning of the name of a process that could not become its command. Random, so that no command has it as its own name.
    mark: String,
}

/// Fails if there is no `/proc`, or if it is that of other processes, as in a new namespace of process IDs without a mount of its own.
pub(crate) fn check_proc() -> io::Result<()> {
    let own = std::fs::read_link("/proc/self")?;
    if own.as_os_str() != OsStr::new(&std::process::id().to_string()) {
        return Err(io::Error::other("it is that of another PID namespace"));
    }
    std::fs::symlink_metadata(PROGRAM).map(drop)
}

impl Starter {
    /// `None` if the system has no `/proc`.
    pub(crate) fn new() -> Option<Self> {
        check_proc().ok()?;
        let random = RandomState::new().build_hasher().finish();
        // A name has at most 15 bytes, and the number of the error is behind the mark.
        let mark = format!("{random:016x}").chars().take(10).collect();
        Some(Self { mark })
    }

    /// The program and the first arguments.
    pub(crate) fn start(&self, dies_with_parent: bool) -> Command {
        let mut command = Command::new(PROGRAM);
        command.arg0("redlock").arg("become");
        if dies_with_parent {
            command.arg(format!("--die-with={}", std::process::id()));
        }
        command.args([&self.mark, "--"]);
        command
    }

    /// Why the process could not become its command: after its end, and before it is reaped.
    pub(crate) fn failure(&self, pid: i32) -> Option<io::Error> {
        let name = std::fs::read_to_string(format!("/proc/{pid}/comm")).ok()?;
        let number = name.trim_end().strip_prefix(&self.mark)?;
        Some(io::Error::from_raw_os_error(
            number.strip_prefix(':')?.parse().ok()?,
        ))
    }
}

/// Why the system may not end this command together with its parent, if that is so: it forgets the wish when a command gets other
/// rights than its caller.
pub(crate) fn caveat(program: &OsStr) -> Option<String> {
    // A process that has other rights than its caller takes them for those of a new program whenever it starts one.
    if getuid() != geteuid() || getgid() != getegid() {
        return Some(
            "redlock itself has set-user-ID or set-group-ID, so --die-with-parent may not end the command if redlock is killed"
                .into(),
        );
    }
    let file = file_of(program)?;
    let last = last_interpreter(file.clone())?;
    let mode = last.metadata().ok()?.mode();
    let rights = if mode & 0o4000 != 0 {
        "set-user-ID"
    } else if mode & 0o2000 != 0 {
        "set-group-ID"
    } else if getxattr(&last, "security.capability", &mut [0_u8; 64][..]).is_ok() {
        "file capabilities"
    } else {
        return None;
    };
    let of = if last == file {
        String::new()
    } else {
        format!(", the interpreter of {},", echo::file(&file))
    };
    Some(format!(
        "{}{of} has {rights}, so --die-with-parent may not end it if redlock is killed",
        echo::file(&last)
    ))
}

/// The file of a program: on the PATH, unless it is a path. Like the system, passes over what cannot be executed on the PATH.
fn file_of(program: &OsStr) -> Option<PathBuf> {
    if program.as_bytes().contains(&b'/') {
        return Some(program.into());
    }
    let path = std::env::var_os("PATH")?;
    let mut files = std::env::split_paths(&path).map(|directory| directory.join(program));
    let may_execute = |file: &PathBuf| accessat(CWD, file, Access::EXEC_OK, AtFlags::EACCESS);
    files.find(|file| file.is_file() && may_execute(file).is_ok())
}

/// The file whose rights count: the program, or the interpreter of a script, which may be a script too.
fn last_interpreter(mut file: PathBuf) -> Option<PathBuf> {
    /// The system allows no more, so a script that interprets itself has no end.
    const DEEPEST: usize = 6;

    for _ in 0..DEEPEST {
        match interpreter(&file) {
            Some(next) => file = next,
            None => return Some(file),
        }
    }
    None
}

/// The interpreter in the first line of a script. `None` if it is no script.
fn interpreter(script: &Path) -> Option<PathBuf> {
    /// The system reads no more of a file.
    const READ: u64 = 256;

    // A pipe would be waited for.
    if !script.is_file() {
        return None;
    }
    let mut head = Vec::new();
    File::open(script)
        .ok()?
        .take(READ)
        .read_to_end(&mut head)
        .ok()?;
    let line = head.strip_prefix(b"#!")?;
    let line = line.split(|byte| b"\n\0".contains(byte)).next()?;
    let mut words = line.split(|byte| b" \t".contains(byte));
    let name = words.find(|word| !word.is_empty())?;
    Some(OsStr::from_bytes(name).into())
}

/// Becomes the command.
pub(crate) fn become_command(arguments: &Arguments) -> ExitCode {
    let Some((program, rest)) = arguments.command.split_first() else {
        return exit::usage("no command");
    };
    if let Some(parent) = arguments.die_with {
        if let Err(error) = set_parent_process_death_signal(Some(Signal::KILL)) {
            return exit::internal(&format!("no signal at the end of the parent: {error}"));
        }
        // It may have ended before.
        if getppid().is_none_or(|own| own.as_raw_pid() != parent) {
            return ExitCode::from(exit::signal(Signal::KILL.as_raw()));
        }
    }
    let error = Command::new(program).args(rest).exec();
    // The parent prints why.
    let number = error.raw_os_error().unwrap_or_default();
    if let Ok(name) = CString::new(format!("{}:{number}", arguments.mark)) {
        let _unnamed = set_name(&name);
    }
    exit::not_started(&error).into()
}
