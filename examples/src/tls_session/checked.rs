//! Checks of a server that embedded-tls 0.19 leaves out.

use embedded_tls::{
    Certificate, CertificateRef, CertificateVerifyRef, CryptoProvider, CryptoRngCore,
    SignatureScheme, TlsCipherSuite, TlsError, TlsVerifier,
};
use signature::SignerMut;

/// The provider of the application, and what the server has shown and proven in one handshake.
///
/// embedded-tls checks the certificate that a server shows, but does not require that it shows one.
pub(super) struct Checked<'a, P> {
    provider: &'a mut P,
    is_shown: bool,
    is_proven: bool,
}

impl<'a, P: CryptoProvider> Checked<'a, P> {
    pub(super) const fn new(provider: &'a mut P) -> Self {
        Self {
            provider,
            is_shown: false,
            is_proven: false,
        }
    }

    /// Returns an error if the server is not verified after the handshake.
    pub(super) fn conclude(self) -> Result<(), TlsError> {
        if self.is_proven || self.provider.verifier().is_err() {
            Ok(())
        } else {
            Err(TlsError::InvalidCertificate)
        }
    }
}

impl<P: CryptoProvider> TlsVerifier<P::CipherSuite> for Checked<'_, P> {
    fn set_hostname_verification(&mut self, name: &str) -> Result<(), TlsError> {
        self.provider.verifier()?.set_hostname_verification(name)
    }

    fn verify_certificate(
        &mut self,
        transcript: &<P::CipherSuite as TlsCipherSuite>::Hash,
        certificate: CertificateRef<'_>,
    ) -> Result<(), TlsError> {
        let verifier = self.provider.verifier()?;
        verifier.verify_certificate(transcript, certificate)?;
        (self.is_shown, self.is_proven) = (true, false);
        Ok(())
    }

    fn verify_signature(&mut self, signature: CertificateVerifyRef<'_>) -> Result<(), TlsError> {
        // Verifiers of embedded-tls panic if no certificate comes before the proof, or if the proof comes twice.
        if !self.is_shown || self.is_proven {
            return Err(TlsError::InvalidHandshake);
        }
        self.provider.verifier()?.verify_signature(signature)?;
        self.is_proven = true;
        Ok(())
    }
}

impl<P: CryptoProvider> CryptoProvider for Checked<'_, P> {
    type CipherSuite = P::CipherSuite;
    type Signature = P::Signature;

    fn rng(&mut self) -> impl CryptoRngCore {
        self.provider.rng()
    }

    fn verifier(&mut self) -> Result<&mut impl TlsVerifier<P::CipherSuite>, TlsError> {
        self.provider.verifier()?;
        Ok(self)
    }

    fn signer(&mut self) -> Result<(impl SignerMut<P::Signature>, SignatureScheme), TlsError> {
        self.provider.signer()
    }

    fn client_cert(&mut self) -> Option<Certificate<impl AsRef<[u8]>>> {
        self.provider.client_cert()
    }
}

#[cfg(test)]
mod tests {
    use embedded_tls::{Aes128GcmSha256, NoVerify, Sha256, UnsecureProvider};

    use super::*;

    #[test]
    fn a_server_has_to_show_a_certificate_and_then_prove_that_it_is_its_own() {
        for (steps, is_let_in) in [
            ("", false),
            ("certificate", false),
            ("proof", false),
            ("proof certificate", false),
            ("certificate proof", true),
            ("certificate proof certificate", false),
            ("certificate proof proof", false),
        ] {
            let mut provider = Believing(NoVerify);
            let mut checked = Checked::new(&mut provider);
            let mut all = steps.split_whitespace();
            let done = all.try_for_each(|step| match step {
                "certificate" => checked
                    .verify_certificate(&Sha256::default(), CertificateRef::with_context(&[])),
                _ => checked.verify_signature(CertificateVerifyRef {
                    signature_scheme: SignatureScheme::EcdsaSecp256r1Sha256,
                    signature: &[],
                }),
            });
            let concluded = done.and_then(|()| checked.conclude());
            assert_eq!(concluded.is_ok(), is_let_in, "{steps}: {concluded:?}");
        }
    }

    #[test]
    fn without_a_verifier_everybody_is_let_in() {
        let mut provider = UnsecureProvider::new::<Aes128GcmSha256>(rand_core::OsRng);
        let mut checked = Checked::new(&mut provider);
        assert!(checked.verifier().is_err());
        assert!(checked.conclude().is_ok());
    }

    /// Believes every certificate and every proof.
    struct Believing(NoVerify);

    impl CryptoProvider for Believing {
        type CipherSuite = Aes128GcmSha256;
        type Signature = [u8; 0];

        fn rng(&mut self) -> impl CryptoRngCore {
            rand_core::OsRng
        }

        fn verifier(&mut self) -> Result<&mut impl TlsVerifier<Aes128GcmSha256>, TlsError> {
            Ok(&mut self.0)
        }
    }
}
