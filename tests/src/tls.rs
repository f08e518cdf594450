//! Servers behind TLS, and who signs for them.

#![expect(clippy::expect_used, reason = "what fails here fails a test")]

use std::fs;
use std::ops::Deref;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::{Duration, Instant};

use rcgen::{
    BasicConstraints, Certificate, CertificateParams, CertifiedIssuer, DnType, IsCa, Issuer,
    KeyPair, PKCS_ED25519,
};
use redlock_std::{BoundedVerifier, Options, Redlock};
use rustls::client::WebPkiServerVerifier;
use rustls::pki_types::pem::PemObject;
use rustls::pki_types::{CertificateDer, PrivateKeyDer};
use rustls::{ClientConfig, RootCertStore};
use tempfile::TempDir;

use crate::Server;

/// Signs certificates, of servers and of clients.
#[derive(Debug)]
pub struct Authority {
    issuer: CertifiedIssuer<'static, KeyPair>,
    directory: TempDir,
}

/// A certificate and its key, as files.
#[derive(Debug, Clone)]
pub struct Certified {
    /// The certificate, as PEM.
    pub certificate: PathBuf,
    /// The key, as PEM.
    pub key: PathBuf,
}

/// A server that speaks TLS as well.
#[derive(Debug)]
pub struct TlsServer {
    server: Server,
    port: u16,
}

impl Authority {
    /// A new one, unlike any other.
    ///
    /// # Panics
    ///
    /// When there is no place for its files.
    #[must_use]
    pub fn create() -> Self {
        let mut params = CertificateParams::default();
        // Who has the same name as the one who signs counts as signed by itself.
        params
            .distinguished_name
            .push(DnType::CommonName, "authority");
        params.is_ca = IsCa::Ca(BasicConstraints::Unconstrained);
        let key = KeyPair::generate().expect("a key");
        let issuer = CertifiedIssuer::self_signed(params, key).expect("a certificate");
        let directory = TempDir::new().expect("a temporary directory");
        fs::write(directory.path().join("ca.pem"), issuer.pem()).expect("a file");
        Self { issuer, directory }
    }

    /// Its own certificate, as PEM.
    #[must_use]
    pub fn certificate(&self) -> PathBuf {
        self.directory.path().join("ca.pem")
    }

    /// Its own certificate, as a device has it.
    #[must_use]
    pub fn der(&self) -> &[u8] {
        self.issuer.der()
    }

    /// Signs a certificate for `name`.
    ///
    /// # Panics
    ///
    /// When there is no place for the files.
    #[must_use]
    pub fn sign(&self, name: &str) -> Certified {
        let (certificate, key) = own(name, &self.issuer);
        self.store(name, &[certificate.pem()], &key)
    }

    /// Signs a certificate for `name` through so many intermediates, which stand in the file of the certificate too.
    ///
    /// # Panics
    ///
    /// When there is no place for the files.
    #[must_use]
    pub fn sign_through(&self, intermediates: usize, name: &str) -> Certified {
        let mut above = None;
        let mut chain = Vec::new();
        for number in 0..intermediates {
            let signer = above.as_ref().unwrap_or(&self.issuer);
            let between = intermediate(&format!("intermediate {number}"), signer);
            chain.insert(0, between.pem());
            above = Some(between);
        }
        let (certificate, key) = own(name, above.as_ref().unwrap_or(&self.issuer));
        chain.insert(0, certificate.pem());
        self.store(&format!("{name}-{intermediates}"), &chain, &key)
    }

    /// A certificate for `name` that this authority has not signed, with so many `intermediates` beside it that could each have
    /// signed each other, and so many `others`.
    ///
    /// # Panics
    ///
    /// When there is no place for the files.
    #[must_use]
    pub fn forge(&self, name: &str, intermediates: usize, others: usize) -> Certified {
        let signer = intermediate("forger", &self.issuer);
        let (certificate, key) = own(name, &signer);
        let mut chain = vec![certificate.pem()];
        chain.extend((0..intermediates).map(|_| intermediate("forger", &signer).pem()));
        let other = intermediate("other", &signer).pem();
        chain.extend((0..others).map(|_| other.clone()));
        let name = format!("{name}-{intermediates}-{others}");
        self.store(&name, &chain, &key)
    }

    /// Writes the files of a certificate.
    fn store(&self, name: &str, chain: &[String], key: &KeyPair) -> Certified {
        let path = |what: &str| self.directory.path().join(format!("{name}-{what}.pem"));
        let certified = Certified {
            certificate: path("certificate"),
            key: path("key"),
        };
        fs::write(&certified.certificate, chain.concat()).expect("a file");
        fs::write(&certified.key, key.serialize_pem()).expect("a file");
        certified
    }

