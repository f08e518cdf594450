//! Where a node is, out of a URL.

use std::sync::Arc;

use redis::{ConnectionAddr, ConnectionInfo, IntoConnectionInfo};

use crate::ConnectError;

/// A URL of a node that was understood.
///
/// For tools that look into nodes with a client of their own: they read URLs and call nodes as the
/// lock does.
#[derive(Debug)]
pub struct Address {
    name: Arc<str>,
    info: ConnectionInfo,
}

impl Address {
    /// Reads a URL as [`Redlock::connect`](crate::Redlock::connect) does.
    ///
    /// # Errors
    ///
    /// When it is not one of a Redis or Valkey node; the password is not in the error.
    pub fn parse(url: &str) -> Result<Self, ConnectError> {
        let info = url
            .into_connection_info()
            .map_err(|error| ConnectError::BadUrl {
                url: without_password(url),
                reason: error
                    .detail()
                    .map_or_else(|| error.to_string(), str::to_owned),
            })?;
        #[cfg(feature = "tls-rustls")]
        if matches!(info.addr(), ConnectionAddr::TcpTls { .. })
            && rustls::crypto::CryptoProvider::get_default().is_none()
        {
            return Err(ConnectError::NoCryptoProvider);
        }
        let name = match info.addr() {
            ConnectionAddr::Tcp(host, port) | ConnectionAddr::TcpTls { host, port, .. } => {
                format!("{}:{port}", host.to_lowercase())
            }
            ConnectionAddr::Unix(path) => path.display().to_string(),
            other => other.to_string(),
        };
        Ok(Self {
            name: name.into(),
            info,
        })
    }

    /// `host:port`, or the path of a socket. Without the password; the same for two URLs of one server.
    #[must_use]
    pub const fn name(&self) -> &Arc<str> {
        &self.name
    }

    pub(crate) const fn info(&self) -> &ConnectionInfo {
        &self.info
    }
}

/// What stands before an `@` may be a password, and errors end up in logs.
fn without_password(url: &str) -> String {
    match (url.find("://"), url.rfind('@')) {
        (Some(scheme), Some(at)) if scheme + 3 <= at => {
            format!("{}..{}", &url[..scheme + 3], &url[at..])
        }
        (None, Some(at)) => format!("..{}", &url[at..]),
        _ => url.to_owned(),
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
            ("redis+unix:///run/redis.sock?db=1", "/run/redis.sock"),
        ] {
            assert_eq!(&**Address::parse(url).unwrap().name(), name, "{url}");
        }
    }

    #[test]
    fn a_bad_url_is_shown_without_its_password() {
        for url in [
            "http://me:secret@host",
            "me:secret@host",
            "redis://me:secret@host:port",
            "",
            "\u{e4}@",
        ] {
            let message = Address::parse(url).unwrap_err().to_string();
            assert!(!message.contains("secret"), "{message}");
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
        assert!(matches!(error, ConnectError::BadUrl { .. }), "{error}");
    }
}
