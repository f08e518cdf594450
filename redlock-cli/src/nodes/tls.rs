//! The TLS options.

use std::env;
use std::path::PathBuf;
use std::sync::Arc;

use clap::ValueHint;
use redlock_std::{BoundedVerifier, printable, system_roots};
use rustls::client::WebPkiServerVerifier;
use rustls::pki_types::pem::{self, PemObject};
use rustls::pki_types::{CertificateDer, PrivateKeyDer};
use rustls::{ClientConfig, RootCertStore};

use crate::{echo, file};

#[derive(Debug, clap::Args)]
pub(crate) struct TlsArguments {
    /// A PEM file with the authorities that have signed the certificates of rediss:// nodes [default: those
    /// that the system trusts] [env: REDLOCK_TLS_CA=]
    #[arg(long, value_name = "FILE", value_hint = ValueHint::FilePath)]
    tls_ca: Option<PathBuf>,

    /// A PEM file with the certificate of this client; servers require one unless tls-auth-clients is no [env: REDLOCK_TLS_CERT=]
    #[arg(long, value_name = "FILE", value_hint = ValueHint::FilePath)]
    tls_cert: Option<PathBuf>,

    /// A PEM file with the private key of --tls-cert [env: REDLOCK_TLS_KEY=]
    #[arg(long, value_name = "FILE", value_hint = ValueHint::FilePath)]
    tls_key: Option<PathBuf>,
}

/// A file, and the option or the variable that names it.
struct Named {
    by: &'static str,
    file: PathBuf,
}

impl Named {
    fn of(option: Option<&PathBuf>, by: &'static str, variable: &'static str) -> Option<Self> {
        if let Some(file) = option {
            let file = file.clone();
            return Some(Self { by, file });
        }
        // One that is empty is not set: a unit of systemd or a Compose file cannot leave it out.
        let file = env::var_os(variable).filter(|file| !file.is_empty());
        file.map(|file| Self {
            by: variable,
            file: file.into(),
        })
    }
}

impl TlsArguments {
    /// Returns `None` if no option is set: then the lock trusts the authorities that the system trusts.
    pub(crate) fn config(&self) -> Result<Option<Arc<ClientConfig>>, String> {
        let ca = Named::of(self.tls_ca.as_ref(), "--tls-ca", "REDLOCK_TLS_CA");
        let certificate = Named::of(self.tls_cert.as_ref(), "--tls-cert", "REDLOCK_TLS_CERT");
        let key = Named::of(self.tls_key.as_ref(), "--tls-key", "REDLOCK_TLS_KEY");
        let own = match (certificate, key) {
            (Some(certificate), Some(key)) => Some((certificate, key)),
            (None, None) => None,
            (Some(Named { by, .. }), None) => {
                return Err(format!(
                    "{by} needs the private key too: --tls-key or REDLOCK_TLS_KEY"
                ));
            }
            (None, Some(Named { by, .. })) => {
                return Err(format!(
                    "{by} needs the certificate too: --tls-cert or REDLOCK_TLS_CERT"
                ));
            }
        };
        if ca.is_none() && own.is_none() {
            return Ok(None);
        }
        let roots = match &ca {
            Some(file) => roots(file)?,
            None => system_roots().map_err(|error| error.to_string())?,
        };
        let verifier = WebPkiServerVerifier::builder(Arc::new(roots)).build();
        let verifier = verifier.map_err(|error| format!("TLS cannot be set up: {error}"))?;
        let config = ClientConfig::builder()
            .dangerous()
            .with_custom_certificate_verifier(Arc::new(BoundedVerifier::new(verifier)));
        let config = match &own {
            Some((certificate, key)) => config
                .with_client_auth_cert(certificates(certificate)?, private_key(key)?)
                .map_err(|error| {
                    let why = printable(&error.to_string());
                    format!(
                        "{} and {} cannot be used together: {why}",
                        certificate.by, key.by
                    )
                })?,
            None => config.with_no_client_auth(),
        };
        Ok(Some(Arc::new(config)))
    }
}

fn roots(named: &Named) -> Result<RootCertStore, String> {
    let mut roots = RootCertStore::empty();
    for certificate in certificates(named)? {
        let added = roots.add(certificate);
        added.map_err(|error| {
            let why = printable(&error.to_string());
            format!("{} {}: {why}", named.by, echo::file(&named.file))
        })?;
    }
    Ok(roots)
}

/// Returns all certificates of the file, at least one.
fn certificates(named: &Named) -> Result<Vec<CertificateDer<'static>>, String> {
    let pem = read(named)?;
    let unread = |error: pem::Error| unread(named, "certificate", &error);
    let certificates = CertificateDer::pem_slice_iter(&pem);
    let certificates: Vec<_> = certificates.collect::<Result<_, _>>().map_err(unread)?;
    if certificates.is_empty() {
        return Err(unread(pem::Error::NoItemsFound));
    }
    Ok(certificates)
}

fn private_key(named: &Named) -> Result<PrivateKeyDer<'static>, String> {
    let key = PrivateKeyDer::from_pem_slice(&read(named)?);
    key.map_err(|error| unread(named, "private key", &error))
}

fn read(named: &Named) -> Result<Vec<u8>, String> {
    file::read(named.by, &named.file, "a PEM file", MOST_BYTES)
}

/// The certificates that a system trusts take 220 KB together, and less than 1 MB if openssl writes them with text.
const MOST_BYTES: u64 = 4 << 20;

/// Does not quote the content of the file: it may be a private key whose lines were joined.
fn unread(named: &Named, what: &str, error: &pem::Error) -> String {
    let (option, file) = (named.by, echo::file(&named.file));
    match error {
        pem::Error::NoItemsFound => format!("{option} {file}: the file contains no {what}"),
        _ => format!(
            "{option} {file}: no {what} can be read: the file is not PEM, or its lines were broken or joined"
        ),
    }
}
