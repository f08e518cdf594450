//! Whom a `rediss://` node is trusted by.

use std::sync::{Arc, OnceLock};

use rustls::crypto::CryptoProvider;
use rustls::{ClientConfig, RootCertStore};

use super::printable::printable;
use crate::ConnectError;

/// The certificates that this system trusts.
///
/// For a configuration of your own on top of them: a certificate of the client, say, see
/// [`Redlock::connect_with_tls`](crate::Redlock::connect_with_tls). Certificates that cannot be read are left out. Reads
/// files: a few milliseconds, in which the thread waits.
///
/// # Errors
///
/// [`ConnectError::Tls`] if there is none.
pub fn system_roots() -> Result<RootCertStore, ConnectError> {
    let found = rustls_native_certs::load_native_certs();
    let mut roots = RootCertStore::empty();
    roots.add_parsable_certificates(found.certs);
    if roots.is_empty() {
        // It names files, by what the environment says.
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

/// The configuration of those who bring none: read once per process, and shared by all connections.
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
