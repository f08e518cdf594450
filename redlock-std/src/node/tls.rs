//! The TLS configuration of `rediss://` nodes.

use std::sync::{Arc, OnceLock};

use rustls::crypto::CryptoProvider;
use rustls::{ClientConfig, RootCertStore};

use super::printable::printable;
use crate::ConnectError;

/// Returns the root certificates that this system trusts.
///
/// Use them for your own configuration, for example with a client certificate, see
/// [`Redlock::connect_with_tls`](crate::Redlock::connect_with_tls). Certificates that cannot be read are skipped. This
/// reads files, and blocks the thread for a few milliseconds.
///
/// # Errors
///
/// [`ConnectError::Tls`] if there are none.
pub fn system_roots() -> Result<RootCertStore, ConnectError> {
    let found = rustls_native_certs::load_native_certs();
    let mut roots = RootCertStore::empty();
    roots.add_parsable_certificates(found.certs);
    if roots.is_empty() {
        // The error contains file names from the environment.
        let why = found
            .errors
            .first()
            .map(|error| printable(&error.to_string()));
        let why = why.map_or_else(String::new, |why| format!(" ({why})"));
        return Err(ConnectError::Tls {
            reason: format!("this system trusts no certificate{why}"),
        });
    }
    Ok(roots)
}

/// The default configuration, which is read once per process and shared by all connections.
pub(crate) fn system_config() -> Result<Arc<ClientConfig>, ConnectError> {
    static SYSTEM: OnceLock<Arc<ClientConfig>> = OnceLock::new();

    if let Some(config) = SYSTEM.get() {
        return Ok(Arc::clone(config));
    }
    let provider = CryptoProvider::get_default().ok_or(ConnectError::NoCryptoProvider)?;
    let config = ClientConfig::builder_with_provider(Arc::clone(provider))
        .with_safe_default_protocol_versions()
        .map_err(|error| ConnectError::Tls {
            reason: error.to_string(),
        })?
        .with_root_certificates(system_roots()?)
        .with_no_client_auth();
    Ok(Arc::clone(SYSTEM.get_or_init(|| Arc::new(config))))
}
