//! Texts that are URLs: those of nodes, and those that may hold a password.

use redlock_std::Address;

/// Whether the text contains a URL of any kind, which may hold a password.
pub(crate) fn contains_url(text: &str) -> bool {
    text.contains("://")
}

/// Whether the key of a lock is a node whose option was forgotten. A lock may be named after any other URL.
pub(crate) fn is_node(key: &[u8]) -> bool {
    let key = String::from_utf8_lossy(key).to_ascii_lowercase();
    // In an environment file, NAME= or a quote may precede the URL.
    let is_before =
        |letter: char| !letter.is_ascii() || letter.is_whitespace() || "\"'=,".contains(letter);
    let scheme = key
        .split_once(':')
        .and_then(|(before, _)| before.rsplit(is_before).next());
    scheme.is_some_and(|scheme| Address::SCHEMES.contains(&scheme))
        && (key.contains("://") || key.contains('@'))
}

/// Whether the node at this URL uses TLS.
#[cfg(any(not(feature = "tls"), test))]
pub(crate) fn is_tls(url: &str) -> bool {
    let scheme = url.trim().split(':').next();
    scheme.is_some_and(|scheme| {
        TLS_SCHEMES
            .iter()
            .any(|tls| tls.eq_ignore_ascii_case(scheme))
    })
}

/// Those of [`Address::SCHEMES`] that use TLS.
#[cfg(any(not(feature = "tls"), test))]
const TLS_SCHEMES: [&str; 2] = ["rediss", "valkeys"];

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_schemes_with_tls_are_schemes_of_nodes() {
        for scheme in Address::SCHEMES {
            let is_tls = is_tls(&format!(" {}://host", scheme.to_uppercase()));
            assert_eq!(is_tls, TLS_SCHEMES.contains(scheme));
        }
        assert!(TLS_SCHEMES.iter().all(|tls| Address::SCHEMES.contains(tls)));
    }
}
