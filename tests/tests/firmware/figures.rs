//! What a test has measured.

use std::io::Write;

/// Prints a line also where the test passes: `eprintln!` would be captured then.
pub(crate) fn print(line: &str) {
    let mut output = std::io::stderr().lock();
    output.write_all(line.as_bytes()).unwrap();
    output.write_all(b"\n").unwrap();
}
