//! Errors of requests.

use std::io;

use skep_api::{ErrorBody, ErrorCode, ErrorKind, Failure};

/// The result of every request.
pub type Result<T> = std::result::Result<T, Error>;

/// Why a request failed.
#[derive(Debug, thiserror::Error)]
pub enum Error {
    /// The server's address is not a valid http or https URL.
    #[error("`{url}` is not the address of a server; give one such as http://127.0.0.1:7700")]
    Url {
        /// The given address.
        url: String,
    },
    /// The key contains characters that are not valid in a header.
    #[error("the key holds characters that no key has; check it for blanks and line ends")]
    Key,
    /// The given roots contain no certificate in PEM format.
    #[error("no certificate in PEM format was found; give the server's certificate or that of its issuer")]
    Roots,
    /// The connection could not be established, or ended before the answer was complete.
    #[error("no server answers at {url} ({why}); start one with `skep serve`, or set SKEP_URL")]
    Unreachable {
        /// The server's address.
        url: String,
        /// The kind of the failure.
        fault: ConnectionFault,
        /// The innermost error, from the network or from TLS.
        why: String,
    },
    /// The server answered with an error.
    #[error("{}", body.message)]
    Refused {
        /// The HTTP status; 200 for an error inside a stream.
        status: u16,
        /// The stable code; `None` if it is unknown, because another server or a newer version answered.
        code: Option<ErrorCode>,
        /// The id of the request, which is also in the server's log.
        request_id: Option<String>,
        /// The body of the error.
        body: ErrorBody,
    },
    /// The connection was not upgraded to a WebSocket.
    #[error(
        "the connection to {url} was not switched to a WebSocket (status {status}); a proxy in front of the server must pass on \
         the headers `Connection: Upgrade` and `Upgrade: websocket`"
    )]
    NotUpgraded {
        /// The server's address.
        url: String,
        /// The HTTP status of the answer.
        status: u16,
    },
    /// The answer does not have the expected form.
    #[error("{url} sent an unexpected answer ({why}); is it a skep server of this version?")]
    UnexpectedAnswer {
        /// The server's address, or the stream with the wrong event.
        url: String,
        /// What is wrong with the answer.
        why: String,
    },
}

/// Why a connection to the server failed.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum ConnectionFault {
    /// The connection was refused: nothing listens at the address.
    Refused,
    /// The connection attempt timed out.
    Timeout,
    /// The server's certificate was not issued by a trusted certificate authority.
    UnknownIssuer,
    /// The server's certificate is invalid, for example for another host name or expired.
    WrongCertificate,
    /// The server does not use TLS at this address.
    NotTls,
    /// Any other failure, such as a host name without an address.
    Other,
}

impl ConnectionFault {
    /// Classifies an error by the first known cause in its chain.
    pub(crate) fn classify(error: &reqwest::Error) -> Self {
        let mut at: Option<&(dyn std::error::Error + 'static)> = Some(error);
        while let Some(cause) = at {
            if let Some(tls) = cause.downcast_ref() {
                return Self::classify_tls(tls);
            }
            if let Some(kind) = cause.downcast_ref::<io::Error>().map(io::Error::kind) {
                match kind {
                    io::ErrorKind::ConnectionRefused => return Self::Refused,
                    io::ErrorKind::TimedOut => return Self::Timeout,
                    _ => {}
                }
            }
            at = cause_of(cause);
        }
        if error.is_timeout() { Self::Timeout } else { Self::Other }
    }

    fn classify_tls(error: &rustls::Error) -> Self {
        match error {
            rustls::Error::InvalidCertificate(rustls::CertificateError::UnknownIssuer) => Self::UnknownIssuer,
            rustls::Error::InvalidCertificate(_) => Self::WrongCertificate,
            rustls::Error::InvalidMessage(_) => Self::NotTls,
            _ => Self::Other,
        }
    }
}

/// The next error in a chain. `source` of an I/O error skips the error that it wraps, so that one is returned
/// instead.
fn cause_of<'error>(
    error: &'error (dyn std::error::Error + 'static),
) -> Option<&'error (dyn std::error::Error + 'static)> {
    match error.downcast_ref::<io::Error>().and_then(io::Error::get_ref) {
        Some(held) => Some(held),
        None => error.source(),
    }
}

impl Error {
    /// The stable code; `internal` if there is none.
    pub fn code(&self) -> ErrorCode {
        match self {
            Self::Url { .. } | Self::Roots => ErrorCode::InvalidValue,
            Self::Key => ErrorCode::InvalidToken,
            Self::Refused { code: Some(code), .. } => *code,
            Self::NotUpgraded { .. } => ErrorCode::UpgradeRequired,
            Self::Unreachable { .. } | Self::Refused { .. } | Self::UnexpectedAnswer { .. } => {
                ErrorCode::Internal
            }
        }
    }

    /// The kind of [`Self::code`].
    pub fn kind(&self) -> ErrorKind {
        self.code().kind()
    }
}

impl From<Error> for Failure {
    fn from(error: Error) -> Self {
        Self::new(error.code(), error.to_string())
    }
}
