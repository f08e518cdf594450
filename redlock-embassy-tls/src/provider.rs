//! What embedded-tls asks for in a handshake: random numbers, and whether the server is the right one.

use core::fmt;
use core::sync::atomic::AtomicUsize;
use core::sync::atomic::Ordering::Relaxed;
use core::time::Duration;

#[cfg(feature = "client-certificate")]
use embedded_tls::Certificate;
use embedded_tls::{
    Aes128GcmSha256, CertificateEntryRef, CertificateRef, CertificateVerifyRef, CryptoProvider,
    CryptoRngCore, Sha256, SignatureScheme, TlsError, TlsVerifier,
};
use heapless::Vec;
use p256::ecdsa::signature::Verifier as _;
use p256::ecdsa::{DerSignature, Signature, VerifyingKey};
#[cfg(feature = "client-certificate")]
use p256::ecdsa::{SigningKey, signature::SignerMut};
use redlock_embassy::Entropy;
use rustls_pki_types::{
    AlgorithmIdentifier, CertificateDer, InvalidSignature, SignatureVerificationAlgorithm,
    TrustAnchor, UnixTime, alg_id,
};
use sha2::Digest;
use webpki::{EndEntityCert, Error, KeyUsage};

use crate::TlsFailure;
use crate::options::TlsOptions;
use crate::random::Random;

/// What one handshake needs, and what the server has shown and proven in it.
///
/// embedded-tls checks the certificate that a server shows, but does not require that it shows one, nor that it proves that
/// the certificate is its own.
pub(crate) struct Provider<'a, 'o, E> {
    #[cfg(feature = "client-certificate")]
    options: &'a TlsOptions<'o>,
    entropy: &'a mut E,
    has_failed: bool,
    verifier: Verifier<'a, 'o>,
}

/// How many certificates a server may show: its own, two intermediate CAs and the root. And how many of their signatures are verified
/// at most. Each takes time, before the server has proven anything.
const CHAIN_MAX: usize = 4;

pub(crate) struct Verifier<'a, 'o> {
    options: &'a TlsOptions<'o>,
    /// The key of the certificate that was shown and is valid, and the hash of the handshake up to there. It has to be proven.
    shown: Option<(VerifyingKey, Sha256)>,
    is_proven: bool,
    /// Why the server was refused.
    failure: Option<TlsFailure>,
}

impl<'a, 'o, E> Provider<'a, 'o, E> {
    pub(crate) const fn new(options: &'a TlsOptions<'o>, entropy: &'a mut E) -> Self {
        Self {
            #[cfg(feature = "client-certificate")]
            options,
            entropy,
            has_failed: false,
            verifier: Verifier {
                options,
                shown: None,
                is_proven: false,
                failure: None,
            },
        }
    }

    /// The certificate of the device and its key, once the server has proven who it is. With random numbers that can be guessed,
    /// others could read them too.
    #[cfg(feature = "client-certificate")]
    const fn client(&self) -> Option<&(&'o [u8], SigningKey)> {
        match self.verifier.is_proven && !self.has_failed {
            true => self.options.client.as_ref(),
            false => None,
        }
    }

    /// Whether the server is the right one, after a handshake with this result.
    pub(crate) fn conclude(self, opened: Result<(), TlsError>) -> Result<(), TlsFailure> {
        if self.has_failed {
            return Err(TlsFailure::Entropy);
        }
        if let Some(failure) = self.verifier.failure {
            return Err(failure);
        }
        opened.map_err(TlsFailure::of)?;
        match self.verifier.is_proven {
            true => Ok(()),
            false => Err(TlsFailure::NotProven),
        }
    }
}

impl Verifier<'_, '_> {
    /// Remembers why the server is refused, which embedded-tls cannot say.
    fn refuse(&mut self, failure: TlsFailure) -> TlsError {
        self.failure = Some(failure);
        TlsError::InvalidCertificate
    }

