//! The errors of the swarm.

use std::time::Duration;

use skep_api::{ErrorCode, ErrorKind, Failure, VmId};

use crate::VmEnding;

/// An error of the swarm. Its message is for the log; callers get the message of its [`Failure`].
#[derive(Debug, thiserror::Error)]
pub enum Error {
    /// A refusal that is passed on to the caller.
    #[error(transparent)]
    Refused(#[from] Failure),
    /// The guest did not answer, or not correctly.
    #[error(transparent)]
    Guest(#[from] skep_channel::Error),
    /// The guest did not take its identity.
    #[error(transparent)]
    Identity(#[from] skep_channel::Mismatch),
    #[error(transparent)]
    Engine(#[from] skep_engine::Error),
    #[error(transparent)]
    Keeper(#[from] skep_keeper_protocol::Error),
    #[error(transparent)]
    Store(#[from] skep_store::Error),
    /// Nothing is reserved for the resume of a VM that is on disk by now. The swarm reserves it and tries again.
    #[error("nothing is reserved for its resume from disk")]
    NotReserved,
    /// A VM did not start, and all VMs of its boot were ended.
    #[error("VM {vm} of template `{template}` did not come up: {source}")]
    NotBooted { vm: VmId, template: String, source: Box<Error> },
    /// The VM ended between its boot and the answer.
    #[error("it ended right after its boot")]
    EndedEarly,
    /// The VM ended during a call. `None` if the reason was not known in time.
    #[error("the VM ended{}", after_colon(.0.as_ref()))]
    VmEnded(Option<VmEnding>),
    /// A task of the swarm panicked or was cancelled.
    #[error("a task of the swarm ended early: {0}")]
    Task(#[from] tokio::task::JoinError),
}

impl Error {
    /// Whether another attempt with new streams may succeed. `adopt/attempt.rs` has the reasons.
    pub(crate) fn new_streams_may_help(&self) -> bool {
        use skep_channel::Error::{Ended, Malformed, Timeout};
        matches!(self, Self::Engine(_) | Self::Guest(Ended | Malformed(_) | Timeout(_)))
    }

    pub fn code(&self) -> ErrorCode {
        match self {
            Self::Refused(failure) => failure.code,
            Self::Guest(error) => error.code(),
            Self::Engine(error) => error.code(),
            Self::Keeper(error) => error.code(),
            Self::Store(error) => error.code(),
            Self::NotBooted { source, .. } => source.code_of_boot(),
            Self::VmEnded(_) => ErrorCode::VmEnded,
            Self::Identity(_) | Self::NotReserved | Self::EndedEarly | Self::Task(_) => ErrorCode::Internal,
        }
    }

    pub fn kind(&self) -> ErrorKind {
        self.code().kind()
    }

    /// Whether one guest or its VMM failed, so that a retry with another VM may succeed.
    pub(crate) fn affects_one_vm_only(&self) -> bool {
        matches!(self, Self::Guest(_) | Self::Engine(_))
    }

    /// Whether the template is the cause, so that no VM of it can be restored.
    pub(crate) fn is_of_template(&self) -> bool {
        use ErrorCode::{TemplateDamaged, TemplateNotReady, UnknownTemplate};
        matches!(self.code(), UnknownTemplate | TemplateNotReady | TemplateDamaged)
    }

    /// The error of a pause or a resume. Errors of the VMM alone do not describe it.
    pub(crate) fn of_transition(self) -> Self {
        match self {
            Self::Engine(skep_engine::Error::MonitorClosed(_)) => Self::VmEnded(None),
            Self::Engine(skep_engine::Error::TimedOut { seconds, .. }) => {
                skep_channel::Error::Timeout(Duration::from_secs(seconds)).into()
            }
            other => other,
        }
    }

    /// The code of a boot that failed with this error. Codes of a guest or VMM do not describe the boot.
    fn code_of_boot(&self) -> ErrorCode {
        match self {
            Self::Guest(_) | Self::Engine(_) if self.kind() == ErrorKind::GuestTimeout => {
                ErrorCode::GuestTimeout
            }
            Self::Guest(_) | Self::Engine(_) | Self::Identity(_) | Self::EndedEarly => ErrorCode::BootFailed,
            _ => match self.code() {
                code @ (ErrorCode::UnknownTemplate
                | ErrorCode::TemplateDamaged
                | ErrorCode::TemplateNotReady
                | ErrorCode::NoCapacity
                | ErrorCode::SwarmUnavailable
                | ErrorCode::ShuttingDown) => code,
                _ => ErrorCode::Internal,
            },
        }
    }
}

fn after_colon(ending: Option<&VmEnding>) -> String {
    ending.map(|ending| format!(": {ending}")).unwrap_or_default()
}

/// Hides paths and internals of the server from callers; the log has them.
impl From<Error> for Failure {
    fn from(error: Error) -> Self {
        let code = error.code();
        let message = match (code, error) {
            (ErrorCode::Internal, _) => "internal error".to_owned(),
            (_, Error::Refused(failure)) => return failure,
            (_, Error::Guest(error)) => return error.into(),
            (_, error @ Error::VmEnded(_)) => error.to_string(),
            (_, Error::Store(error)) => return error.into(),
            // The keeper's message for these is meant for callers: it names the file or reason, and the consequence.
            (
                ErrorCode::TemplateDamaged | ErrorCode::TemplateNotReady,
                Error::Keeper(skep_keeper_protocol::Error::Refused(failure)),
            ) => {
                return failure;
            }
            (ErrorCode::TemplateDamaged | ErrorCode::TemplateNotReady, Error::NotBooted { source, .. }) => {
                return (*source).into();
            }
            (ErrorCode::BootFailed, _) => {
                "a VM did not come up, so none of this boot is left; try again, and read the \
                                           server's log if it happens again"
                    .to_owned()
            }
            (ErrorCode::GuestTimeout, _) => {
                "a VM did not come up in time, so none of this boot is left; the machine \
                                             may be overloaded: try again later"
                    .to_owned()
            }
            (ErrorCode::UnknownTemplate, Error::NotBooted { template, .. }) => {
                return Self::unknown_template(template);
            }
            // This is the error of a copy, a pause or a resume. The next arm is for boots.
            (ErrorCode::NoCapacity, Error::Keeper(_)) => {
                "this machine lacks the memory or the disk space for that now; end some VMs or delete some \
                 templates, and try again"
                    .to_owned()
            }
            (ErrorCode::NoCapacity, _) => {
                "this machine has no room for another VM; end some VMs first".to_owned()
            }
            (ErrorCode::ShuttingDown, _) => "the server is shutting down; try again".to_owned(),
            _ => "this server cannot run VMs now; its log says why, and `skep doctor` checks the machine"
                .to_owned(),
        };
        Self::new(code, message)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn boot(source: Error) -> Failure {
        let source = Box::new(source);
        Error::NotBooted { vm: VmId::generate(), template: "base".to_owned(), source }.into()
    }

    fn keeper(code: ErrorCode) -> Error {
        skep_keeper_protocol::Error::Refused(Failure::new(code, "/var/lib/skep/keeper: uid 1879048192"))
            .into()
    }

    #[test]
    fn internals_of_the_server_are_hidden_from_callers() {
        let gone = skep_engine::Error::MonitorClosed("`/var/lib/x` was not answered".to_owned());
        let failures = [
            (boot(keeper(ErrorCode::Internal)), ErrorCode::Internal),
            (boot(keeper(ErrorCode::SwarmUnavailable)), ErrorCode::SwarmUnavailable),
            (boot(keeper(ErrorCode::NoCapacity)), ErrorCode::NoCapacity),
            // A code that would blame the caller.
            (boot(keeper(ErrorCode::InvalidValue)), ErrorCode::Internal),
            (boot(skep_keeper_protocol::Error::Closed.into()), ErrorCode::ShuttingDown),
            (boot(gone.into()), ErrorCode::BootFailed),
            (boot(skep_channel::Error::Ended.into()), ErrorCode::BootFailed),
            (
                boot(
                    skep_channel::Error::Refused(Failure::new(ErrorCode::InvalidValue, "/var/lib/x")).into(),
                ),
                ErrorCode::BootFailed,
            ),
            (keeper(ErrorCode::Internal).into(), ErrorCode::Internal),
            (keeper(ErrorCode::NoCapacity).into(), ErrorCode::NoCapacity),
            (Error::from(skep_keeper_protocol::Error::Closed).into(), ErrorCode::ShuttingDown),
        ];
        for (failure, code) in failures {
            assert_eq!(failure.code, code, "{failure}");
            assert!(!failure.message.contains("/var/lib") && !failure.message.contains("uid"), "{failure}");
            assert!(!failure.message.contains("socket"), "{failure}");
        }
    }

    #[test]
    fn the_keepers_message_about_a_damaged_template_is_passed_on() {
        let failure = Failure::new(ErrorCode::TemplateDamaged, "`base` is damaged (root.erofs)");
        let refused = || Error::from(skep_keeper_protocol::Error::Refused(failure.clone()));
        assert_eq!(boot(refused()), failure);
        assert_eq!(Failure::from(refused()), failure);
    }

    #[test]
    fn a_guest_that_is_late_to_its_boot_is_a_timeout() {
        let late = boot(skep_channel::Error::Timeout(std::time::Duration::from_secs(60)).into());
        assert_eq!(late.code, ErrorCode::GuestTimeout);
        assert!(late.message.contains("none of this boot"), "{late}");
    }
}
