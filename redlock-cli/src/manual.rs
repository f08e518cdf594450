//! `redlock completions` and `redlock man`: what packages ship beside the command. And the text of `--help`.

use std::path::{Path, PathBuf};
use std::process::ExitCode;
use std::{fs, io};

use clap::{Command, ValueHint};
use clap_complete::Shell;
use clap_mangen::Man;

use crate::{exit, output};

/// Print the completions of a shell
#[derive(Debug, clap::Args)]
pub(crate) struct CompletionsArguments {
    /// The shell
    shell: Shell,
}

/// Print the man page, or write the man pages of all commands into a directory
#[derive(Debug, clap::Args)]
pub(crate) struct ManArguments {
    /// The directory; it is made if it does not exist
    #[arg(long, value_name = "DIRECTORY", value_hint = ValueHint::DirPath)]
    dir: Option<PathBuf>,
}

pub(crate) fn completions(arguments: &CompletionsArguments, command: Command) -> ExitCode {
    let mut script = Vec::new();
    let mut command = without_hidden(&command);
    clap_complete::generate(arguments.shell, &mut command, "redlock", &mut script);
    output::print(&script, exit::OK)
}

/// The same command without the commands that are not for people: clap completes them too.
fn without_hidden(command: &Command) -> Command {
    let subcommands = command.get_subcommands();
    let shown = subcommands.filter(|subcommand| !subcommand.is_hide_set());
    Command::new("redlock")
        .version(env!("REDLOCK_VERSION"))
        .about(command.get_about().cloned().unwrap_or_default())
        .propagate_version(true)
        .subcommands(shown.cloned())
}

pub(crate) fn man(arguments: &ManArguments, command: Command) -> ExitCode {
    let mut command = with_texts(command, &spaced).disable_help_subcommand(true);
    let Some(directory) = &arguments.dir else {
        return output::print(&page(&Man::new(command)), exit::OK);
    };
    command.build();
    match write_pages(&command, directory) {
        Ok(()) => ExitCode::SUCCESS,
        Err(error) => exit::internal(&format!("cannot write the man pages: {error}")),
    }
}

fn write_pages(command: &Command, directory: &Path) -> io::Result<()> {
    fs::create_dir_all(directory)?;
    let shown = command.get_subcommands().filter(|it| !it.is_hide_set());
    for command in shown.chain([command]) {
        let man = Man::new(command.clone());
        fs::write(directory.join(man.get_filename()), page(&man))?;
    }
    Ok(())
}

/// A man page whose examples have the lines that they have in the source: roff would join them, and hyphenate commands.
fn page(man: &Man) -> Vec<u8> {
    const EXAMPLES: &str = ".SH EXTRA\n";
    const NEXT: &str = "\n.SH ";

    let mut page = Vec::new();
    // Writing into memory does not fail.
    let _written = man.render(&mut page);
    let text = String::from_utf8_lossy(&page);
    let parts = text
        .split_once(EXAMPLES)
        .and_then(|(before, rest)| Some((before, rest.split_once(NEXT)?)));
    match parts {
        Some((before, (examples, after))) => {
            format!("{before}.SH EXAMPLES\n.nf\n{examples}\n.fi{NEXT}{after}").into()
        }
        None => page,
    }
}

/// The same command, with the lines of each paragraph and of each item of a list joined, so that `--help` breaks them for the
/// terminal. Clap joins the lines of texts without lists itself.
pub(crate) fn joined(command: Command) -> Command {
    with_texts(command, &join)
}

/// The same command with other long texts.
fn with_texts(command: Command, change: &dyn Fn(&str) -> String) -> Command {
    let command = match command.get_long_about().map(ToString::to_string) {
        Some(about) => command.long_about(change(&about)),
        None => command,
    };
    command
        .mut_args(
            |argument| match argument.get_long_help().map(ToString::to_string) {
                Some(help) => argument.long_help(change(&help)),
                None => argument,
            },
        )
        .mut_subcommands(|command| with_texts(command, change))
}

/// Makes each line a paragraph, because roff joins the lines of a paragraph, and so the items of a list.
fn spaced(text: &str) -> String {
    let lines: Vec<_> = text.lines().filter(|line| !line.is_empty()).collect();
    lines.join("\n\n")
}

fn join(text: &str) -> String {
    let mut joined = String::new();
    for line in text.lines() {
        let begins = joined.is_empty() || joined.ends_with('\n') || line.starts_with("- ");
        match (line.is_empty(), begins) {
            (true, _) => joined.push_str("\n\n"),
            (false, true) if !joined.is_empty() && !joined.ends_with('\n') => {
                joined.push('\n');
                joined.push_str(line);
            }
            (false, true) => joined.push_str(line),
            (false, false) => {
                joined.push(' ');
                joined.push_str(line.trim_start());
            }
        }
    }
    joined
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_lines_of_a_paragraph_and_of_an_item_are_joined() {
        let text = "Runs\na command.\n\nCodes:\n- 75  it is\n  held\n- 76  it is lost\n\nThe\nend.";
        let wanted = "Runs a command.\n\nCodes:\n- 75  it is held\n- 76  it is lost\n\nThe end.";
        assert_eq!(join(text), wanted);
        assert_eq!(join(wanted), wanted);
        let spaced = spaced(wanted);
        assert!(
            spaced.contains("Codes:\n\n- 75  it is held\n\n- 76"),
            "{spaced}"
        );
    }
}