    /// The key of a certificate chain that is valid.
    fn check(&self, chain: &CertificateRef<'_>) -> Result<VerifyingKey, TlsFailure> {
        let mut certificates = Vec::<_, CHAIN_MAX>::new();
        for entry in &chain.entries {
            let CertificateEntryRef::X509(bytes) = entry else {
                return Err(TlsFailure::InvalidCertificate);
            };
            certificates
                .push(CertificateDer::from_slice(bytes))
                .map_err(|_| TlsFailure::UnknownIssuer)?;
        }
        let (own, others) = certificates.split_first().ok_or(TlsFailure::NotProven)?;
        let server = EndEntityCert::try_from(own).map_err(refusal)?;
        let ca = webpki::anchor_from_trusted_cert(&self.options.ca).map_err(refusal)?;
        let algorithm = EcdsaP256Sha256::new(CHAIN_MAX);
        let anchors = core::slice::from_ref(&ca);
        let verify = |time| verify_at(time, &server, others, anchors, &algorithm);
        match (self.options.now)() {
            Some(now) => verify(now),
            None => at_some_time(&certificates, verify, &algorithm),
        }
        .map_err(refusal)?;
        server
            .verify_is_valid_for_subject_name(&self.options.name)
            .map_err(refusal)?;
        key_of(own).ok_or(TlsFailure::WrongKey)
    }
}

// `inline(never)`: two callers, one copy of the path building in flash.
#[inline(never)]
fn verify_at(
    time: Duration,
    certificate: &EndEntityCert<'_>,
    others: &[CertificateDer<'_>],
    anchors: &[TrustAnchor<'_>],
    algorithm: &EcdsaP256Sha256,
) -> Result<(), Error> {
    let verified = certificate.verify_for_usage(
        &[algorithm],
        anchors,
        others,
        UnixTime::since_unix_epoch(time),
        KeyUsage::server_auth(),
        None,
        None,
    );
    verified.map(drop)
}

/// Verifies at each moment at which one of the certificates begins to be valid, until they are valid together. So the dates of a
/// chain have to overlap, and nothing else is known of the time.
fn at_some_time(
    certificates: &[CertificateDer<'_>],
    verify: impl Fn(Duration) -> Result<(), Error>,
    algorithm: &EcdsaP256Sha256,
) -> Result<(), Error> {
    let mut time = Duration::ZERO;
    loop {
        let verified = verify(time);
        let begins = certificates
            .iter()
            .filter_map(|certificate| begin_of(certificate, algorithm));
        match begins.filter(|begin| *begin > time).min() {
            Some(next) if verified.is_err() => time = next,
            _ => return verified,
        }
    }
}

/// When a certificate begins to be valid. `None` if that is the beginning of 1970, or if it cannot be read.
fn begin_of(certificate: &CertificateDer<'_>, algorithm: &EcdsaP256Sha256) -> Option<Duration> {
    let certificate = EndEntityCert::try_from(certificate).ok()?;
    // webpki checks the dates before all else. Without an anchor, it verifies no signature.
    match verify_at(Duration::ZERO, &certificate, &[], &[], algorithm) {
        Err(Error::CertNotValidYet { not_before, .. }) => {
            Some(Duration::from_secs(not_before.as_secs()))
        }
        _ => None,
    }
}

#[expect(
    clippy::needless_pass_by_value,
    reason = "it is given to map_err, which passes a value"
)]
fn refusal(error: Error) -> TlsFailure {
    match error {
        Error::UnknownIssuer
        // A CA with the same name and another key.
        | Error::InvalidSignatureForPublicKey
        | Error::MaximumPathDepthExceeded => TlsFailure::UnknownIssuer,
        Error::CertNotValidForName(_) => TlsFailure::WrongName,
        Error::CertExpired { .. } | Error::CertNotValidYet { .. } => TlsFailure::WrongTime,
        Error::UnsupportedSignatureAlgorithmContext(_)
        | Error::UnsupportedSignatureAlgorithmForPublicKeyContext(_) => TlsFailure::WrongKey,
        _ => TlsFailure::InvalidCertificate,
    }
}

/// The P-256 key in a certificate, whose structure has been checked. `None` if it is another kind of key.
fn key_of(certificate: &[u8]) -> Option<VerifyingKey> {
    /// In DER: a sequence, the identifier of ECDSA on P-256, and a string of 65 bytes.
    const BEFORE_POINT: [u8; 26] = [
        0x30, 0x59, 0x30, 0x13, 0x06, 0x07, 0x2A, 0x86, 0x48, 0xCE, 0x3D, 0x02, 0x01, 0x06, 0x08,
        0x2A, 0x86, 0x48, 0xCE, 0x3D, 0x03, 0x01, 0x07, 0x03, 0x42, 0x00,
    ];
    /// The version, which only a certificate of version 3 has, and a server has no other.
    const VERSION: u8 = 0xA0;
    /// Of the fields before the key: serial number, signature, issuer, validity, subject.
    const FIELDS: usize = 5;

    let (_, outer, _) = element(certificate)?;
    let (_, mut rest, _) = element(outer)?;
    let (tag, _, after) = element(rest)?;
    if tag == VERSION {
        rest = after;
    }
    for _ in 0..FIELDS {
        (_, _, rest) = element(rest)?;
    }
    let (_, _, after) = element(rest)?;
    let key = rest.get(..rest.len() - after.len())?;
    VerifyingKey::from_sec1_bytes(key.strip_prefix(&BEFORE_POINT)?).ok()
}

/// The first element of some DER: its tag, its content, and what follows it.
fn element(der: &[u8]) -> Option<(u8, &[u8], &[u8])> {
    let (&[tag, short], rest) = der.split_first_chunk()?;
    let (len, rest) = match short {
        ..=0x7F => (usize::from(short), rest),
        0x81 => {
            let (&len, rest) = rest.split_first()?;
            (usize::from(len), rest)
        }
        0x82 => {
            let (&len, rest) = rest.split_first_chunk()?;
            (usize::from(u16::from_be_bytes(len)), rest)
        }
        _ => return None,
    };
    let (content, rest) = rest.split_at_checked(len)?;
    Some((tag, content, rest))
}

/// The one kind of signature in certificates. Verifies only so many, because webpki tries every path through certificates that have
/// equal names, and a server without a certificate of the CA may show such ones.
struct EcdsaP256Sha256 {
    /// It is only read and written, one after the other: webpki asks that it is `Sync`, and a Cortex-M0 can do no more.
    left: AtomicUsize,
}

impl EcdsaP256Sha256 {
    const fn new(signatures: usize) -> Self {
        Self {
            left: AtomicUsize::new(signatures),
        }
    }
}

/// webpki asks for it. A derived one would bring the formatting of numbers into the firmware.
impl fmt::Debug for EcdsaP256Sha256 {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("EcdsaP256Sha256")
    }
}