    /// That of a client which trusts this authority alone, and says who it is with `client`.
    ///
    /// # Panics
    ///
    /// When the files are gone.
    #[must_use]
    pub fn config(&self, client: Option<&Certified>) -> Arc<ClientConfig> {
        let mut roots = RootCertStore::empty();
        let own = CertificateDer::from_slice(self.issuer.der());
        roots.add(own).expect("an authority");
        let provider = Arc::new(rustls::crypto::ring::default_provider());
        let verifier =
            WebPkiServerVerifier::builder_with_provider(Arc::new(roots), Arc::clone(&provider));
        let verifier = BoundedVerifier::new(verifier.build().expect("an authority"));
        let config = ClientConfig::builder_with_provider(provider)
            .with_safe_default_protocol_versions()
            .expect("versions of TLS")
            .dangerous()
            .with_custom_certificate_verifier(Arc::new(verifier));
        Arc::new(match client {
            None => config.with_no_client_auth(),
            Some(Certified { certificate, key }) => {
                let certificate = CertificateDer::from_pem_file(certificate).expect("a file");
                let key = PrivateKeyDer::from_pem_file(key).expect("a file");
                let config = config.with_client_auth_cert(vec![certificate], key);
                config.expect("a pair")
            }
        })
    }
}

/// A certificate for `name`, and its key.
fn own(name: &str, issuer: &Issuer<'_, KeyPair>) -> (Certificate, KeyPair) {
    let key = KeyPair::generate().expect("a key");
    let mut params = CertificateParams::new([name.to_owned()]).expect("a name");
    params.distinguished_name.push(DnType::CommonName, name);
    let certificate = params.signed_by(&key, issuer).expect("a certificate");
    (certificate, key)
}

/// The certificate of an authority whose own authority is `issuer`.
fn intermediate(name: &str, issuer: &Issuer<'_, KeyPair>) -> CertifiedIssuer<'static, KeyPair> {
    let mut params = CertificateParams::default();
    params.distinguished_name.push(DnType::CommonName, name);
    params.is_ca = IsCa::Ca(BasicConstraints::Unconstrained);
    let key = KeyPair::generate_for(&PKCS_ED25519).expect("a key");
    CertifiedIssuer::signed_by(params, key, issuer).expect("a certificate")
}

impl TlsServer {
    /// Starts a server whose certificate is signed by `authority`. If it `asks`, as servers do unless they are told
    /// otherwise, clients have to show one as well.
    ///
    /// # Panics
    ///
    /// When no server can be started.
    #[must_use]
    pub fn start(authority: &Authority, asks: bool) -> Self {
        Self::start_as(&authority.sign("127.0.0.1"), authority, asks)
    }

    /// Like [`start`](Self::start), with this certificate.
    ///
    /// # Panics
    ///
    /// When no server can be started.
    #[must_use]
    pub fn start_as(own: &Certified, authority: &Authority, asks: bool) -> Self {
        let server = Server::start();
        let port = server.listen_with_tls(own, authority, asks);
        Self { server, port }
    }

    /// Where it speaks TLS.
    #[must_use]
    pub fn tls_url(&self) -> String {
        format!("rediss://127.0.0.1:{}", self.port)
    }
}

impl Server {
    /// Lets the server speak TLS as well, with this certificate. Returns the port. If it `asks`, clients have to show a certificate
    /// of `authority` as well.
    ///
    /// # Panics
    ///
    /// When the server refuses.
    #[must_use]
    pub fn listen_with_tls(&self, own: &Certified, authority: &Authority, asks: bool) -> u16 {
        // One that was free a moment ago, and that no other server of this process gets.
        let port = Self::start().port();
        let shown = |path: &Path| path.display().to_string();
        let mut words = ["CONFIG", "SET"].map(str::to_owned).to_vec();
        for (name, value) in [
            ("tls-cert-file", shown(&own.certificate)),
            ("tls-key-file", shown(&own.key)),
            ("tls-ca-cert-file", shown(&authority.certificate())),
            (
                "tls-auth-clients",
                if asks { "yes" } else { "no" }.to_owned(),
            ),
            ("tls-port", port.to_string()),
        ] {
            words.extend([name.to_owned(), value]);
        }
        assert_eq!(self.query::<String>(&words).expect("CONFIG SET"), "OK");
        port
    }
}

impl Deref for TlsServer {
    type Target = Server;

    fn deref(&self) -> &Server {
        &self.server
    }
}

/// Connects `count` clients to one server at once. Returns them, and how long it took until the last one had taken a lock.
///
/// # Panics
///
/// When the URL is none.
pub async fn connect_storm(
    url: &str,
    options: Options,
    tls: &Arc<ClientConfig>,
    count: usize,
) -> (Vec<Redlock>, Duration) {
    let start = Instant::now();
    let clients: Vec<_> = (0..count)
        .map(|_| Redlock::connect_with_tls([url], options, tls).expect("a URL"))
        .collect();
    let tasks = clients.iter().cloned().enumerate().map(|(number, client)| {
        tokio::spawn(async move {
            let key = format!("storm-{number}");
            while client.try_acquire(&key).await.is_err() {
                tokio::time::sleep(Duration::from_millis(20)).await;
            }
        })
    });
    let tasks: Vec<_> = tasks.collect();
    for task in tasks {
        task.await.expect("a task that ends");
    }
    (clients, start.elapsed())
}
