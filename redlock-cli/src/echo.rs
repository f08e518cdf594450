//! Escaping of the operator's text in messages.

use std::ffi::OsStr;

use clap::error::{ContextKind, ContextValue};
use redlock_std::printable;

use crate::url::contains_url;

/// What is shown instead of a URL.
const HIDDEN: &str = "(not shown, it may hold a password)";

/// What is shown instead of the content of a file that should have been named.
const HIDDEN_PEM: &str = "(not shown, it is PEM text: give the path of a file)";

/// The name of a file, escaped for printing like text from nodes. A URL is hidden, and so is a private key in place of its
/// file.
#[cfg(any(feature = "tls", test))]
pub(crate) fn file(name: impl AsRef<OsStr>) -> String {
    let name = name.as_ref().to_string_lossy();
    if contains_url(&name) {
        return HIDDEN.to_owned();
    }
    if is_pem(&name) || name.contains(['\n', '\r']) {
        return HIDDEN_PEM.to_owned();
    }
    printable(&name)
}

/// The name of a program, escaped like that of a file. A blank or a `=` ends it: behind them are arguments in the same word, or
/// the value of a variable, either of which may hold a password.
#[cfg(any(unix, test))]
pub(crate) fn program(name: impl AsRef<OsStr>) -> String {
    let name = name.as_ref().to_string_lossy();
    if contains_url(&name) {
        return HIDDEN.to_owned();
    }
    cut(&name, "=")
}

/// The error of clap, with the operator's text escaped, and URLs and private keys hidden.
pub(crate) fn without_secrets(mut error: clap::Error) -> clap::Error {
    if !error.use_stderr() {
        // Help and version do not quote arguments.
        return error;
    }
    let own: Vec<_> = error.context().filter_map(replaced).collect();
    if !own.is_empty() {
        // Suggestions quote the same text.
        error.remove(ContextKind::Suggested);
    }
    for (kind, value) in own {
        error.insert(kind, value);
    }
    let told = error.render().to_string();
    let why = if contains_url(&told) {
        "these arguments cannot be parsed, and one is a URL: write it as --node=URL\n"
    } else if is_pem(&told) {
        "these arguments cannot be parsed, and one is PEM text: give the path of a file\n"
    } else {
        return error;
    };
    clap::Error::raw(error.kind(), why)
}

/// The text of a context, escaped, if that differs.
fn replaced((kind, value): (ContextKind, &ContextValue)) -> Option<(ContextKind, ContextValue)> {
    let shown = match value {
        ContextValue::String(text) => ContextValue::String(shown_argument(text)),
        ContextValue::Strings(texts) => {
            ContextValue::Strings(texts.iter().map(|text| shown_argument(text)).collect())
        }
        // These are written by clap.
        _ => return None,
    };
    (shown != *value).then_some((kind, shown))
}

fn shown_argument(text: &str) -> String {
    // A space in a password splits a URL: the other parts have no scheme.
    let may_be_part = !text.starts_with('-') && has_url(std::env::args_os());
    if contains_url(text) || text.contains('@') || may_be_part {
        return HIDDEN.to_owned();
    }
    if is_pem(text) {
        return HIDDEN_PEM.to_owned();
    }
    // An option that may be written wrong, or a word of a command whose -- is missing.
    cut(text, if text.starts_with('-') { "=" } else { "=:" })
}

/// The text up to a blank or one of the `ends`. What follows may be a password.
fn cut(text: &str, ends: &str) -> String {
    let end = text.find(|letter: char| letter.is_whitespace() || ends.contains(letter));
    match end.and_then(|end| text.get(..end)) {
        Some(word) => format!("{}..", printable(word)),
        None => printable(text),
    }
}

/// Whether one of these arguments holds a URL.
fn has_url(mut arguments: impl Iterator<Item = std::ffi::OsString>) -> bool {
    arguments.any(|argument| contains_url(&argument.to_string_lossy()))
}

/// Whether the text is the content of a PEM file, also in base64, as in a Kubernetes secret, or the base64 of a key alone.
fn is_pem(text: &str) -> bool {
    let has_start = ["-----BEGIN", "LS0tLS1CRUdJTi"]
        .iter()
        .any(|start| text.contains(start));
    has_start || text.split_whitespace().any(is_base64_of_key)
}

