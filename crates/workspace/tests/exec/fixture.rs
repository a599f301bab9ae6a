//! Workspaces with and without prepared shells.

use std::{collections::BTreeMap, rc::Rc};

use skep_api::exec::{ExecOutcome, RunCommand, Stdin};
use skep_harness::ControlGroup;
use skep_workspace::{Error, Output, Place, Run};
use tempfile::TempDir;

/// A temporary workspace whose control group is removed on drop.
pub(crate) struct Fixture {
    pub(crate) place: Place,
    pub(crate) group: ControlGroup,
    pub(crate) dir: Rc<TempDir>,
}

impl Fixture {
    /// A workspace that starts a new shell for each command.
    pub(crate) fn new() -> Self {
        Self::of(tempfile::tempdir().expect("a directory").into())
    }

    fn of(dir: Rc<TempDir>) -> Self {
        let group = ControlGroup::of_test("workspace");
        let env = environment();
        Self { place: Place::new("/", dir.path(), env, &group), group, dir }
    }

    /// A workspace with prepared shells.
    pub(crate) async fn with_prepared_shell() -> Self {
        Self::new().copy_with_prepared_shell().await
    }

    /// A workspace in the same directory, with prepared shells.
    pub(crate) async fn copy_with_prepared_shell(&self) -> Self {
        let fixture = Self::of(Rc::clone(&self.dir));
        let place = fixture.place.clone().with_prepared_shell();
        place.commands().wait_until_prepared().await;
        assert!(fixture.waiting_groups() == 1, "no shell waits");
        fixture
    }

    /// How many prepared shells are ready.
    pub(crate) fn waiting_groups(&self) -> usize {
        let Ok(groups) = std::fs::read_dir(&self.group) else { return 0 };
        groups.flatten().filter(|group| group.file_name().to_string_lossy().starts_with("shell.")).count()
    }

    pub(crate) async fn run_command(&self, command: RunCommand) -> Result<ExecOutcome, Error> {
        self.run_command_at(&self.place, command).await
    }

    /// Runs a command in `place`, once a prepared shell is ready if the place has any.
    pub(crate) async fn run_command_at(
        &self,
        place: &Place,
        command: RunCommand,
    ) -> Result<ExecOutcome, Error> {
        place.commands().wait_until_prepared().await;
        command.run(place).await
    }

    pub(crate) async fn run(&self, command: &str) -> ExecOutcome {
        self.run_command(request(command)).await.expect("it runs")
    }

    pub(crate) async fn start(&self, id: &str, command: &str) -> Output {
        self.place.commands().wait_until_prepared().await;
        let running = self.place.commands().start(id, &request(command), &self.place).expect("it starts");
        running.attach(0, 0)
    }
}

pub(crate) fn request(command: &str) -> RunCommand {
    RunCommand {
        command: command.to_owned(),
        cwd: None,
        env: BTreeMap::new(),
        stdin: Stdin::Empty,
        timeout_ms: 20_000,
    }
}

fn environment() -> BTreeMap<String, String> {
    let path = "/usr/local/bin:/usr/bin:/bin".to_owned();
    BTreeMap::from([("PATH".to_owned(), path), ("LANG".to_owned(), "C.UTF-8".to_owned())])
}
