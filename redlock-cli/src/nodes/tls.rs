//! TLS as the operator wants it.

use std::path::{Path, PathBuf};
use std::sync::Arc;

use redlock_std::system_roots;
use rustls::pki_types::pem::{self, PemObject};
use rustls::pki_types::{CertificateDer, PrivateKeyDer};
use rustls::{ClientConfig, RootCertStore};

#[derive(Debug, clap::Args)]
pub(crate) struct TlsArguments {
    /// Whoever has signed the certificates of rediss:// nodes, as a PEM file [default: whom the system trusts]
    #[arg(long, value_name = "FILE", env = "REDLOCK_TLS_CA")]
    tls_ca: Option<PathBuf>,

    /// The certificate of this client, as a PEM file: servers ask for one unless tls-auth-clients is no
    #[arg(
        long,
        value_name = "FILE",
        env = "REDLOCK_TLS_CERT",
        requires = "tls_key"
    )]
    tls_cert: Option<PathBuf>,

    /// The key of that certificate, as a PEM file
    #[arg(
        long,
        value_name = "FILE",
        env = "REDLOCK_TLS_KEY",
        requires = "tls_cert"
    )]
    tls_key: Option<PathBuf>,
}

impl TlsArguments {
    /// None if nothing is said: then the lock trusts whom the system trusts.
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
        let config = ClientConfig::builder().with_root_certificates(roots);
        let config = match (tls_cert, tls_key) {
            (Some(certificate), Some(key)) => config
                .with_client_auth_cert(certificates("--tls-cert", certificate)?, private_key(key)?)
                .map_err(|error| {
                    format!("--tls-cert and --tls-key are of no use together: {error}")
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
        added.map_err(|error| format!("--tls-ca {}: {error}", file.display()))?;
    }
    Ok(roots)
}

/// All of `file`, at least one.
fn certificates(option: &str, file: &Path) -> Result<Vec<CertificateDer<'static>>, String> {
    let unread = |error: pem::Error| unread(option, file, "certificate", &error);
    let certificates = CertificateDer::pem_file_iter(file).map_err(unread)?;
    let certificates: Vec<_> = certificates.collect::<Result<_, _>>().map_err(unread)?;
    if certificates.is_empty() {
        return Err(unread(pem::Error::NoItemsFound));
    }
    Ok(certificates)
}

fn private_key(file: &Path) -> Result<PrivateKeyDer<'static>, String> {
    let key = PrivateKeyDer::from_pem_file(file);
    key.map_err(|error| unread("--tls-key", file, "private key", &error))
}

fn unread(option: &str, file: &Path, what: &str, error: &pem::Error) -> String {
    let file = file.display();
    match error {
        pem::Error::Io(error) => format!("{option} {file} cannot be read: {error}"),
        pem::Error::NoItemsFound => format!("{option} {file}: there is no {what} in it"),
        error => format!("{option} {file}: no {what} can be read from it: {error}"),
    }
}
