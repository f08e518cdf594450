//! Escaping of the operator's text in messages.

use std::ffi::OsStr;
use std::path::{Path, PathBuf};

use clap::error::{ContextKind, ContextValue, ErrorKind};
use redlock_std::printable;

use crate::url::contains_url;

/// What is shown instead of a URL.
const HIDDEN: &str = "(not shown, it may hold a password)";

/// What is shown instead of the content of a file that should have been named.
const HIDDEN_PRIVATE_KEY: &str = "(not shown, it may be a private key: give the path of a file)";

/// The name of a file, escaped for printing like text from nodes. A URL is hidden, and so is a private key in place of its
/// file.
pub(crate) fn file(name: impl AsRef<OsStr>) -> String {
    let name = name.as_ref();
    let text = name.to_string_lossy();
    if may_hold_password(&text) {
        return HIDDEN.to_owned();
    }
    let missing = missing(name);
    if is_pem(&text) || missing.contains(['\n', '\r']) || holds_private_key(&missing) {
        return HIDDEN_PRIVATE_KEY.to_owned();
    }
    printable(&text)
}

/// The name of a program, escaped like that of a file. A blank or a `=` ends it: behind them are arguments in the same word, or
/// the value of a variable, either of which may hold a password.
#[cfg(any(unix, test))]
pub(crate) fn program(name: impl AsRef<OsStr>) -> String {
    let name = name.as_ref().to_string_lossy();
    if may_hold_password(&name) {
        return HIDDEN.to_owned();
    }
    let word = name.split(|letter: char| letter.is_whitespace() || letter == '=');
    if word
        .take(1)
        .any(|word| holds_private_key(&missing(word.as_ref())))
    {
        return HIDDEN_PRIVATE_KEY.to_owned();
    }
    cut(&name, "=")
}

/// Whether a name is a URL, or a login and a host without a scheme.
fn may_hold_password(name: &str) -> bool {
    let after_colon = name.split_once(':').map(|(_, after)| after);
    contains_url(name) || after_colon.is_some_and(|after| after.contains('@'))
}

/// The part of a path that does not exist. An existing path may hold long digests.
fn missing(path: &OsStr) -> String {
    let mut parts = Path::new(path).components();
    let mut existing = PathBuf::new();
    let mut rest = parts.as_path();
    while let Some(part) = parts.next() {
        existing.push(part);
        // A symbolic link exists even if its file does not.
        if existing.symlink_metadata().is_err() {
            break;
        }
        rest = parts.as_path();
    }
    rest.to_string_lossy().into_owned()
}

/// The error of clap, with the operator's text escaped, and URLs and private keys hidden.
pub(crate) fn without_secrets(mut error: clap::Error) -> clap::Error {
    let is_help = error.kind() == ErrorKind::DisplayHelpOnMissingArgumentOrSubcommand;
    if !error.use_stderr() || is_help {
        // Help and version do not quote arguments.
        return error;
    }
    // Only an unknown argument is in the operator's words: "--ttl <DURATION>" is in clap's.
    let is_known = error.kind() != ErrorKind::UnknownArgument;
    let is_of_clap = |kind| match kind {
        ContextKind::InvalidArg | ContextKind::PriorArg => is_known,
        ContextKind::ValidValue | ContextKind::ValidSubcommand => true,
        _ => false,
    };
    let context = error.context().filter(|(kind, _)| !is_of_clap(*kind));
    let own: Vec<_> = context.filter_map(replaced).collect();
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
    } else if is_pem(&told) || holds_private_key(&told) {
        "these arguments cannot be parsed, and one may be a private key: give the path of a file\n"
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
    if is_pem(text) || holds_private_key(text) {
        return HIDDEN_PRIVATE_KEY.to_owned();
    }
    // An option that may be written wrong, or a word of a command whose -- is missing.
    cut(text, "=:")
}

/// The text up to a blank or one of the `ends`. What follows may be a password.
fn cut(text: &str, ends: &str) -> String {
    let end = text.find(|letter: char| letter.is_whitespace() || ends.contains(letter));
    match end.and_then(|end| text.get(..end)) {
        Some(word) => format!("{}..", printable(word)),
        None => printable(text),
    }
}

/// What to tell a user of `flock`, whose `-n` has another meaning, and whose command needs no `--`.
pub(crate) fn hint(arguments: impl Iterator<Item = std::ffi::OsString>) -> Option<&'static str> {
    let arguments: Vec<_> = arguments.collect();
    let options = arguments.split(|argument| argument == "--").next()?;
    let is_of_flock = |pair: &[std::ffi::OsString]| match pair {
        [option, value] => option == "-n" && !value.to_string_lossy().contains(':'),
        _ => false,
    };
    if options.windows(2).any(is_of_flock) {
        return Some("redlock: -n names a node; -n of flock is --no-wait here");
    }
    let is_script = |word: &std::ffi::OsString| {
        let word = word.to_string_lossy();
        word.starts_with("-c") || word.starts_with("--command")
    };
    let is_run = options.get(1).is_some_and(|command| command == "run");
    let has_command = options.len() < arguments.len() || options.iter().any(is_script);
    (is_run && !has_command)
        .then_some("redlock: the command stands behind --: redlock run KEY -- COMMAND")
}

/// Whether one of these arguments holds a URL.
fn has_url(mut arguments: impl Iterator<Item = std::ffi::OsString>) -> bool {
    arguments.any(|argument| contains_url(&argument.to_string_lossy()))
}

