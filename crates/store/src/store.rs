//! The trait [`Store`].

use crate::{
    AccountStore, AuditStore, EventStore, GitStore, HealthStore, KeyStore, SessionStore, TemplateStore,
    TicketStore, VmStore, WaitlistStore, WebhookStore,
};

/// Persistent state of the server: the sum of one trait for each subject. Code takes the traits that it uses.
///
/// Each method is one command or query in one transaction. A command that returned `Ok` is durable, with its events; a
/// failed one changed nothing. A command that has been queued is executed even if its future is dropped. Every method can
/// fail with `Unavailable` or `Internal`; the documentation of each method names further errors.
pub trait Store:
    AccountStore
    + KeyStore
    + SessionStore
    + TemplateStore
    + VmStore
    + TicketStore
    + EventStore
    + GitStore
    + WaitlistStore
    + AuditStore
    + WebhookStore
    + HealthStore
{
}

impl<T> Store for T where
    T: AccountStore
        + KeyStore
        + SessionStore
        + TemplateStore
        + VmStore
        + TicketStore
        + EventStore
        + GitStore
        + WaitlistStore
        + AuditStore
        + WebhookStore
        + HealthStore
{
}
