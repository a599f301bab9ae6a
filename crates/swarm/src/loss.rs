//! Why a VM of an earlier server is lost, for its owner.

use crate::Error;

/// Describes in one sentence why a VM could not be taken over. Nothing that a guest sent and no internals of the server are
/// in it; the log has them.
pub(crate) fn message(error: &Error) -> String {
    match error {
        // Only the adoption itself refuses a VM.
        Error::Refused(failure) => failure.message.clone(),
        Error::Guest(error) => of_guest(error),
        _ => "its process could not be reached".to_owned(),
    }
}

fn of_guest(error: &skep_channel::Error) -> String {
    match error {
        skep_channel::Error::UnsupportedProtocol(unsupported) => unsupported.to_string(),
        skep_channel::Error::Timeout(limit) => format!("it did not answer within {} s", limit.as_secs()),
        skep_channel::Error::Ended => "its guest agent closed the connection".to_owned(),
        _ => "its guest agent sent an invalid answer".to_owned(),
    }
}

#[cfg(test)]
mod tests {
    use std::time::Duration;

    use skep_api::{ErrorCode, Failure};
    use skep_channel::UnsupportedProtocol;

    use super::*;

    #[test]
    fn a_loss_is_explained_without_internals_and_without_text_of_the_guest() {
        let secret = || "/var/lib/skep: uid 1879048192".to_owned();
        let refused = || Failure::new(ErrorCode::Internal, secret());
        let cases: [(Error, &str); 7] = [
            (
                skep_channel::Error::UnsupportedProtocol(UnsupportedProtocol { protocol: 1 }).into(),
                "its guest agent speaks protocol 1, this skep speaks 2",
            ),
            (skep_channel::Error::Timeout(Duration::from_secs(30)).into(), "it did not answer within 30 s"),
            (skep_channel::Error::Ended.into(), "its guest agent closed the connection"),
            (skep_channel::Error::Malformed(secret()).into(), "its guest agent sent an invalid answer"),
            (skep_channel::Error::Refused(refused()).into(), "its guest agent sent an invalid answer"),
            (skep_keeper_protocol::Error::Refused(refused()).into(), "its process could not be reached"),
            (skep_engine::Error::MonitorClosed(secret()).into(), "its process could not be reached"),
        ];
        for (error, expected) in cases {
            assert_eq!(message(&error), expected);
        }
    }
}
