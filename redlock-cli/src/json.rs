//! JSON output, which is safe for programs and terminals.

use core::fmt::Write;

use redlock_core::escape::is_printable;
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

/// Bytes as two digits each, because they may be no text.
pub(crate) fn hex(bytes: &[u8]) -> String {
    bytes.iter().map(|byte| format!("{byte:02x}")).collect()
}

/// Returns the same JSON without characters that move the cursor or are invisible: they are written as `\u009b` and so
/// on. JSON has such characters only in strings.
fn printable(json: &str) -> String {
    let mut shown = String::with_capacity(json.len());
    for character in json.chars() {
        if character == '\n' || is_printable(character) {
            shown.push(character);
            continue;
        }
        for unit in character.encode_utf16(&mut [0; 2]) {
            // Writing to a string cannot fail.
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
    fn control_characters_are_escaped_and_parsed_back() {
        let value = json!({ "key": "a\u{9b}2J\u{202e}\u{e0001}\u{3164}\u{2800}\u{7f}\n\"\\ D\u{fc}sseldorf" });
        for text in [document(&value), line(&value)] {
            assert_eq!(text.parse::<Value>().unwrap(), value);
            assert!(text.contains("D\u{fc}sseldorf"), "{text}");
            let is_obeyed = |character: char| {
                character != '\n' && character.is_control()
                    || ['\u{202e}', '\u{e0001}', '\u{3164}', '\u{2800}'].contains(&character)
            };
            assert!(!text.contains(is_obeyed), "{text:?}");
        }
    }
}