/// Whether the text is the content of a PEM file, also in base64, as in a Kubernetes secret.
fn is_pem(text: &str) -> bool {
    ["-----BEGIN", "LS0tLS1CRUdJTi"]
        .iter()
        .any(|start| text.contains(start))
}

/// Whether the text may hold a key in base64 or hexadecimal. Long paths have dots or blanks, or lack capitals or digits.
fn holds_private_key(text: &str) -> bool {
    // Base64 as it is, for URLs, and percent-encoded.
    let is_base64 = |letter: char| letter.is_ascii_alphanumeric() || "+/=-_%".contains(letter);
    let is_hex = |letter: char| letter.is_ascii_hexdigit() || letter == ':';
    text.split(|letter| !is_base64(letter))
        .any(is_base64_of_private_key)
        || text
            .split(|letter| !is_hex(letter))
            .any(|run| run.len() >= LEAST)
}

/// Shorter than any private key for TLS in these encodings.
const LEAST: usize = 60;

fn is_base64_of_private_key(run: &str) -> bool {
    /// ASN.1 begins with an M, so less of it is enough.
    const LEAST_OF_ASN1: usize = 40;

    let has = |is_of_kind: fn(&u8) -> bool| run.as_bytes().iter().any(is_of_kind);
    let is_mixed =
        has(u8::is_ascii_uppercase) && has(u8::is_ascii_lowercase) && has(u8::is_ascii_digit);
    run.len() >= LEAST && is_mixed || run.len() >= LEAST_OF_ASN1 && run.starts_with('M')
}

#[cfg(test)]
mod tests {
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
            for url in [
                "redis://me:secret@host",
                "rediss:/me:secret@host",
                "a:1,redis:me:secret@host",
                "url=redis%3A%2F%2Fme%3Asecret%40host",
                "me:secret@host:6379",
            ] {
                assert_eq!(shown(url), HIDDEN);
            }
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
            assert_eq!(file(text), HIDDEN_PRIVATE_KEY, "{text}");
        }
    }

    #[test]
    fn a_private_key_in_another_encoding_is_hidden() {
        const BASE64: &str = "MIGHAgEAMBMGByqGSM49AgEGCCqGSM49AwEHBG0wawIBAQQg2r7/a+Yp8JXo9dZ";
        let hex = "302E020100300506032b657004220420".repeat(2);
        let colons = format!("{}ff", "30:2e:02:01:".repeat(6));
        let body = BASE64.strip_prefix('M').unwrap();
        for text in [
            // PEM behind a line break or a blank, in base64.
            "Ci0tLS0tQkVHSU4gUFJJVkFURSBLRVktLS0tLQpNQzRDQVFBd0JRWURLMlZ3QkNJRUlE",
            "IAotLS0tLUJFR0lOIFBSSVZBVEUgS0VZLS0tLS0KTUM0Q0FRQXdCUVlESzJWd0JDSUVJ",
            &BASE64.replace('+', "-").replace('/', "_"),
            &BASE64.replace('+', "%2B").replace('/', "%2F"),
            &format!("'{BASE64}'"),
            &format!("\"{BASE64}\""),
            &format!("data:;base64,{BASE64}"),
            &format!("key={BASE64}"),
            &format!("/etc/{body}"),
            &hex,
            &format!("0x{}", hex.to_lowercase()),
            &format!("key={colons}"),
        ] {
            assert_eq!(file(text), HIDDEN_PRIVATE_KEY, "{text}");
            for shown in [
                program(text),
                shown_argument(text),
                shown_argument(&format!("-x{text}")),
            ] {
                assert!(!shown.contains(&text[12..24]), "{shown}");
            }
        }
    }

    #[test]
    fn the_name_of_a_file_is_shown_however_long_it_is() {
        let directory = tempfile::tempdir().unwrap();
        let digest = directory.path().join("0123456789abcdef".repeat(4));
        std::fs::create_dir(&digest).unwrap();
        let in_digest = digest.join("client.pem");
        for name in [
            "/etc/redlock/my key.pem",
            "./certificates/of-the-production-clusters/in-western-europe/redlock-client-2026/private.pem",
            "/no/Users/Me/Projects/redlock-production/certificates/client-key.2026-11-22.pem",
            "/nix/store/0c5pwh8dnjmr1xj0qz0d8hd4zi1y6wd5-nss-cacert-3.98/etc/ssl/certs/ca-bundle.crt",
            "/run/secrets/kubernetes.io/..2026_11_22_10_00_00.123456789/6f1c7d1e-3f0a-4c55-9d0e-2b1f3c4d5e6f.pem",
            in_digest.to_str().unwrap(),
        ] {
            assert_eq!(file(name), name);
            let program = program(name);
            assert!(
                name.starts_with(program.trim_end_matches("..")),
                "{program}"
            );
        }
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

    #[test]
    fn an_option_that_is_missing_is_named_with_its_value() {
        let told = |line: &[&str]| {
            let error = crate::command().try_get_matches_from(line).unwrap_err();
            without_secrets(error).render().to_string()
        };
        let missing = told(&["redlock", "unlock"]);
        assert!(missing.contains("  --lease-file <FILE>\n"), "{missing}");
        let twice = told(&[
            "redlock",
            "wait",
            "--ttl=1s",
            "--timeout=2s",
            "--timeout=3s",
            "dock",
        ]);
        assert!(!twice.contains(".."), "{twice}");
    }
}
