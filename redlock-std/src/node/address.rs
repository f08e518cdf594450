//! The address of a node, parsed from a URL.

use std::fmt;
use std::sync::Arc;

use redis::{ConnectionAddr, IntoConnectionInfo, RedisConnectionInfo, parse_redis_url};

use super::host::Host;
use super::printable::printable;
use crate::ConnectError;

/// The address and the login of a node, parsed from a URL.
///
/// This is for tools that send commands of their own: they parse URLs and name nodes as the lock does. `Debug` shows the
/// name, without the password.
pub struct Address {
    name: Arc<str>,
    place: Place,
    login: RedisConnectionInfo,
}

/// What to connect to.
pub(crate) enum Place {
    Tcp(Host),
    #[cfg(feature = "tls-rustls")]
    Tls {
        host: Host,
        server: rustls::pki_types::ServerName<'static>,
        config: Arc<rustls::ClientConfig>,
    },
    #[cfg(unix)]
    Unix(std::path::PathBuf),
}

impl Address {
    /// The schemes that [`parse`](Self::parse) knows, in lower case.
    pub const SCHEMES: &'static [&'static str] = &[
        "redis",
        "rediss",
        "valkey",
        "valkeys",
        "redis+unix",
        "valkey+unix",
        "unix",
    ];

    /// Parses a URL as [`Redlock::connect`](crate::Redlock::connect) does.
    ///
    /// # Errors
    ///
    /// If the URL is not that of a Redis or Valkey node, or if it needs TLS and TLS is not available. The error
    /// contains at most the scheme and the host of the URL. It contains the host only if it is certain which part is the
    /// host. For example, it contains no part with a character that no host name has. The exception is a URL without a
    /// host: in `redis://USER:1234`, the user is read as the host.
    pub fn parse(url: &str) -> Result<Self, ConnectError> {
        let parts = Parts::read(url)?;
        #[cfg(feature = "tls-rustls")]
        if parts.is_tls {
            return parts.over_tls(super::tls::system_config()?);
        }
        parts.without_tls()
    }

    /// Parses a URL as [`Redlock::connect_with_tls`](crate::Redlock::connect_with_tls) does.
    ///
    /// # Errors
    ///
    /// Those of [`parse`](Self::parse).
    #[cfg(feature = "tls-rustls")]
    pub fn parse_with_tls(
        url: &str,
        config: &Arc<rustls::ClientConfig>,
    ) -> Result<Self, ConnectError> {
        let parts = Parts::read(url)?;
        if parts.is_tls {
            parts.over_tls(Arc::clone(config))
        } else {
            parts.without_tls()
        }
    }

    /// Returns `host:port`, or the path of a socket, without the password. Two URLs with the same host and port have the same
    /// name.
    #[must_use]
    pub const fn name(&self) -> &Arc<str> {
        &self.name
    }

    /// Returns the number of the database on the node. Two databases of one server are one node: a fleet cannot name both.
    #[must_use]
    pub fn database(&self) -> i64 {
        self.login.db()
    }

    pub(crate) const fn place(&self) -> &Place {
        &self.place
    }

    pub(crate) const fn is_tls(&self) -> bool {
        match self.place {
            #[cfg(feature = "tls-rustls")]
            Place::Tls { .. } => true,
            _ => false,
        }
    }

    /// The user and the password.
    pub(crate) const fn login(&self) -> &RedisConnectionInfo {
        &self.login
    }
}

impl fmt::Debug for Address {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_tuple("Address").field(&self.name).finish()
    }
}

/// The parts of a URL.
struct Parts {
    /// The part of the URL that may be shown.
    shown: String,
    address: ConnectionAddr,
    login: RedisConnectionInfo,
    is_tls: bool,
}

