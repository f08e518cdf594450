//! The limit for the certificates that a node shows.

use std::sync::Arc;

use rustls::client::danger::{HandshakeSignatureValid, ServerCertVerified, ServerCertVerifier};
use rustls::pki_types::{CertificateDer, ServerName, UnixTime};
use rustls::{DigitallySignedStruct, DistinguishedName, Error, SignatureScheme};

/// A verifier that refuses a node with too many certificates, and leaves everything else to another verifier.
///
/// rustls verifies certificates inside of the handshake, on a thread of the runtime, and no timeout interrupts that. Its verifier
/// tries each order in which certificates could have signed each other: a few hundred small certificates that no authority has
/// signed keep the thread busy for seconds. So use this verifier for the configuration of
/// [`Redlock::connect_with_tls`](crate::Redlock::connect_with_tls), which has an example. [`Redlock::connect`](crate::Redlock::connect)
/// uses it.
#[derive(Debug)]
pub struct BoundedVerifier {
    inner: Arc<dyn ServerCertVerifier>,
}

impl BoundedVerifier {
    /// The number of certificates that a node may send beside its own: three intermediates and the root, or another signature of
    /// one of them. Each one more multiplies the time of the longest search by five, up to the limits of rustls.
    pub const MAX_INTERMEDIATES: usize = 4;

    /// The number of bytes of these certificates: one with a key and a signature of RSA with 4,096 bits has about 2,000. The search
    /// parses each of them up to 65 times.
    pub const MAX_INTERMEDIATE_BYTES: usize = 16 * 1024;

    /// Returns a verifier that leaves everything but the limits to `inner`, for example to a
    /// [`WebPkiServerVerifier`](rustls::client::WebPkiServerVerifier).
    #[must_use]
    pub const fn new(inner: Arc<dyn ServerCertVerifier>) -> Self {
        Self { inner }
    }
}

impl ServerCertVerifier for BoundedVerifier {
    fn verify_server_cert(
        &self,
        end_entity: &CertificateDer<'_>,
        intermediates: &[CertificateDer<'_>],
        server_name: &ServerName<'_>,
        ocsp_response: &[u8],
        now: UnixTime,
    ) -> Result<ServerCertVerified, Error> {
        let count = intermediates.len();
        let bytes: usize = intermediates.iter().map(|der| der.len()).sum();
        if count > Self::MAX_INTERMEDIATES || bytes > Self::MAX_INTERMEDIATE_BYTES {
            return Err(Error::General(format!(
                "the server sent {count} intermediate certificates ({bytes} bytes), more than {} ({} bytes); have it send only \
                 those between its own and the authority",
                Self::MAX_INTERMEDIATES,
                Self::MAX_INTERMEDIATE_BYTES,
            )));
        }
        self.inner
            .verify_server_cert(end_entity, intermediates, server_name, ocsp_response, now)
    }

    fn verify_tls12_signature(
        &self,
        message: &[u8],
        certificate: &CertificateDer<'_>,
        signature: &DigitallySignedStruct,
    ) -> Result<HandshakeSignatureValid, Error> {
        self.inner
            .verify_tls12_signature(message, certificate, signature)
    }

    fn verify_tls13_signature(
        &self,
        message: &[u8],
        certificate: &CertificateDer<'_>,
        signature: &DigitallySignedStruct,
    ) -> Result<HandshakeSignatureValid, Error> {
        self.inner
            .verify_tls13_signature(message, certificate, signature)
    }

    fn supported_verify_schemes(&self) -> Vec<SignatureScheme> {
        self.inner.supported_verify_schemes()
    }

    fn requires_raw_public_keys(&self) -> bool {
        self.inner.requires_raw_public_keys()
    }

    fn root_hint_subjects(&self) -> Option<&[DistinguishedName]> {
        self.inner.root_hint_subjects()
    }
}
