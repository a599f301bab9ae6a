//! Why a call brought no answer, or a refusal.

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
    /// No server answered.
    #[error("no server answers at {url} ({why}); start one with `skep serve`, or set SKEP_URL")]
    Unreachable {
        /// Where it was looked for.
        url: String,
        /// What the network said.
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
    /// The answer is not what the API promises.
    #[error("{url} answered what skep does not answer ({why}); is it a skep server of this version?")]
    Strange {
        /// Which server.
        url: String,
        /// What was wrong.
        why: String,
    },
}

impl Error {
    /// The stable code; `internal` where it is not known.
    pub fn code(&self) -> ErrorCode {
        match self {
            Self::Url { .. } | Self::Roots => ErrorCode::InvalidValue,
            Self::Key => ErrorCode::InvalidToken,
            Self::Refused { code: Some(code), .. } => *code,
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
