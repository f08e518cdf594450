//! The TLS options.

use std::path::{Path, PathBuf};
use std::sync::Arc;

use redlock_std::{BoundedVerifier, printable, system_roots};
use rustls::client::WebPkiServerVerifier;
use rustls::pki_types::pem::{self, PemObject};
use rustls::pki_types::{CertificateDer, PrivateKeyDer};
use rustls::{ClientConfig, RootCertStore};

use crate::{echo, file};

#[derive(Debug, clap::Args)]
pub(crate) struct TlsArguments {
    /// A PEM file with the authorities that have signed the certificates of rediss:// nodes [default: those
    /// that the system trusts]
    #[arg(
        long,
        value_name = "FILE",
        env = "REDLOCK_TLS_CA",
        hide_env_values = true
    )]
    tls_ca: Option<PathBuf>,

    /// A PEM file with the certificate of this client; servers require one unless tls-auth-clients is no
    #[arg(
        long,
        value_name = "FILE",
        env = "REDLOCK_TLS_CERT",
        hide_env_values = true,
        requires = "tls_key"
    )]
    tls_cert: Option<PathBuf>,

    /// A PEM file with the private key of --tls-cert
    #[arg(
        long,
        value_name = "FILE",
        env = "REDLOCK_TLS_KEY",
        hide_env_values = true,
        requires = "tls_cert"
    )]
    tls_key: Option<PathBuf>,
}

impl TlsArguments {
    /// Returns `None` if no option is set: then the lock trusts the authorities that the system trusts.
    pub(crate) fn config(&self) -> Result<Option<Arc<ClientConfig>>, String> {
        let Self {
            tls_ca,
            tls_cert,
            tls_key,
        } = self;
        if tls_ca.is_none() && tls_cert.is_none() {
            return Ok(None);
        }
        let roots = match tls_ca {
            Some(file) => roots(file)?,
            None => system_roots().map_err(|error| error.to_string())?,
        };
        let verifier = WebPkiServerVerifier::builder(Arc::new(roots)).build();
        let verifier = verifier.map_err(|error| format!("TLS cannot be set up: {error}"))?;
        let config = ClientConfig::builder()
            .dangerous()
            .with_custom_certificate_verifier(Arc::new(BoundedVerifier::new(verifier)));
        let config = match (tls_cert, tls_key) {
            (Some(certificate), Some(key)) => config
                .with_client_auth_cert(certificates("--tls-cert", certificate)?, private_key(key)?)
                .map_err(|error| {
                    let why = printable(&error.to_string());
                    format!("--tls-cert and --tls-key cannot be used together: {why}")
                })?,
            _ => config.with_no_client_auth(),
        };
        Ok(Some(Arc::new(config)))
    }
}

fn roots(file: &Path) -> Result<RootCertStore, String> {
    let mut roots = RootCertStore::empty();
    for certificate in certificates("--tls-ca", file)? {
        let added = roots.add(certificate);
        added.map_err(|error| {
            let why = printable(&error.to_string());
            format!("--tls-ca {}: {why}", echo::file(file))
        })?;
    }
    Ok(roots)
}

/// Returns all certificates of `file`, at least one.
fn certificates(option: &str, file: &Path) -> Result<Vec<CertificateDer<'static>>, String> {
    let pem = read(option, file)?;
    let unread = |error: pem::Error| unread(option, file, "certificate", &error);
    let certificates = CertificateDer::pem_slice_iter(&pem);
    let certificates: Vec<_> = certificates.collect::<Result<_, _>>().map_err(unread)?;
    if certificates.is_empty() {
        return Err(unread(pem::Error::NoItemsFound));
    }
    Ok(certificates)
}

fn private_key(file: &Path) -> Result<PrivateKeyDer<'static>, String> {
    let key = PrivateKeyDer::from_pem_slice(&read("--tls-key", file)?);
    key.map_err(|error| unread("--tls-key", file, "private key", &error))
}

fn read(option: &str, file: &Path) -> Result<Vec<u8>, String> {
    file::read(option, file, "a PEM file", MOST_BYTES)
}

/// The certificates that a system trusts take 220 KB together, and less than 1 MB if openssl writes them with text.
const MOST_BYTES: u64 = 4 << 20;

/// Does not quote the content of the file: it may be a private key whose lines were joined.
fn unread(option: &str, file: &Path, what: &str, error: &pem::Error) -> String {
    let file = echo::file(file);
    match error {
        pem::Error::NoItemsFound => format!("{option} {file}: the file contains no {what}"),
        _ => format!(
            "{option} {file}: no {what} can be read: the file is not PEM, or its lines were broken or joined"
        ),
    }
}
