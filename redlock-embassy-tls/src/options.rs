//! Which server a session accepts.

use core::fmt;
use core::time::Duration;

#[cfg(feature = "client-certificate")]
use p256::ecdsa::SigningKey;
use rustls_pki_types::{CertificateDer, ServerName};

/// The server that a session accepts, and what the device shows to it.
#[derive(Clone)]
pub struct TlsOptions<'a> {
    pub(crate) ca: CertificateDer<'a>,
    pub(crate) name: ServerName<'a>,
    /// The name that the server is told, so that it can choose a certificate. `None` if the name is an IP address.
    pub(crate) told: Option<&'a str>,
    pub(crate) now: fn() -> Option<Duration>,
    #[cfg(feature = "client-certificate")]
    pub(crate) client: Option<(&'a [u8], SigningKey)>,
}

impl<'a> TlsOptions<'a> {
    /// Accepts only a server whose certificate is for `name`, and is signed by `ca` or by an intermediate CA below it.
    ///
    /// `ca` is the certificate of the CA in DER, which the firmware carries. `name` is a DNS name or an IP address, without a
    /// port.
    ///
    /// # Errors
    ///
    /// Fails if `ca` cannot be read, or if `name` is no name.
    pub fn new(ca: &'a [u8], name: &'a str) -> Result<Self, InvalidTlsOptions> {
        let parsed = ServerName::try_from(name).map_err(|_| InvalidTlsOptions::Name)?;
        let told = matches!(parsed, ServerName::DnsName(_)).then_some(name);
        let ca = CertificateDer::from_slice(ca);
        webpki::anchor_from_trusted_cert(&ca).map_err(|_| InvalidTlsOptions::Ca)?;
        Ok(Self {
            ca,
            name: parsed,
            told,
            now: || None,
            #[cfg(feature = "client-certificate")]
            client: None,
        })
    }

    /// Checks the dates of certificates by this clock: the time since 1970 in UTC, or `None` while the device does not know
    /// it. By default, it never knows it.
    ///
    /// Without the time, a certificate that has expired is accepted; so is one that was stolen and replaced.
    #[must_use]
    pub const fn clock(mut self, now: fn() -> Option<Duration>) -> Self {
        self.now = now;
        self
    }

    /// Shows this certificate to a server that asks for one, as Redis does unless `tls-auth-clients` is `no`. By default, the
    /// device has no certificate.
    ///
    /// `certificate` is in DER. `key` is its private key: the 32 bytes of a P-256 scalar, most significant byte first.
    ///
    /// # Errors
    ///
    /// Fails if `key` is no P-256 key.
    #[cfg(feature = "client-certificate")]
    pub fn client_certificate(
        mut self,
        certificate: &'a [u8],
        key: &[u8; 32],
    ) -> Result<Self, InvalidTlsOptions> {
        let key = SigningKey::from_slice(key).map_err(|_| InvalidTlsOptions::Key)?;
        self.client = Some((certificate, key));
        Ok(self)
    }
}

impl fmt::Debug for TlsOptions<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        // No key.
        f.debug_struct("TlsOptions")
            .field("name", &self.name)
            .finish_non_exhaustive()
    }
}

#[cfg(feature = "defmt")]
impl defmt::Format for TlsOptions<'_> {
    fn format(&self, f: defmt::Formatter<'_>) {
        defmt::write!(f, "TlsOptions({})", self.told.unwrap_or("an IP address"));
    }
}

/// Why [`TlsOptions`] are invalid.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
#[cfg_attr(feature = "defmt", derive(defmt::Format))]
#[non_exhaustive]
pub enum InvalidTlsOptions {
    /// The CA is no certificate in DER.
    Ca,
    /// The name is neither a DNS name nor an IP address.
    Name,
    /// The key is no P-256 key.
    Key,
}

impl fmt::Display for InvalidTlsOptions {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Self::Ca => "the CA is not a certificate in DER",
            Self::Name => "the name is neither a DNS name nor an IP address",
            Self::Key => "the key of the device is not a P-256 key",
        })
    }
}

impl core::error::Error for InvalidTlsOptions {}
