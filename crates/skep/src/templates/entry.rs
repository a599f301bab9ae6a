//! A built template in the table of the keeper: its phases, and what follows from the outcome of a build.
//!
//! ```text
//! Building ──► Ready ──► Damaged | Outdated ──► Ready
//!     └──────► Failed                └─ (retry) ─┘
//! ```

use std::{
    collections::{BTreeMap, BTreeSet},
    os::fd::OwnedFd,
    path::PathBuf,
    sync::{Arc, Mutex},
    time::{Duration, Instant},
};

use rustix::process::{Signal, pidfd_send_signal};
use skep_api::{ErrorCode, Failure, TemplateId};
use skep_keeper_protocol::{TemplateState, TemplateStatus};
use skep_template::{Template, TemplateFile, shelf::Footprint};

use super::{Kind, Recipe, build_error::BuildError, idle_time::IdleTime};

/// Delay before the first retry of a failed rebuild; it doubles up to the maximum.
const MIN_RETRY_DELAY: Duration = Duration::from_secs(1);
const MAX_RETRY_DELAY: Duration = Duration::from_secs(300);
/// How often a build that waits looks whether it can begin.
const WAIT_INTERVAL: Duration = Duration::from_secs(1);

#[derive(Default)]
pub(super) struct Table {
    pub(super) templates: BTreeMap<TemplateId, Entry>,
    /// The process of the build that runs.
    builder: Option<(TemplateId, OwnedFd)>,
}

pub(super) struct Entry {
    pub(super) recipe: Recipe,
    pub(super) edition: u64,
    pub(super) phase: Phase,
    /// The space of its files, if it has any that stay whether VMs can be restored from them or not.
    files: Option<Footprint>,
    /// How long no VM has needed the template. Only used for `Kind::Disk`, which is removed then.
    unneeded: IdleTime,
    /// The last rebuild, if it failed.
    failed: Option<FailedRebuild>,
}

struct FailedRebuild {
    error: BuildError,
    delay: Duration,
}

pub(super) enum Phase {
    Building {
        step: String,
    },
    Ready(Ready),
    /// The build failed, and no earlier one is ready.
    Failed(BuildError),
    Damaged {
        reason: String,
    },
    Outdated {
        reason: String,
    },
}

#[derive(Clone)]
pub(super) struct Ready {
    pub(super) dir: PathBuf,
    key: String,
    pub(super) footprint: Footprint,
    /// Loaded and verified at its use, until none has followed for a minute.
    pub(super) loaded: Option<Arc<Template>>,
    /// Held while it is being loaded.
    pub(super) loading: Arc<Mutex<()>>,
    pub(super) idle: IdleTime,
}

/// How a build ended.
pub(super) enum Outcome {
    Built(Ready),
    /// It has not begun: its parent or the machine is not ready for it. For callers.
    Waits(&'static str),
    Failed(BuildError),
}

impl Table {
    /// Records the process of the build that runs. It is ended if its template was removed meanwhile.
    pub(super) fn begin_build(&mut self, id: TemplateId, process: OwnedFd) {
        if !self.templates.contains_key(&id) {
            end(&process);
        }
        self.builder = Some((id, process));
    }

    /// The templates whose files are in memory.
    pub(super) fn loaded(&self) -> impl Iterator<Item = &Arc<Template>> {
        self.templates.values().filter_map(|entry| match &entry.phase {
            Phase::Ready(ready) => ready.loaded.as_ref(),
            _ => None,
        })
    }

    /// The templates that the VMs on disk were restored from at first.
    pub(super) fn origins_of_pauses(&self) -> BTreeSet<TemplateId> {
        let pauses = self.templates.values().filter(|entry| entry.recipe.kind == Kind::Pause);
        pauses.map(|entry| entry.recipe.parent).collect()
    }

