//! Escaping of text in messages.

use core::fmt::{self, Write};

/// Whether messages show `character` as it is. Characters that move the cursor, begin a line or are invisible are escaped.
#[must_use]
pub fn is_printable(character: char) -> bool {
    match character {
        '\'' | '"' | '\\' => true,
        // By their Unicode class, these are letters or symbols, but they show as blanks.
        '\u{115f}' | '\u{1160}' | '\u{2800}' | '\u{3164}' | '\u{ffa0}' | '\u{13441}'
        | '\u{13442}' | '\u{1d159}' => false,
        other => is_left_by_escape_debug(other),
    }
}

/// Writes `character`, as `\n`, `\u{1b}` and so on if it is not printable.
///
/// # Errors
///
/// An error of `f`.
pub fn write_printable(f: &mut impl Write, character: char) -> fmt::Result {
    if is_printable(character) {
        f.write_char(character)
    } else if is_left_by_escape_debug(character) {
        write!(f, "{}", character.escape_unicode())
    } else {
        write!(f, "{}", character.escape_debug())
    }
}

fn is_left_by_escape_debug(character: char) -> bool {
    character.escape_debug().len() == 1
}
