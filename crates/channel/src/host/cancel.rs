//! A caller that goes away ends its command.

use super::Guest;

/// Ends a command in the guest when it is dropped, unless it was disarmed. By a request of its own: a connection that
/// is merely lost must not end anything.
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

    /// One that never ends anything.
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