    /// A template that needs this one. One that was made from the disk of a snapshot does not need that any more, and a
    /// snapshot of its VMs has links to all files that it needs.
    pub(super) fn child_of(&self, id: TemplateId) -> Option<TemplateId> {
        let is_listed = self.templates.get(&id).is_some_and(|entry| entry.recipe.kind != Kind::Disk);
        let is_child = |recipe: &Recipe| {
            recipe.parent == id
                && match recipe.kind {
                    Kind::Build | Kind::Pause => true,
                    Kind::Snapshot => is_listed,
                    Kind::Disk => false,
                }
        };
        self.templates.iter().find(|(_, entry)| is_child(&entry.recipe)).map(|(child, _)| *child)
    }

    pub(super) fn end_build(&mut self) {
        self.builder = None;
    }

    /// Ends the build of a template that was removed.
    pub(super) fn stop_build(&self, id: TemplateId) {
        if let Some((_, process)) = self.builder.as_ref().filter(|(building, _)| *building == id) {
            end(process);
        }
    }
}

/// Asks a bake to end. It removes what it made.
fn end(process: &OwnedFd) {
    // Fails only if it has ended.
    let _ = pidfd_send_signal(process, Signal::TERM);
}

impl Entry {
    pub(super) fn new(recipe: Recipe, phase: Phase) -> Self {
        let files = match &phase {
            Phase::Ready(ready) => Some(ready.footprint),
            _ => None,
        };
        Self { recipe, edition: 0, phase, files, unneeded: IdleTime::default(), failed: None }
    }

    /// Like [`Entry::new`], of a snapshot with these files, whose memory may be unusable.
    pub(super) fn of_snapshot(recipe: Recipe, phase: Phase, files: Option<Footprint>) -> Self {
        Self { files, ..Self::new(recipe, phase) }
    }

    /// Records whether a VM needs the template. Returns whether it is to be removed, because only VMs need it and none has for
    /// a minute.
    pub(super) fn is_unneeded(&mut self, is_needed: bool, now: Instant) -> bool {
        self.recipe.kind == Kind::Disk
            && self.unneeded.is_over(is_needed || matches!(self.phase, Phase::Building { .. }), now)
    }

    /// Takes the outcome of a build. Returns the time until the next one, if one follows: a template that was ready before is
    /// needed, and what failed may be transient.
    pub(super) fn settle(&mut self, outcome: Outcome) -> Option<Duration> {
        match outcome {
            Outcome::Built(ready) => {
                self.files = Some(ready.footprint);
                (self.phase, self.failed) = (Phase::Ready(ready), None);
                None
            }
            Outcome::Waits(reason) => {
                if let Phase::Building { step } = &mut self.phase {
                    reason.clone_into(step);
                }
                Some(WAIT_INTERVAL)
            }
            Outcome::Failed(error)
                if matches!(self.phase, Phase::Damaged { .. } | Phase::Outdated { .. }) =>
            {
                let last = self.failed.take().map(|failed| failed.delay);
                let delay = last.map_or(MIN_RETRY_DELAY, |last| (last * 2).min(MAX_RETRY_DELAY));
                self.failed = Some(FailedRebuild { error, delay });
                Some(delay)
            }
            Outcome::Failed(error) => {
                self.phase = Phase::Failed(error);
                None
            }
        }
    }

    pub(super) fn status(&self, template: TemplateId) -> TemplateStatus {
        let state = match &self.phase {
            Phase::Building { step } => TemplateState::Building { step: step.clone() },
            Phase::Ready(Ready { key, .. }) => TemplateState::Ready { key: key.clone() },
            Phase::Failed(error) => TemplateState::Failed { failure: self.failure_of(*error) },
            Phase::Damaged { reason } => TemplateState::Damaged { reason: self.with_last_error(reason) },
            Phase::Outdated { reason } => TemplateState::Outdated { reason: self.with_last_error(reason) },
        };
        let Recipe { parent, size, .. } = self.recipe;
        let files = match &self.phase {
            Phase::Ready(ready) => Some(ready.footprint),
            _ => self.files,
        };
        let Footprint { all: size_bytes, own: own_bytes } = files.unwrap_or_default();
        TemplateStatus { template, parent: Some(parent), size, state, size_bytes, own_bytes }
    }