impl SignatureVerificationAlgorithm for EcdsaP256Sha256 {
    fn public_key_alg_id(&self) -> AlgorithmIdentifier {
        alg_id::ECDSA_P256
    }

    fn signature_alg_id(&self) -> AlgorithmIdentifier {
        alg_id::ECDSA_SHA256
    }

    fn verify_signature(
        &self,
        public_key: &[u8],
        message: &[u8],
        signature: &[u8],
    ) -> Result<(), InvalidSignature> {
        let left = self.left.load(Relaxed).checked_sub(1);
        self.left.store(left.ok_or(InvalidSignature)?, Relaxed);
        let key = VerifyingKey::from_sec1_bytes(public_key).map_err(|_| InvalidSignature)?;
        let signature = Signature::from_der(signature).map_err(|_| InvalidSignature)?;
        key.verify(message, &signature)
            .map_err(|_| InvalidSignature)
    }
}

impl TlsVerifier<Aes128GcmSha256> for Verifier<'_, '_> {
    fn set_hostname_verification(&mut self, _name: &str) -> Result<(), TlsError> {
        // The name of the options is checked, which may be an IP address.
        Ok(())
    }

    fn verify_certificate(
        &mut self,
        transcript: &Sha256,
        certificate: CertificateRef<'_>,
    ) -> Result<(), TlsError> {
        if self.shown.is_some() || self.is_proven {
            return Err(self.refuse(TlsFailure::NotProven));
        }
        let key = self.check(&certificate);
        let key = key.map_err(|failure| self.refuse(failure))?;
        self.shown = Some((key, transcript.clone()));
        Ok(())
    }

