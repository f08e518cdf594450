//! Texts that are URLs: those of nodes, and those that may hold a password.

use redlock_std::Address;

/// Whether the text contains a URL of any kind, also one of a node without `//`, which may hold a password.
pub(crate) fn contains_url(text: &str) -> bool {
    text.contains("://") || contains_node_url(text.as_bytes())
}

/// Whether the key of a lock contains the URL of a node, so that an option was probably forgotten. A lock may be named after any
/// other URL.
pub(crate) fn contains_node_url(key: &[u8]) -> bool {
    let mut key = String::from_utf8_lossy(key).to_ascii_lowercase();
    for (encoded, character) in [("%3a", ":"), ("%2f", "/"), ("%40", "@")] {
        key = key.replace(encoded, character);
    }
    let last_login = ["@", "pass=", "password="]
        .iter()
        .filter_map(|part| key.rfind(part))
        .max();
    // The URL may stand in a list, or behind a NAME=, a quote or another URL.
    key.match_indices(':').any(|(colon, _)| {
        let (before, after) = (key.get(..colon), key.get(colon + 1..));
        let has_login = last_login.is_some_and(|at| at > colon);
        is_colon_of_node(
            before.unwrap_or_default(),
            after.unwrap_or_default(),
            has_login,
        )
    })
}

/// Whether this is the colon after the scheme of a node's URL: `before` ends with the scheme, and `after` begins with the rest
/// of the URL. If the rest has no login, a password can only be where the host belongs, after `//`.
fn is_colon_of_node(before: &str, after: &str, has_login: bool) -> bool {
    let may_be_in_scheme = |letter: char| letter.is_ascii_alphanumeric() || "+-.".contains(letter);
    let start = before.trim_end_matches(may_be_in_scheme);
    let scheme = before.strip_prefix(start).unwrap_or_default();
    let is_known = Address::SCHEMES.contains(&scheme);
    if let Some(host) = after.strip_prefix("//") {
        // `tls+redis` and `redis-sentinel` are schemes of other libraries.
        let is_alike = ["redis", "valkey"].iter().any(|name| scheme.contains(name));
        return is_known && !host.is_empty() || is_alike && has_login;
    }
    // Keys may hold `tenant:redis:42@eu` or `library/redis:7@sha256:..`.
    let may_be_key = start.ends_with([':', '/']) && !after.starts_with('/');
    is_known && has_login && !may_be_key
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
