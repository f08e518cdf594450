//! The name under which a server lists the connections of this client.

use redlock_core::text;

/// The name under which a server lists the connections of this client, in `CLIENT LIST`: see
/// [`TcpNode::client_name`](crate::TcpNode::client_name).
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
#[cfg_attr(feature = "defmt", derive(defmt::Format))]
pub struct ClientName<'a>(&'a str);

impl<'a> ClientName<'a> {
    /// The longest name, in bytes.
    pub const MAX_LEN: usize = 64;

    /// Checks `name`. Works in constants.
    ///
    /// ```
    /// use redlock_embassy::{ClientName, InvalidClientName};
    ///
    /// const DOCK: ClientName<'static> = match ClientName::new("dock-7") {
    ///     Ok(name) => name,
    ///     Err(_) => panic!("no spaces"),
    /// };
    /// assert_eq!(DOCK.as_str(), "dock-7");
    /// assert_eq!(ClientName::new("dock 7"), Err(InvalidClientName));
    /// ```
    ///
    /// # Errors
    ///
    /// Fails if `name` is empty or longer than [`MAX_LEN`](Self::MAX_LEN), or has other characters than printable ASCII. A space is
    /// not allowed: a server would reject it.
    pub const fn new(name: &'a str) -> Result<Self, InvalidClientName> {
        let mut rest = name.as_bytes();
        if rest.is_empty() || rest.len() > Self::MAX_LEN {
            return Err(InvalidClientName);
        }
        while let [byte, others @ ..] = rest {
            if !byte.is_ascii_graphic() {
                return Err(InvalidClientName);
            }
            rest = others;
        }
        Ok(Self(name))
    }

    /// The name.
    #[must_use]
    pub const fn as_str(&self) -> &'a str {
        self.0
    }
}

/// The text is not a valid [`ClientName`].
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct InvalidClientName;

text! {
    impl [] for InvalidClientName [] {
        _ => "a client name has 1 to {} printable ASCII characters, without spaces", ClientName::MAX_LEN;
    }
}

impl core::error::Error for InvalidClientName {}

#[cfg(test)]
mod tests {
    use std::string::String;

    use super::*;

    #[test]
    fn a_name_has_one_to_64_printable_ascii_characters_without_spaces() {
        let longest = "n".repeat(64);
        for name in ["!", "~", "dock-7", &longest] {
            assert_eq!(ClientName::new(name).map(|name| name.0), Ok(name));
        }
        let too_long = "n".repeat(65);
        for name in [
            "",
            " ",
            "a b",
            "a\n",
            "a\r\nb",
            "\0",
            "\u{7f}",
            "d\u{f6}ck",
            &too_long,
        ] {
            assert_eq!(ClientName::new(name), Err(InvalidClientName), "{name:?}");
        }
        for byte in 0..=127_u8 {
            let name = String::from(char::from(byte));
            assert_eq!(
                ClientName::new(&name).is_ok(),
                (b'!'..=b'~').contains(&byte)
            );
        }
    }
}
