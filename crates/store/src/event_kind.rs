//! The kinds of events, and the families that they belong to.

use std::fmt;

use skep_api::Scope;

/// Declares the families of events, with the scope that a key needs to read them, and the kinds of each with their
/// names in the API, which begin with the name of the family.
macro_rules! event_kinds {
    ($($family:ident($family_name:literal, $scope:ident) {
        $($(#[$doc:meta])* $kind:ident = $name:literal,)+
    })+) => {
        /// The kinds whose names begin with the same word.
        #[derive(Debug, Clone, Copy, PartialEq, Eq)]
        pub enum EventFamily {
            $($family,)+
        }

        impl EventFamily {
            /// All families, in the order of their kinds.
            pub const ALL: &'static [Self] = &[$(Self::$family),+];

            /// The word that its kinds begin with.
            pub const fn as_str(self) -> &'static str {
                match self {
                    $(Self::$family => $family_name,)+
                }
            }

            /// The pattern that stands for all kinds of the family in the API, such as `vm.*`.
            pub const fn pattern(self) -> &'static str {
                match self {
                    $(Self::$family => concat!($family_name, ".*"),)+
                }
            }

            /// The scope that a key needs to read its events.
            pub const fn scope(self) -> Scope {
                match self {
                    $(Self::$family => Scope::$scope,)+
                }
            }
        }

        /// What happened.
        #[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
        pub enum EventKind {
            $($($(#[$doc])* $kind,)+)+
        }

        impl EventKind {
            /// All kinds; those of one family stand together.
            pub const ALL: &'static [Self] = &[$($(Self::$kind),+),+];

            /// The name in the API.
            pub const fn as_str(self) -> &'static str {
                match self {
                    $($(Self::$kind => $name,)+)+
                }
            }

            pub const fn family(self) -> EventFamily {
                match self {
                    $($(Self::$kind)|+ => EventFamily::$family,)+
                }
            }
        }
    };
}

event_kinds! {
    Key("key", Admin) {
        /// A key was created. Body: `key`, `name`, `prefix`, `role`, `scopes`, `vm`, `expires_at`.
        KeyCreated = "key.created",
        /// A key was revoked. Body: `key`, `name`, `vm`.
        KeyRevoked = "key.revoked",
        /// A key was replaced by another one that has its name. Body: `key`, `name`, `successor`.
        KeyRotated = "key.rotated",
    }
    Ticket("ticket", TicketsRead) {
        /// A ticket was created. Body of all ticket events: `ticket`, `actor`, `changes`, `attempt`. Here `ticket` is the
        /// record, in the other events the id.
        TicketCreated = "ticket.created",
        TicketUpdated = "ticket.updated",
        /// A ticket became claimable.
        TicketReady = "ticket.ready",
        /// An attempt at a ticket started.
        TicketClaimed = "ticket.claimed",
        /// A ticket that this one depends on failed.
        TicketBlocked = "ticket.blocked",
        /// The holder released the ticket, which ended the attempt.
        TicketReleased = "ticket.released",
        /// An attempt was ended by the server: its lease expired, its VM or command ended, or it exceeded its maximum
        /// runtime.
        TicketLeaseExpired = "ticket.lease_expired",
        TicketCompleted = "ticket.completed",
        TicketFailed = "ticket.failed",
        /// A failed ticket was made pending again.
        TicketReopened = "ticket.reopened",
        TicketDeleted = "ticket.deleted",
    }
    Template("template", SwarmRead) {
        /// The build of a template began. Body of all template events: `template`, `name`.
        TemplateBuilding = "template.building",
        /// A template was built, or built again.
        TemplateReady = "template.ready",
        /// A template could not be built. Body: `template`, `name`, `reason`.
        TemplateFailed = "template.failed",
        /// A template does not fit this machine, kernel or version of skep any more. Body: `template`, `name`, `reason`.
        TemplateOutdated = "template.outdated",
        TemplateDeleted = "template.deleted",
    }
    Vm("vm", SwarmRead) {
        /// A VM was booted. Body: `vm`, `pid`, `name`, `boot`.
        VmBooted = "vm.booted",
        /// The name of a VM was changed or removed. Body: `vm`, `pid`, `name`, `from`.
        VmRenamed = "vm.renamed",
        /// A VM was paused. Body: `vm`, `pid`, `name`, `paused_to`.
        VmPaused = "vm.paused",
        /// A paused VM runs again. Body: `vm`, `pid`, `name`.
        VmResumed = "vm.resumed",
        /// A snapshot of a VM was stored. Body: `vm`, `pid`, `template`, `name` of the template.
        VmSnapshotted = "vm.snapshotted",
        /// The memory of a VM on disk cannot be used, because its snapshot is outdated or damaged. Body: `vm`, `pid`, `name`,
        /// `message`.
        VmOutdated = "vm.outdated",
        /// A VM ended. Body: `vm`, `pid`, `reason`, for some reasons `message`.
        VmEnded = "vm.ended",
    }
}

impl EventKind {
    /// The kind with this name in the API.
    pub fn named(name: &str) -> Option<Self> {
        Self::ALL.iter().copied().find(|kind| kind.as_str() == name)
    }

    /// Whether `word` is the name of this kind, or the pattern of its family, such as `vm.*`.
    pub fn matches(self, word: &str) -> bool {
        word == self.as_str() || word == self.family().pattern()
    }
}

impl fmt::Display for EventKind {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.pad(self.as_str())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn each_name_is_unique_and_begins_with_its_family() {
        for kind in EventKind::ALL {
            let (family, rest) = kind.as_str().split_once('.').unwrap();
            assert_eq!(family, kind.family().as_str(), "{kind}");
            assert!(!rest.is_empty() && !rest.contains('.'), "{kind}");
            assert_eq!(EventKind::named(kind.as_str()), Some(*kind));
            assert!(kind.matches(kind.family().pattern()) && kind.matches(kind.as_str()), "{kind}");
        }
        for family in EventFamily::ALL {
            assert!(EventKind::ALL.iter().any(|kind| kind.family() == *family), "{family:?} has no kind");
        }
    }
}
