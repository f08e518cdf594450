//! Why a server was refused.

use core::fmt;

use embedded_io_async::ErrorKind;
use embedded_tls::TlsError;

/// Why a TLS connection could not be made, or ended.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
#[cfg_attr(feature = "defmt", derive(defmt::Format))]
#[non_exhaustive]
pub enum TlsFailure {
    /// The connection below TLS failed.
    Connection(ErrorKind),
    /// The server closed the connection.
    Ended,
    /// What the server sends is not TLS 1.3. It may be a plain server.
    NotTls,
    /// The server sent an alert: it may lack TLS 1.3, a key on P-256 (it may have an RSA key) or AES-128-GCM, or want a certificate of
    /// the device. A server that wants a certificate says so only after the device has sent its first command, and closes the
    /// connection. If TCP loses the alert, as it may when a connection is reset, this is [`Connection`](Self::Connection) instead.
    Rejected,
    /// A record of the server is longer than the read buffer, or a message of ours than the write buffer, or than the records that fit
    /// into the read buffer.
    TooLong,
    /// The certificate is not signed by the CA, or the chain to it is too long.
    UnknownIssuer,
    /// The certificate is for another name.
    WrongName,
    /// The certificate has expired, or is not valid yet.
    WrongTime,
    /// A key or a signature of the chain is not ECDSA on P-256 with SHA-256.
    WrongKey,
    /// The certificate is invalid in another way, or is not for servers.
    InvalidCertificate,
    /// The server did not prove that the certificate is its own.
    NotProven,
    /// The source of randomness failed.
    Entropy,
}

impl TlsFailure {
    /// Whether the server could not prove who it is.
    #[must_use]
    pub const fn is_refusal(self) -> bool {
        matches!(
            self,
            Self::UnknownIssuer
                | Self::WrongName
                | Self::WrongTime
                | Self::WrongKey
                | Self::InvalidCertificate
                | Self::NotProven
        )
    }

    /// The kind that a [`Connect`](redlock_embassy::Connect) reports, from which the lock makes its message.
    #[must_use]
    pub const fn kind(self) -> ErrorKind {
        match self {
            Self::Connection(kind) => kind,
            Self::Ended => ErrorKind::ConnectionAborted,
            Self::NotTls | Self::Rejected => ErrorKind::InvalidData,
            Self::TooLong => ErrorKind::OutOfMemory,
            Self::Entropy => ErrorKind::Unsupported,
            _ => ErrorKind::PermissionDenied,
        }
    }

    pub(crate) fn of(error: TlsError) -> Self {
        match error {
            TlsError::Io(kind) => Self::Connection(kind),
            TlsError::IoError | TlsError::ConnectionClosed => Self::Ended,
            // The second is an alert after the handshake.
            TlsError::HandshakeAborted(..) | TlsError::InternalError => Self::Rejected,
            // The last is a record of ours whose seal does not fit.
            TlsError::InsufficientSpace
            | TlsError::OutOfMemory
            | TlsError::EncodeError
            | TlsError::InvalidApplicationData => Self::TooLong,
            TlsError::InvalidSignature => Self::NotProven,
            _ => Self::NotTls,
        }
    }

    /// The text of `Display`.
    #[must_use]
    pub const fn text(self) -> &'static str {
        match self {
            Self::Connection(_) => "the connection below TLS failed",
            Self::Ended => "the server closed the connection",
            Self::NotTls => "the server does not speak TLS 1.3; is this its TLS port?",
            Self::Rejected => {
                "the server sent an alert: it has no TLS 1.3, has another key than P-256, for example RSA, or wants a certificate"
            }
            Self::TooLong => "a TLS record is longer than its buffer; use a larger one",
            Self::UnknownIssuer => "the certificate is not signed by the CA",
            Self::WrongName => "the certificate is for another name",
            Self::WrongTime => "the certificate has expired or is not valid yet",
            Self::WrongKey => "a key or a signature is not ECDSA P-256 with SHA-256",
            Self::InvalidCertificate => "the certificate is invalid, or not for a server",
            Self::NotProven => "the server did not prove that the certificate is its own",
            Self::Entropy => "the source of randomness failed",
        }
    }
}

impl fmt::Display for TlsFailure {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.text())
    }
}

impl core::error::Error for TlsFailure {}
