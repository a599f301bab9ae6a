//! Why a VM of an earlier server is lost, for its owner.

use crate::Error;

/// A step of the adoption of a VM.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Step {
    /// The keeper hands out new streams of the VM.
    Keeper,
    /// The monitor of the VMM answers.
    Monitor,
    /// The guest agent begins a new connection.
    Agent,
    /// The guest agent reports its protocol.
    Protocol,
    /// The guest agent sets its clock.
    Clock,
    /// The guest agent lets its programs run.
    Thaw,
}

impl Step {
    /// What did not happen in time.
    fn not_done(self) -> &'static str {
        match self {
            Self::Keeper => "the keeper did not answer",
            Self::Monitor => "its process did not answer",
            Self::Agent => "its guest agent did not answer",
            Self::Protocol => "its guest agent did not report its protocol",
            Self::Clock => "its guest agent did not set its clock",
            Self::Thaw => "its guest agent did not let its programs run",
        }
    }
}

/// Describes in one sentence why a VM could not be taken over. Nothing that a guest sent and no internals of the server are
/// in it; the log has them.
pub(crate) fn message(step: Step, error: &Error) -> String {
    match error {
        // Only the adoption itself refuses a VM.
        Error::Refused(failure) => failure.message.clone(),
        Error::Guest(error) => of_guest(step, error),
        _ => "its process could not be reached".to_owned(),
    }
}

fn of_guest(step: Step, error: &skep_channel::Error) -> String {
    match error {
        skep_channel::Error::UnsupportedProtocol(unsupported) => unsupported.to_string(),
        skep_channel::Error::Timeout(limit) => format!("{} within {} s", step.not_done(), limit.as_secs()),
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
            (
                skep_channel::Error::Timeout(Duration::from_secs(30)).into(),
                "its guest agent did not answer within 30 s",
            ),
            (skep_channel::Error::Ended.into(), "its guest agent closed the connection"),
            (skep_channel::Error::Malformed(secret()).into(), "its guest agent sent an invalid answer"),
            (skep_channel::Error::Refused(refused()).into(), "its guest agent sent an invalid answer"),
            (skep_keeper_protocol::Error::Refused(refused()).into(), "its process could not be reached"),
            (skep_engine::Error::MonitorClosed(secret()).into(), "its process could not be reached"),
        ];
        for (error, expected) in cases {
            assert_eq!(message(Step::Agent, &error), expected);
        }
    }
}
