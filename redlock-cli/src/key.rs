//! Which keys may name a lock.

use redlock_core::RESERVED_PREFIX;
use redlock_std::MAX_KEY;

/// Refuses a key that cannot name a lock.
pub(crate) fn check(key: &[u8]) -> Result<(), String> {
    if key.is_empty() {
        return Err("the key is empty: give the name of the lock".to_owned());
    }
    if key.starts_with(RESERVED_PREFIX.as_bytes()) {
        return Err("keys that begin with \"redlock:\" are reserved: use another name".to_owned());
    }
    if key.len() > MAX_KEY {
        return Err(format!(
            "a key of {} bytes is too long: at most {MAX_KEY}; use a digest of it",
            key.len()
        ));
    }
    Ok(())
}
