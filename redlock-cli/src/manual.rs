//! `redlock completions` and `redlock man`: what packages ship beside the command.

use std::io::Write;
use std::path::PathBuf;
use std::process::ExitCode;

use clap::{Command, ValueHint};
use clap_complete::Shell;

use crate::exit;

/// Print the completions of a shell
#[derive(Debug, clap::Args)]
pub(crate) struct CompletionsArguments {
    /// The shell
    shell: Shell,
}

/// Print the man page, or write the man pages of all commands into a directory
#[derive(Debug, clap::Args)]
pub(crate) struct ManArguments {
    /// The directory; it must exist
    #[arg(long, value_name = "DIRECTORY", value_hint = ValueHint::DirPath)]
    dir: Option<PathBuf>,
}

pub(crate) fn completions(arguments: &CompletionsArguments, mut command: Command) -> ExitCode {
    let mut script = Vec::new();
    clap_complete::generate(arguments.shell, &mut command, "redlock", &mut script);
    // The reader may have closed the pipe.
    let _unread = std::io::stdout().write_all(&script);
    ExitCode::SUCCESS
}

pub(crate) fn man(arguments: &ManArguments, command: Command) -> ExitCode {
    let written = match &arguments.dir {
        Some(directory) => clap_mangen::generate_to(command, directory),
        None => clap_mangen::Man::new(command).render(&mut std::io::stdout()),
    };
    match written {
        Ok(()) => ExitCode::SUCCESS,
        Err(error) => exit::internal(&format!("cannot write the man pages: {error}")),
    }
}
