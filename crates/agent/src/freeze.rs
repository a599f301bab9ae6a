//! Stops and continues all programs of users, for a copy of the VM: the parent of their control groups is frozen. The
//! agent is outside of that group.

use std::{
    fs::{self, File},
    path::{Path, PathBuf},
    sync::Arc,
    time::Duration,
};

use rustix::fs::syncfs;
use skep_channel::{FreezeReport, FreezeRequest};
use tokio::{
    sync::watch,
    task::spawn_blocking,
    time::{Instant, sleep, timeout_at},
};

use crate::{
    console,
    error::{Error, StepContext},
};

/// How long programs may take to stop: those that wait for a disk cannot stop before it answers.
const LIMIT: Duration = Duration::from_secs(5);
/// The interval at which the kernel is asked whether all programs have stopped.
const POLL_INTERVAL: Duration = Duration::from_millis(1);
const MAX_TOKEN_BYTES: usize = 128;

/// Whether the programs in a control group are frozen. Cheap to clone; clones share it.
#[derive(Debug, Clone)]
pub(crate) struct Freezer {
    group: Arc<Path>,
    limit: Duration,
    /// The token of the freeze, from its start until the thaw.
    token: Arc<watch::Sender<Option<String>>>,
}

impl Freezer {
    /// For the programs in this control group and those below it.
    pub(crate) fn new(group: impl Into<PathBuf>) -> Self {
        Self { group: group.into().into(), limit: LIMIT, token: Arc::new(watch::Sender::new(None)) }
    }

    /// Stops the programs, and with `sync` also syncs the file system of the disk. If that fails, they run on.
    ///
    /// If the caller goes away meanwhile, the freeze stays until [`Self::thaw`].
    pub(crate) async fn freeze(&self, request: &FreezeRequest) -> Result<FreezeReport, Error> {
        let FreezeRequest { token, sync } = request;
        if !(1..=MAX_TOKEN_BYTES).contains(&token.len()) {
            return Err(Error::Token { bytes: token.len() });
        }
        self.check_free_for(token)?;
        self.write(true)?;
        self.token.send_replace(Some(token.to_owned()));
        let frozen = async {
            self.wait_until_frozen(token).await?;
            if *sync {
                sync_disk().await?;
            }
            self.check_held(token)
        };
        match frozen.await {
            Ok(()) => Ok(FreezeReport { synced: *sync }),
            Err(error) => {
                // Another caller may have thawed and frozen the programs again; its freeze stays.
                if self.check_held(token).is_ok()
                    && let Err(error) = self.release()
                {
                    console::log(&error.to_string());
                }
                Err(error)
            }
        }
    }

    /// Lets the programs run again. With a token, only its own freeze ends.
    pub(crate) fn thaw(&self, token: Option<&str>) -> Result<(), Error> {
        if self.token.borrow().is_none() {
            return Ok(());
        }
        if let Some(token) = token {
            self.check_free_for(token)?;
        }
        self.release()
    }

    /// Waits until programs are not frozen.
    pub(crate) async fn until_thawed(&self) {
        // The sender is `self`, so that it is not closed.
        let _ = self.token.subscribe().wait_for(Option::is_none).await;
    }

    /// Fails while another token is held. The same token may be taken again: its first answer may have been lost.
    fn check_free_for(&self, token: &str) -> Result<(), Error> {
        match &*self.token.borrow() {
            Some(held) if held != token => Err(Error::FrozenByAnother),
            _ => Ok(()),
        }
    }

    fn check_held(&self, token: &str) -> Result<(), Error> {
        if self.token.borrow().as_deref() == Some(token) { Ok(()) } else { Err(Error::Thawed) }
    }

    fn release(&self) -> Result<(), Error> {
        self.write(false)?;
        self.token.send_replace(None);
        Ok(())
    }

    fn write(&self, frozen: bool) -> Result<(), Error> {
        let (value, what) = if frozen { ("1", "freeze all programs") } else { ("0", "thaw all programs") };
        fs::write(self.group.join("cgroup.freeze"), value).context(what)
    }

    async fn wait_until_frozen(&self, token: &str) -> Result<(), Error> {
        let events = self.group.join("cgroup.events");
        let deadline = Instant::now() + self.limit;
        loop {
            let text = fs::read_to_string(&events).context(format!("read {}", events.display()))?;
            if is_frozen(&text) {
                return Ok(());
            }
            self.check_held(token)?;
            timeout_at(deadline, sleep(POLL_INTERVAL)).await.map_err(|_| Error::NotFrozen(self.limit))?;
        }
    }
}

/// Whether `cgroup.events` reports that all processes of the group have stopped.
fn is_frozen(events: &str) -> bool {
    events.lines().any(|line| line == "frozen 1")
}

/// Syncs the file system of the VM's own disk, to which the overlay at the root passes this.
async fn sync_disk() -> Result<(), Error> {
    let sync = || File::open("/").and_then(|root| Ok(syncfs(root)?));
    let synced = spawn_blocking(sync).await.map_err(|error| Error::step("sync the disk", error))?;
    synced.context("sync the disk")
}

