//! Escaping of the operator's text in messages.

use std::ffi::OsStr;

use clap::error::{ContextKind, ContextValue};
use redlock_std::printable;

/// What is shown instead of a URL.
const HIDDEN: &str = "(not shown, it may hold a password)";

/// A file or a command, escaped for printing like text from nodes. A URL is hidden.
pub(crate) fn shown(text: impl AsRef<OsStr>) -> String {
    let text = text.as_ref().to_string_lossy();
    if is_url(&text) {
        return HIDDEN.to_owned();
    }
    printable(&text)
}

/// The error of clap, with the operator's text escaped and URLs hidden.
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
    if is_url(&error.render().to_string()) {
        return clap::Error::raw(
            error.kind(),
            "these arguments cannot be parsed, and one is a URL: write it as --node=URL\n",
        );
    }
    error
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
    if is_url(text) || text.contains('@') || may_be_part {
        return HIDDEN.to_owned();
    }
    printable(text)
}

/// Whether one of these arguments holds a URL.
fn has_url(mut arguments: impl Iterator<Item = std::ffi::OsString>) -> bool {
    arguments.any(|argument| is_url(&argument.to_string_lossy()))
}

fn is_url(text: &str) -> bool {
    text.contains("://")
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
        assert_eq!(shown("./backup@home.sh"), "./backup@home.sh");
        assert_eq!(shown("a\n\u{1b}[2J\u{202e}"), "a\\n\\u{1b}[2J\\u{202e}");
        assert_eq!(shown("redis://me:secret@host"), HIDDEN);
        assert!(shown("x".repeat(10_000)).len() <= 256);
    }

    #[test]
    fn a_url_is_hidden_wherever_clap_puts_it() {
        for kind in [
            ContextKind::InvalidArg,
            ContextKind::InvalidSubcommand,
            ContextKind::InvalidValue,
            ContextKind::PriorArg,
            ContextKind::SuggestedArg,
            ContextKind::SuggestedValue,
        ] {
            let secret = "redis://me:secret@host".to_owned();
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
        let error = clap::Error::raw(ErrorKind::Io, "redis://me:secret@host");
        let told = without_secrets(error).render().to_string();
        assert!(told.contains("--node=URL"), "{told}");
        assert!(!told.contains("secret"), "{told}");
    }
}
