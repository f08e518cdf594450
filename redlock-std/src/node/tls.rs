//! The TLS configuration of `rediss://` nodes.

use std::path::Path;
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
/// The environment variables `SSL_CERT_FILE` and `SSL_CERT_DIR` name other certificates than those of the system.
///
/// # Errors
///
/// [`ConnectError::Tls`] if there are none, or if `SSL_CERT_FILE` names no regular file, an empty one, or one of more than
/// 64 MiB.
pub fn system_roots() -> Result<RootCertStore, ConnectError> {
    if let Some(file) = std::env::var_os("SSL_CERT_FILE") {
        check_size(Path::new(&file))?;
    }
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

/// Refuses a file that may have no end or block: opening a pipe blocks until there is a writer, a device may have no end,
/// and a file that the kernel generates has a length of 0 and may block, for example `/proc/kmsg`. The loader reports a
/// file that is missing.
fn check_size(file: &Path) -> Result<(), ConnectError> {
    /// All certificates that a system trusts take less than 1 MiB.
    const MOST_BYTES: u64 = 64 << 20;

    let why = match std::fs::metadata(file) {
        Ok(found) if !found.is_file() => "is not a regular file",
        Ok(found) if found.len() == 0 => "has a length of 0",
        Ok(found) if found.len() > MOST_BYTES => "is longer than 64 MiB",
        _ => return Ok(()),
    };
    let file = printable(&file.to_string_lossy());
    Err(ConnectError::Tls {
        reason: format!("SSL_CERT_FILE {file} {why}: name a PEM file"),
    })
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
