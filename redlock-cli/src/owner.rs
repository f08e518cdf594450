//! The owner record: a text about the holder of a lock, on each node beside the key of the lock.
//!
//! It is for operators, and no part of the lock: no vote depends on it, and no other client knows of it. So this command writes
//! it, over connections of its own: a node that hangs on it delays no command of the lock, and the library sends what every Redlock
//! client sends. The value is `DIGEST:TEXT`. The digest is that of the token of the holder, in hexadecimal, so a record that was left
//! behind is never taken for that of the next holder.

#[cfg(unix)]
use crate::url;

/// The prefix that turns the key of a lock into the key of its owner record. No lock can have this key, because "redlock:" is
/// reserved.
pub(crate) const KEY_PREFIX: &str = "redlock:owner:";

/// The key of the owner record of the lock `key`.
pub(crate) fn record_key(key: &[u8]) -> Vec<u8> {
    [KEY_PREFIX.as_bytes(), key].concat()
}

/// The longest text, in bytes. Of a longer one that another program has written, this much is shown.
#[cfg(unix)]
const MAX_TEXT: usize = 128;

/// Checks the text of `--owner`.
#[cfg(unix)]
pub(crate) fn check(text: &str) -> Result<String, String> {
    if url::contains_node_url(text.as_bytes()) {
        return Err("it is the URL of a node (not shown, it may hold a password)".to_owned());
    }
    if text.len() > MAX_TEXT {
        return Err(format!(
            "{} bytes are too long: at most {MAX_TEXT}",
            text.len()
        ));
    }
    Ok(text.to_owned())
}

/// The default of `--owner`: the name of this host, and a process.
#[cfg(unix)]
pub(crate) fn of_process(pid: impl core::fmt::Display) -> String {
    let system = rustix::system::uname();
    let host = system.nodename().to_string_lossy();
    let host: String = host
        .chars()
        .filter(char::is_ascii_graphic)
        .take(MAX_TEXT / 2)
        .collect();
    format!("{host}:{pid}")
}

#[cfg(all(test, unix))]
mod tests {
    use super::*;

    #[test]
    fn a_text_that_is_too_long_or_may_hold_a_password_is_refused_and_not_repeated() {
        for text in ["redis://me:secret@host", &"secret".repeat(30)] {
            let why = check(text).unwrap_err();
            assert!(!why.contains("secret"), "{why}");
        }
        assert_eq!(check(""), Ok(String::new()));
    }

    #[test]
    fn the_default_names_the_host_and_the_process_and_fits() {
        let text = of_process(u32::MAX);
        let (host, pid) = text.rsplit_once(':').unwrap();
        assert!(!host.is_empty() && pid == "4294967295", "{text}");
        assert_eq!(check(&text), Ok(text));
    }
}
