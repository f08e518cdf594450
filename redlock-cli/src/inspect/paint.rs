//! Lines that fit the terminal, with states in colour.

use std::io::IsTerminal;

use crate::fold::{columns, fold};

/// Folds the lines and colours the states, if stdout is a terminal the environment does not forbid colours (no-color.org), and the
/// terminal is no dumb one.
pub(crate) fn states(told: &str) -> String {
    let columns = columns(std::io::stdout());
    let is_set = |name| std::env::var_os(name).is_some_and(|value| !value.is_empty());
    let is_forbidden = is_set("NO_COLOR") || is_dumb();
    if is_forbidden || !std::io::stdout().is_terminal() {
        return fold(told, columns);
    }
    told.lines()
        .map(|line| painted(line, columns) + "\n")
        .collect()
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

/// Folds a line, and paints its state.
fn painted(line: &str, columns: Option<usize>) -> String {
    let folded = fold(line, columns);
    let Some((state, colour, before)) = state(line) else {
        return folded;
    };
    // A fold changes only blanks.
    let is_blank = |letter: char| matches!(letter, ' ' | '\n');
    let letters = before.chars().filter(|letter| !is_blank(*letter)).count();
    let mut indices = folded
        .char_indices()
        .filter(|(_, letter)| !is_blank(*letter));
    let start = indices.nth(letters).map(|(start, _)| start);
    let Some((start, rest)) = start.and_then(|start| folded.split_at_checked(start)) else {
        return folded;
    };
    let rest = rest.strip_prefix(state).unwrap_or_default();
    format!("{start}\x1b[{colour}m{state}\x1b[0m{rest}")
}

/// The state in a line, its colour, and what is before it.
fn state(line: &str) -> Option<(&'static str, &'static str, &str)> {
    // A client that waits.
    if line.starts_with(' ') {
        return None;
    }
    for (state, colour) in STATES {
        for separator in ["  ", ": "] {
            let Some((before, rest)) = line.split_once(&format!("{separator}{state}")) else {
                continue;
            };
            // The first of them only, and no part of a longer word.
            if !before.contains("  ") && !rest.starts_with(|next: char| next.is_alphanumeric()) {
                return Some((
                    state,
                    colour,
                    line.split_at(before.len() + separator.len()).0,
                ));
            }
        }
    }
    None
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
            assert_eq!(painted(line, None), painted_line);
        }
    }

    #[test]
    fn a_state_that_begins_the_rest_of_a_line_is_painted() {
        for (line, painted_line) in [
            (
                "倉庫-7: held by a",
                "倉庫-7:\n    \x1b[33mheld\x1b[0m\n    by a",
            ),
            (
                "10.0.0.1:6379  held     eb58e2e2..",
                "10.0.0.1:6379\n    \x1b[33mheld\x1b[0m\n    eb58e2e2..",
            ),
        ] {
            assert_eq!(painted(line, Some(10)), painted_line);
        }
    }
}
