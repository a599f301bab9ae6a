//! A built template in the table of the keeper: its phases, and what follows from the outcome of a build.
//!
//! ```text
//! Building ──► Ready ──► Damaged | Outdated ──► Ready
//!     └──────► Failed                └─ (retry) ─┘
//! ```

use std::{collections::BTreeMap, os::fd::OwnedFd, path::PathBuf, sync::Arc, time::Duration};

use rustix::process::{Signal, pidfd_send_signal};
use skep_api::{ErrorCode, Failure, TemplateId};
use skep_keeper_protocol::{TemplateState, TemplateStatus};
use skep_template::{Template, shelf::Footprint};

use super::{Kind, Recipe, build_error::BuildError, idle_time::IdleTime};

/// Delay before the first retry of a failed rebuild; it doubles up to the maximum.
const MIN_RETRY_DELAY: Duration = Duration::from_secs(1);
const MAX_RETRY_DELAY: Duration = Duration::from_secs(300);
/// How often a build that waits looks whether it can begin.
const WAIT_INTERVAL: Duration = Duration::from_secs(1);
/// What callers read about a template that is built again.
const BUILT_AGAIN: &str = " and is being built again; try again in a minute";

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
    /// It was never ready.
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
    footprint: Footprint,
    /// Loaded and verified at its use, until none has followed for a minute.
    pub(super) loaded: Option<Arc<Template>>,
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
        Self { recipe, edition: 0, phase, failed: None }
    }

    /// Takes the outcome of a build. Returns the time until the next one, if one follows: a template that was ready before is
    /// needed, and what failed may be transient.
    pub(super) fn settle(&mut self, outcome: Outcome) -> Option<Duration> {
        match outcome {
            Outcome::Built(ready) => {
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
            Phase::Ready(Ready { key, footprint, .. }) => {
                TemplateState::Ready { key: key.clone(), size_bytes: footprint.all, own_bytes: footprint.own }
            }
            Phase::Failed(error) => TemplateState::Failed { failure: failure_of(*error) },
            Phase::Damaged { reason } => TemplateState::Damaged { reason: self.with_last_error(reason) },
            Phase::Outdated { reason } => TemplateState::Outdated { reason: self.with_last_error(reason) },
        };
        let Recipe { parent, size, .. } = self.recipe;
        TemplateStatus { template, parent: Some(parent), size, state }
    }

    /// Why no VM can be restored from it now.
    pub(super) fn refusal(&self, id: TemplateId) -> Failure {
        let what = match self.recipe.kind {
            Kind::Build | Kind::Snapshot => format!("the template {id}"),
            Kind::Pause => "the VM on disk".to_owned(),
        };
        let (code, message) = match &self.phase {
            Phase::Ready(_) | Phase::Building { .. } => (
                ErrorCode::TemplateNotReady,
                format!("the template {id} is being built; try again in a minute"),
            ),
            Phase::Failed(error) => return failure_of(*error),
            Phase::Outdated { reason } => {
                let (reason, way_out) = (self.with_last_error(reason), self.way_out_of_outdated());
                (ErrorCode::TemplateNotReady, format!("{what} is outdated ({reason}){way_out}"))
            }
            Phase::Damaged { reason } => {
                let (reason, way_out) = (self.with_last_error(reason), self.way_out_of_damage());
                (ErrorCode::TemplateDamaged, format!("{what} is damaged ({reason}){way_out}"))
            }
        };
        Failure::new(code, message)
    }

    fn way_out_of_outdated(&self) -> &'static str {
        match self.recipe.kind {
            Kind::Build => BUILT_AGAIN,
            Kind::Snapshot => ": its memory cannot be used; delete it, and take another snapshot",
            Kind::Pause => ": its memory cannot be used; delete the VM, and boot another",
        }
    }

    fn way_out_of_damage(&self) -> &'static str {
        match self.recipe.kind {
            Kind::Build => BUILT_AGAIN,
            Kind::Snapshot => " and cannot be made again; delete it, and take another snapshot",
            Kind::Pause => " and cannot be resumed; delete the VM, and boot another",
        }
    }

    fn with_last_error(&self, reason: &str) -> String {
        match &self.failed {
            Some(failed) => format!("{reason}; the last build failed: {}", failed.error),
            None => reason.to_owned(),
        }
    }
}

fn failure_of(error: BuildError) -> Failure {
    Failure::new(ErrorCode::TemplateNotReady, format!("the build failed: {error}"))
}

impl Ready {
    pub(super) fn of(dir: PathBuf) -> Result<Self, skep_template::Error> {
        let key = skep_template::read_manifest(&dir)?.key;
        let footprint = Footprint::of(&dir)?;
        Ok(Self { dir, key, footprint, loaded: None, idle: IdleTime::default() })
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
        Outcome::Built(Ready { dir, key, footprint, loaded: None, idle: IdleTime::default() })
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