impl Parts {
    fn read(given: &str) -> Result<Self, ConnectError> {
        let scheme = scheme(given).ok_or_else(|| {
            bad(
                "",
                "it has no scheme of a node: write redis://HOST:PORT (in a list, write %2C for a comma in a password)",
            )
        })?;
        let start = format!("{scheme}://..");
        let is_tls = matches!(scheme, "rediss" | "valkeys");
        let mut url = parse_redis_url(given).ok_or_else(|| {
            let reason = format!(
                "host and port are missing or cannot be read: write {scheme}://HOST:PORT{ENCODE}"
            );
            bad(&start, &reason)
        })?;
        // The parser would leave them out. A file may end with a new line.
        if given
            .trim()
            .contains(|letter: char| letter.is_ascii_control())
        {
            return Err(bad(
                &start,
                "it contains a control character, such as a tab or a null byte",
            ));
        }
        if is_tls && url.fragment() == Some("insecure") {
            return Err(bad(
                &start,
                "#insecure is refused, because a node that is not verified may be an impostor: trust the \
                authority that has signed its certificate",
            ));
        }
        if url.fragment().is_some() {
            return Err(bad(&start, &format!("it contains a #{ENCODE}")));
        }
        if is_unix(scheme) {
            if !url.username().is_empty() || url.password().is_some() {
                return Err(bad(&start, "a socket takes ?user=USER&pass=PASSWORD"));
            }
            // Part of a password, more likely than of a path.
            let path = url.path().to_ascii_lowercase();
            // %25 is a %: the path may be encoded twice.
            let is_encoded = ["%25", "%26", "%3a", "%3b", "%3d", "%3f", "%40"]
                .iter()
                .any(|part| path.contains(part));
            if path.contains([':', '@', '&', ';', '=']) || is_encoded {
                return Err(bad(
                    &start,
                    "a ? is missing before user or password, or the path holds one of : @ & ; =, or an encoded : ? or %",
                ));
            }
        } else if url.path().contains('@') || url.query().is_some_and(|query| query.contains('@')) {
            return Err(bad(
                &start,
                &format!("there is an @ after the host{ENCODE}"),
            ));
        } else if !url.host_str().is_some_and(may_be_host) {
            // Part of a password, more likely than of a host.
            return Err(bad(
                &start,
                &format!("the host holds something other than letters, digits and - . _{ENCODE}"),
            ));
        }
        // From here on the host is no more than a name: it is shown.
        let shown = match url.host_str() {
            Some(host) if !is_unix(scheme) => format!("{scheme}://{}..", printable(host)),
            _ => start,
        };
        let parameters: &[&str] = match is_unix(scheme) {
            true => &["db", "user", "pass", "protocol"],
            false => &["protocol"],
        };
        // The redis crate ignores those that it does not know.
        if url
            .query_pairs()
            .any(|(name, _)| !parameters.contains(&&*name))
        {
            let known = parameters.join(", ");
            return Err(bad(
                &shown,
                &format!("it has an unknown parameter: the known ones are {known}"),
            ));
        }
        // TLS is our own, and the redis crate does not parse `rediss://` without its TLS feature.
        if is_tls && url.set_scheme("redis").is_err() {
            return Err(bad(&shown, "it cannot be parsed"));
        }
        let info = url
            .into_connection_info()
            .map_err(|error| match error.detail() {
                // The detail quotes the URL, which may contain a password.
                Some(_) => bad(&shown, "it has an unknown parameter"),
                None => bad(&shown, &error.to_string()),
            })?;
        let login = info.redis_settings();
        // The client would act as the user `default`.
        if login.password().is_none() && login.username().is_some_and(|user| user != "default") {
            return Err(bad(
                &shown,
                "it names a user without a password: write both; any password will do for a user with nopass",
            ));
        }
        Ok(Self {
            shown,
            address: info.addr().clone(),
            login: info.redis_settings().clone(),
            is_tls,
        })
    }

    fn without_tls(self) -> Result<Address, ConnectError> {
        if self.is_tls {
            return Err(bad(
                &self.shown,
                "TLS is not built in: enable the feature tls-rustls of redlock-std",
            ));
        }
        let (name, place) = match self.address {
            ConnectionAddr::Tcp(host, port) => {
                (name(&host, port), Place::Tcp(Host::new(host, port)))
            }
            #[cfg(unix)]
            ConnectionAddr::Unix(path) => (printable(&path.to_string_lossy()), Place::Unix(path)),
            _ => {
                return Err(bad(
                    &self.shown,
                    "this system does not support this kind of connection",
                ));
            }
        };
        Ok(Address {
            name: name.into(),
            place,
            login: self.login,
        })
    }

