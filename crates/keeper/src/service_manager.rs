//! Tells the service manager, if one started this process, about the state of the service (sd_notify(3)). The server does not:
//! whoever may send such messages can also name another process as the main one.

use std::sync::Once;

use sd_notify::NotifyState;

/// Requests are answered. Said once, however often a server reports it.
pub(crate) fn tell_ready() {
    static TOLD: Once = Once::new();
    TOLD.call_once(|| tell(NotifyState::Ready));
}

/// The keeper was asked to stop.
pub(crate) fn tell_stopping() {
    tell(NotifyState::Stopping);
}

fn tell(state: NotifyState<'_>) {
    if let Err(error) = sd_notify::notify(&[state]) {
        tracing::warn!(%error, "the service manager could not be told of the state of the service: {error}");
    }
}
