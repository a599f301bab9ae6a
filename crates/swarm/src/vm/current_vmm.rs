//! What changes when a VM is paused to disk and resumed.

use std::{
    collections::VecDeque,
    sync::{Mutex, MutexGuard, PoisonError},
};

use jiff::Timestamp;
use skep_api::TemplateId;
use skep_store::MAX_FORMER_PIDS;

use super::stored::Stored;

#[derive(Debug)]
pub(super) struct CurrentVmm(Mutex<Changing>);

#[derive(Debug)]
pub(super) struct Changing {
    pub(super) process: VmmProcess,
    /// The process ids that the VM had before and that still lead to it, oldest first. The store has them too.
    former_pids: VecDeque<u32>,
    /// The snapshot that the VM is on disk in, or is being paused to.
    pub(super) snapshot: Option<TemplateId>,
    /// What the keeper has of that snapshot, once it is stored.
    pub(super) stored: Stored,
}

/// The process of the VMM, or the last one while the VM is on disk.
#[derive(Debug, Clone, Copy)]
pub(super) struct VmmProcess {
    pub(super) pid: u32,
    /// When the VM was resumed from disk into it. `None` for its first process.
    pub(super) resumed_at: Option<Timestamp>,
}

impl CurrentVmm {
    /// `snapshot`: the one that the VM is on disk in.
    pub(super) fn new(process: VmmProcess, snapshot: Option<TemplateId>) -> Self {
        let (former_pids, stored) = (VecDeque::new(), Stored::default());
        Self(Mutex::new(Changing { process, former_pids, snapshot, stored }))
    }

    pub(super) fn lock(&self) -> MutexGuard<'_, Changing> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl Changing {
    /// Whether this is a former process id that still leads to the VM.
    pub(super) fn had_pid(&self, pid: u32) -> bool {
        self.former_pids.contains(&pid)
    }

    /// `pids`: those on record, oldest first.
    pub(super) fn set_former_pids(&mut self, pids: Vec<u32>) {
        self.former_pids = pids.into();
    }

    /// Makes the current process id a former one.
    pub(super) fn retire_pid(&mut self) {
        self.forget_pid(self.process.pid);
        if self.former_pids.len() >= MAX_FORMER_PIDS as usize {
            self.former_pids.pop_front();
        }
        self.former_pids.push_back(self.process.pid);
    }

    pub(super) fn forget_pid(&mut self, pid: u32) {
        self.former_pids.retain(|former| *former != pid);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_last_former_process_ids_are_kept() {
        let process = |pid| VmmProcess { pid, resumed_at: None };
        let vmm = CurrentVmm::new(process(0), None);
        let mut changing = vmm.lock();
        for pid in 1..=20 {
            changing.retire_pid();
            // A pause that failed retires it once more.
            changing.retire_pid();
            changing.process = process(pid);
        }
        let former: Vec<u32> = (0..=20).filter(|pid| changing.had_pid(*pid)).collect();
        assert_eq!(former, (4..=19).collect::<Vec<_>>());
        changing.forget_pid(7);
        assert!(!changing.had_pid(7) && changing.had_pid(8));
    }
}