    fn verify_signature(&mut self, proof: CertificateVerifyRef<'_>) -> Result<(), TlsError> {
        const TITLE: &[u8; 34] = b"TLS 1.3, server CertificateVerify\0";

        let Some((key, transcript)) = self.shown.take() else {
            return Err(self.refuse(TlsFailure::NotProven));
        };
        let mut message = [b' '; 64 + TITLE.len() + 32];
        message[64..][..TITLE.len()].copy_from_slice(TITLE);
        message[64 + TITLE.len()..].copy_from_slice(&transcript.finalize());
        let signature = Signature::from_der(proof.signature);
        self.is_proven = proof.signature_scheme == SignatureScheme::EcdsaSecp256r1Sha256
            && signature.is_ok_and(|signature| key.verify(&message, &signature).is_ok());
        match self.is_proven {
            true => Ok(()),
            false => Err(self.refuse(TlsFailure::NotProven)),
        }
    }
}

impl<'a, 'o, E: Entropy> CryptoProvider for Provider<'a, 'o, E> {
    type CipherSuite = Aes128GcmSha256;
    type Signature = DerSignature;

    fn rng(&mut self) -> impl CryptoRngCore {
        Random::new(self.entropy, &mut self.has_failed)
    }

    fn verifier(&mut self) -> Result<&mut impl TlsVerifier<Aes128GcmSha256>, TlsError> {
        Ok(&mut self.verifier)
    }

    #[cfg(feature = "client-certificate")]
    fn signer(&mut self) -> Result<(impl SignerMut<DerSignature>, SignatureScheme), TlsError> {
        let (_, key) = self.client().ok_or(TlsError::InvalidPrivateKey)?;
        Ok((key.clone(), SignatureScheme::EcdsaSecp256r1Sha256))
    }

    #[cfg(feature = "client-certificate")]
    fn client_cert(&mut self) -> Option<Certificate<impl AsRef<[u8]>>> {
        let (certificate, _) = self.client()?;
        Some(Certificate::X509(*certificate))
    }
}

#[cfg(test)]
mod tests {
    extern crate std;

    #[cfg(not(feature = "client-certificate"))]
    use p256::ecdsa::SigningKey;
    use p256::ecdsa::signature::Signer as _;

    use super::*;

    /// A CA in DER: the tests with real servers have others, and verify chains.
    const CA: &[u8] = include_bytes!("ca.der");

    #[test]
    fn a_server_has_to_show_a_certificate_and_then_prove_that_it_is_its_own() {
        let options = TlsOptions::new(CA, "server").unwrap();
        for (steps, is_let_in) in [
            ("", false),
            ("certificate", false),
            ("proof", false),
            ("certificate proof", true),
            ("certificate other", false),
            ("certificate scheme", false),
            ("certificate proof certificate", false),
            ("certificate proof proof", false),
            ("certificate proof other", false),
        ] {
            let mut entropy = |_: &mut [u8]| ();
            let mut provider = Provider::new(&options, &mut entropy);
            let key = SigningKey::from_slice(&[7; 32]).unwrap();
            let done = steps.split_whitespace().try_for_each(|step| {
                let verifier = &mut provider.verifier;
                if step == "certificate" {
                    if verifier.shown.is_some() || verifier.is_proven {
                        let none = CertificateRef::with_context(&[]);
                        return verifier.verify_certificate(&Sha256::default(), none);
                    }
                    // As if the certificate had been valid.
                    verifier.shown = Some((*key.verifying_key(), Sha256::default()));
                    return Ok(());
                }
                let mut message = std::vec![b' '; 64];
                message.extend(b"TLS 1.3, server CertificateVerify\0");
                message.extend(Sha256::default().finalize());
                if step == "other" {
                    message[0] ^= 1;
                }
                let signature: DerSignature = key.sign(&message);
                verifier.verify_signature(CertificateVerifyRef {
                    signature_scheme: match step {
                        "scheme" => SignatureScheme::EcdsaSecp384r1Sha384,
                        _ => SignatureScheme::EcdsaSecp256r1Sha256,
                    },
                    signature: signature.as_bytes(),
                })
            });
            let concluded = provider.conclude(done);
            let expected = match is_let_in {
                true => Ok(()),
                false => Err(TlsFailure::NotProven),
            };
            assert_eq!(concluded, expected, "{steps}");
        }
    }

