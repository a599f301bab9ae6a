//! The idle time of a VM: its task restarts it, and drops commands of the idle rule that are not due any more.

use skep_api::swarm::{EndReason, PausedBy};
use skep_store::Pause;

use super::{
    handle::{Command, GuestAccess, OtherCommand},
    task::VmTask,
};

impl VmTask {
    /// Shows callers whether the VM runs. If it does, its idle time counts from now on.
    pub(super) fn show(&self, access: GuestAccess) {
        if matches!(access, GuestAccess::Running(_)) {
            // Before callers see it: otherwise the check of each second may find a VM that runs, and count its pause as idle
            // time. The caller of a resume cannot do this, because it may be gone.
            self.handle.activity.touch();
        }
        self.access.send_replace(access);
    }

    /// Whether a command is for a VM that was idle, and this one is not any more: the command may have waited for the end
    /// of another one, such as a pause by a request.
    pub(super) fn is_outdated(&self, command: &Command) -> bool {
        let is_for_idleness = match command {
            Command::End(command) => command.reason == EndReason::Idle,
            Command::Other(command) => {
                matches!(**command, OtherCommand::Pause(_, Pause { by: PausedBy::Idle, .. }))
            }
        };
        is_for_idleness && self.handle.due_to_idleness().is_none()
    }
}
