//! Error messages of the command. It prints those of the server in one line, but has its own for a server that it cannot reach and
//! for a key that the server does not take.

mod connection;
mod key;

use serde::Serialize;
use skep_api::{ErrorCode, Failure};
use skep_client::Error;

/// An error as printed by `--json`.
#[derive(Debug, PartialEq, Eq, Serialize)]
pub(crate) struct Report {
    /// The HTTP status of a refusal; null if the server did not answer or no request was sent.
    status: Option<u16>,
    /// The stable code: the server's `Skep-Error`, `unreachable` or `usage`; null for other errors of the command.
    code: Option<&'static str>,
    pub(crate) message: String,
    /// The id of the request, which is also in the server's log.
    request_id: Option<String>,
}

impl Report {
    pub(crate) fn of(error: &anyhow::Error) -> Self {
        let client = error.chain().find_map(|cause| cause.downcast_ref::<Error>());
        let (status, code, request_id) = match client {
            Some(Error::Refused { status, code, request_id, .. }) => {
                // A refusal in a stream that had begun has no status of its own.
                let status = Some(*status).filter(|status| *status >= 400);
                (status, code.map(ErrorCode::as_str), request_id.clone())
            }
            Some(Error::Unreachable { .. }) => (None, Some("unreachable"), None),
            _ => (None, local_code(error).map(ErrorCode::as_str), None),
        };
        Self { status, code, message: message(error), request_id }
    }

    /// An error in the command line itself.
    pub(crate) fn usage(message: String) -> Self {
        Self { status: None, code: Some("usage"), message, request_id: None }
    }

    pub(crate) fn json(&self) -> String {
        serde_json::to_string(self).unwrap_or_else(|_| self.message.clone())
    }
}

/// The code of an error that this process detected itself.
fn local_code(error: &anyhow::Error) -> Option<ErrorCode> {
    error.chain().find_map(|cause| {
        let failure = cause.downcast_ref::<Failure>().map(|failure| failure.code);
        let store = || cause.downcast_ref::<skep_store::Error>().map(skep_store::Error::code);
        failure.or_else(store).or_else(|| Some(cause.downcast_ref::<skep_accounts::Error>()?.code()))
    })
}

/// An error and its causes, in one line.
fn message(error: &anyhow::Error) -> String {
    let mut text = String::new();
    for cause in error.chain() {
        let message = cause.downcast_ref::<Error>().map_or_else(|| cause.to_string(), of_client);
        // A transparent layer repeats the message of the error that it wraps.
        if !text.contains(&message) {
            let separator = if text.is_empty() { "" } else { ": " };
            text = format!("{text}{separator}{message}");
        }
    }
    text.replace('\n', " ")
}

/// The message for an error of the client.
pub(crate) fn of_client(error: &Error) -> String {
    match error {
        Error::Unreachable { url, fault, why } => connection::message(url, *fault, why),
        Error::Refused { code, body, .. } => {
            code.and_then(key::message).unwrap_or_else(|| body.message.clone())
        }
        Error::Key => key::malformed_key(),
        Error::Url { url } => format!(
            "`{url}` is not the URL of a server; give one such as http://127.0.0.1:7700 with --url or SKEP_URL"
        ),
        Error::Roots => "--ca-file names a file without a certificate in PEM".to_owned(),
        Error::UnexpectedAnswer { url, why } => {
            format!("{url} did not answer as a skep server does ({why}); check --url and SKEP_URL")
        }
        Error::NotUpgraded { .. } => error.to_string(),
    }
}