    #[test]
    fn a_chain_without_certificates_or_with_too_many_is_refused() {
        let options = TlsOptions::new(CA, "server").unwrap();
        for (count, failure) in [
            (0, TlsFailure::NotProven),
            (CHAIN_MAX + 1, TlsFailure::UnknownIssuer),
        ] {
            let mut entropy = |_: &mut [u8]| ();
            let mut provider = Provider::new(&options, &mut entropy);
            let mut chain = CertificateRef::with_context(&[]);
            for _ in 0..count {
                chain.add(CertificateEntryRef::X509(CA)).unwrap();
            }
            let shown = provider
                .verifier
                .verify_certificate(&Sha256::default(), chain);
            assert_eq!(provider.conclude(shown), Err(failure));
        }
    }

    #[test]
    fn only_so_many_signatures_of_certificates_are_verified_as_a_chain_may_have() {
        let key = SigningKey::from_slice(&[7; 32]).unwrap();
        let signature: DerSignature = key.sign(b"certificate");
        let point = key.verifying_key().to_encoded_point(false);
        let algorithm = EcdsaP256Sha256::new(CHAIN_MAX);
        let verify = |message: &[u8]| {
            algorithm.verify_signature(point.as_bytes(), message, signature.as_bytes())
        };
        for number in 1..=CHAIN_MAX {
            // Also those that are wrong are counted.
            match number % 2 == 0 {
                true => assert!(verify(b"another").is_err()),
                false => assert!(verify(b"certificate").is_ok()),
            }
        }
        assert!(verify(b"certificate").is_err());
    }

    #[test]
    fn a_chain_is_tried_at_each_beginning_in_the_order_of_time() {
        const YEAR: u64 = 365 * 86_400;

        let certificates = [CertificateDer::from_slice(CA)];
        let algorithm = &EcdsaP256Sha256::new(0);
        let begin = begin_of(&certificates[0], algorithm).unwrap();
        assert!(begin > Duration::from_secs(50 * YEAR), "{begin:?}");
        let cut_off = CertificateDer::from_slice(&CA[..90]);
        assert_eq!(begin_of(&cut_off, algorithm), None);
        let tried = core::cell::RefCell::new(std::vec::Vec::new());
        let verify = |is_valid: fn(Duration) -> bool| {
            tried.take();
            let verify = |time| {
                tried.borrow_mut().push(time);
                is_valid(time).then_some(()).ok_or(Error::UnknownIssuer)
            };
            at_some_time(&certificates, verify, algorithm)
        };
        assert_eq!(verify(|time| time.is_zero()), Ok(()));
        assert_eq!(tried.borrow()[..], [Duration::ZERO]);
        assert_eq!(verify(|time| !time.is_zero()), Ok(()));
        assert_eq!(tried.borrow()[..], [Duration::ZERO, begin]);
        assert_eq!(verify(|_| false), Err(Error::UnknownIssuer));
        assert_eq!(tried.borrow()[..], [Duration::ZERO, begin]);
    }

    #[cfg(feature = "client-certificate")]
    #[test]
    fn the_certificate_of_the_device_is_only_for_a_server_that_has_proven_who_it_is() {
        let options = TlsOptions::new(CA, "server").unwrap();
        let options = options.client_certificate(CA, &[7; 32]).unwrap();
        for (is_proven, has_failed, is_shown) in [
            (false, false, false),
            (true, false, true),
            (true, true, false),
        ] {
            let mut entropy = |_: &mut [u8]| ();
            let mut provider = Provider::new(&options, &mut entropy);
            provider.verifier.is_proven = is_proven;
            provider.has_failed = has_failed;
            assert_eq!(provider.client_cert().is_some(), is_shown);
            assert_eq!(provider.signer().is_ok(), is_shown);
        }
    }

    #[test]
    fn the_key_in_a_certificate_that_is_cut_off_anywhere_is_none() {
        assert!(key_of(CA).is_some());
        let last = CA.len() - 1;
        for len in 0..last {
            assert!(key_of(&CA[..len]).is_none(), "{len}");
        }
    }
}
