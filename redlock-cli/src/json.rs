//! JSON that may be read by a program or end up on a terminal.

use core::fmt::Write;

use serde_json::Value;

/// Many lines.
pub(crate) fn document(value: &Value) -> String {
    printable(&format!("{value:#}"))
}

/// One line.
#[cfg(unix)]
pub(crate) fn line(value: &Value) -> String {
    printable(&value.to_string())
}

/// The same JSON, in which nothing moves a cursor or is invisible: what is not printable is written as `\u009b` and the like.
/// Outside of strings JSON has none of it.
fn printable(json: &str) -> String {
    let mut shown = String::with_capacity(json.len());
    for character in json.chars() {
        let is_printable =
            matches!(character, '\n' | '"' | '\'' | '\\') || character.escape_debug().len() == 1;
        if is_printable {
            shown.push(character);
            continue;
        }
        for unit in character.encode_utf16(&mut [0; 2]) {
            // A string takes everything.
            let _never = write!(shown, "\\u{unit:04x}");
        }
    }
    shown
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    #[test]
    fn a_program_reads_what_a_terminal_does_not_obey() {
        let value = json!({ "key": "a\u{9b}2J\u{202e}\u{e0001}\u{7f}\n\"\\ D\u{fc}sseldorf" });
        for text in [document(&value), line(&value)] {
            assert_eq!(text.parse::<Value>().unwrap(), value);
            assert!(text.contains("D\u{fc}sseldorf"), "{text}");
            let is_obeyed = |character: char| {
                character != '\n' && character.is_control()
                    || ['\u{202e}', '\u{e0001}'].contains(&character)
            };
            assert!(!text.contains(is_obeyed), "{text:?}");
        }
    }
}