    /// Why no VM can be restored from it now.
    pub(super) fn refusal(&self, id: TemplateId) -> Failure {
        let (code, state, reason) = match &self.phase {
            Phase::Ready(_) | Phase::Building { .. } => {
                let message = format!("the template {id} is being built; try again in a minute");
                return Failure::new(ErrorCode::TemplateNotReady, message);
            }
            Phase::Failed(error) => return self.failure_of(*error),
            Phase::Outdated { reason } => (ErrorCode::TemplateNotReady, "outdated", reason),
            Phase::Damaged { reason } => (ErrorCode::TemplateDamaged, "damaged", reason),
        };
        let reason = self.with_last_error(reason);
        let message = match self.recipe.kind {
            Kind::Build => format!(
                "the template {id} is {state} ({reason}) and is being built again; try again in a minute"
            ),
            Kind::Snapshot => format!(
                "the template {id} is {state} ({reason}): its memory cannot be used; a boot without it (`\"memory\": false`) \
                 starts VMs from its disk alone, with its files and without its programs"
            ),
            Kind::Pause => format!(
                "the VM on disk is {state} ({reason}): its memory cannot be used; a resume without it (`\"memory\": false`) \
                 starts it again from its disk alone, with its files and without its programs"
            ),
            Kind::Disk => format!("the boot of the disk is {state} ({reason}); try again"),
        };
        Failure::new(code, message)
    }

    fn failure_of(&self, error: BuildError) -> Failure {
        if self.recipe.kind != Kind::Disk {
            return Failure::new(ErrorCode::TemplateNotReady, format!("the build failed: {error}"));
        }
        let (code, reason) = match error {
            BuildError::Damaged => (
                ErrorCode::TemplateDamaged,
                "its disk or its root file system is damaged; the log of the server names the file"
                    .to_owned(),
            ),
            BuildError::DiskFull | BuildError::NoCapacity => (ErrorCode::NoCapacity, error.to_string()),
            BuildError::NoParent => (ErrorCode::UnknownTemplate, "it was deleted meanwhile".to_owned()),
            _ => (ErrorCode::BootFailed, error.to_string()),
        };
        Failure::new(code, format!("no VM starts from the disk alone: {reason}"))
    }

    fn with_last_error(&self, reason: &str) -> String {
        match &self.failed {
            Some(failed) => format!("{reason}; the last build failed: {}", failed.error),
            None => reason.to_owned(),
        }
    }
}

impl Ready {
    /// `shared`: the files that are not its own, as in [`Footprint::of`].
    pub(super) fn of(dir: PathBuf, shared: &[TemplateFile]) -> Result<Self, skep_template::Error> {
        let key = skep_template::read_manifest(&dir)?.key;
        let footprint = Footprint::of(&dir, shared)?;
        Ok(Self { dir, key, footprint, loaded: None, loading: Arc::default(), idle: IdleTime::default() })
    }
}

#[cfg(test)]
mod tests {
    use std::{os::unix::process::ExitStatusExt, process::Command};

    use rustix::process::{Pid, PidfdFlags, pidfd_open};
    use skep_api::templates::GuestSize;

    use super::*;

    fn entry(phase: Phase) -> Entry {
        let size = GuestSize { memory_mb: 256, vcpus: 1, disk_mb: 2048 };
        Entry::new(Recipe::build(TemplateId::BASE, size), phase)
    }

    fn ready() -> Outcome {
        let (dir, key, footprint) = ("/somewhere".into(), "key".to_owned(), Footprint::default());
        let (loading, idle) = (Arc::default(), IdleTime::default());
        Outcome::Built(Ready { dir, key, footprint, loaded: None, loading, idle })
    }