    #[cfg(feature = "tls-rustls")]
    fn over_tls(self, config: Arc<rustls::ClientConfig>) -> Result<Address, ConnectError> {
        let ConnectionAddr::Tcp(host, port) = self.address else {
            return Err(bad(&self.shown, "TLS needs TCP"));
        };
        let server = rustls::pki_types::ServerName::try_from(host.clone())
            .map_err(|_| bad(&self.shown, "this host name is not valid in a certificate"))?;
        Ok(Address {
            name: name(&host, port).into(),
            place: Place::Tls {
                host: Host::new(host, port),
                server,
                config,
            },
            login: self.login,
        })
    }
}

/// Advice for an operator who has not percent-encoded a password.
const ENCODE: &str = "; in user and password write %23 for #, %2C for a comma, %2F for /, %3A for :, \
                      %3F for ?, %40 for @ and %25 for %";

/// Returns the scheme if it is a known one. Any other text may be a part of a password.
fn scheme(url: &str) -> Option<&'static str> {
    let (scheme, _) = url.trim().split_once("://")?;
    Address::SCHEMES
        .iter()
        .copied()
        .find(|known| known.eq_ignore_ascii_case(scheme))
}

fn is_unix(scheme: &str) -> bool {
    scheme.ends_with("unix")
}

/// Whether this is an IPv6 address, or a text that a name server or the hosts file can know. No other part of a URL that
/// was encoded or lost its separators passes for a host.
fn may_be_host(host: &str) -> bool {
    let is_of_name = |byte: u8| byte.is_ascii_alphanumeric() || b"-._".contains(&byte);
    host.starts_with('[') || host.bytes().all(is_of_name)
}

fn name(host: &str, port: u16) -> String {
    let host = printable(&host.to_lowercase());
    // The address of IPv6, as in a URL.
    if host.contains(':') && !host.starts_with('[') {
        format!("[{host}]:{port}")
    } else {
        format!("{host}:{port}")
    }
}

