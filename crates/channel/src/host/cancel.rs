//! Cancels a command when its caller goes away.

use super::Guest;

/// Cancels a command in the guest when dropped, unless it was disarmed. This takes an explicit request, since a lost
/// connection must not end a command.
#[derive(Debug)]
pub(super) struct CancelOnDrop {
    guest: Guest,
    id: String,
    armed: bool,
}

impl CancelOnDrop {
    pub(super) fn new(guest: &Guest, id: String) -> Self {
        Self { guest: guest.clone(), id, armed: true }
    }

    /// A guard that never cancels anything.
    pub(super) fn disarmed(guest: &Guest, id: String) -> Self {
        Self { guest: guest.clone(), id, armed: false }
    }

    pub(super) fn id(&self) -> &str {
        &self.id
    }

    pub(super) fn guest(&self) -> &Guest {
        &self.guest
    }

    pub(super) fn disarm(&mut self) {
        self.armed = false;
    }
}

impl Drop for CancelOnDrop {
    fn drop(&mut self) {
        if self.armed && !self.guest.is_closed() {
            self.guest.cancel_later(std::mem::take(&mut self.id));
        }
    }
}
