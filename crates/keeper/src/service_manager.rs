//! Notifies the service manager, if one started the keeper, of readiness and shutdown (sd_notify(3)).
//!
//! Only the keeper sends notifications. A process that may send them can also set the main process of the service (`MAINPID=`), so
//! the server, which parses untrusted requests, must not.

use std::sync::Once;

use sd_notify::NotifyState;

/// Notifies the service manager that requests are answered. Only the first call sends a notification, so that a compromised server
/// cannot flood the service manager.
pub(crate) fn notify_ready() {
    static SENT: Once = Once::new();
    SENT.call_once(|| notify(NotifyState::Ready));
}

/// Notifies the service manager that the keeper is shutting down.
pub(crate) fn notify_stopping() {
    notify(NotifyState::Stopping);
}

fn notify(state: NotifyState<'_>) {
    if let Err(error) = sd_notify::notify(&[state]) {
        tracing::warn!(%error, "the service manager could not be notified: {error}");
    }
}