fn bad(shown: &str, reason: &str) -> ConnectError {
    ConnectError::BadUrl {
        number: None,
        url: shown.to_owned(),
        reason: reason.to_owned(),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_node_is_called_by_its_address_and_never_by_its_password() {
        for (url, name) in [
            ("redis://10.0.0.1", "10.0.0.1:6379"),
            ("redis://user:secret@Example.org:7000/3", "example.org:7000"),
            ("valkey://10.0.0.1:7000", "10.0.0.1:7000"),
            ("redis://:s%23ecret@[::1]:7000", "[::1]:7000"),
            #[cfg(unix)]
            (
                "redis+unix:///run/redis.sock?db=1&pass=p@secret",
                "/run/redis.sock",
            ),
            #[cfg(unix)]
            ("unix:///run/%1b%5b2J.sock", "/run/\\u{1b}[2J.sock"),
        ] {
            let address = Address::parse(url).unwrap();
            assert_eq!(&**address.name(), name, "{url}");
            let debug = format!("{address:?}");
            assert!(!debug.contains("secret"), "{debug}");
        }
    }

    #[test]
    fn a_control_character_in_a_url_is_refused_but_for_the_end_of_its_line() {
        for url in [
            "redis://ho\tst:7000",
            "redis://host:7000\0",
            "redis://host:\n7000",
        ] {
            let error = Address::parse(url).unwrap_err().to_string();
            assert!(error.contains("a control character"), "{error}");
        }
        let address = Address::parse("redis://host:7000\r\n").unwrap();
        assert_eq!(&**address.name(), "host:7000");
    }

    #[test]
    fn an_error_shows_no_password_whatever_is_wrong_with_the_url() {
        let mut urls: Vec<String> = [
            "http://me:secret@host",
            "me:secret@host",
            "secret",
            "secret@host",
            "secret://host",
            ":secret@host",
            "redis:secret@host",
            "redis:/me:secret@host",
            "redis//me:secret@host",
            "\u{e4}@secret",
            "redis+unix:///run/r.sock&pass=secret",
            "redis+unix:///run/r.sock;auth%3dsecret",
            "unix:///:secret@/run/r.sock",
            "unix:///:secret%40/run/r.sock",
            "unix:///run/r.sock:secret",
            "unix:///:secret/run/r.sock",
            "redis+unix:///me:secret/run/r.sock?db=1",
            "unix:///run/r.sock%3fpass:secret",
            "unix:///run/r.sock%3Fpass:secret",
            "unix:///run/r.sock%3Asecret",
            "unix:///run/r.sock%253fpass:secret",
            "unix:///:secret%2540/run/r.sock",
            "redis+unix://me:secret@/run/r.sock",
            "redis+unix://me:secret@host/run/r.sock",
            "redis+unix://localhost?pass=secret&db=x",
            "redis+unix:///run/r.sock?pass=secret&db=x",
            "redis+unix:///run/r.sock?pass=secret#x",
            "redis+unix:///run/r.sock?pass=x#secret",
            "redis+unix:///run/r.sock?protocol=secret",
            "",
        ]
        .map(str::to_owned)
        .into();
        for scheme in ["redis", "rediss", "valkey", "REDIS", "Rediss"] {
            for rest in [
                "me:secret",
                "me:secret@",
                "me:secret@host:port",
                "me:secret@host:99999",
                "me:secret@host/db",
                "me:secret@ho st",
                "me:1234#secret@host",
                "me:12#34secret",
                "me:12/secret@host",
                "me:12/secret",
                "me:12?secret@host",
                "me:12?protocol=secret",
                "me:se#cret@host/secret",
                "me:%ff%secret@host",
                "me:%ff@host/secret",
                ":secret",
                "@secret:secret",
                "host/secret",
                "host?protocol=secret",
                "host#secret",
                "host:secret",
                "host:1:secret",
                "[::1:secret",
                "0.0.0.0/?secret",
                "me%3Asecret%40host",
                "me%3asecret%40host:1/2",
                "secret%40host:1",
                "secret%2540host",
                "s%65cret-secret",
                "host;secret",
                "host,secret",
                "host&pass=secret",
                "secret!",
                "$secret",
                "{secret}",
                "[fe80::1%25secret]",
                "[fe80::1%secret]",
                "s\u{e4}-secret",
                "",
            ] {
                urls.push(format!("{scheme}://{rest}"));
            }
        }
        for url in urls {
            let Err(error) = Address::parse(&url) else {
                panic!("{url} is taken for a node");
            };
            for message in [error.to_string(), format!("{error:?}")] {
                assert!(!message.contains("secret"), "{url}: {message}");
            }
        }
    }

    #[test]
    fn an_error_says_what_to_do() {
        for (url, advice) in [
            ("redis://me:1234#secret@host", "%23 for #"),
            ("redis://me:12/34@host", "%2F for /"),
            ("redis://host/db", "redis://host.."),
            ("rediss://host#insecure", "#insecure is refused"),
            ("rediss://host/#insecure", "#insecure is refused"),
            ("10.0.0.1:6379", "write redis://HOST:PORT"),
            ("redis://locker@host", "a user without a password"),
            ("redis://host?pass=secret", "the known ones are protocol"),
            #[cfg(unix)]
            ("unix:///r.sock?user=locker", "a user without a password"),
            #[cfg(unix)]
            ("unix:///r.sock?user=locker&password=x", "db, user, pass"),
        ] {
            let message = Address::parse(url).unwrap_err().to_string();
            assert!(message.contains(advice), "{message}");
        }
    }

    #[test]
    #[cfg(feature = "tls-rustls")]
    fn tls_without_a_crypto_provider_is_an_error_and_not_a_panic() {
        let error = Address::parse("rediss://10.0.0.1").unwrap_err();
        assert_eq!(error, ConnectError::NoCryptoProvider);
    }

    #[test]
    #[cfg(not(feature = "tls-rustls"))]
    fn tls_without_the_feature_is_an_error() {
        let error = Address::parse("rediss://10.0.0.1").unwrap_err();
        assert!(error.to_string().contains("tls-rustls"), "{error}");
    }
}
