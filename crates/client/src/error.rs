//! Why a call brought no answer, or a refusal.

use std::io;

use skep_api::{ErrorBody, ErrorCode, ErrorKind, Failure};

/// What every call answers.
pub type Result<T> = std::result::Result<T, Error>;

/// Why a call brought no answer, or a refusal.
#[derive(Debug, thiserror::Error)]
pub enum Error {
    /// The address of the server is none.
    #[error("`{url}` is no address of a server; give one such as http://127.0.0.1:7700")]
    Url {
        /// What was given.
        url: String,
    },
    /// The key cannot stand in a header.
    #[error("the key holds characters that no key has; check it for blanks and line ends")]
    Key,
    /// What was given to be trusted is no certificate.
    #[error("there is no certificate in PEM to trust; give the server's, or that of whoever signed it")]
    Roots,
    /// No connection, or one that ended before the whole answer was there.
    #[error("no server answers at {url} ({why}); start one with `skep serve`, or set SKEP_URL")]
    Unreachable {
        /// The server's address.
        url: String,
        /// The kind of failure.
        fault: ConnectionFault,
        /// The innermost error of the network or of TLS.
        why: String,
    },
    /// The server refused.
    #[error("{}", body.message)]
    Refused {
        /// The HTTP status.
        status: u16,
        /// The stable code; `None` where whatever answered is no skep, or a newer one.
        code: Option<ErrorCode>,
        /// The request's id, which the server's log has too.
        request_id: Option<String>,
        /// What it said.
        body: ErrorBody,
    },
    /// The connection did not become a WebSocket.
    #[error(
        "the connection to {url} was not switched to a WebSocket (status {status}); a proxy in front of the server must pass on \
         the headers `Connection: Upgrade` and `Upgrade: websocket`"
    )]
    NotUpgraded {
        /// Which server.
        url: String,
        /// The HTTP status of the answer.
        status: u16,
    },
    /// The answer is not what the API promises.
    #[error("{url} answered what skep does not answer ({why}); is it a skep server of this version?")]
    Strange {
        /// Which server.
        url: String,
        /// What was wrong.
        why: String,
    },
}

/// Why there is no connection to a server.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum ConnectionFault {
    /// Nothing listens at the address.
    Refused,
    /// The address did not answer in time.
    Timeout,
    /// No certificate authority that this client trusts signed the server's certificate.
    UnknownIssuer,
    /// The server's certificate is for other host names, or is not valid at this time.
    WrongCertificate,
    /// The client began TLS, and the server answered without it.
    NotTls,
    /// Anything else, such as a host name without an address.
    Other,
}

impl ConnectionFault {
    /// The kind of the first error of the chain that has one.
    pub(crate) fn of(error: &reqwest::Error) -> Self {
        let mut at: Option<&(dyn std::error::Error + 'static)> = Some(error);
        while let Some(cause) = at {
            if let Some(tls) = cause.downcast_ref() {
                return Self::of_tls(tls);
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

    fn of_tls(error: &rustls::Error) -> Self {
        match error {
            rustls::Error::InvalidCertificate(rustls::CertificateError::UnknownIssuer) => Self::UnknownIssuer,
            rustls::Error::InvalidCertificate(_) => Self::WrongCertificate,
            rustls::Error::InvalidMessage(_) => Self::NotTls,
            _ => Self::Other,
        }
    }
}

/// The next error of a chain. An I/O error that holds another error has the source of that one, and not itself, as its source.
fn cause_of<'error>(
    error: &'error (dyn std::error::Error + 'static),
) -> Option<&'error (dyn std::error::Error + 'static)> {
    match error.downcast_ref::<io::Error>().and_then(io::Error::get_ref) {
        Some(held) => Some(held),
        None => error.source(),
    }
}

impl Error {
    /// The stable code; `internal` where it is not known.
    pub fn code(&self) -> ErrorCode {
        match self {
            Self::Url { .. } | Self::Roots => ErrorCode::InvalidValue,
            Self::Key => ErrorCode::InvalidToken,
            Self::Refused { code: Some(code), .. } => *code,
            Self::NotUpgraded { .. } => ErrorCode::UpgradeRequired,
            Self::Unreachable { .. } | Self::Refused { .. } | Self::Strange { .. } => ErrorCode::Internal,
        }
    }

    /// The kind that the code belongs to.
    pub fn kind(&self) -> ErrorKind {
        self.code().kind()
    }
}

impl From<Error> for Failure {
    fn from(error: Error) -> Self {
        Self::new(error.code(), error.to_string())
    }
}
