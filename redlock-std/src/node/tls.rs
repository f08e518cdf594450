//! The TLS configuration of `rediss://` nodes.

mod verifier;

use std::path::Path;
use std::sync::{Arc, OnceLock};
use std::{env, fs};

use rustls::client::WebPkiServerVerifier;
use rustls::crypto::CryptoProvider;
use rustls::{ClientConfig, RootCertStore};
use rustls_native_certs::{CertificateResult, load_certs_from_paths, load_native_certs};

use super::printable::printable;
use crate::ConnectError;
pub use verifier::BoundedVerifier;

/// Returns the root certificates that this system trusts.
///
/// Use them for your own configuration, for example with a client certificate, see
/// [`Redlock::connect_with_tls`](crate::Redlock::connect_with_tls). Certificates that cannot be read are skipped. This
/// reads files, and blocks the thread for a few milliseconds.
///
/// The environment variables `SSL_CERT_FILE` and `SSL_CERT_DIR` name other certificates than those of the system.
/// Their files may be 64 MiB long in all.
///
/// # Errors
///
/// [`ConnectError::Tls`] if there are none, if `SSL_CERT_FILE` names an empty file or no regular file, or if the files are
/// too long.
pub fn system_roots() -> Result<RootCertStore, ConnectError> {
    let found = match named_certificates()? {
        Some(found) => found,
        None => load_native_certs(),
    };
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

/// Loads the files that the environment names. Returns `None` if it names none.
///
/// Files that cannot be read to their end are not opened: the open of a pipe waits for a writer, a device has no end, and a file
/// of `/proc` without a length may block or have no end.
fn named_certificates() -> Result<Option<CertificateResult>, ConnectError> {
    let file = env::var_os("SSL_CERT_FILE");
    let directories = env::var_os("SSL_CERT_DIR").unwrap_or_default();
    let directories: Vec<_> = env::split_paths(&directories)
        .filter(|directory| !directory.as_os_str().is_empty())
        .collect();
    if file.is_none() && directories.is_empty() {
        return Ok(None);
    }
    let mut found = CertificateResult::default();
    let mut add = |file: Option<&Path>, directory: Option<&Path>| {
        let more = load_certs_from_paths(file, directory);
        found.certs.extend(more.certs);
        found.errors.extend(more.errors);
    };
    let mut left = MAX_BYTES;
    if let Some(file) = &file {
        let file = Path::new(file);
        left -= length(file)?;
        add(Some(file), None);
    }
    for directory in &directories {
        let Ok(entries) = fs::read_dir(directory) else {
            // The loader says why.
            add(None, Some(directory));
            continue;
        };
        for file in entries.flatten().map(|entry| entry.path()) {
            let length = match fs::metadata(&file) {
                Ok(found) if found.is_file() && found.len() > 0 => found.len(),
                _ => continue,
            };
            left = left.checked_sub(length).ok_or_else(|| ConnectError::Tls {
                reason: "SSL_CERT_DIR holds more than 64 MiB: name directories of PEM files".into(),
            })?;
            add(Some(&file), None);
        }
    }
    // The directory of a system has links to each of its files.
    found.certs.sort_unstable_by(|a, b| a.cmp(b));
    found.certs.dedup();
    Ok(Some(found))
}

/// All certificates that a system trusts take less than 1 MiB.
const MAX_BYTES: u64 = 64 << 20;

/// Returns the length of `SSL_CERT_FILE`, which is no more than [`MAX_BYTES`]. If it is missing, the loader says so.
fn length(file: &Path) -> Result<u64, ConnectError> {
    let why = match fs::metadata(file) {
        Ok(found) if !found.is_file() => "is not a regular file",
        Ok(found) if found.len() == 0 => "is empty",
        Ok(found) if found.len() > MAX_BYTES => "is longer than 64 MiB",
        Ok(found) => return Ok(found.len()),
        Err(_) => return Ok(0),
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
    let roots = Arc::new(system_roots()?);
    let verifier = WebPkiServerVerifier::builder_with_provider(roots, Arc::clone(provider))
        .build()
        .map_err(|error| ConnectError::Tls {
            reason: error.to_string(),
        })?;
    let config = ClientConfig::builder_with_provider(Arc::clone(provider))
        .with_safe_default_protocol_versions()
        .map_err(|error| ConnectError::Tls {
            reason: error.to_string(),
        })?
        .dangerous()
        .with_custom_certificate_verifier(Arc::new(BoundedVerifier::new(verifier)))
        .with_no_client_auth();
    Ok(Arc::clone(SYSTEM.get_or_init(|| Arc::new(config))))
}
