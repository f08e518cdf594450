//! Lines that fit the terminal, with states in colour.

use std::io::IsTerminal;

use crate::fold::{columns, fold};

/// Folds the lines and colours the states, if stdout is a terminal the environment does not forbid colours (no-color.org), and the
/// terminal is no dumb one.
pub(crate) fn states(told: &str) -> String {
    let told = fold(told, columns(std::io::stdout()));
    let is_set = |name| std::env::var_os(name).is_some_and(|value| !value.is_empty());
    let is_forbidden = is_set("NO_COLOR") || is_dumb();
    if is_forbidden || !std::io::stdout().is_terminal() {
        return told;
    }
    told.lines().map(|line| painted(line) + "\n").collect()
}

/// Whether the terminal understands no escapes.
pub(crate) fn is_dumb() -> bool {
    std::env::var_os("TERM").is_some_and(|kind| kind == "dumb")
}

/// The state is the first of these words. Those of a node stand behind two blanks, that of the lock behind a colon.
const STATES: [(&str, &str); 5] = [
    ("free", "32"),
    ("held", "33"),
    ("split", "31"),
    ("unknown", "31"),
    ("foreign", "31"),
];

fn painted(line: &str) -> String {
    // A client that waits, or the rest of a line.
    if line.starts_with(' ') {
        return line.to_owned();
    }
    for (state, colour) in STATES {
        for before in ["  ", ": "] {
            let word = format!("{before}{state}");
            let Some((start, rest)) = line.split_once(&word) else {
                continue;
            };
            // The first of them only, and no part of a longer word.
            if !start.contains("  ") && !rest.starts_with(|next: char| next.is_alphanumeric()) {
                return format!("{start}{before}\x1b[{colour}m{state}\x1b[0m{rest}");
            }
        }
    }
    line.to_owned()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_the_state_of_a_line_is_painted() {
        for (line, painted_line) in [
            (
                "127.0.0.1:1  held     eb58e2e2.., 9.4 s left",
                "127.0.0.1:1  \x1b[33mheld\x1b[0m     eb58e2e2.., 9.4 s left",
            ),
            ("dock-7: free", "dock-7: \x1b[32mfree\x1b[0m"),
            ("line: empty", "line: empty"),
            ("a: freedom", "a: freedom"),
            ("    free in at most 9.4 s", "    free in at most 9.4 s"),
        ] {
            assert_eq!(painted(line), painted_line);
        }
    }
}
