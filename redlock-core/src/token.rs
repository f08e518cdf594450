//! The token of one attempt to acquire a lock.

use core::fmt;

/// The value of a key: 20 random bytes that identify one attempt to acquire the lock.
///
/// Every attempt has its own token, so that a late release of one attempt cannot delete the key of the
/// next. A client that knows the token can release the lock, so `Debug` and `Format` show only its first bytes.
#[derive(Clone, Copy, PartialEq, Eq, Hash)]
pub struct Token([u8; Self::LEN]);

impl Token {
    /// The length in bytes, as in the Redlock specification.
    pub const LEN: usize = 20;

    /// What follows the token in the key of a lock that is released, and stays held for the rest of
    /// [`Options::min_hold`](crate::Options::min_hold).
    pub const KEPT: &'static str = "~";

    /// The token with these bytes, for instance the token of a lease that another process has acquired.
    #[must_use]
    pub const fn from_bytes(bytes: [u8; Self::LEN]) -> Self {
        Self(bytes)
    }

    /// The bytes that each node stores as the value of the key.
    #[must_use]
    pub const fn as_bytes(&self) -> &[u8; Self::LEN] {
        &self.0
    }
}

impl fmt::Debug for Token {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let [a, b, c, d, ..] = self.0;
        write!(f, "Token({a:02x}{b:02x}{c:02x}{d:02x}..)")
    }
}

#[cfg(feature = "defmt")]
impl defmt::Format for Token {
    fn format(&self, f: defmt::Formatter<'_>) {
        let [a, b, c, d, ..] = self.0;
        defmt::write!(
            f,
            "Token({=u8:02x}{=u8:02x}{=u8:02x}{=u8:02x}..)",
            a,
            b,
            c,
            d
        );
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn debug_of_a_token_shows_a_prefix_only() {
        let token = Token::from_bytes([0xab; Token::LEN]);
        assert_eq!(std::format!("{token:?}"), "Token(abababab..)");
    }
}
