//! Checks of the key of a lock.

use redlock_core::RESERVED_PREFIX;
use redlock_std::MAX_KEY;

use crate::url;

/// Refuses a key that cannot name a lock.
pub(crate) fn check(key: &[u8]) -> Result<(), String> {
    if key.is_empty() {
        return Err("the key is empty: give the name of the lock".to_owned());
    }
    if key.starts_with(RESERVED_PREFIX.as_bytes()) {
        return Err("keys that begin with \"redlock:\" are reserved: use another name".to_owned());
    }
    if url::contains_node_url(key) {
        return Err(
            "the key is the URL of a node (not shown, it may hold a password): write it as --node=URL, and then the name of \
             the lock"
                .to_owned(),
        );
    }
    if key.len() > MAX_KEY {
        return Err(format!(
            "a key of {} bytes is too long: at most {MAX_KEY}; use a digest of it",
            key.len()
        ));
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_key_that_is_the_url_of_a_node_is_refused_and_not_repeated() {
        for key in [
            "redis://me:secret@host",
            "Redis://secret",
            " rediss://secret",
            "redis:me:secret@host",
            "redis:/:secret@host",
            "valkey+unix:///secret",
            "\"redis://me:secret@host\"",
            "'redis://me:secret@host'",
            "REDLOCK_NODES=redis://me:secret@host",
            "--node=redis://secret",
            ",redis://secret",
            "\u{feff}redis://secret",
            "a:6379,redis://me:secret@host",
            "b:6379;redis://:secret@host",
            "b:2 redis://me:secret@host",
            "url: redis://me:secret@host",
            "nodes:\n - redis://me:secret@host",
            "(redis://me:secret@host)",
            "<redis://me:secret@host>",
            "[redis://me:secret@host]",
            "{\"url\":\"redis:\\/\\/me:secret@host\"}",
            "a=1:redis://me:secret@host",
            "a:1:redis:/me:secret@host",
            "http://x,rediss://secret",
            "tls+redis://me:secret@host",
            "redis-sentinel://me:secret@host",
            "NODE_valkeys:me:secret@host",
            "redis%3A//me:secret@host",
            "a:1;unix:/run/r.sock?pass=secret",
            "url=redis%3A%2F%2Fme%3Asecret%40host",
        ] {
            let why = check(key.as_bytes()).unwrap_err();
            assert!(
                why.contains("--node=URL") && !why.contains("secret"),
                "{why}"
            );
        }
    }

    #[test]
    fn a_key_that_names_another_resource_is_a_key() {
        for key in [
            "https://me@example.org/page",
            "redis:migration",
            "redis",
            "dock-7@harbour",
            "s3://bucket/redis://",
            "my-redis:job@5",
            "my-redis://job/5",
            "tenant:redis:42",
            "tenant:redis:42@eu",
            "docker.io/library/redis:7@sha256:1234",
            "http://redis:8080/me@page",
            "me@a:redis:42",
        ] {
            assert_eq!(check(key.as_bytes()), Ok(()), "{key}");
        }
    }
}
