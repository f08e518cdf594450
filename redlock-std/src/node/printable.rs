//! Escaping of text from nodes.

use redlock_core::escape::write_printable;

/// The text of a server's error without the arguments that some of them quote, which are the key and the token: `ERR unknown command
/// 'SET', with args beginning with: 'dock-7' ..`. Also without the digest of the script at the end of errors since Redis 7: it looks
/// like a token.
pub(crate) fn without_arguments(text: &str) -> &str {
    const SCRIPT: &str = " script: ";

    let is_digest = |rest: &str| {
        rest.get(..SHA1_DIGITS)
            .is_some_and(|digest| digest.bytes().all(|byte| byte.is_ascii_hexdigit()))
    };
    // `ERR ACL failure in script: User ..` goes on. Valkey 9 leaves the digest out.
    let is_of_script = |rest: &str| is_digest(rest) || rest.starts_with("on @");
    let script = text
        .match_indices(SCRIPT)
        .find(|(at, _)| is_of_script(&text[at + SCRIPT.len()..]));
    let arguments = text.find(", with args beginning with");
    let end = [script.map(|(at, _)| at), arguments]
        .into_iter()
        .flatten()
        .min();
    &text[..end.unwrap_or(text.len())]
}

/// How many digits the digest of a script has.
const SHA1_DIGITS: usize = 40;

/// Returns `text` escaped and cut to at most 256 bytes. The result has no character that moves the cursor, begins a
/// line, or is invisible.
///
/// Without this, a hostile node could write into the terminal and the logs of its clients. Characters that are not
/// printable are written as `\n`, `\u{1b}` and so on. Text that was cut ends with `..`. This is for tools that send
/// commands of their own.
#[must_use]
pub fn printable(text: &str) -> String {
    const MOST: usize = 256;
    const CUT: &str = "..";

    let mut shown = String::new();
    // Where the text is cut if the rest does not fit.
    let mut end = 0;
    for character in text.chars() {
        // Writing to a string cannot fail.
        let _never = write_printable(&mut shown, character);
        if shown.len() <= MOST - CUT.len() {
            end = shown.len();
        } else if shown.len() > MOST {
            shown.truncate(end);
            shown.push_str(CUT);
            break;
        }
    }
    shown
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_is_not_printable_is_escaped() {
        for (text, shown) in [
            ("ERR it's \"a\\b\"", "ERR it's \"a\\b\""),
            (
                "D\u{fc}sseldorf \u{4e16}\u{754c}",
                "D\u{fc}sseldorf \u{4e16}\u{754c}",
            ),
            ("a\u{3164}\u{2800}b", "a\\u{3164}\\u{2800}b"),
            (
                "\u{13441}\u{13442}\u{1d159}",
                "\\u{13441}\\u{13442}\\u{1d159}",
            ),
            ("a\nb\r\tc\0", "a\\nb\\r\\tc\\0"),
            ("\u{1b}[2J\u{7f}\u{9b}", "\\u{1b}[2J\\u{7f}\\u{9b}"),
            // Right-to-left override, zero width, line separator.
            (
                "\u{202e}\u{200b}\u{2028}\u{feff}",
                "\\u{202e}\\u{200b}\\u{2028}\\u{feff}",
            ),
        ] {
            assert_eq!(printable(text), shown);
        }
    }

    #[test]
    fn neither_arguments_nor_the_digest_of_a_script_are_shown() {
        let digest = "941175f866183553e52e94f454b6d6445b54e5f2";
        for (text, shown) in [
            (
                format!("NOREPLICAS Not enough. script: {digest}, on @user_script:1."),
                "NOREPLICAS Not enough.",
            ),
            (
                "ERR unknown command 'SET', with args beginning with: 'a' ".to_owned(),
                "ERR unknown command 'SET'",
            ),
            (
                format!(
                    "ERR ACL failure in script: User a may not script: {digest}, on @user_script:1."
                ),
                "ERR ACL failure in script: User a may not",
            ),
            (
                "NOREPLICAS Not enough. script: on @user_script:1.".to_owned(),
                "NOREPLICAS Not enough.",
            ),
            ("ERR script: \u{fc}".to_owned(), "ERR script: \u{fc}"),
            ("ERR".to_owned(), "ERR"),
        ] {
            assert_eq!(without_arguments(&text), shown);
        }
    }

    #[test]
    fn it_is_cut_to_256_bytes_and_never_inside_of_a_character() {
        assert_eq!(printable(&"a".repeat(256)), "a".repeat(256));
        for (text, unit) in [("a", 1), ("\u{4e16}", 3), ("\u{1f512}", 4), ("\u{1b}", 6)] {
            let shown = printable(&text.repeat(1_000_000));
            assert!((250..=256).contains(&shown.len()), "{shown}");
            let kept = shown.strip_suffix("..").unwrap();
            assert_eq!(kept.len() % unit, 0, "{shown}");
        }
    }
}