#[cfg(test)]
mod tests {
    use super::*;

    /// A folder in place of a control group. Without a kernel, programs stop when a test says so.
    fn freezer(frozen: bool) -> (tempfile::TempDir, Freezer) {
        let group = tempfile::tempdir().unwrap();
        report(&group, frozen);
        let freezer = Freezer::new(group.path());
        (group, freezer)
    }

    fn report(group: &tempfile::TempDir, frozen: bool) {
        let text = format!("populated 1\nfrozen {}\n", u8::from(frozen));
        fs::write(group.path().join("cgroup.events"), text).unwrap();
    }

    fn asked(group: &tempfile::TempDir) -> String {
        fs::read_to_string(group.path().join("cgroup.freeze")).unwrap_or_default()
    }

    fn request(token: &str) -> FreezeRequest {
        FreezeRequest { token: token.to_owned(), sync: false }
    }

    #[test]
    fn only_the_whole_line_reports_a_frozen_group() {
        assert!(is_frozen("populated 1\nfrozen 1\n") && is_frozen("frozen 1"));
        for other in
            ["", "frozen 0\n", "populated 1\nfrozen", "frozen 10\n", "unfrozen 1\n", "frozen  1\n", "\0"]
        {
            assert!(!is_frozen(other), "{other:?}");
        }
    }

    #[tokio::test]
    async fn only_its_own_token_or_none_ends_a_freeze() {
        let (group, freezer) = freezer(true);
        freezer.thaw(Some("a")).unwrap();
        assert_eq!(asked(&group), "");
        freezer.freeze(&request("a")).await.unwrap();
        assert!(matches!(freezer.freeze(&request("b")).await, Err(Error::FrozenByAnother)));
        assert!(matches!(freezer.thaw(Some("b")), Err(Error::FrozenByAnother)));
        assert_eq!(asked(&group), "1");
        freezer.freeze(&request("a")).await.unwrap();
        freezer.thaw(Some("a")).unwrap();
        assert_eq!(asked(&group), "0");
        freezer.freeze(&request("b")).await.unwrap();
        freezer.thaw(None).unwrap();
        assert_eq!(asked(&group), "0");
    }

    #[tokio::test]
    async fn a_token_has_a_limit() {
        let (group, freezer) = freezer(true);
        for token in [String::new(), "x".repeat(MAX_TOKEN_BYTES + 1)] {
            assert!(matches!(freezer.freeze(&request(&token)).await, Err(Error::Token { .. })));
        }
        assert_eq!(asked(&group), "");
        freezer.freeze(&request(&"x".repeat(MAX_TOKEN_BYTES))).await.unwrap();
    }

    #[tokio::test(start_paused = true)]
    async fn programs_that_do_not_stop_in_time_run_on() {
        let (group, freezer) = freezer(false);
        let late = freezer.freeze(&request("a")).await.unwrap_err();
        assert!(matches!(late, Error::NotFrozen(LIMIT)), "{late}");
        assert_eq!(asked(&group), "0");
        // Nothing is left of it.
        report(&group, true);
        freezer.freeze(&request("b")).await.unwrap();
    }

    #[tokio::test(start_paused = true)]
    async fn a_thaw_ends_a_freeze_that_still_waits_and_a_later_freeze_stays() {
        let (group, freezer) = freezer(false);
        let waiting = tokio::spawn({
            let freezer = freezer.clone();
            async move { freezer.freeze(&request("a")).await }
        });
        freezer.token.subscribe().wait_for(Option::is_some).await.unwrap();
        freezer.thaw(None).unwrap();
        report(&group, true);
        freezer.freeze(&request("b")).await.unwrap();
        // It sees the group of the later freeze, and must not take it for its own.
        assert!(matches!(waiting.await.unwrap(), Err(Error::Thawed)));
        assert_eq!(asked(&group), "1");
        assert!(matches!(freezer.thaw(Some("a")), Err(Error::FrozenByAnother)));
    }

    #[tokio::test]
    async fn programs_are_started_only_when_others_run() {
        let (_group, freezer) = freezer(true);
        freezer.until_thawed().await;
        freezer.freeze(&request("a")).await.unwrap();
        let mut start = tokio::spawn({
            let freezer = freezer.clone();
            async move { freezer.until_thawed().await }
        });
        tokio::task::yield_now().await;
        assert!(!start.is_finished());
        freezer.thaw(Some("a")).unwrap();
        (&mut start).await.unwrap();
    }

    #[tokio::test]
    async fn a_group_that_cannot_be_frozen_is_an_error_and_not_held() {
        let freezer = Freezer::new("/nonexistent");
        for token in ["a", "b"] {
            assert!(matches!(freezer.freeze(&request(token)).await, Err(Error::Step { .. })));
        }
        freezer.until_thawed().await;
    }
}
