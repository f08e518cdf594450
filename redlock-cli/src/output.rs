//! What a command tells on stdout.

use std::io::{self, ErrorKind, Write};
use std::process::ExitCode;

use crate::exit;

/// Prints `text`, and returns `code`. The caller may have closed the output, and want only the exit code. But if the text is lost
/// for another reason, for example because a disk is full, the code says so: a program may rely on what it reads.
pub(crate) fn print(text: &[u8], code: impl Into<ExitCode>) -> ExitCode {
    let mut output = io::stdout();
    ended(output.write_all(text).and_then(|()| output.flush()), code)
}

/// The exit code after something was written: `code` unless it is lost.
pub(crate) fn ended(written: io::Result<()>, code: impl Into<ExitCode>) -> ExitCode {
    match written {
        Err(error) if error.kind() != ErrorKind::BrokenPipe => {
            let _unread = writeln!(io::stderr(), "redlock: cannot write the output: {error}");
            exit::INTERNAL.into()
        }
        _ => code.into(),
    }
}