/// Whether this may be the base64 of a key: ASN.1, which begins with an M.
fn is_base64_of_key(word: &str) -> bool {
    /// Shorter than any key.
    const LEAST: usize = 40;

    let is_base64 = |byte: u8| byte.is_ascii_alphanumeric() || b"+/=".contains(&byte);
    word.len() >= LEAST && word.starts_with('M') && word.bytes().all(is_base64)
}

#[cfg(test)]
mod tests {
    use clap::error::ErrorKind;

    use super::*;

    #[test]
    fn a_url_among_the_arguments_is_seen() {
        let seen = |arguments: [&str; 2]| has_url(arguments.map(Into::into).into_iter());
        assert!(seen(["doctor", "--node=redis://me:two"]));
        assert!(!seen(["inspect", "dock-7"]));
    }

    #[test]
    fn text_is_escaped_and_cut_and_a_url_is_hidden() {
        let [file, program]: [fn(&str) -> String; 2] = [|name| file(name), |name| program(name)];
        for shown in [file, program] {
            assert_eq!(shown("./backup@home.sh"), "./backup@home.sh");
            assert_eq!(shown("a\u{1b}[2J\u{202e}"), "a\\u{1b}[2J\\u{202e}");
            assert_eq!(shown("redis://me:secret@host"), HIDDEN);
            assert!(shown(&"x".repeat(10_000)).len() <= 256);
        }
    }

    #[test]
    fn a_private_key_in_place_of_its_file_is_hidden() {
        const BODY: &str = "MC4CAQAwBQYDK2VwBCIE";
        for text in [
            &format!("-----BEGIN PRIVATE KEY-----\n{BODY}\n-----END PRIVATE KEY-----\n"),
            &format!("-----BEGIN PRIVATE KEY----- {BODY} -----END PRIVATE KEY-----"),
            &format!("{BODY}\n"),
            &format!("{BODY}\r{BODY}"),
            "LS0tLS1CRUdJTiBQUklWQVRFIEtFWS0tLS0tCk1DNENBUUF3QlFZREsyVndCQ0lFCi0tLS0t",
            "MC4CAQAwBQYDK2VwBCIEIKix4pqIMC4CAQAwBQYDK2VwBCIEPACsy2kQ",
        ] {
            assert_eq!(file(text), HIDDEN_PEM, "{text}");
        }
        assert_eq!(file("/etc/redlock/my key.pem"), "/etc/redlock/my key.pem");
    }

    #[test]
    fn of_a_command_in_one_word_only_the_program_is_shown() {
        for (command, shown) in [
            ("mysqldump -psecret db", "mysqldump.."),
            ("./backup\t--password secret", "./backup.."),
            ("a\nsecret", "a.."),
            ("PASSWORD=secret", "PASSWORD.."),
            (" secret", ".."),
        ] {
            assert_eq!(program(command), shown);
        }
    }

    #[test]
    fn a_url_or_a_private_key_is_hidden_wherever_clap_puts_it() {
        const URL: &str = "redis://me:secret@host";
        const PEM: &str = "-----BEGIN PRIVATE KEY-----\nsecret\n-----END PRIVATE KEY-----";

        for kind in [
            ContextKind::InvalidArg,
            ContextKind::InvalidSubcommand,
            ContextKind::InvalidValue,
            ContextKind::PriorArg,
            ContextKind::SuggestedArg,
            ContextKind::SuggestedValue,
        ] {
            for secret in [URL, PEM].map(str::to_owned) {
                for value in [
                    ContextValue::String(secret.clone()),
                    ContextValue::Strings(vec![secret]),
                ] {
                    let mut error = clap::Error::new(ErrorKind::UnknownArgument);
                    error.insert(kind, value);
                    let told = without_secrets(error).render().to_string();
                    assert!(!told.contains("secret"), "{kind:?}: {told}");
                }
            }
        }
        for (text, advice) in [(URL, "--node=URL"), (PEM, "the path of a file")] {
            let error = clap::Error::raw(ErrorKind::Io, text);
            let told = without_secrets(error).render().to_string();
            assert!(told.contains(advice), "{told}");
            assert!(!told.contains("secret"), "{told}");
        }
    }
}