    #[test]
    fn a_rebuild_is_tried_until_it_succeeds_and_keeps_the_reason_and_the_last_error() {
        let reasons = || "another kernel".to_owned();
        for phase in [Phase::Outdated { reason: reasons() }, Phase::Damaged { reason: reasons() }] {
            let mut entry = entry(phase);
            let delays: Vec<u64> = (0..11)
                .map(|_| entry.settle(Outcome::Failed(BuildError::DiskFull)).unwrap().as_secs())
                .collect();
            assert_eq!(delays, [1, 2, 4, 8, 16, 32, 64, 128, 256, 300, 300]);
            let (TemplateState::Outdated { reason } | TemplateState::Damaged { reason }) =
                entry.status(TemplateId::BASE).state
            else {
                panic!("{:?}", entry.status(TemplateId::BASE));
            };
            assert_eq!(reason, "another kernel; the last build failed: the disk of the server is full");
            assert!(entry.refusal(TemplateId::BASE).message.contains(&reason));
            assert_eq!(entry.settle(ready()), None);
            assert!(matches!(entry.status(TemplateId::BASE).state, TemplateState::Ready { .. }));
            // The next damage begins with the shortest delay, and without the old error.
            entry.phase = Phase::Damaged { reason: reasons() };
            assert!(!entry.refusal(TemplateId::BASE).message.contains("failed"));
            assert_eq!(entry.settle(Outcome::Failed(BuildError::Guest)), Some(MIN_RETRY_DELAY));
        }
    }

    #[test]
    fn the_files_of_a_snapshot_are_counted_while_its_memory_cannot_be_used() {
        let size = GuestSize { memory_mb: 256, vcpus: 1, disk_mb: 2048 };
        let recipe = Recipe { parent: TemplateId::BASE, size, kind: Kind::Pause };
        let reason = || "another processor".to_owned();
        for phase in [Phase::Outdated { reason: reason() }, Phase::Damaged { reason: reason() }] {
            let entry = Entry::of_snapshot(recipe, phase, Some(Footprint { all: 9, own: 4 }));
            assert_eq!(entry.status(TemplateId::generate()).own_bytes, 4);
        }
    }

    #[test]
    fn a_first_build_that_fails_is_not_tried_again() {
        let mut entry = entry(Phase::Building { step: String::new() });
        assert_eq!(entry.settle(Outcome::Failed(BuildError::Guest)), None);
        let TemplateState::Failed { failure } = entry.status(TemplateId::BASE).state else { panic!() };
        assert_eq!(failure.message, "the build failed: its guest did not boot");
    }

    #[test]
    fn a_build_that_waits_has_not_failed() {
        let waits = || Outcome::Waits("waits for its parent");
        let mut first = entry(Phase::Building { step: String::new() });
        assert_eq!(first.settle(waits()), Some(WAIT_INTERVAL));
        let TemplateState::Building { step } = first.status(TemplateId::BASE).state else { panic!() };
        assert_eq!(step, "waits for its parent");
        let mut again = entry(Phase::Outdated { reason: "another kernel".to_owned() });
        assert_eq!(again.settle(waits()), Some(WAIT_INTERVAL));
        let TemplateState::Outdated { reason } = again.status(TemplateId::BASE).state else { panic!() };
        assert_eq!(reason, "another kernel");
    }

    #[test]
    fn the_process_of_a_build_ends_whether_its_template_is_removed_before_or_after_it_is_known() {
        let id = TemplateId::generate();
        let signal = |remove_first: bool| {
            let mut child = Command::new("sleep").arg("600").spawn().unwrap();
            let process = pidfd_open(Pid::from_child(&child), PidfdFlags::empty()).unwrap();
            let mut table = Table::default();
            table.templates.insert(id, entry(Phase::Building { step: String::new() }));
            if remove_first {
                table.templates.remove(&id);
                table.stop_build(id);
                table.begin_build(id, process);
            } else {
                table.begin_build(id, process);
                assert!(child.try_wait().unwrap().is_none());
                table.templates.remove(&id);
                table.stop_build(id);
            }
            child.wait().unwrap().signal()
        };
        assert_eq!([signal(true), signal(false)], [Some(libc::SIGTERM); 2]);
    }
}
