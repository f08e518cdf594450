//! Which keys can be locks.

/// Keys that begin with it belong to the library: guard records and fences.
const RESERVED_PREFIX: &[u8] = b"redlock:";

/// Refuses a key that no lock can have.
pub(crate) fn check(key: &[u8]) -> Result<(), String> {
    if key.is_empty() {
        return Err("the key is empty: name the lock".to_owned());
    }
    if key.starts_with(RESERVED_PREFIX) {
        return Err(
            "keys that begin with \"redlock:\" are reserved: name the lock differently".to_owned(),
        );
    }
    Ok(())
}
